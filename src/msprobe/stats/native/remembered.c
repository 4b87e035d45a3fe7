/* What a step remembers of tensors: their text, for as long as nothing can have changed them. remembered.py is the twin,
   and says what each method does. */
#include "described.h"
#include "memory.h"

#include <structmember.h>

#include "weak.h"

/* What a tensor is asked for. */
static struct {
    PyObject *requires_grad, *version, *data_ptr;
} names;

/* What is known of one tensor for as long as it stays as it was. */
typedef struct {
    PyObject_HEAD
    PyObject *tensor; /* a weak reference */
    PyObject *text, *saved;
    Py_ssize_t at;
    PyObject *storage; /* the address of the memory it lies in, NULL where nothing is remembered of it */
    int64_t version, writes;
    void *memory;
    int grad;
} Entry;

static void free_entry(Entry *self) {
    Py_XDECREF(self->tensor);
    Py_XDECREF(self->text);
    Py_XDECREF(self->saved);
    Py_XDECREF(self->storage);
    PyObject_Free(self);
}

static PyMemberDef entry_members[] = {
    {"text", T_OBJECT, offsetof(Entry, text), READONLY, "The JSON of the tensor."},
    {"at", T_PYSSIZET, offsetof(Entry, at), READONLY, "Where in it further members have their place."},
    {NULL, 0, 0, 0, NULL},
};

/* Made when it is asked for: most entries get no file, and a list of each would wake the garbage collector. */
static PyObject *saved_of(Entry *self, void *closure) {
    (void)closure;
    if (!self->saved && !(self->saved = PyList_New(0)))
        return NULL;
    Py_INCREF(self->saved);
    return self->saved;
}

static PyGetSetDef entry_made[] = {
    {"saved", (getter)saved_of, NULL, "A list: the file that holds the tensor, once there is one.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject entry_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "msprobe.stats._kernel.Entry",
    .tp_basicsize = sizeof(Entry),
    .tp_dealloc = (destructor)free_entry,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_members = entry_members,
    .tp_getset = entry_made,
};

typedef struct {
    PyObject_HEAD
    PyObject *exchange, *heads, *strided;
    PyObject *known;   /* id of a tensor: Entry */
    PyObject *writes;  /* address of memory: how often it was written that we heard of */
    PyObject *exposed; /* addresses of memory that may change at any time */
    unsigned want;
    int remembers, checks;
} Remembered;

static PyObject *new_remembered(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *words[] = {"exchange", "heads", "strided", "want", "remembers", "checks", NULL};
    PyObject *exchange, *heads, *strided, *flags;
    int remembers, checks;
    unsigned want;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO!OOpp:Remembered", words, &exchange, &PyDict_Type, &heads,
                                     &strided, &flags, &remembers, &checks) ||
        read_want(flags, &want))
        return NULL;
    Remembered *self = (Remembered *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    Py_INCREF(exchange);
    Py_INCREF(heads);
    Py_INCREF(strided);
    self->exchange = exchange;
    self->heads = heads;
    self->strided = strided;
    self->want = want;
    self->remembers = remembers;
    self->checks = checks;
    self->known = PyDict_New();
    self->writes = PyDict_New();
    self->exposed = PySet_New(NULL);
    if (!self->known || !self->writes || !self->exposed)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void free_remembered(Remembered *self) {
    Py_XDECREF(self->exchange);
    Py_XDECREF(self->heads);
    Py_XDECREF(self->strided);
    Py_XDECREF(self->known);
    Py_XDECREF(self->writes);
    Py_XDECREF(self->exposed);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int64_t writes_to(Remembered *self, PyObject *storage) {
    PyObject *count = PyDict_GetItemWithError(self->writes, storage);
    return count ? PyLong_AsLongLong(count) : 0;
}

/* Fills in what must be as it was. 1, 0 where a tensor cannot be told apart from its later self, -1 on error. */
static int read_state(PyObject *tensor, Entry *to) {
    PyObject *version = PyObject_GetAttr(tensor, names.version), *address = NULL, *grad = NULL;
    if (version)
        address = PyObject_CallMethodNoArgs(tensor, names.data_ptr);
    if (address)
        grad = PyObject_GetAttr(tensor, names.requires_grad);
    if (grad) {
        to->version = PyLong_AsLongLong(version);
        to->memory = PyLong_AsVoidPtr(address);
        to->grad = PyObject_IsTrue(grad);
    }
    Py_XDECREF(version);
    Py_XDECREF(address);
    Py_XDECREF(grad);
    if (!PyErr_Occurred())
        return 1;
    if (!PyErr_ExceptionMatches(PyExc_RuntimeError)) /* of an inference tensor, a wrapper, one without memory */
        return -1;
    PyErr_Clear();
    return 0;
}

static PyObject *with_flag(const rendered *r, int grad, Py_ssize_t *at) {
    char text[sizeof r->text + 32], *end = text + (r->figures - r->text);
    const size_t digest = (size_t)(r->end - r->figures);
    memcpy(text, r->text, (size_t)(end - text));
    end = grad ? PUT(end, "\"requires_grad\": true") : PUT(end, "\"requires_grad\": false");
    *at = end - text;
    memcpy(end, r->figures, digest);
    end[digest] = '}';
    return PyUnicode_FromStringAndSize(text, *at + (Py_ssize_t)digest + 1);
}

static Entry *new_entry(void) {
    Entry *entry = PyObject_New(Entry, &entry_type);
    if (!entry)
        return NULL;
    entry->tensor = entry->text = entry->saved = entry->storage = NULL;
    entry->at = 0;
    return entry;
}

/* Remembers what `entry` says of a tensor where nobody can change it unnoticed. */
static int keep(Remembered *self, PyObject *tensor, PyObject *key, Entry *entry) {
    int private = 0, exposed;
    PyObject *storage = storage_of(tensor, &private);
    if (!storage)
        return -1;
    exposed = storage == Py_None || !private ? 1 : PySet_Contains(self->exposed, storage);
    if (exposed) {
        Py_DECREF(storage);
        return exposed < 0 ? -1 : 0;
    }
    entry->storage = storage;
    entry->writes = writes_to(self, storage);
    entry->tensor = PyWeakref_NewRef(tensor, NULL);
    return PyErr_Occurred() || !entry->tensor ? -1 : PyDict_SetItem(self->known, key, (PyObject *)entry);
}

/* Borrowed: the entry that still holds for a tensor in this state, or NULL. */
static Entry *recalled(Remembered *self, PyObject *tensor, PyObject *key, const Entry *state) {
    Entry *entry = (Entry *)PyDict_GetItemWithError(self->known, key);
    if (!entry || !refers_to(entry->tensor, tensor) || entry->version != state->version ||
        entry->memory != state->memory || entry->grad != state->grad || entry->writes != writes_to(self, entry->storage))
        return NULL;
    return entry;
}

/* MSPROBE_CHECK_CACHE=1: what is remembered is measured again, and must be the same. */
static int check(Remembered *self, PyObject *tensor, const Entry *entry) {
    rendered r;
    Py_ssize_t at;
    const int done = render_tensor(tensor, self->exchange, self->heads, self->strided, self->want, &r);
    if (done <= 0)
        return done;
    PyObject *text = with_flag(&r, entry->grad, &at);
    const int same = text ? PyUnicode_Compare(text, entry->text) == 0 : -1;
    Py_XDECREF(text);
    if (!same)
        PyErr_SetString(PyExc_AssertionError,
                        "msprobe remembered statistics of a tensor that has changed since: please report this call");
    return same == 1 ? 0 : -1;
}

/* A new reference; NULL without an error for a tensor that is not plain. */
static Entry *entry_of(Remembered *self, PyObject *tensor) {
    Entry state, *entry = NULL;
    rendered r;
    if (read_state(tensor, &state) != 1)
        return NULL;
    PyObject *key = PyLong_FromVoidPtr(tensor);
    if (!key)
        return NULL;
    Entry *known = recalled(self, tensor, key, &state);
    if (known) {
        Py_INCREF(known);
        if (!self->checks || !check(self, tensor, known))
            entry = known;
        else
            Py_DECREF(known);
    } else if (!PyErr_Occurred() &&
               render_tensor(tensor, self->exchange, self->heads, self->strided, self->want, &r) == 1 &&
               (entry = new_entry())) {
        entry->version = state.version;
        entry->memory = state.memory;
        entry->grad = state.grad;
        entry->text = with_flag(&r, state.grad, &entry->at);
        if (!entry->text || keep(self, tensor, key, entry))
            Py_CLEAR(entry);
    }
    Py_DECREF(key);
    return entry;
}

/* Without remembering anything. */
static PyObject *text_now(Remembered *self, PyObject *tensor, Py_ssize_t *at) {
    rendered r;
    if (render_tensor(tensor, self->exchange, self->heads, self->strided, self->want, &r) != 1)
        return NULL;
    PyObject *grad = PyObject_GetAttr(tensor, names.requires_grad);
    const int is = grad ? PyObject_IsTrue(grad) : -1;
    Py_XDECREF(grad);
    return is < 0 ? NULL : with_flag(&r, is, at);
}

/* RuntimeError and ValueError are a tensor's way to say that it is not plain. */
static PyObject *or_none(void *result) {
    if (result)
        return result;
    if (PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_RuntimeError) && !PyErr_ExceptionMatches(PyExc_ValueError))
            return NULL;
        PyErr_Clear();
    }
    return none();
}

static PyObject *text_of(Remembered *self, PyObject *tensor) {
    Py_ssize_t at;
    if (!self->remembers)
        return or_none(text_now(self, tensor, &at));
    Entry *entry = entry_of(self, tensor);
    if (!entry)
        return or_none(NULL);
    PyObject *text = entry->text;
    Py_INCREF(text);
    Py_DECREF(entry);
    return text;
}

static PyObject *look(Remembered *self, PyObject *tensor) {
    if (self->remembers)
        return or_none(entry_of(self, tensor));
    Entry *entry = new_entry();
    if (entry && !(entry->text = text_now(self, tensor, &entry->at)))
        Py_CLEAR(entry);
    return or_none(entry);
}

static PyObject *recall(Remembered *self, PyObject *tensor) {
    Entry state, *entry = NULL;
    const int told = self->remembers ? read_state(tensor, &state) : 0;
    PyObject *key = told == 1 ? PyLong_FromVoidPtr(tensor) : NULL;
    if (key)
        entry = recalled(self, tensor, key, &state);
    Py_XDECREF(key);
    Py_XINCREF(entry);
    return entry || PyErr_Occurred() ? (PyObject *)entry : none();
}

static PyObject *remember(Remembered *self, PyObject *args) {
    PyObject *tensor, *text, *key = NULL;
    Py_ssize_t at;
    if (!PyArg_ParseTuple(args, "OUn:remember", &tensor, &text, &at))
        return NULL;
    Entry *entry = new_entry();
    if (!entry)
        return NULL;
    Py_INCREF(text);
    entry->text = text;
    entry->at = at;
    const int told = self->remembers ? read_state(tensor, entry) : 0;
    if (told < 0 || (told && (!(key = PyLong_FromVoidPtr(tensor)) || keep(self, tensor, key, entry))))
        Py_CLEAR(entry);
    Py_XDECREF(key);
    return (PyObject *)entry;
}

static PyObject *is_ours(Remembered *self, PyObject *tensor) {
    int private = 0, exposed = 0;
    PyObject *storage = PySet_GET_SIZE(self->exposed) ? storage_of(tensor, &private) : NULL;
    if (storage)
        exposed = storage == Py_None || PySet_Contains(self->exposed, storage);
    else if (!PyErr_Occurred())
        private = is_private(tensor); /* its address is not asked for in vain: of a fake tensor that is a warning */
    Py_XDECREF(storage);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(private == 1 && !exposed);
}

static PyObject *written(Remembered *self, PyObject *tensor) {
    PyObject *storage = storage_of(tensor, NULL), *count = NULL;
    int failed = !storage;
    if (storage && storage != Py_None) {
        count = PyLong_FromLongLong(writes_to(self, storage) + 1);
        failed = PyErr_Occurred() || PyDict_SetItem(self->writes, storage, count);
    }
    Py_XDECREF(count);
    Py_XDECREF(storage);
    return failed ? NULL : none();
}

static PyObject *expose(Remembered *self, PyObject *tensor) {
    PyObject *storage = storage_of(tensor, NULL);
    const int known = storage ? PySet_Contains(self->exposed, storage) : -1;
    const int failed = known < 0 || (!known && PySet_Add(self->exposed, storage));
    Py_XDECREF(storage);
    return failed ? NULL : PyBool_FromLong(!known);
}

static PyObject *forget(Remembered *self, PyObject *nothing) {
    (void)nothing;
    PyDict_Clear(self->known);
    PyDict_Clear(self->writes);
    return none();
}

static PyMethodDef remembered_methods[] = {
    {"text", (PyCFunction)text_of, METH_O, "The JSON of a plain tensor, or None."},
    {"look", (PyCFunction)look, METH_O, "The same as an Entry, to which members may be added."},
    {"recall", (PyCFunction)recall, METH_O, "The Entry that is remembered of a tensor, or None."},
    {"remember", (PyCFunction)remember, METH_VARARGS, "An Entry of a tensor that others have described: text, at."},
    {"is_ours", (PyCFunction)is_ours, METH_O, "Whether nobody can change its memory unnoticed."},
    {"written", (PyCFunction)written, METH_O, "This tensor's memory was written: whatever lies in it has changed."},
    {"expose", (PyCFunction)expose, METH_O, "Its memory may change at any time from now on. Whether that is news."},
    {"forget", (PyCFunction)forget, METH_NOARGS, "All memory may have changed."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject remembered_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "msprobe.stats._kernel.Remembered",
    .tp_basicsize = sizeof(Remembered),
    .tp_dealloc = (destructor)free_remembered,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = remembered_methods,
    .tp_new = new_remembered,
};

int add_remembered(PyObject *module) {
    if (!(names.requires_grad = PyUnicode_InternFromString("requires_grad")) ||
        !(names.version = PyUnicode_InternFromString("_version")) ||
        !(names.data_ptr = PyUnicode_InternFromString("data_ptr")) || make_memory() || PyType_Ready(&entry_type) || PyType_Ready(&remembered_type))
        return -1;
    Py_INCREF(&remembered_type);
    return PyModule_AddObject(module, "Remembered", (PyObject *)&remembered_type);
}
