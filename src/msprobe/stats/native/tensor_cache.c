/* A cache for the texts of tensors in one step. tensor_cache.py is the Python version and documents each method. */
#include "cache_entry.h"
#include "memory.h"
#include "tensor_json.h"
#include "weak.h"

/* The names of the attributes and methods that we read. */
static struct {
    PyObject *requires_grad, *version, *data_ptr;
} names;

typedef struct {
    PyObject_HEAD PyObject *exchange, *heads, *strided;
    PyObject *known;   /* id of a tensor: Entry */
    PyObject *writes;  /* address of a storage: number of reported writes */
    PyObject *exposed; /* addresses of storages that may change at any time */
    unsigned want;
    int remembers, checks;
} TensorCache;

static PyObject *new_cache(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *words[] = {"exchange", "heads", "strided", "want", "remembers", "checks", NULL};
    PyObject *exchange, *heads, *strided, *flags;
    int remembers, checks;
    unsigned want;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO!OOpp:TensorCache", words, &exchange, &PyDict_Type, &heads,
                                     &strided, &flags, &remembers, &checks) ||
        read_want(flags, &want))
        return NULL;
    TensorCache *self = (TensorCache *)type->tp_alloc(type, 0);
    if (!self) return NULL;
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
    if (!self->known || !self->writes || !self->exposed) Py_CLEAR(self);
    return (PyObject *)self;
}

static void free_cache(TensorCache *self) {
    Py_XDECREF(self->exchange);
    Py_XDECREF(self->heads);
    Py_XDECREF(self->strided);
    Py_XDECREF(self->known);
    Py_XDECREF(self->writes);
    Py_XDECREF(self->exposed);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int64_t writes_to(TensorCache *self, PyObject *storage) {
    PyObject *count = PyDict_GetItemWithError(self->writes, storage);
    return count ? PyLong_AsLongLong(count) : 0;
}

/* Reads the state that must stay the same. 1: done. 0: changes of this tensor cannot be detected. -1: error. */
static int read_state(PyObject *tensor, Entry *to) {
    PyObject *version = PyObject_GetAttr(tensor, names.version), *address = NULL, *grad = NULL;
    if (version) address = PyObject_CallMethodNoArgs(tensor, names.data_ptr);
    if (address) grad = PyObject_GetAttr(tensor, names.requires_grad);
    if (grad) {
        to->version = PyLong_AsLongLong(version);
        to->memory = PyLong_AsVoidPtr(address);
        to->grad = PyObject_IsTrue(grad);
    }
    Py_XDECREF(version);
    Py_XDECREF(address);
    Py_XDECREF(grad);
    if (!PyErr_Occurred()) return 1;
    if (!PyErr_ExceptionMatches(PyExc_RuntimeError)) /* an inference tensor, a wrapper, or no memory */
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

/* Adds `entry` to the cache if the tensor cannot change unnoticed. */
static int keep(TensorCache *self, PyObject *tensor, PyObject *key, Entry *entry) {
    int private = 0, exposed;
    PyObject *storage = storage_of(tensor, &private);
    if (!storage) return -1;
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

/* The valid entry for a tensor in this state, borrowed, or NULL. */
static Entry *find_valid(TensorCache *self, PyObject *tensor, PyObject *key, const Entry *state) {
    Entry *entry = (Entry *)PyDict_GetItemWithError(self->known, key);
    if (!entry || !refers_to(entry->tensor, tensor) || entry->version != state->version ||
        entry->memory != state->memory || entry->grad != state->grad ||
        entry->writes != writes_to(self, entry->storage))
        return NULL;
    return entry;
}

/* MSPROBE_CHECK_CACHE=1: measures a cached tensor again; the text must be the same. */
static int check(TensorCache *self, PyObject *tensor, const Entry *entry) {
    rendered r;
    Py_ssize_t at;
    const int done = render_tensor(tensor, self->exchange, self->heads, self->strided, self->want, &r);
    if (done <= 0) return done;
    PyObject *text = with_flag(&r, entry->grad, &at);
    const int same = text ? PyUnicode_Compare(text, entry->text) == 0 : -1;
    Py_XDECREF(text);
    if (!same)
        PyErr_SetString(PyExc_AssertionError,
                        "msprobe cached statistics of a tensor that has changed since then; please report this call");
    return same == 1 ? 0 : -1;
}

/* A new reference; NULL without an error for a tensor that is not plain. */
static Entry *entry_of(TensorCache *self, PyObject *tensor) {
    Entry state, *entry = NULL;
    rendered r;
    if (read_state(tensor, &state) != 1) return NULL;
    PyObject *key = PyLong_FromVoidPtr(tensor);
    if (!key) return NULL;
    Entry *known = find_valid(self, tensor, key, &state);
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
        if (!entry->text || keep(self, tensor, key, entry)) Py_CLEAR(entry);
    }
    Py_DECREF(key);
    return entry;
}

/* Measures without the cache. */
static PyObject *text_now(TensorCache *self, PyObject *tensor, Py_ssize_t *at) {
    rendered r;
    if (render_tensor(tensor, self->exchange, self->heads, self->strided, self->want, &r) != 1) return NULL;
    PyObject *grad = PyObject_GetAttr(tensor, names.requires_grad);
    const int is = grad ? PyObject_IsTrue(grad) : -1;
    Py_XDECREF(grad);
    return is < 0 ? NULL : with_flag(&r, is, at);
}

/* A tensor that is not plain raises RuntimeError or ValueError: returns None for it. */
static PyObject *or_none(void *result) {
    if (result) return result;
    if (PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_RuntimeError) && !PyErr_ExceptionMatches(PyExc_ValueError)) return NULL;
        PyErr_Clear();
    }
    return none();
}

static PyObject *text_of(TensorCache *self, PyObject *tensor) {
    Py_ssize_t at;
    if (!self->remembers) return or_none(text_now(self, tensor, &at));
    Entry *entry = entry_of(self, tensor);
    if (!entry) return or_none(NULL);
    PyObject *text = entry->text;
    Py_INCREF(text);
    Py_DECREF(entry);
    return text;
}

static PyObject *find(TensorCache *self, PyObject *tensor) {
    if (self->remembers) return or_none(entry_of(self, tensor));
    Entry *entry = new_entry();
    if (entry && !(entry->text = text_now(self, tensor, &entry->at))) Py_CLEAR(entry);
    return or_none(entry);
}

static PyObject *recall(TensorCache *self, PyObject *tensor) {
    Entry state, *entry = NULL;
    const int known = self->remembers ? read_state(tensor, &state) : 0;
    PyObject *key = known == 1 ? PyLong_FromVoidPtr(tensor) : NULL;
    if (key) entry = find_valid(self, tensor, key, &state);
    Py_XDECREF(key);
    Py_XINCREF(entry);
    return entry || PyErr_Occurred() ? (PyObject *)entry : none();
}

static PyObject *add(TensorCache *self, PyObject *args) {
    PyObject *tensor, *text, *key = NULL;
    Py_ssize_t at;
    if (!PyArg_ParseTuple(args, "OUn:add", &tensor, &text, &at)) return NULL;
    Entry *entry = new_entry();
    if (!entry) return NULL;
    Py_INCREF(text);
    entry->text = text;
    entry->at = at;
    const int known = self->remembers ? read_state(tensor, entry) : 0;
    if (known < 0 || (known && (!(key = PyLong_FromVoidPtr(tensor)) || keep(self, tensor, key, entry))))
        Py_CLEAR(entry);
    Py_XDECREF(key);
    return (PyObject *)entry;
}

static PyObject *is_private_memory(TensorCache *self, PyObject *tensor) {
    int private = 0, exposed = 0;
    PyObject *storage = PySet_GET_SIZE(self->exposed) ? storage_of(tensor, &private) : NULL;
    if (storage)
        exposed = storage == Py_None || PySet_Contains(self->exposed, storage);
    else if (!PyErr_Occurred())
        private = is_private(tensor); /* does not read the address: for a fake tensor that gives a warning */
    Py_XDECREF(storage);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(private == 1 && !exposed);
}

static PyObject *mark_written(TensorCache *self, PyObject *tensor) {
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

static PyObject *expose(TensorCache *self, PyObject *tensor) {
    PyObject *storage = storage_of(tensor, NULL);
    const int known = storage ? PySet_Contains(self->exposed, storage) : -1;
    const int failed = known < 0 || (!known && PySet_Add(self->exposed, storage));
    Py_XDECREF(storage);
    return failed ? NULL : PyBool_FromLong(!known);
}

static PyObject *clear(TensorCache *self, PyObject *nothing) {
    (void)nothing;
    PyDict_Clear(self->known);
    PyDict_Clear(self->writes);
    return none();
}

static PyMethodDef cache_methods[] = {
    {"text", (PyCFunction)text_of, METH_O, "The JSON of a plain tensor, or None."},
    {"find", (PyCFunction)find, METH_O, "The Entry of a plain tensor, or None."},
    {"recall", (PyCFunction)recall, METH_O, "The cached Entry of a tensor, or None."},
    {"add", (PyCFunction)add, METH_VARARGS, "Adds the Entry of a tensor: tensor, text, at."},
    {"is_private", (PyCFunction)is_private_memory, METH_O, "Whether the memory cannot change unnoticed."},
    {"mark_written", (PyCFunction)mark_written, METH_O, "Reports that the memory of this tensor was written."},
    {"expose", (PyCFunction)expose, METH_O,
     "Reports that this memory may change at any time. Returns whether this is new."},
    {"clear", (PyCFunction)clear, METH_NOARGS, "Removes all entries."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject cache_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "msprobe.stats._kernel.TensorCache",
    .tp_basicsize = sizeof(TensorCache),
    .tp_dealloc = (destructor)free_cache,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = cache_methods,
    .tp_new = new_cache,
};

int add_tensor_cache(PyObject *module) {
    if (!(names.requires_grad = PyUnicode_InternFromString("requires_grad")) ||
        !(names.version = PyUnicode_InternFromString("_version")) ||
        !(names.data_ptr = PyUnicode_InternFromString("data_ptr")) || make_memory() || make_entry_type() ||
        PyType_Ready(&cache_type))
        return -1;
    Py_INCREF(&cache_type);
    return PyModule_AddObject(module, "TensorCache", (PyObject *)&cache_type);
}
