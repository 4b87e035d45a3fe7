/* Arguments and results of a call as JSON text: tensors, None, bool, int, float, short strings, and lists and tuples of
   them. Everything else is rendered by the Python version, values.py, which is the reference. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <string.h>

#define SHORT 1000 /* characters of a string */

typedef struct {
    PyObject_HEAD PyObject *tensor_types; /* a frozenset */
    PyObject *quick_text;                 /* text of a tensor without a file, or None if it must be rendered in full */
    PyObject *tensor_text;                /* (tensor, path): the text of a tensor */
    PyObject *value_text;                 /* (value, path): the text of any other value */
    PyObject *mapping_text, *result_text; /* the Python versions of the two methods */
} ValueTexts;

/* A text under construction: ASCII characters, and before them a list of finished parts if some part was not ASCII. */
typedef struct {
    char *data, first[4096];
    size_t length, room;
    PyObject *parts;
} text;

static void open_text(text *to) {
    to->data = to->first;
    to->length = 0;
    to->room = sizeof to->first;
    to->parts = NULL;
}

static void close_text(text *to) {
    if (to->data != to->first) PyMem_Free(to->data);
    Py_CLEAR(to->parts);
}

static int reserve(text *to, size_t more) {
    if (to->room - to->length >= more) return 0;
    const size_t room = 2 * to->room + more;
    char *data = PyMem_Malloc(room);
    if (!data) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(data, to->data, to->length);
    if (to->data != to->first) PyMem_Free(to->data);
    to->data = data;
    to->room = room;
    return 0;
}

static int put(text *to, const char *from, size_t length) {
    if (reserve(to, length)) return -1;
    memcpy(to->data + to->length, from, length);
    to->length += length;
    return 0;
}
#define PUT(to, words) put(to, words, sizeof words - 1)

/* Moves what is there to the list of finished parts. */
static int finish_part(text *to) {
    PyObject *part = PyUnicode_FromStringAndSize(to->data, (Py_ssize_t)to->length);
    const int failed = !part || (!to->parts && !(to->parts = PyList_New(0))) || PyList_Append(to->parts, part);
    Py_XDECREF(part);
    to->length = 0;
    return failed ? -1 : 0;
}

/* Takes the string. */
static int put_string(text *to, PyObject *string) {
    int failed = !string;
    if (string && !PyUnicode_Check(string)) {
        PyErr_SetString(PyExc_TypeError, "the text of a value must be a string");
        failed = 1;
    } else if (string && PyUnicode_IS_COMPACT_ASCII(string)) {
        failed = put(to, (const char *)PyUnicode_1BYTE_DATA(string), (size_t)PyUnicode_GET_LENGTH(string));
    } else if (string) {
        failed = finish_part(to) || PyList_Append(to->parts, string);
    }
    Py_XDECREF(string);
    return failed ? -1 : 0;
}

static PyObject *join_text(text *to) {
    PyObject *all = NULL;
    if (!to->parts) {
        if ((all = PyUnicode_New((Py_ssize_t)to->length, 127))) memcpy(PyUnicode_1BYTE_DATA(all), to->data, to->length);
    } else if (!finish_part(to)) {
        PyObject *nothing = PyUnicode_New(0, 0);
        if (nothing) all = PyUnicode_Join(nothing, to->parts);
        Py_XDECREF(nothing);
    }
    close_text(to);
    return all;
}

static PyObject *drop_text(text *to) {
    close_text(to);
    return NULL;
}

/* Whether a string is its own JSON text between quotes. */
static int is_plain(PyObject *string, Py_ssize_t most) {
    if (!PyUnicode_IS_COMPACT_ASCII(string) || PyUnicode_GET_LENGTH(string) > most) return 0;
    const unsigned char *at = PyUnicode_1BYTE_DATA(string), *end = at + PyUnicode_GET_LENGTH(string);
    for (; at < end; at++)
        if (*at < 0x20 || *at == '"' || *at == '\\' || *at == 0x7f) return 0;
    return 1;
}

/* The path of a member, a new reference: "{path}.{name}", "" without a path. `name` may be NULL: then the number. */
static PyObject *path_below(PyObject *path, PyObject *name, Py_ssize_t number) {
    if (!PyUnicode_GET_LENGTH(path)) {
        Py_INCREF(path);
        return path;
    }
    return name ? PyUnicode_FromFormat("%U.%S", path, name) : PyUnicode_FromFormat("%U.%zd", path, number);
}

static int put_call(text *to, PyObject *render, PyObject *value, PyObject *path) {
    PyObject *args[2] = {value, path};
    return put_string(to, PyObject_Vectorcall(render, args, 2, NULL));
}

static int put_tensor(ValueTexts *self, text *to, PyObject *tensor, PyObject *path) {
    if (self->quick_text != Py_None && !PyUnicode_GET_LENGTH(path)) {
        PyObject *quick = PyObject_CallOneArg(self->quick_text, tensor);
        if (quick != Py_None) return put_string(to, quick);
        Py_DECREF(quick);
    }
    return put_call(to, self->tensor_text, tensor, path);
}

/* 1: done. 0: not a value of this kind, nothing was added. -1: error. */
static int put_scalar(text *to, PyObject *value) {
    PyTypeObject *kind = Py_TYPE(value);
    if (value == Py_None) return PUT(to, "null") ? -1 : 1;
    if (value == Py_True) return PUT(to, "{\"type\": \"bool\", \"value\": true}") ? -1 : 1;
    if (value == Py_False) return PUT(to, "{\"type\": \"bool\", \"value\": false}") ? -1 : 1;
    if (kind == &PyLong_Type) {
        int large;
        char digits[80];
        const long long number = PyLong_AsLongLongAndOverflow(value, &large);
        if (large) return 0;
        const int length = snprintf(digits, sizeof digits, "{\"type\": \"int\", \"value\": %lld}", number);
        return put(to, digits, (size_t)length) ? -1 : 1;
    }
    if (kind == &PyFloat_Type) {
        const double number = PyFloat_AS_DOUBLE(value);
        if (number - number != 0) return 0;
        char *digits = PyOS_double_to_string(number, 'r', 0, Py_DTSF_ADD_DOT_0, NULL);
        const int failed =
            !digits || PUT(to, "{\"type\": \"float\", \"value\": ") || put(to, digits, strlen(digits)) || PUT(to, "}");
        PyMem_Free(digits);
        return failed ? -1 : 1;
    }
    if (kind == &PyUnicode_Type && is_plain(value, SHORT)) {
        const char *characters = (const char *)PyUnicode_1BYTE_DATA(value);
        const int failed = PUT(to, "{\"type\": \"str\", \"value\": \"") ||
                           put(to, characters, (size_t)PyUnicode_GET_LENGTH(value)) || PUT(to, "\"}");
        return failed ? -1 : 1;
    }
    return 0;
}

static int is_leaf(ValueTexts *self, PyObject *value) {
    PyTypeObject *kind = Py_TYPE(value);
    if (value == Py_None || kind == &PyBool_Type || kind == &PyLong_Type || kind == &PyFloat_Type ||
        kind == &PyUnicode_Type)
        return 1;
    return PySet_Contains(self->tensor_types, (PyObject *)kind);
}

static int put_leaf(ValueTexts *self, text *to, PyObject *value, PyObject *path) {
    const int done = put_scalar(to, value);
    if (done) return done < 0 ? -1 : 0;
    const int tensor = PySet_Contains(self->tensor_types, (PyObject *)Py_TYPE(value));
    if (tensor < 0) return -1;
    return tensor ? put_tensor(self, to, value, path) : put_call(to, self->value_text, value, path);
}

/* The members of a list or a tuple. A list may change while Python renders a member. */
static int put_members(ValueTexts *self, text *to, PyObject *values, PyObject *path,
                       int (*member)(ValueTexts *, text *, PyObject *, PyObject *)) {
    if (PUT(to, "[")) return -1;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(values); i++) {
        PyObject *value = PySequence_Fast_GET_ITEM(values, i), *where = path_below(path, NULL, i);
        Py_INCREF(value);
        const int failed = !where || (i && PUT(to, ", ")) || member(self, to, value, where);
        Py_DECREF(value);
        Py_XDECREF(where);
        if (failed) return -1;
    }
    return PUT(to, "]");
}

static int put_value(ValueTexts *self, text *to, PyObject *value, PyObject *path) {
    if (PyTuple_CheckExact(value) || PyList_CheckExact(value)) {
        int leaves = 1;
        for (Py_ssize_t i = 0; leaves == 1 && i < PySequence_Fast_GET_SIZE(value); i++)
            leaves = is_leaf(self, PySequence_Fast_GET_ITEM(value, i));
        if (leaves < 0) return -1;
        return leaves ? put_members(self, to, value, path, put_leaf) : put_call(to, self->value_text, value, path);
    }
    return put_leaf(self, to, value, path);
}

static int are_texts(PyObject *const *args, Py_ssize_t count) {
    if (count == 2 && PyUnicode_Check(args[1])) return 1;
    PyErr_SetString(PyExc_TypeError, "a value and a path are needed");
    return 0;
}

static PyObject *sequence(ValueTexts *self, PyObject *const *args, Py_ssize_t count) {
    text to;
    if (!are_texts(args, count)) return NULL;
    PyObject *values = PySequence_Fast(args[0], "the arguments of a call must be iterable");
    if (!values) return NULL;
    open_text(&to);
    const int failed = put_members(self, &to, values, args[1], put_value);
    Py_DECREF(values);
    return failed ? drop_text(&to) : join_text(&to);
}

/* Whether all names need no escapes and are strings. */
static int has_plain_names(PyObject *values) {
    PyObject *name, *value;
    Py_ssize_t at = 0;
    if (!PyDict_CheckExact(values)) return 0;
    while (PyDict_Next(values, &at, &name, &value))
        if (!PyUnicode_CheckExact(name) || !is_plain(name, PY_SSIZE_T_MAX)) return 0;
    return 1;
}

static PyObject *mapping(ValueTexts *self, PyObject *const *args, Py_ssize_t count) {
    text to;
    PyObject *name, *value;
    Py_ssize_t at = 0, number = 0;
    if (!are_texts(args, count)) return NULL;
    if (!has_plain_names(args[0])) return PyObject_Vectorcall(self->mapping_text, args, 2, NULL);
    open_text(&to);
    int failed = PUT(&to, "{");
    while (!failed && PyDict_Next(args[0], &at, &name, &value)) {
        Py_INCREF(name);
        Py_INCREF(value);
        PyObject *where = path_below(args[1], name, 0);
        failed = !where || (number++ && PUT(&to, ", ")) || PUT(&to, "\"") ||
                 put(&to, (const char *)PyUnicode_1BYTE_DATA(name), (size_t)PyUnicode_GET_LENGTH(name)) ||
                 PUT(&to, "\": ") || put_value(self, &to, value, where);
        Py_XDECREF(where);
        Py_DECREF(name);
        Py_DECREF(value);
    }
    return failed || PUT(&to, "}") ? drop_text(&to) : join_text(&to);
}

static PyObject *value(ValueTexts *self, PyObject *const *args, Py_ssize_t count) {
    text to;
    if (!are_texts(args, count)) return NULL;
    open_text(&to);
    return put_value(self, &to, args[0], args[1]) ? drop_text(&to) : join_text(&to);
}

/* The result of a call as a list: the members of a plain tuple, or one item. */
static PyObject *result(ValueTexts *self, PyObject *const *args, Py_ssize_t count) {
    text to;
    if (!are_texts(args, count)) return NULL;
    if (PyTuple_CheckExact(args[0])) return sequence(self, args, count);
    if (PyTuple_Check(args[0])) return PyObject_Vectorcall(self->result_text, args, 2, NULL);
    PyObject *where = path_below(args[1], NULL, 0);
    if (!where) return NULL;
    open_text(&to);
    const int failed = PUT(&to, "[") || put_value(self, &to, args[0], where) || PUT(&to, "]");
    Py_DECREF(where);
    return failed ? drop_text(&to) : join_text(&to);
}

static PyObject *new_texts(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *words[] = {"tensor_types", "quick_text", "tensor_text", "reference", NULL};
    PyObject *types, *quick, *tensor, *reference;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!OOO:ValueTexts", words, &PyFrozenSet_Type, &types, &quick,
                                     &tensor, &reference))
        return NULL;
    ValueTexts *self = (ValueTexts *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    Py_INCREF(types);
    Py_INCREF(quick);
    Py_INCREF(tensor);
    self->tensor_types = types;
    self->quick_text = quick;
    self->tensor_text = tensor;
    if (!(self->value_text = PyObject_GetAttrString(reference, "value")) ||
        !(self->mapping_text = PyObject_GetAttrString(reference, "mapping")) ||
        !(self->result_text = PyObject_GetAttrString(reference, "result")))
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int visit_texts(ValueTexts *self, visitproc visit, void *arg) {
    Py_VISIT(self->tensor_types);
    Py_VISIT(self->quick_text);
    Py_VISIT(self->tensor_text);
    Py_VISIT(self->value_text);
    Py_VISIT(self->mapping_text);
    Py_VISIT(self->result_text);
    return 0;
}

static int clear_texts(ValueTexts *self) {
    Py_CLEAR(self->tensor_types);
    Py_CLEAR(self->quick_text);
    Py_CLEAR(self->tensor_text);
    Py_CLEAR(self->value_text);
    Py_CLEAR(self->mapping_text);
    Py_CLEAR(self->result_text);
    return 0;
}

static void free_texts(ValueTexts *self) {
    PyObject_GC_UnTrack(self);
    clear_texts(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

#define METHOD(name, about) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, about}

static PyMethodDef texts_methods[] = {
    METHOD(sequence, "sequence(values, path): the arguments of a call."),
    METHOD(mapping, "mapping(values, path): keyword arguments."),
    METHOD(result, "result(value, path): the result of a call, as a list."),
    METHOD(value, "value(value, path): one value by itself."),
    {NULL, NULL, 0, NULL},
};

static PyTypeObject texts_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "msprobe.collect.records._values.ValueTexts",
    .tp_basicsize = sizeof(ValueTexts),
    .tp_dealloc = (destructor)free_texts,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_traverse = (traverseproc)visit_texts,
    .tp_clear = (inquiry)clear_texts,
    .tp_methods = texts_methods,
    .tp_new = new_texts,
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_values", NULL, -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__values(void) {
    PyObject *made = PyType_Ready(&texts_type) ? NULL : PyModule_Create(&module);
    Py_INCREF(&texts_type);
    if (made && PyModule_AddObject(made, "ValueTexts", (PyObject *)&texts_type)) Py_CLEAR(made);
    return made;
}
