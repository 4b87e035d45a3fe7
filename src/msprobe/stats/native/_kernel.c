/* msprobe.stats._kernel: the statistics kernel for Python. result.py and _kernel.pyi document its results.

   The result is a Stats (a tuple subclass) created by tuple.__new__: as fast as a tuple, and one type for both
   backends. */
#include "kernel.h"

#define RELEASE_BYTES (16 << 10) /* for less work, releasing the interpreter lock costs more than it saves */

static PyTypeObject *stats_type;

int read_sizes(PyObject *tuple, const char *what, int64_t *to, Py_ssize_t *length) {
    if (!PyTuple_Check(tuple)) {
        PyErr_Format(PyExc_TypeError, "%s must be a tuple, not %.100s", what, Py_TYPE(tuple)->tp_name);
        return -1;
    }
    *length = PyTuple_GET_SIZE(tuple);
    if (*length > MP_MAX_DIMS) {
        PyErr_SetString(PyExc_ValueError, mp_error(MP_BAD_DIMS));
        return -1;
    }
    for (Py_ssize_t i = 0; i < *length; i++) {
        to[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
        if (to[i] == -1 && PyErr_Occurred()) return -1;
    }
    return 0;
}

int read_int(PyObject *object, long *to) {
    *to = PyLong_AsLong(object);
    return *to == -1 && PyErr_Occurred() ? -1 : 0;
}

int run_on(void *memory, int code, int ndim, const int64_t *shape, const int64_t *strides, unsigned want, int threads,
           const mp_range *range, mp_result *result) {
    int64_t bytes = 1;
    int status;
    for (int i = 0; i < ndim && bytes < RELEASE_BYTES; i++)
        if (shape[i] > 0 && __builtin_mul_overflow(bytes, shape[i], &bytes)) bytes = RELEASE_BYTES;
    if (bytes >= RELEASE_BYTES / (int64_t)mp_itemsize(code)) {
        Py_BEGIN_ALLOW_THREADS status = mp_measure(memory, code, ndim, shape, strides, want, threads, range, result);
        Py_END_ALLOW_THREADS
    } else {
        status = mp_measure(memory, code, ndim, shape, strides, want, threads, range, result);
    }
    if (status == MP_OK) return 0;
    if (status == MP_NO_MEMORY)
        PyErr_NoMemory();
    else
        PyErr_SetString(PyExc_ValueError, mp_error(status));
    return -1;
}

/* The arguments of measure and render: ptr, code, shape, strides, want[, threads]. */
static int run(const char *name, PyObject *const *args, Py_ssize_t nargs, unsigned *want, unsigned always,
               mp_result *result) {
    int64_t shape[MP_MAX_DIMS], strides[MP_MAX_DIMS];
    Py_ssize_t ndim, nstrides;
    long code, flags, threads = 0;
    int status;
    if (nargs < 5 || nargs > 6) {
        PyErr_Format(PyExc_TypeError, "%s takes 5 or 6 positional arguments, got %zd", name, nargs);
        return -1;
    }
    void *memory = PyLong_AsVoidPtr(args[0]);
    if (!memory && PyErr_Occurred()) return -1;
    if (read_int(args[1], &code) || read_sizes(args[2], "shape", shape, &ndim) ||
        read_sizes(args[3], "strides", strides, &nstrides) || read_int(args[4], &flags) ||
        (nargs == 6 && read_int(args[5], &threads)))
        return -1;
    if (ndim != nstrides || code < 0 || code >= MP_CODES || flags < 0 || flags > 0xff) {
        status = ndim != nstrides ? MP_BAD_DIMS : code < 0 || code >= MP_CODES ? MP_BAD_CODE : MP_BAD_WANT;
        PyErr_SetString(PyExc_ValueError, mp_error(status));
        return -1;
    }
    *want = (unsigned)flags | always;
    threads = threads < 0 ? 0 : threads > 64 ? 64 : threads;
    return run_on(memory, (int)code, (int)ndim, shape, strides, *want, (int)threads, NULL, result);
}

PyObject *none(void) {
    Py_INCREF(Py_None);
    return Py_None;
}

static PyObject *extreme(const mp_result *r, double f, int64_t i, uint64_t u) {
    switch (r->kind) {
    case MP_KIND_BOOL:
        return PyBool_FromLong((long)i);
    case MP_KIND_INT:
        return PyLong_FromLongLong(i);
    case MP_KIND_UINT:
        return PyLong_FromUnsignedLongLong(u);
    case MP_KIND_FLOAT:
        return PyFloat_FromDouble(f);
    }
    return none();
}

static PyObject *measure(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    mp_result r;
    unsigned want;
    (void)module;
    if (run("measure", args, nargs, &want, MP_ZEROS, &r)) return NULL;
    PyObject *items[12] = {
        extreme(&r, r.max, r.imax, r.umax),
        extreme(&r, r.min, r.imin, r.umin),
        r.kind == MP_KIND_NONE ? none() : PyFloat_FromDouble(r.mean),
        r.kind <= MP_KIND_BOOL ? none() : PyFloat_FromDouble(r.norm),
        PyLong_FromLongLong(r.nan),
        PyLong_FromLongLong(r.posinf),
        PyLong_FromLongLong(r.neginf),
        PyLong_FromLongLong(r.zero),
        PyLong_FromLongLong(r.count),
        want & MP_CRC ? PyLong_FromUnsignedLong(r.crc) : none(),
        want & MP_XOR ? PyLong_FromUnsignedLongLong(r.xor64) : none(),
        r.ordered ? PyFloat_FromDouble(r.order) : none(),
    };
    PyObject *plain = PyTuple_New(12), *packed = NULL, *result = NULL;
    for (int i = 0; i < 12; i++) {
        if (!plain || !items[i]) {
            for (int k = i; k < 12; k++) Py_XDECREF(items[k]);
            goto done;
        }
        PyTuple_SET_ITEM(plain, i, items[i]);
    }
    packed = PyTuple_Pack(1, plain);
    if (packed) result = PyTuple_Type.tp_new(stats_type, packed, NULL);
done:
    Py_XDECREF(packed);
    Py_XDECREF(plain);
    return result;
}

/* Appends a number as Python's json writes it. Every text is at most SHORTEST_SIZE long. */
static char *put_double(char *to, double value) {
    if (value != value) return PUT(to, "NaN");
    if (value - value != 0) return value > 0 ? PUT(to, "Infinity") : PUT(to, "-Infinity");
    return shortest_write(to, value);
}

static char *put_extreme(char *to, const mp_result *r, double f, int64_t i, uint64_t u) {
    switch (r->kind) {
    case MP_KIND_BOOL:
        return i ? PUT(to, "true") : PUT(to, "false");
    case MP_KIND_INT:
        return to + sprintf(to, "%lld", (long long)i);
    case MP_KIND_UINT:
        return to + sprintf(to, "%llu", (unsigned long long)u);
    case MP_KIND_FLOAT:
        return put_double(to, f);
    }
    return PUT(to, "null");
}

char *put_figures(char *end, const mp_result *r) {
    end = PUT(end, "\"Max\": ");
    end = put_extreme(end, r, r->max, r->imax, r->umax);
    end = PUT(end, ", \"Min\": ");
    end = put_extreme(end, r, r->min, r->imin, r->umin);
    end = PUT(end, ", \"Mean\": ");
    end = r->kind == MP_KIND_NONE ? PUT(end, "null") : put_double(end, r->mean);
    end = PUT(end, ", \"Norm\": ");
    end = r->kind <= MP_KIND_BOOL ? PUT(end, "null") : put_double(end, r->norm);
    return r->ordered ? put_double(PUT(end, ", \"Order\": "), r->order) : end;
}

static PyObject *fragment(const mp_result *r) {
    char text[FIGURES_SIZE];
    return PyUnicode_FromStringAndSize(text, put_figures(text, r) - text);
}

static char *put_hexadecimal(char *to, uint64_t value, int digits) {
    for (int i = digits - 1; i >= 0; i--, value >>= 4) to[i] = "0123456789abcdef"[value & 15];
    return to + digits;
}

char *put_digest(char *to, const mp_result *r, unsigned want) {
    if (want & MP_CRC) return put_hexadecimal(to, r->crc, 8);
    return put_hexadecimal(PUT(to, "0x"), r->xor64, 16);
}

static PyObject *render(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    mp_result r;
    unsigned want;
    (void)module;
    if (run("render", args, nargs, &want, 0, &r)) return NULL;
    if ((want & (MP_CRC | MP_XOR)) == (MP_CRC | MP_XOR)) {
        PyErr_SetString(PyExc_ValueError, "render writes one digest: use CRC or XOR, not both");
        return NULL;
    }
    PyObject *members = want & MP_STATS ? fragment(&r) : PyUnicode_FromStringAndSize("", 0);
    char text[24];
    PyObject *digest =
        want & (MP_CRC | MP_XOR) ? PyUnicode_FromStringAndSize(text, put_digest(text, &r, want) - text) : none();
    PyObject *bad = PyLong_FromLongLong(r.nan + r.posinf + r.neginf), *result = NULL;
    if (members && digest && bad) result = PyTuple_Pack(3, members, digest, bad);
    Py_XDECREF(members);
    Py_XDECREF(digest);
    Py_XDECREF(bad);
    return result;
}

static PyObject *crc32(PyObject *module, PyObject *args) {
    Py_buffer data;
    unsigned long value = 0;
    uint32_t crc;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*|k:crc32", &data, &value)) return NULL;
    if (data.len >= RELEASE_BYTES) {
        Py_BEGIN_ALLOW_THREADS crc = mp_crc32((uint32_t)value, data.buf, (size_t)data.len);
        Py_END_ALLOW_THREADS
    } else {
        crc = mp_crc32((uint32_t)value, data.buf, (size_t)data.len);
    }
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(crc);
}

static PyObject *select_level(PyObject *module, PyObject *level) {
    long wanted;
    (void)module;
    if (read_int(level, &wanted)) return NULL;
    return PyUnicode_FromString(mp_level_name(mp_select(wanted > 9 ? 9 : wanted < 0 ? 0 : (int)wanted)));
}

static PyMethodDef methods[] = {
    {"measure", (PyCFunction)(void (*)(void))measure, METH_FASTCALL, "Statistics of the tensor at an address."},
    {"render", (PyCFunction)(void (*)(void))render, METH_FASTCALL, "The same as JSON members, a digest, NaN + inf."},
    {"describe", (PyCFunction)(void (*)(void))describe, METH_FASTCALL, "A plain tensor as JSON, in two parts."},
    {"gauge", (PyCFunction)(void (*)(void))gauge, METH_FASTCALL, "Figures of tensors, into the rows of a table."},
    {"gauge_memory", (PyCFunction)(void (*)(void))gauge_memory, METH_FASTCALL, "The same for an address."},
    {"advance", (PyCFunction)(void (*)(void))advance, METH_FASTCALL, "How far tensors have moved, from samples."},
    {"damage", damage, METH_VARARGS, "What a low-precision format does to a matrix of float32."},
    {"extent", extent, METH_O, "The largest magnitude of such a matrix, its place, and moments."},
    {"crc32", crc32, METH_VARARGS, "zlib.crc32."},
    {"select", select_level, METH_O, "Limit the CPU instructions used; returns the level in use."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_kernel", NULL, -1, methods, NULL, NULL, NULL, NULL};

static int load_powers(void) {
    PyObject *module = PyImport_ImportModule("msprobe.stats.shortest");
    PyObject *powers = module ? PyObject_CallMethod(module, "powers_of_ten", NULL) : NULL;
    int status = -1;
    if (powers && PyBytes_Check(powers) && PyBytes_GET_SIZE(powers) == SHORTEST_POWERS * 16) {
        shortest_init(PyBytes_AS_STRING(powers));
        status = 0;
    } else if (powers) {
        PyErr_SetString(PyExc_ImportError, "msprobe.stats.shortest has another version than this kernel");
    }
    Py_XDECREF(module);
    Py_XDECREF(powers);
    return status;
}

PyMODINIT_FUNC PyInit__kernel(void) {
    PyObject *results = PyImport_ImportModule("msprobe.stats.result");
    if (!results) return NULL;
    PyObject *type = PyObject_GetAttrString(results, "Stats");
    Py_DECREF(results);
    if (!type || !PyType_Check(type) || !PyType_IsSubtype((PyTypeObject *)type, &PyTuple_Type)) {
        Py_XDECREF(type);
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ImportError, "msprobe.stats.result.Stats is not a tuple");
        return NULL;
    }
    stats_type = (PyTypeObject *)type;
    if (load_powers() || make_tensor_json()) return NULL;
    mp_init();
    PyObject *module = PyModule_Create(&definition);
    if (module && add_tensor_cache(module)) Py_CLEAR(module);
    return module;
}
