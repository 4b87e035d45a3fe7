/* What a low-precision format does to a matrix of float32: sums over blocks, for msprobe/stats/damage.py, which has the
   definition in numpy. Small blocks are measured several at a time, one in each lane of a vector; a larger one
   fills all lanes. So levels of CPU instructions differ in the order of sums: by some 1e-6 of them.

   Elements are divided by the scale of their block before they are squared: the squares of small gradients would
   underflow in float32. */
#include "fp_state.h"
#include "kernel.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#pragma GCC diagnostic ignored "-Wpsabi" /* no vector is an argument between files */

#define MOST_ROWS 128        /* of a block of one column that is read once */
#define PACKED 0x2000        /* elements that are copied before they are measured: they fit the nearest cache */
#define WIDEST 512           /* columns of them */
#define HIGH_STRIP 256       /* columns of more than MOST_ROWS rows */
#define AHEAD 0x800          /* elements to prefetch */
#define MOST_ELEMENTS 0x4000 /* of a small block */
#define SHORT 256            /* float32 sums of long blocks have at most so many numbers */
#define TILE 4096
#define NEAR 16       /* powers of two */
#define NO_SCALE 4096 /* larger than every exponent */

enum { SCALE_NONE, SCALE_FLOAT32, SCALE_POWER, SCALE_E8M0, SCALE_E4M3 };
enum { USUAL, FULL, ANY_KIND }; /* loops: nothing special; something saturates; also outside of the bulk */
enum { MODE_FLOOR, MODE_RCEIL, MODE_CEIL, MODE_EVEN };

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)

typedef struct {
    int mantissa, lowest; /* of the element */
    float largest;
    int has_inf, scale, mode;
    Py_ssize_t rows, columns; /* of a block */
    float bulk;               /* elements up to this magnitude are the bulk */
    float norm;               /* makes the elements of the tensor about 1 before they are squared */
    double whole_scale;       /* of the tensor, for scales in e4m3 */
    float peak;               /* the largest magnitude if the tensor is one block, else 0 */
    /* computed from these */
    int32_t lowest_bits, largest_bits, over_bits, bulk_bits, peak_bits;
    float step;    /* times the exponent of an element is the number that rounds it */
    float magic;   /* the number that rounds elements below the lowest exponent */
    int32_t carry; /* makes the exponent of the largest magnitude that of the scale */
    int highest;   /* the exponent of the largest number */
    float share;   /* of the largest magnitude in the scale */
    float whole, vanish;
} format;

typedef struct {
    double energy, error, bulk_energy, bulk_error;
} wide_sums;

/* Energies are multiplied by the square of `norm`. */
typedef struct {
    double energy, error, bulk_energy, bulk_error;
    int lowest, highest; /* exponents of the scales, as the bits of a float32 */
    double worst_ratio;
    ptrdiff_t worst; /* the number of the block */
    ptrdiff_t base;  /* of the first block of this call */
    int64_t zero, tiny, beyond, elements;
} totals;

typedef struct {
    int32_t peak; /* of the last tile */
    int exponent; /* of that one, or of one before with a peak of NEAR powers of two more or less */
    int64_t zeros;
    double moments[4];
} extents;

static inline int32_t bits_of(float value) {
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_of(int32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline void note_scales(int lowest, int highest, totals *t) {
    t->lowest = lowest < t->lowest ? lowest : t->lowest;
    t->highest = highest > t->highest ? highest : t->highest;
}

/* One block, whose elements were divided by `unit`. */
static void add_block(const wide_sums *w, float unit, int used, const format *f, ptrdiff_t place, totals *t) {
    const double even = f->scale == SCALE_NONE ? 1.0 : (double)unit * (double)f->norm, square = even * even;
    const double ratio = w->error / w->energy;
    const int exponent = bits_of(unit) >> 23;
    t->energy += w->energy * square;
    t->error += w->error * square;
    t->bulk_energy += w->bulk_energy * square;
    t->bulk_error += w->bulk_error * square;
    if (used) note_scales(exponent, exponent, t);
    if (ratio > t->worst_ratio) {
        t->worst_ratio = ratio;
        t->worst = t->base + place;
    }
}

#define CHOOSE(a, b, first)                                                                                            \
    ({                                                                                                                 \
        const __auto_type a_ = (a);                                                                                    \
        const __auto_type b_ = (b);                                                                                    \
        const __auto_type first_ = (first);                                                                            \
        (a_ & first_) | (b_ & ~first_);                                                                                \
    })

#define TARGET
#define SUFFIX _portable
#define LANES 4
#define LOW1 0, 4, 2, 6
#define LOW2 0, 1, 4, 5
#define LOW4 0
#define LOW8 0
#define LARGER(a, b) CHOOSE(a, b, (a) > (b))
#define SMALLER(a, b) CHOOSE(a, b, (a) < (b))
#define COUNT(n, a, b) ((n) - ((a) < (b)))
#define FMA(a, b, c) ((a) * (b) + (c))
#define ANY(mask) NAME(any_of)(mask)
#include "damage_loops.h"
#if defined(__x86_64__)
#define TARGET __attribute__((target("avx2,fma")))
#define SUFFIX _avx2
#define LANES 8
#define LOW1 0, 8, 2, 10, 4, 12, 6, 14
#define LOW2 0, 1, 8, 9, 4, 5, 12, 13
#define LOW4 0, 1, 2, 3, 8, 9, 10, 11
#define LOW8 0
#define LARGER(a, b) ((ints)_mm256_max_epi32((__m256i)(a), (__m256i)(b)))
#define SMALLER(a, b) ((ints)_mm256_min_epi32((__m256i)(a), (__m256i)(b)))
#define COUNT(n, a, b) ((n) - ((a) < (b)))
#define FMA(a, b, c) ((floats)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define ANY(mask) (_mm256_movemask_epi8((__m256i)(mask)) != 0)
#include "damage_loops.h"
#define TARGET __attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,prefer-vector-width=512")))
#define SUFFIX _avx512
#define LANES 16
#define LOW1 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30
#define LOW2 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define LOW4 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27
#define LOW8 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23
#define LARGER(a, b) ((ints)_mm512_max_epi32((__m512i)(a), (__m512i)(b)))
#define SMALLER(a, b) ((ints)_mm512_min_epi32((__m512i)(a), (__m512i)(b)))
#define COUNT(n, a, b)                                                                                                 \
    ((ints)_mm512_mask_add_epi32((__m512i)(n), _mm512_cmplt_epi32_mask((__m512i)(a), (__m512i)(b)), (__m512i)(n),      \
                                 _mm512_set1_epi32(1)))
#define FMA(a, b, c) ((floats)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define ANY(mask) (_mm512_movepi32_mask((__m512i)(mask)) != 0)
#include "damage_loops.h"
#endif

typedef struct {
    void (*measure)(const float *, ptrdiff_t, ptrdiff_t, const format *, totals *);
    int (*add_tile)(const float *, ptrdiff_t, extents *);
} loops;

static const loops LOOPS[] = {
    {measure_portable, add_tile_portable},
#if defined(__x86_64__)
    {measure_avx2, add_tile_avx2},
    {measure_avx512, add_tile_avx512},
#endif
};

static const loops *chosen(void) {
    return &LOOPS[mp_level()];
}

static int complete(format *f) {
    int exponent;
    if (f->mantissa < 1 || f->mantissa > 16 || f->rows < 1 || f->columns < 1 || !(f->norm > 0) ||
        !(f->whole_scale > 0) || f->lowest < -126 || f->lowest > 0) {
        PyErr_SetString(PyExc_ValueError, "the format of damage() is out of range");
        return -1;
    }
    frexp((double)f->largest, &exponent);
    f->highest = exponent - 1;
    f->lowest_bits = (f->lowest + 127) << 23;
    f->largest_bits = bits_of(f->largest);
    f->over_bits = bits_of(f->has_inf && f->scale == SCALE_NONE ? INFINITY : f->largest);
    f->bulk_bits = bits_of(f->bulk);
    f->peak_bits = bits_of(f->peak);
    f->step = ldexpf(1.5f, 23 - f->mantissa);
    f->magic = ldexpf(1.5f, 23 + f->lowest - f->mantissa);
    const int32_t fraction = f->largest_bits & 0x7fffff, all = 0x7fffff;
    f->carry = f->scale == SCALE_POWER || f->mode == MODE_RCEIL ? all - fraction
               : f->mode == MODE_CEIL                           ? all
               : f->mode == MODE_EVEN                           ? 1 << (22 - f->mantissa)
                                                                : 0;
    f->share = (float)(1.0 / (double)f->largest / f->whole_scale);
    f->whole = (float)f->whole_scale;
    f->vanish = ldexpf(0.25f, f->lowest - f->mantissa);
    return 0;
}

static int open_matrix(PyObject *object, Py_buffer *view) {
    if (PyObject_GetBuffer(object, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)) return -1;
    if (view->ndim == 2 && view->shape[0] > 0 && view->shape[1] > 0 && !strcmp(view->format, "f")) return 0;
    PyBuffer_Release(view);
    PyErr_SetString(PyExc_ValueError, "the matrix must be float32 and not empty");
    return -1;
}

static PyObject *as_tuple(const totals *t, ptrdiff_t size, ptrdiff_t across) {
    const long long filling = (long long)t->elements - (long long)size;
    return Py_BuildValue("LLLdddddnni", (long long)t->zero - filling, (long long)t->beyond,
                         (long long)(t->tiny - t->zero), t->energy, t->error, t->bulk_energy, t->bulk_error,
                         t->worst_ratio, t->worst / across, t->worst % across,
                         t->lowest < NO_SCALE ? t->highest - t->lowest : 0);
}

/* One tuple; with `both`, two for blocks of one row, along the rows and along the columns. Then the matrix is read in
   bands as high as a block is long: what the first reads is in the cache for the second. */
PyObject *damage(PyObject *module, PyObject *args) {
    Py_buffer view;
    PyObject *matrix;
    format f;
    int both;
    totals t[2] = {{.lowest = NO_SCALE}, {.lowest = NO_SCALE}};
    (void)module;
    if (!PyArg_ParseTuple(args, "Oiifiiinnffdfp:damage", &matrix, &f.mantissa, &f.lowest, &f.largest, &f.has_inf,
                          &f.scale, &f.mode, &f.rows, &f.columns, &f.bulk, &f.norm, &f.whole_scale, &f.peak, &both))
        return NULL;
    if (complete(&f) || open_matrix(matrix, &view)) return NULL;
    const Py_ssize_t rows = view.shape[0], columns = view.shape[1], across = (columns + f.columns - 1) / f.columns;
    const Py_ssize_t step = both ? f.columns : rows;
    format turned = f;
    turned.rows = f.columns;
    turned.columns = f.rows;
    Py_BEGIN_ALLOW_THREADS fp_state before = fp_exact();
    for (Py_ssize_t top = 0; top < rows; top += step) {
        const Py_ssize_t high = top + step < rows ? step : rows - top;
        const float *band = (const float *)view.buf + top * columns;
        t[0].base = top * across;
        t[1].base = top / step * columns;
        chosen()->measure(band, high, columns, &f, &t[0]);
        if (both) chosen()->measure(band, high, columns, &turned, &t[1]);
    }
    fp_restore(before);
    Py_END_ALLOW_THREADS PyBuffer_Release(&view);
    if (!both) return as_tuple(&t[0], rows * columns, across);
    return Py_BuildValue("NN", as_tuple(&t[0], rows * columns, across), as_tuple(&t[1], rows * columns, columns));
}

/* The largest magnitude, its place, the number of elements that are not finite and of zeros, and the means of the
   elements, their squares, third and fourth powers. */
PyObject *extent(PyObject *module, PyObject *object) {
    Py_buffer view;
    extents e = {0};
    int32_t peak = -1;
    Py_ssize_t place = 0, bad = 0;
    (void)module;
    if (open_matrix(object, &view)) return NULL;
    const Py_ssize_t n = view.shape[0] * view.shape[1];
    const float *x = view.buf;
    Py_BEGIN_ALLOW_THREADS fp_state before = fp_exact();
    _Alignas(64) float padded[16] = {0};
    for (Py_ssize_t at = 0; at < n;) {
        Py_ssize_t size = n - at < TILE ? (n - at) / 16 * 16 : TILE;
        const float *from = x + at;
        if (!size) {
            size = n - at;
            memcpy(padded, from, (size_t)size * sizeof(float));
            e.zeros -= 16 - size;
            from = padded;
        }
        if (!chosen()->add_tile(from, (size + 15) / 16 * 16, &e))
            for (Py_ssize_t i = 0; i < size; i++) bad += !isfinite(from[i]);
        if (e.peak > peak) {
            peak = e.peak;
            place = at;
        }
        at += size;
    }
    while (!bad && place < n && bits_of(fabsf(x[place])) < peak) place++;
    fp_restore(before);
    Py_END_ALLOW_THREADS PyBuffer_Release(&view);
    const double number = (double)n;
    return Py_BuildValue("dnnLdddd", (double)float_of(peak), place, bad, (long long)e.zeros, e.moments[0] / number,
                         e.moments[1] / number, e.moments[2] / number, e.moments[3] / number);
}
