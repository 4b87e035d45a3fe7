/* Scans framework tensors, and runs a call with scans of its tensors.

   look(exchange, tensor) -> 0 | (dtype code, numbers, largest |bit pattern|, subnormal numbers) | None
       `scan` of a framework tensor, through the table of functions that its type has by the DLPack standard
       (`__dlpack_c_exchange_api__`). 0: all numbers are finite and not close to the limits of their dtype, or the
   tensor has no floating-point numbers. None: the tensor is not one block of host memory, or has another dtype.
   run(watch, func, args, kwargs, writes, api, number) -> the result of func, or NOT_RUN
       Calls func(*args, **kwargs) and scans the result; with `writes`, also scans the first argument before the call.
       An optimizer makes hundreds of such calls per step, so this function does as little as possible.
       NOT_RUN: an argument is neither a tensor nor a simple value. `watch` is a tuple:
         exchange
         the set of types of plain tensors, and the set of types of simple values
         known      id(tensor) -> (weak reference, version at which the tensor was finite)
         limit      the maximum size of the snapshot of a written tensor, in bytes
         remember   called with (tensor, version) for a written tensor that is finite and not in `known`
         trouble    called with (api, number, args, kwargs, output, look(output), [(tensor, version)], look(first) or 0,
                    bytes of the first or None) if the result is not a tensor for which `look` returns 0; False in
                    place of the bytes if they are more than `limit` */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "exchange.h"
#include "weak.h"
#include "scan.h"

#if PY_VERSION_HEX < 0x030a0000
static PyObject *Py_NewRef(PyObject *object) {
    Py_INCREF(object);
    return object;
}
#endif

enum { KIND_FLOAT = 2, KIND_BFLOAT = 4, KIND_COMPLEX = 5, MAX_DIMS = 32 };

/* The number of elements if they are one block of memory, in any order; -1 if there are gaps or overlaps. */
static int64_t in_one_block(const exchanged *t) {
    int64_t count = 1, expected = 1;
    int order[MAX_DIMS], kept = 0;
    for (int d = 0; d < t->ndim; d++) count *= t->shape[d];
    if (!count || !t->strides) return count;
    if (t->ndim > MAX_DIMS) return -1;
    for (int d = t->ndim - 1; d >= 0; d--) {
        if (t->shape[d] == 1) continue;
        int at = kept++;
        for (; at > 0 && t->strides[order[at - 1]] > t->strides[d]; at--) order[at] = order[at - 1];
        order[at] = d;
    }
    for (int k = 0; k < kept; k++) {
        if (t->strides[order[k]] != expected) return -1;
        expected *= t->shape[order[k]];
    }
    return count;
}

/* 1: `code` and `parts` (numbers per element) describe the format. 0: no floating-point numbers. -1: unknown. */
static int format_of(const exchanged *t, int *code, int *parts) {
    const int bits = t->dtype.bits;
    *parts = t->dtype.code == KIND_COMPLEX ? 2 : 1;
    if (t->dtype.lanes != 1) return -1;
    switch (t->dtype.code) {
    case KIND_FLOAT:
    case KIND_COMPLEX:
        *code = bits == 16 * *parts ? FLOAT16 : bits == 32 * *parts ? FLOAT32 : FLOAT64;
        return bits == (int)(8 * size_of(*code)) * *parts && !(*parts == 2 && *code == FLOAT16) ? 1 : -1;
    case KIND_BFLOAT:
        *code = BFLOAT16;
        return bits == 16 ? 1 : -1;
    case 0: /* signed */
    case 1: /* unsigned */
    case 6: /* bool */
        return bits % 8 || !bits ? -1 : 0;
    default:
        return -1;
    }
}

PyObject *watched_look(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    static const int mantissa[FORMATS] = {10, 7, 23, 52};
    exchanged tensor;
    int code, parts;
    uint64_t top;
    int64_t tiny;
    (void)module;
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "look takes a table of functions and a tensor");
        return NULL;
    }
    const int failed = borrow(args[0], args[1], &tensor);
    if (failed < 0) return NULL;
    const int known = failed ? -1 : format_of(&tensor, &code, &parts);
    if (!known) return PyLong_FromLong(0);
    const int64_t elements = known < 0 || tensor.device.type != ON_CPU ? -1 : in_one_block(&tensor);
    const int there = elements > 0 ? has_memory(args[1], tensor.data) : elements == 0;
    if (there < 0) return NULL;
    if (!there) Py_RETURN_NONE;
    const int64_t count = elements * parts;
    const uint64_t bits = 8 * size_of(code), infinity = (UINT64_C(1) << (bits - 1)) - (UINT64_C(1) << mantissa[code]);
    scan_memory((const char *)tensor.data + tensor.byte_offset, code, count, &top, &tiny);
    if (!tiny && top < infinity - (UINT64_C(1) << mantissa[code])) return PyLong_FromLong(0);
    return Py_BuildValue("iLKL", code, (long long)count, (unsigned long long)top, (long long)tiny);
}

/* The bytes of a tensor in memory order; False if they are more than `limit`. NULL without an error if the tensor is
   not one block of host memory, or its dtype is unknown or complex (it may be a lazy conjugate). */
static PyObject *snapshot(PyObject *exchange, PyObject *tensor, long long limit) {
    exchanged found;
    int code, parts;
    if (borrow(exchange, tensor, &found) || format_of(&found, &code, &parts) < 0 || parts > 1 ||
        found.device.type != ON_CPU)
        return NULL;
    const int64_t elements = in_one_block(&found);
    if (elements < 0 || (elements && has_memory(tensor, found.data) != 1)) return NULL;
    if (elements > limit / (found.dtype.bits / 8)) return Py_NewRef(Py_False);
    const char *start = elements ? (const char *)found.data + found.byte_offset : "";
    return PyBytes_FromStringAndSize(start, (Py_ssize_t)(elements * (found.dtype.bits / 8)));
}

enum { MOST_TENSORS = 16 };

typedef struct {
    PyObject *exchange, *plain, *simple, *known, *limit, *remember, *trouble;
} watching;

typedef struct {
    PyObject *tensors[MOST_TENSORS], *versions[MOST_TENSORS]; /* the first borrowed, the second owned */
    int count;
    PyObject *given, *before;
} call_inputs;

static PyObject *version_name, *not_run;

static void release(call_inputs *s) {
    for (int i = 0; i < s->count; i++) Py_CLEAR(s->versions[i]);
    Py_CLEAR(s->given);
    Py_CLEAR(s->before);
}

/* Adds a tensor to the inputs. 1: the value is a tensor or simple. 0: it is neither. */
static int add_input(const watching *w, PyObject *value, call_inputs *s) {
    if (PySet_Contains(w->plain, (PyObject *)Py_TYPE(value)) != 1)
        return PySet_Contains(w->simple, (PyObject *)Py_TYPE(value)) == 1;
    if (s->count == MOST_TENSORS) return 0;
    PyObject *version = PyObject_GetAttr(value, version_name); /* an inference tensor has none */
    if (!version) return 0;
    s->tensors[s->count] = value;
    s->versions[s->count++] = version;
    return 1;
}

/* The entry of this tensor in `known`; NULL if there is none, usually without an error. */
static PyObject *entry_of(const watching *w, PyObject *tensor, PyObject **key) {
    *key = PyLong_FromVoidPtr(tensor);
    PyObject *entry = *key ? PyDict_GetItemWithError(w->known, *key) : NULL;
    if (!entry || !PyTuple_Check(entry) || PyTuple_GET_SIZE(entry) != 2 ||
        !PyWeakref_CheckRef(PyTuple_GET_ITEM(entry, 0)) || !refers_to(PyTuple_GET_ITEM(entry, 0), tensor))
        return NULL;
    return Py_NewRef(entry);
}

static int is_known(const watching *w, PyObject *tensor, PyObject *version) {
    PyObject *key, *entry = entry_of(w, tensor, &key);
    const int known = entry && PyObject_RichCompareBool(PyTuple_GET_ITEM(entry, 1), version, Py_EQ) == 1;
    Py_XDECREF(entry);
    Py_XDECREF(key);
    return known;
}

/* A written tensor is finite: updates its entry in `known`, or calls `remember` if there is none. */
static int update_known(const watching *w, PyObject *tensor) {
    PyObject *version = PyObject_GetAttr(tensor, version_name), *key = NULL;
    PyObject *entry = version ? entry_of(w, tensor, &key) : NULL;
    int failed = !version || !key || PyErr_Occurred();
    if (entry) {
        PyObject *renewed = PyTuple_Pack(2, PyTuple_GET_ITEM(entry, 0), version);
        failed = !renewed || PyDict_SetItem(w->known, key, renewed);
        Py_XDECREF(renewed);
        Py_DECREF(entry);
    } else if (!failed) {
        PyObject *done = PyObject_CallFunctionObjArgs(w->remember, tensor, version, NULL);
        failed = !done;
        Py_XDECREF(done);
    }
    Py_XDECREF(version);
    Py_XDECREF(key);
    return failed;
}

/* Reads the inputs before the call. 1: done. 0: this call is not supported (any error is cleared). */
static int prepare(const watching *w, PyObject *args, PyObject *kwargs, int writes, call_inputs *s) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    int fits = 1;
    for (Py_ssize_t i = 0; fits && i < PyTuple_GET_SIZE(args); i++) fits = add_input(w, PyTuple_GET_ITEM(args, i), s);
    while (fits && PyDict_Next(kwargs, &at, &key, &value))
        fits = PySet_Contains(w->simple, (PyObject *)Py_TYPE(value)) == 1;
    if (fits && writes) {
        fits = s->count && s->tensors[0] == PyTuple_GET_ITEM(args, 0);
        PyObject *asked[2] = {w->exchange, s->tensors[0]};
        const long long limit = PyLong_AsLongLong(w->limit);
        if (fits) fits = (s->before = snapshot(w->exchange, s->tensors[0], limit)) != NULL;
        if (fits)
            s->given = is_known(w, s->tensors[0], s->versions[0]) ? PyLong_FromLong(0) : watched_look(NULL, asked, 2);
        fits = fits && s->given && s->given != Py_None;
    }
    if (!fits || PyErr_Occurred()) {
        PyErr_Clear();
        release(s);
        return 0;
    }
    return 1;
}

static int report(const watching *w, PyObject *api, PyObject *number, PyObject *args, PyObject *kwargs,
                  PyObject *output, PyObject *state, const call_inputs *s) {
    PyObject *versions = PyList_New(s->count), *done = NULL;
    for (int i = 0; versions && i < s->count; i++) {
        PyObject *pair = PyTuple_Pack(2, s->tensors[i], s->versions[i]);
        if (!pair)
            Py_CLEAR(versions);
        else
            PyList_SET_ITEM(versions, i, pair);
    }
    PyObject *nothing = versions ? PyLong_FromLong(0) : NULL;
    if (nothing)
        done = PyObject_CallFunctionObjArgs(w->trouble, api, number, args, kwargs, output, state, versions,
                                            s->given ? s->given : nothing, s->before ? s->before : Py_None, NULL);
    Py_XDECREF(versions);
    Py_XDECREF(nothing);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

PyObject *watched_run(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    watching w;
    call_inputs s = {.count = 0};
    (void)module;
    if (nargs != 7 || !PyTuple_Check(args[2]) || !PyDict_Check(args[3]) || !PyTuple_Check(args[0]) ||
        PyTuple_GET_SIZE(args[0]) != 7) {
        PyErr_SetString(PyExc_TypeError, "run takes (watch, func, args, kwargs, writes, api, number)");
        return NULL;
    }
    PyObject **parts[] = {&w.exchange, &w.plain, &w.simple, &w.known, &w.limit, &w.remember, &w.trouble};
    for (int i = 0; i < 7; i++) *parts[i] = PyTuple_GET_ITEM(args[0], i);
    if (!PyAnySet_Check(w.plain) || !PyDict_Check(w.known) || !PyAnySet_Check(w.simple)) {
        PyErr_SetString(PyExc_TypeError, "watch must have two sets of types and a dict");
        return NULL;
    }
    const int writes = args[4] == Py_True;
    if (!prepare(&w, args[2], args[3], writes, &s)) return Py_NewRef(not_run);
    PyObject *output = PyObject_Call(args[1], args[2], args[3]);
    if (!output) { /* an error of the call itself */
        release(&s);
        return NULL;
    }
    PyObject *asked[2] = {w.exchange, output};
    PyObject *state = PySet_Contains(w.plain, (PyObject *)Py_TYPE(output)) == 1 ? watched_look(NULL, asked, 2) : NULL;
    if (!state) { /* the call was made: the script gets its result, even if our scan fails */
        PyErr_Clear();
        state = Py_NewRef(Py_None);
    }
    int failed = 0;
    if (PyLong_CheckExact(state)) {
        if (writes && update_known(&w, s.tensors[0])) PyErr_WriteUnraisable(args[1]);
    } else
        failed = report(&w, args[5], args[6], args[2], args[3], output, state, &s);
    Py_DECREF(state);
    release(&s);
    if (failed) Py_CLEAR(output);
    return output;
}

int watched_init(PyObject *module) {
    version_name = PyUnicode_InternFromString("_version");
    not_run = PyObject_CallNoArgs((PyObject *)&PyBaseObject_Type);
    return !version_name || !not_run || PyObject_SetAttrString(module, "NOT_RUN", not_run) ? -1 : 0;
}
