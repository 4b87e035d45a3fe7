/* Functions that scan memory, each in one pass. watched.c applies them to tensors.

   scan(address, dtype code, elements) -> (largest |bit pattern|, subnormal elements, counted in 16 bits only)
       The bit patterns of IEEE magnitudes have the order of the magnitudes, with infinity and NaN at the top.
   ratio(first, its code, second, its code, elements, floor) -> (largest max(a/b, b/a), flipped signs, unequal)
       Magnitudes below `floor` count as `floor`. NaN equals NaN, and an infinity equals itself; compared with any other
       value, both have ratio infinity. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "scan.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("default", "avx2", "arch=skylake-avx512")))
#else
#define CLONES
#endif
#define BLOCK 4096
#define PART 1024

/* 64 running maxima: a single one would be a chain of dependent instructions. */
#define TOP_OF(name, type, mask)                                                                                       \
    CLONES static uint64_t name(const void *memory, int64_t count) {                                                   \
        const type *values = memory;                                                                                   \
        type high[64] = {0}, top = 0;                                                                                  \
        int64_t i = 0;                                                                                                 \
        for (; i + 64 <= count; i += 64)                                                                               \
            for (int j = 0; j < 64; j++) {                                                                             \
                const type magnitude = values[i + j] & mask;                                                           \
                high[j] = magnitude > high[j] ? magnitude : high[j];                                                   \
            }                                                                                                          \
        for (; i < count; i++) {                                                                                       \
            const type magnitude = values[i] & mask;                                                                   \
            top = magnitude > top ? magnitude : top;                                                                   \
        }                                                                                                              \
        for (int j = 0; j < 64; j++) top = high[j] > top ? high[j] : top;                                              \
        return top;                                                                                                    \
    }

TOP_OF(top32, uint32_t, 0x7fffffffu)
TOP_OF(top64, uint64_t, UINT64_C(0x7fffffffffffffff))

CLONES static uint64_t scan16(const void *memory, int64_t count, uint16_t normal, int64_t *tiny) {
    const uint16_t *values = memory;
    uint16_t high = 0;
    int64_t small = 0;
    for (int64_t start = 0; start < count; start += BLOCK) {
        const int64_t end = count - start < BLOCK ? count : start + BLOCK;
        uint16_t found = 0;
        for (int64_t i = start; i < end; i++) {
            const uint16_t magnitude = values[i] & 0x7fff;
            high = magnitude > high ? magnitude : high;
            found = (uint16_t)(found + ((uint16_t)(magnitude - 1) < (uint16_t)(normal - 1)));
        }
        small += found;
    }
    *tiny = small;
    return high;
}

static inline float half_to_float(uint16_t bits) {
    const uint32_t sign = (uint32_t)(bits & 0x8000) << 16, magnitude = bits & 0x7fff;
    uint32_t wide = magnitude << 13, scaled;
    float value;
    memcpy(&value, &wide, 4);
    value *= 0x1p112f; /* shifts the exponent, also of subnormals */
    memcpy(&scaled, &value, 4);
    wide = (magnitude >= 0x7c00 ? wide | 0x7f800000 : scaled) | sign;
    memcpy(&value, &wide, 4);
    return value;
}

#define WIDEN(name, type)                                                                                              \
    CLONES static void name(const char *from, int code, int64_t count, type *to) {                                     \
        const uint16_t *halves = (const uint16_t *)(const void *)from;                                                 \
        switch (code) {                                                                                                \
        case FLOAT16:                                                                                                  \
            for (int64_t i = 0; i < count; i++) to[i] = (type)half_to_float(halves[i]);                                \
            break;                                                                                                     \
        case BFLOAT16:                                                                                                 \
            for (int64_t i = 0; i < count; i++) {                                                                      \
                const uint32_t wide = (uint32_t)halves[i] << 16;                                                       \
                float value;                                                                                           \
                memcpy(&value, &wide, 4);                                                                              \
                to[i] = (type)value;                                                                                   \
            }                                                                                                          \
            break;                                                                                                     \
        case FLOAT32:                                                                                                  \
            for (int64_t i = 0; i < count; i++) to[i] = (type)((const float *)(const void *)from)[i];                  \
            break;                                                                                                     \
        default:                                                                                                       \
            for (int64_t i = 0; i < count; i++) to[i] = (type)((const double *)(const void *)from)[i];                 \
        }                                                                                                              \
    }

/* Works on bit patterns, because their maximum vectorises. Returns true for a block with a value that is not finite;
   the caller then uses compare_odd. */
#define COMPARE(name, type, bits, mask, infinite)                                                                      \
    CLONES static int name(const type *first, const type *second, int64_t count, type least, bits *worst,              \
                           int64_t *flipped, int64_t *unequal) {                                                       \
        bits high = 0, top = 0, floor, signs = 0, other = 0;                                                           \
        memcpy(&floor, &least, sizeof floor);                                                                          \
        for (int64_t i = 0; i < count; i++) {                                                                          \
            bits a, b;                                                                                                 \
            memcpy(&a, first + i, sizeof a);                                                                           \
            memcpy(&b, second + i, sizeof b);                                                                          \
            const bits x = a & mask, y = b & mask;                                                                     \
            const bits p = x > floor ? x : floor, q = y > floor ? y : floor;                                           \
            const bits up = p > q ? p : q, low = p > q ? q : p, least_of = x < y ? x : y;                              \
            type above, below, r;                                                                                      \
            bits found;                                                                                                \
            memcpy(&above, &up, sizeof up);                                                                            \
            memcpy(&below, &low, sizeof low);                                                                          \
            r = above / below;                                                                                         \
            memcpy(&found, &r, sizeof r);                                                                              \
            high = found > high ? found : high;                                                                        \
            top = up > top ? up : top;                                                                                 \
            signs += ((a ^ b) > mask) & (least_of > floor);                                                            \
            other += (a != b) & ((x | y) != 0);                                                                        \
        }                                                                                                              \
        if (top >= infinite) return 1;                                                                                 \
        *worst = high > *worst ? high : *worst;                                                                        \
        *flipped += (int64_t)signs;                                                                                    \
        *unequal += (int64_t)other;                                                                                    \
        return 0;                                                                                                      \
    }

WIDEN(widen_float, float)
WIDEN(widen_double, double)
COMPARE(compare_float, float, uint32_t, 0x7fffffffu, 0x7f800000u)
COMPARE(compare_double, double, uint64_t, UINT64_C(0x7fffffffffffffff), UINT64_C(0x7ff0000000000000))

/* One block of doubles with any values. */
static double compare_odd(const double *a, const double *b, int64_t count, double floor, int64_t *flipped,
                          int64_t *unequal) {
    double worst = 1.0;
    for (int64_t i = 0; i < count; i++) {
        const double x = fmax(fabs(a[i]), floor), y = fmax(fabs(b[i]), floor);
        if (a[i] == b[i] || (isnan(a[i]) && isnan(b[i]))) continue;
        *unequal += 1;
        *flipped += a[i] * b[i] < 0 && x > floor && y > floor;
        worst = isfinite(a[i]) && isfinite(b[i]) ? fmax(worst, fmax(x, y) / fmin(x, y)) : INFINITY;
    }
    return worst;
}

void scan_memory(const void *memory, int code, int64_t count, uint64_t *top, int64_t *tiny) {
    PyThreadState *state = count > (1 << 16) ? PyEval_SaveThread() : NULL;
    *tiny = 0;
    switch (code) {
    case FLOAT16:
        *top = scan16(memory, count, 0x0400, tiny);
        break;
    case BFLOAT16:
        *top = scan16(memory, count, 0x0080, tiny);
        break;
    case FLOAT32:
        *top = top32(memory, count);
        break;
    default:
        *top = top64(memory, count);
    }
    if (state) PyEval_RestoreThread(state);
}

static PyObject *scan(PyObject *module, PyObject *args) {
    unsigned long long address;
    int code;
    long long count;
    uint64_t top = 0;
    int64_t tiny = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "KiL:scan", &address, &code, &count)) return NULL;
    if (code < 0 || code >= FORMATS || count < 0 || (count && !address)) {
        PyErr_SetString(PyExc_ValueError, "scan: unknown dtype, or no memory");
        return NULL;
    }
    const void *memory = (const void *)(uintptr_t)address;
    scan_memory(memory, code, count, &top, &tiny);
    return Py_BuildValue("KL", (unsigned long long)top, (long long)tiny);
}

static PyObject *ratio(PyObject *module, PyObject *args) {
    unsigned long long first, second;
    int code, other;
    long long count;
    double floor, worst = 1.0;
    int64_t flipped = 0, unequal = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "KiKiLd:ratio", &first, &code, &second, &other, &count, &floor)) return NULL;
    if (code < 0 || code >= FORMATS || other < 0 || other >= FORMATS || count < 0 || !(floor > 0) ||
        (count && !(first && second))) {
        PyErr_SetString(PyExc_ValueError, "ratio: unknown dtype, no memory, or a floor that is not positive");
        return NULL;
    }
    const char *x = (const char *)(uintptr_t)first, *y = (const char *)(uintptr_t)second;
    const int wide = code == FLOAT64 || other == FLOAT64;
    const double least = wide || floor > 0x1p-126 ? floor : 0x1p-126;
    uint32_t narrow_high = 0;
    uint64_t wide_high = 0;
    PyThreadState *state = count > (1 << 14) ? PyEval_SaveThread() : NULL;
    for (int64_t start = 0; start < count; start += PART) {
        union {
            float f[PART];
            double d[PART];
        } a, b;
        const int64_t size = count - start < PART ? count - start : PART;
        const char *p = x + (size_t)start * size_of(code), *q = y + (size_t)start * size_of(other);
        int odd;
        if (wide) {
            widen_double(p, code, size, a.d);
            widen_double(q, other, size, b.d);
            odd = compare_double(a.d, b.d, size, least, &wide_high, &flipped, &unequal);
        } else {
            widen_float(p, code, size, a.f);
            widen_float(q, other, size, b.f);
            odd = compare_float(a.f, b.f, size, (float)least, &narrow_high, &flipped, &unequal);
        }
        if (odd) {
            widen_double(p, code, size, a.d);
            widen_double(q, other, size, b.d);
            worst = fmax(worst, compare_odd(a.d, b.d, size, least, &flipped, &unequal));
        }
    }
    float narrow;
    double broad;
    memcpy(&narrow, &narrow_high, 4);
    memcpy(&broad, &wide_high, 8);
    worst = fmax(worst, fmax((double)narrow, broad));
    if (state) PyEval_RestoreThread(state);
    return Py_BuildValue("dLL", worst, (long long)flipped, (long long)unequal);
}

static PyMethodDef methods[] = {
    {"scan", scan, METH_VARARGS, "The largest bit pattern of a magnitude, and how many are subnormal."},
    {"look", (PyCFunction)(void (*)(void))watched_look, METH_FASTCALL, "Scans a framework tensor."},
    {"run", (PyCFunction)(void (*)(void))watched_run, METH_FASTCALL, "Calls a function and scans its result."},
    {"ratio", ratio, METH_VARARGS, "The largest ratio between two tensors, flipped signs, unequal elements."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_scan", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__scan(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module && watched_init(module)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
