/* How far tensors have moved since the last step, from a sample of their elements. msprobe/stats/samples.py has the
   same in Python. */
#include <string.h>

#include "internal.h"
#include "kernel.h"

/* The sample of a larger tensor is evenly spaced runs of RUN elements, a cache line of float32. */
enum { SAMPLE = 4096, RUN = 16, RUNS = SAMPLE / RUN, AHEAD = 32 };

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif

typedef struct {
    double moved[RUN], old[RUN]; /* sums of squares: of the changes, and of the values before them */
} squares;

/* Adds up to RUN elements, and puts them into `before`. */
#define ADD(NAME, T)                                                                                                   \
    CLONES static void NAME(const void *data, int64_t n, double *before, squares *sums) {                              \
        const T *now = data;                                                                                           \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            const double value = (double)now[i], was = before[i], change = value - was;                                \
            sums->moved[i] += change * change;                                                                         \
            sums->old[i] += was * was;                                                                                 \
            before[i] = value;                                                                                         \
        }                                                                                                              \
    }
ADD(add_floats, float)
ADD(add_doubles, double)

static void add_run(const char *from, int code, int64_t n, double *before, squares *sums) {
    const route *loops = mp_route(code);
    _Alignas(64) char aligned[RUN * 8];
    if (loops->widen)
        loops->widen(from, aligned, n);
    else
        memcpy(aligned, from, (size_t)n * mp_itemsize(code));
    if (code == MP_FLOAT64)
        add_doubles(aligned, n, before, sums);
    else
        add_floats(aligned, n, before, sums);
}

static void add_tensor(const char *memory, int code, int64_t elements, double *before, double *to) {
    const int64_t size = (int64_t)mp_itemsize(code), count = elements < SAMPLE ? elements : SAMPLE;
    const int64_t step = elements > SAMPLE ? (elements - RUN) / (RUNS - 1) : RUN;
    squares sums = {{0}, {0}};
    for (int64_t at = 0; at < count; at += RUN) {
        const char *from = memory + at / RUN * step * size;
        __builtin_prefetch(from + AHEAD * step * size); /* may be after the end: a prefetch does not fault */
        add_run(from, code, count - at < RUN ? count - at : RUN, before + at, &sums);
    }
    to[0] = to[1] = 0;
    for (int i = 0; i < RUN; i++) {
        to[0] += sums.moved[i];
        to[1] += sums.old[i];
    }
}

/* The address, code and number of elements in a tuple, after its first item. */
static int read_place(PyObject *item, char **memory, long *code, long long *elements) {
    if (!PyTuple_Check(item) || PyTuple_GET_SIZE(item) != 4) {
        PyErr_SetString(PyExc_TypeError, "a place must be a tuple of number, address, code and elements");
        return -1;
    }
    *memory = PyLong_AsVoidPtr(PyTuple_GET_ITEM(item, 1));
    *elements = PyLong_AsLongLong(PyTuple_GET_ITEM(item, 3));
    if (PyErr_Occurred() || read_int(PyTuple_GET_ITEM(item, 2), code)) return -1;
    if (*code >= MP_FLOAT16 && *code <= MP_E8M0FNU && *memory && *elements > 0) return 0;
    PyErr_SetString(PyExc_ValueError, "a place must have an address, the code of a float type, and elements");
    return -1;
}

/* places, before, sums */
PyObject *advance(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    Py_buffer before, sums;
    Py_ssize_t at = 0, i = 0;
    (void)module;
    if (nargs != 3 || !PyList_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "advance takes a list of places and two arrays");
        return NULL;
    }
    if (PyObject_GetBuffer(args[1], &before, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)) return NULL;
    if (PyObject_GetBuffer(args[2], &sums, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)) {
        PyBuffer_Release(&before);
        return NULL;
    }
    for (; i < PyList_GET_SIZE(args[0]); i++) {
        char *memory;
        long code;
        long long elements;
        if (read_place(PyList_GET_ITEM(args[0], i), &memory, &code, &elements)) break;
        const Py_ssize_t count = (Py_ssize_t)(elements < SAMPLE ? elements : SAMPLE);
        if ((at + count) * 8 > before.len || (i + 1) * 16 > sums.len) {
            PyErr_SetString(PyExc_ValueError, "the arrays are too short for these places");
            break;
        }
        add_tensor(memory, (int)code, elements, (double *)before.buf + at, (double *)sums.buf + 2 * i);
        at += count;
    }
    PyBuffer_Release(&before);
    PyBuffer_Release(&sums);
    return PyErr_Occurred() ? NULL : none();
}
