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
    PyObject *numbers; /* storages with their numbers, see memory.h; NULL if texts have no numbers */
    int64_t next_value;
    unsigned want;
    int remembers, checks;
} TensorCache;

static PyObject *new_cache(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *words[] = {"exchange", "heads", "strided", "want", "remembers", "checks", "numbers", NULL};
    PyObject *exchange, *heads, *strided, *flags;
    int remembers, checks, numbers = 0;
    unsigned want;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO!OOpp|p:TensorCache", words, &exchange, &PyDict_Type, &heads,
                                     &strided, &flags, &remembers, &checks, &numbers) ||
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
    self->numbers = numbers ? PyDict_New() : NULL;
    if (!self->known || !self->writes || !self->exposed || (numbers && !self->numbers)) Py_CLEAR(self);
    return (PyObject *)self;
}

static void free_cache(TensorCache *self) {
    Py_XDECREF(self->exchange);
    Py_XDECREF(self->heads);
    Py_XDECREF(self->strided);
    Py_XDECREF(self->known);
    Py_XDECREF(self->writes);
    Py_XDECREF(self->exposed);
    if (self->numbers) {
        PyObject *kind, *value, *trace;
        PyErr_Fetch(&kind, &value, &trace);
        if (release_storages(self->numbers)) PyErr_WriteUnraisable(NULL);
        PyErr_Restore(kind, value, trace);
        Py_DECREF(self->numbers);
    }
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
        to->address = PyLong_AsVoidPtr(address);
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

/* The members of the numbers of an entry. Needs up to NUMBERS_SIZE characters. */
#define NUMBERS_SIZE 70
static char *put_numbers(char *to, const Entry *entry) {
    if (entry->value_id >= 0) to = put_number(PUT(to, ", \"value_id\": "), entry->value_id);
    if (entry->memory >= 0) to = put_number(PUT(to, ", \"memory\": "), entry->memory);
    return to;
}

/* The text of an entry: `r`, the flag and the numbers. */
static PyObject *complete(const rendered *r, const Entry *entry, Py_ssize_t *at) {
    char text[sizeof r->text + 32 + NUMBERS_SIZE], *end = text + (r->figures - r->text);
    const size_t digest = (size_t)(r->end - r->figures);
    memcpy(text, r->text, (size_t)(end - text));
    end = entry->grad ? PUT(end, "\"requires_grad\": true") : PUT(end, "\"requires_grad\": false");
    *at = end - text;
    end = put_numbers((char *)memcpy(end, r->figures, digest) + digest, entry);
    *end++ = '}';
    return PyUnicode_FromStringAndSize(text, end - text);
}

/* Reads the memory of a tensor and numbers it. 1: it cannot change unnoticed, `entry` may be cached. 0: it may.
   `value_id` is the number of the value, or -1 for the next one. */
static int locate(TensorCache *self, PyObject *tensor, Entry *entry, int64_t value_id) {
    int private = 0, exposed;
    PyObject *storage = storage_of(tensor, &private, self->numbers, &entry->memory);
    if (!storage) return -1;
    exposed = storage == Py_None || !private ? 1 : PySet_Contains(self->exposed, storage);
    if (exposed) {
        Py_DECREF(storage);
        return exposed < 0 ? -1 : 0;
    }
    if (self->numbers) entry->value_id = value_id < 0 ? self->next_value++ : value_id;
    entry->storage = storage;
    entry->writes = writes_to(self, storage);
    entry->tensor = PyWeakref_NewRef(tensor, NULL);
    return PyErr_Occurred() || !entry->tensor ? -1 : 1;
}

/* The entry with the value that a tensor has in this state, borrowed, or NULL. Its text is valid if requires_grad is
   also the same. */
static Entry *find_value(TensorCache *self, PyObject *tensor, PyObject *key, const Entry *state) {
    Entry *entry = (Entry *)PyDict_GetItemWithError(self->known, key);
    if (!entry || !refers_to(entry->tensor, tensor) || entry->version != state->version ||
        entry->address != state->address || entry->writes != writes_to(self, entry->storage))
        return NULL;
    return entry;
}

/* MSPROBE_CHECK_CACHE=1: measures a cached tensor again; the text must be the same. */
static int check(TensorCache *self, PyObject *tensor, const Entry *entry) {
    rendered r;
    Py_ssize_t at;
    const int done = render_tensor(tensor, self->exchange, self->heads, self->strided, self->want, &r);
    if (done <= 0) return done;
    PyObject *text = complete(&r, entry, &at);
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
    Entry *known = find_value(self, tensor, key, &state);
    const int64_t value_id = known ? known->value_id : -1; /* another thread may remove `known` while we measure */
    if (known && known->grad == state.grad) {
        Py_INCREF(known);
        if (!self->checks || !check(self, tensor, known))
            entry = known;
        else
            Py_DECREF(known);
    } else if (!PyErr_Occurred() &&
               render_tensor(tensor, self->exchange, self->heads, self->strided, self->want, &r) == 1 &&
               (entry = new_entry())) {
        entry->version = state.version;
        entry->address = state.address;
        entry->grad = state.grad;
        const int may = locate(self, tensor, entry, value_id);
        if (may < 0 || !(entry->text = complete(&r, entry, &entry->at)) ||
            (may && PyDict_SetItem(self->known, key, (PyObject *)entry)))
            Py_CLEAR(entry);
    }
    Py_DECREF(key);
    return entry;
}

/* Measures without the cache. */
static PyObject *text_now(TensorCache *self, PyObject *tensor, Py_ssize_t *at) {
    rendered r;
    Entry entry = {.value_id = -1, .memory = -1};
    if (render_tensor(tensor, self->exchange, self->heads, self->strided, self->want, &r) != 1) return NULL;
    PyObject *grad = PyObject_GetAttr(tensor, names.requires_grad);
    entry.grad = grad ? PyObject_IsTrue(grad) : -1;
    Py_XDECREF(grad);
    if (entry.grad >= 0 && self->numbers) entry.memory = number_of(tensor, self->numbers);
    return PyErr_Occurred() ? NULL : complete(&r, &entry, at);
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
    if (key) entry = find_value(self, tensor, key, &state);
    Py_XDECREF(key);
    if (entry && entry->grad != state.grad) entry = NULL;
    Py_XINCREF(entry);
    return entry || PyErr_Occurred() ? (PyObject *)entry : none();
}

/* A text that the caller has made, with the numbers of the entry. */
static PyObject *with_numbers(PyObject *text, const Entry *entry) {
    char numbers[NUMBERS_SIZE + 2], *end = put_numbers(numbers, entry);
    const Py_ssize_t length = PyUnicode_GET_LENGTH(text);
    *end++ = '}';
    *end = 0;
    PyObject *start = PyUnicode_Substring(text, 0, length ? length - 1 : 0);
    PyObject *all = start ? PyUnicode_FromFormat("%U%s", start, numbers) : NULL;
    Py_XDECREF(start);
    return all;
}

static PyObject *add(TensorCache *self, PyObject *args) {
    PyObject *tensor, *text, *key;
    Py_ssize_t at;
    int may = 0;
    if (!PyArg_ParseTuple(args, "OUn:add", &tensor, &text, &at) || !(key = PyLong_FromVoidPtr(tensor))) return NULL;
    Entry *entry = new_entry();
    const int known = entry && self->remembers ? read_state(tensor, entry) : 0;
    const Entry *older = known == 1 ? find_value(self, tensor, key, entry) : NULL;
    if (known == 1)
        may = locate(self, tensor, entry, older ? older->value_id : -1);
    else if (entry && self->numbers)
        entry->memory = number_of(tensor, self->numbers);
    if (entry) entry->at = at;
    if (entry && (PyErr_Occurred() || !(entry->text = with_numbers(text, entry)) ||
                  (may && PyDict_SetItem(self->known, key, (PyObject *)entry))))
        Py_CLEAR(entry);
    Py_DECREF(key);
    return (PyObject *)entry;
}

static PyObject *memory_of(TensorCache *self, PyObject *tensor) {
    const int64_t number = self->numbers ? number_of(tensor, self->numbers) : -1;
    if (number < -1) return NULL;
    return number < 0 ? none() : PyLong_FromLongLong(number);
}

static PyObject *is_private_memory(TensorCache *self, PyObject *tensor) {
    int private = 0, exposed = 0;
    PyObject *storage = PySet_GET_SIZE(self->exposed) ? storage_of(tensor, &private, NULL, NULL) : NULL;
    if (storage)
        exposed = storage == Py_None || PySet_Contains(self->exposed, storage);
    else if (!PyErr_Occurred())
        private = is_private(tensor); /* does not read the address: for a fake tensor that gives a warning */
    Py_XDECREF(storage);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(private == 1 && !exposed);
}

static PyObject *mark_written(TensorCache *self, PyObject *tensor) {
    PyObject *storage = storage_of(tensor, NULL, NULL, NULL), *count = NULL;
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
    PyObject *storage = storage_of(tensor, NULL, NULL, NULL);
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

static PyObject *release(TensorCache *self, PyObject *nothing) {
    (void)nothing;
    PyDict_Clear(self->known);
    PyDict_Clear(self->writes);
    return self->numbers && release_storages(self->numbers) ? NULL : none();
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
    {"memory", (PyCFunction)memory_of, METH_O, "The number of the memory of a tensor, or None."},
    {"clear", (PyCFunction)clear, METH_NOARGS, "Removes all entries."},
    {"release", (PyCFunction)release, METH_NOARGS, "Removes all entries and numbers."},
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
