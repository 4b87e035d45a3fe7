/* The comparison of two arrays in one pass: dot product, norms, differences, shares of close elements.
 *
 * Sums are float64 in eight fixed lanes, so compilers can vectorise them without reordering anything. A block
 * with a NaN or an infinity is done again, element by element: a usual block costs only one test. tensors.py
 * has the same in Python (`twin`); a property test checks that both give the same results. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define BLOCK 4096
#define LANES 8

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__gnu_linux__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif

typedef struct {
    double dot, aa, bb, dd; /* sums over the compared elements */
    double max_abs, max_rel, max_scaled;
    int64_t compared, thousandth, five_thousandths, different;
    int64_t same_special;  /* the same NaN or infinity on both sides: left out */
    int64_t other_special; /* NaN or infinity on one side, or not the same */
    int64_t first_special;
} Result;

typedef struct {
    double dot[LANES], aa[LANES], bb[LANES], dd[LANES], max_abs[LANES], max_rel[LANES], max_scaled[LANES];
    double special[LANES];
    double thousandth[LANES], five[LANES], different[LANES];
} Lanes;

#define DEFINE_BLOCK(NAME, TYPE)                                                                                       \
    CLONES static void NAME(const TYPE *restrict a, const TYPE *restrict b, int64_t n, double eps, double scale,       \
                            Lanes *restrict out) {                                                                     \
        /* Two loops over a block that stays in the cache: one alone would need more registers than there are. */      \
        double dot[LANES] = {0}, aa[LANES] = {0}, bb[LANES] = {0}, dd[LANES] = {0}, special[LANES] = {0};              \
        for (int64_t i = 0; i + LANES <= n; i += LANES) {                                                              \
            for (int l = 0; l < LANES; l++) {                                                                          \
                double x = (double)a[i + l], y = (double)b[i + l], d = x - y;                                          \
                special[l] += (x - x) + (y - y);                                                                       \
                dot[l] += x * y;                                                                                       \
                aa[l] += x * x;                                                                                        \
                bb[l] += y * y;                                                                                        \
                dd[l] += d * d;                                                                                        \
            }                                                                                                          \
        }                                                                                                              \
        double max_abs[LANES] = {0}, max_rel[LANES] = {0}, max_scaled[LANES] = {0};                                    \
        double thousandth[LANES] = {0}, five[LANES] = {0}, different[LANES] = {0};                                     \
        for (int64_t i = 0; i + LANES <= n; i += LANES) {                                                              \
            for (int l = 0; l < LANES; l++) {                                                                          \
                double x = (double)a[i + l], y = (double)b[i + l];                                                     \
                double d = fabs(x - y), m = fabs(y);                                                                   \
                double rel = d / (m == 0.0 ? eps : m);                                                                 \
                double scaled = d / (m > scale ? m : scale);                                                           \
                max_abs[l] = d > max_abs[l] ? d : max_abs[l];                                                          \
                max_rel[l] = rel > max_rel[l] ? rel : max_rel[l];                                                      \
                max_scaled[l] = scaled > max_scaled[l] ? scaled : max_scaled[l];                                       \
                thousandth[l] += rel < 0.001 ? 1.0 : 0.0;                                                              \
                five[l] += rel < 0.005 ? 1.0 : 0.0;                                                                    \
                different[l] += d > 0.0 ? 1.0 : 0.0;                                                                   \
            }                                                                                                          \
        }                                                                                                              \
        for (int l = 0; l < LANES; l++) {                                                                              \
            out->special[l] = special[l], out->dot[l] = dot[l], out->aa[l] = aa[l], out->bb[l] = bb[l];                \
            out->dd[l] = dd[l], out->max_abs[l] = max_abs[l], out->max_rel[l] = max_rel[l];                            \
            out->max_scaled[l] = max_scaled[l], out->thousandth[l] = thousandth[l], out->five[l] = five[l];            \
            out->different[l] = different[l];                                                                          \
        }                                                                                                              \
    }

DEFINE_BLOCK(block_f32, float)
DEFINE_BLOCK(block_f64, double)

static void one(Result *r, double x, double y, double eps, double scale, int64_t index) {
    if (!isfinite(x) || !isfinite(y)) {
        if ((isnan(x) && isnan(y)) || x == y) {
            r->same_special++;
        } else {
            if (r->other_special == 0) r->first_special = index;
            r->other_special++;
        }
        return;
    }
    double d = fabs(x - y), m = fabs(y);
    double rel = d / (m == 0.0 ? eps : m);
    double over = m > scale ? m : scale;
    double scaled = d > 0.0 ? d / over : 0.0;
    r->compared++;
    r->dot += x * y;
    r->aa += x * x;
    r->bb += y * y;
    r->dd += d * d;
    if (d > r->max_abs) r->max_abs = d;
    if (rel > r->max_rel) r->max_rel = rel;
    if (scaled > r->max_scaled) r->max_scaled = scaled;
    r->thousandth += rel < 0.001;
    r->five_thousandths += rel < 0.005;
    r->different += d > 0.0;
}

#define DEFINE_RUN(NAME, TYPE, KERNEL)                                                                                 \
    static void NAME(const TYPE *a, const TYPE *b, int64_t n, double eps, double scale, Result *r) {                   \
        for (int64_t start = 0; start < n; start += BLOCK) {                                                           \
            int64_t length = n - start < BLOCK ? n - start : BLOCK;                                                    \
            int64_t whole = length - length % LANES;                                                                   \
            Lanes s;                                                                                                   \
            memset(&s, 0, sizeof s);                                                                                   \
            double special = 0.0;                                                                                      \
            KERNEL(a + start, b + start, whole, eps, scale, &s);                                                       \
            for (int l = 0; l < LANES; l++) special += s.special[l];                                                   \
            if (special != 0.0) {                                                                                      \
                whole = 0;                                                                                             \
            } else {                                                                                                   \
                r->compared += whole;                                                                                  \
                for (int l = 0; l < LANES; l++) {                                                                      \
                    r->dot += s.dot[l];                                                                                \
                    r->aa += s.aa[l];                                                                                  \
                    r->bb += s.bb[l];                                                                                  \
                    r->dd += s.dd[l];                                                                                  \
                    if (s.max_abs[l] > r->max_abs) r->max_abs = s.max_abs[l];                                          \
                    if (s.max_rel[l] > r->max_rel) r->max_rel = s.max_rel[l];                                          \
                    if (s.max_scaled[l] > r->max_scaled) r->max_scaled = s.max_scaled[l];                              \
                    r->thousandth += (int64_t)s.thousandth[l];                                                         \
                    r->five_thousandths += (int64_t)s.five[l];                                                         \
                    r->different += (int64_t)s.different[l];                                                           \
                }                                                                                                      \
            }                                                                                                          \
            for (int64_t i = whole; i < length; i++)                                                                   \
                one(r, (double)a[start + i], (double)b[start + i], eps, scale, start + i);                             \
        }                                                                                                              \
    }

DEFINE_RUN(run_f32, float, block_f32)
DEFINE_RUN(run_f64, double, block_f64)

static PyObject *pairs(PyObject *self, PyObject *args) {
    Py_buffer a, b;
    const char *kind;
    double eps, scale;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*sdd", &a, &b, &kind, &eps, &scale)) return NULL;
    int wide = kind[0] == 'd';
    int64_t size = wide ? 8 : 4;
    PyObject *answer = NULL;
    if (a.len != b.len || a.len % size || (uintptr_t)a.buf % (uintptr_t)size || (uintptr_t)b.buf % (uintptr_t)size) {
        PyErr_SetString(PyExc_ValueError, "two aligned buffers of the same length and type are expected");
    } else {
        Result r = {0};
        r.first_special = -1;
        Py_BEGIN_ALLOW_THREADS if (wide) run_f64(a.buf, b.buf, a.len / size, eps, scale, &r);
        else run_f32(a.buf, b.buf, a.len / size, eps, scale, &r);
        Py_END_ALLOW_THREADS answer = Py_BuildValue(
            "(dddddddLLLLLLL)", r.dot, r.aa, r.bb, r.dd, r.max_abs, r.max_rel, r.max_scaled, (long long)r.compared,
            (long long)r.thousandth, (long long)r.five_thousandths, (long long)r.different, (long long)r.same_special,
            (long long)r.other_special, (long long)r.first_special);
    }
    PyBuffer_Release(&a);
    PyBuffer_Release(&b);
    return answer;
}

static PyMethodDef methods[] = {
    {"pairs", pairs, METH_VARARGS, "pairs(a, b, 'f' or 'd', eps, scale): the sums and maxima of two buffers."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_pairs", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__pairs(void) {
    return PyModule_Create(&module);
}
