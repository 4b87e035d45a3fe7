/* What a low-precision format does to a matrix of float32: sums over blocks, for msprobe/stats/damage.py, which has the
   definition in numpy. The matrix is read in strips as high as a block; every column of a strip has its own sums, so
   that the loops over columns become vector instructions.

   Elements are divided by the scale of their block before they are squared: the squares of small gradients would
   underflow in float32. */
#include "kernel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-trapping-math") /* comparisons of floats become vector instructions too */
#endif

#define WIDTH 1024 /* columns of a strip, if a block is not wider */

enum { SCALE_NONE, SCALE_FLOAT32, SCALE_POWER, SCALE_E8M0, SCALE_E4M3 };
enum { MODE_FLOOR, MODE_RCEIL, MODE_CEIL, MODE_EVEN };

typedef struct {
    int mantissa, lowest; /* of the element */
    float largest;
    int has_inf, scale, mode;
    Py_ssize_t rows, columns; /* of a block */
    float bulk;               /* elements up to this magnitude are the bulk */
    float norm;               /* without scales: makes the elements about 1 before they are squared */
} format;

typedef struct {
    double unit; /* what the elements were divided by */
    double energy, error;
} block_sums;

/* Sums of one strip, one for each column. */
typedef struct {
    float *most, *inverse, *keep;
    float *energy, *error, *bulk_energy, *bulk_error;
    int32_t *zeroed, *beyond, *tiny, *nonzero;
    void *memory;
} strip;

typedef struct {
    int64_t zeroed, beyond, tiny, nonzero;
    double energy, error, bulk_energy, bulk_error;
    double worst_energy, worst_error;
    Py_ssize_t worst_row, worst_column;
    int lowest, highest; /* exponents of the scales */
} totals;

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

/* Adds one row to the sums. Rounds to nearest even: numbers with a full mantissa by their bits, smaller ones by an
   addition that leaves no room for more bits. */
#define ROW(NAME, TARGET)                                                                                              \
    TARGET static void row_##NAME(const float *restrict x, Py_ssize_t n, const format *f, const strip *s) {            \
        const int32_t drop = 23 - f->mantissa, half = (1 << (drop - 1)) - 1, mask = ~((1 << drop) - 1);                \
        const float least = ldexpf(1.0f, f->lowest), magic = ldexpf(1.5f, 23 + f->lowest - f->mantissa);               \
        const float largest = f->largest, bulk = f->bulk, norm = f->norm;                                              \
        const float over = f->has_inf && f->scale == SCALE_NONE ? INFINITY : f->largest;                               \
        const float *restrict inverse = s->inverse, *restrict keep = s->keep;                                          \
        float *restrict energy = s->energy, *restrict error = s->error;                                                \
        float *restrict bulk_energy = s->bulk_energy, *restrict bulk_error = s->bulk_error;                            \
        int32_t *restrict zeroed = s->zeroed, *restrict beyond = s->beyond;                                            \
        int32_t *restrict tiny = s->tiny, *restrict nonzero = s->nonzero;                                              \
        _Pragma("GCC ivdep") for (Py_ssize_t i = 0; i < n; i++) {                                                      \
            const float size = fabsf(x[i]), scaled = size * inverse[i];                                                \
            const int32_t bits = bits_of(scaled);                                                                      \
            const float whole = float_of((bits + half + ((bits >> drop) & 1)) & mask);                                 \
            const float small = (scaled + magic) - magic;                                                              \
            const float rounded = (scaled >= least ? whole : small) * keep[i];                                         \
            const float kept = rounded > largest ? over : rounded;                                                     \
            const float off = (kept - scaled) * norm, even = scaled * norm, lost = off * off, full = even * even;      \
            const int32_t within = -(int32_t)(size <= bulk);                                                           \
            energy[i] += full;                                                                                         \
            error[i] += lost;                                                                                          \
            bulk_energy[i] += float_of(bits_of(full) & within);                                                        \
            bulk_error[i] += float_of(bits_of(lost) & within);                                                         \
            nonzero[i] += size > 0;                                                                                    \
            zeroed[i] += (size > 0) & (rounded == 0);                                                                  \
            beyond[i] += rounded > largest;                                                                            \
            tiny[i] += (rounded > 0) & (rounded < least);                                                              \
        }                                                                                                              \
    }                                                                                                                  \
    TARGET static void most_##NAME(const float *restrict x, Py_ssize_t n, float *restrict most) {                      \
        for (Py_ssize_t i = 0; i < n; i++) most[i] = fabsf(x[i]) > most[i] ? fabsf(x[i]) : most[i];                    \
    }

typedef void (*row_loop)(const float *, Py_ssize_t, const format *, const strip *);
typedef void (*most_loop)(const float *, Py_ssize_t, float *);

ROW(plain, )
#if defined(__x86_64__)
ROW(avx2, __attribute__((target("avx2"))))
ROW(avx512, __attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,prefer-vector-width=512"))))
#endif

static row_loop add_row;
static most_loop add_most;

static void choose(void) {
    add_row = row_plain;
    add_most = most_plain;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
        add_row = row_avx512;
        add_most = most_avx512;
    } else if (__builtin_cpu_supports("avx2")) {
        add_row = row_avx2;
        add_most = most_avx2;
    }
#endif
}

static int ceil_log2(double value) {
    int exponent;
    const double part = frexp(value, &exponent);
    return part == 0.5 ? exponent - 1 : exponent;
}

static int mx_exponent(double most, const format *f) {
    int exponent, highest, found;
    if (most <= 0) most = 0x1p-149;
    frexp(f->largest, &highest);
    highest--;
    const double part = frexp(most, &exponent);
    if (f->mode == MODE_RCEIL)
        found = ceil_log2(most / f->largest);
    else if (f->mode == MODE_CEIL)
        found = ceil_log2(most) - highest;
    else {
        if (f->mode == MODE_EVEN && part + ldexp(1.0, -(f->mantissa + 2)) >= 1.0) exponent++;
        found = exponent - 1 - highest;
    }
    return found < -127 ? -127 : found > 127 ? 127 : found;
}

/* To nearest even in float8_e4m3fn; at most its largest number. */
static double to_e4m3(double value) {
    int exponent;
    if (value <= 0) return 0;
    frexp(value, &exponent);
    const double step = ldexp(1.0, (exponent - 1 < -6 ? -6 : exponent - 1) - 3);
    return fmin(rint(value / step) * step, 448.0);
}

static double scale_of(double most, const format *f, double whole) {
    double scale;
    switch (f->scale) {
    case SCALE_E8M0:
        return ldexp(1.0, mx_exponent(most, f));
    case SCALE_E4M3:
        return to_e4m3((double)(float)(most / f->largest / whole)) * whole;
    case SCALE_POWER: {
        const int exponent = most > 0 ? ceil_log2(most / f->largest) : 0;
        return ldexp(1.0, exponent < -126 ? -126 : exponent > 127 ? 127 : exponent);
    }
    default:
        scale = most > 0 ? most / f->largest : 1.0;
        return (double)(float)fmin(fmax(scale, 0x1p-126), 0x1.fffffep127);
    }
}

static int open_strip(strip *s, Py_ssize_t n) {
    const size_t size = (size_t)n * sizeof(float);
    char *at = s->memory = malloc(11 * size);
    if (!at) return -1;
    float **floats[] = {&s->most, &s->inverse, &s->keep, &s->energy, &s->error, &s->bulk_energy, &s->bulk_error};
    int32_t **counts[] = {&s->zeroed, &s->beyond, &s->tiny, &s->nonzero};
    for (int k = 0; k < 7; k++, at += size) *floats[k] = (float *)(void *)at;
    for (int k = 0; k < 4; k++, at += size) *counts[k] = (int32_t *)(void *)at;
    return 0;
}

/* Adds the sums of the columns of one block. */
static void add_block(const strip *s, Py_ssize_t first, Py_ssize_t last, block_sums *b, totals *t) {
    double energy = 0, error = 0, bulk_energy = 0, bulk_error = 0;
    for (Py_ssize_t i = first; i < last; i++) {
        energy += (double)s->energy[i];
        error += (double)s->error[i];
        bulk_energy += (double)s->bulk_energy[i];
        bulk_error += (double)s->bulk_error[i];
        t->nonzero += s->nonzero[i];
        t->zeroed += s->zeroed[i];
        t->beyond += s->beyond[i];
        t->tiny += s->tiny[i];
    }
    const double square = b->unit * b->unit;
    b->energy += energy * square;
    b->error += error * square;
    t->bulk_energy += bulk_energy * square;
    t->bulk_error += bulk_error * square;
}

static void end_block(const block_sums *b, Py_ssize_t row, Py_ssize_t column, totals *t) {
    t->energy += b->energy;
    t->error += b->error;
    /* energy / error < worst, without a division: the error is 0 in a block that loses nothing */
    if (b->error > 0 && (t->worst_error == 0 || b->energy * t->worst_error < t->worst_energy * b->error)) {
        t->worst_energy = b->energy;
        t->worst_error = b->error;
        t->worst_row = row;
        t->worst_column = column;
    }
}

/* The scale of a block, for all of its columns. */
static void begin_block(const strip *s, Py_ssize_t first, Py_ssize_t last, const format *f, double whole, block_sums *b,
                        totals *t) {
    double most = 0;
    float keep = 1;
    int exponent;
    *b = (block_sums){.unit = 1};
    if (f->scale != SCALE_NONE) {
        for (Py_ssize_t i = first; i < last; i++) most = s->most[i] > most ? s->most[i] : most;
        b->unit = scale_of(most, f, whole);
        frexp(b->unit, &exponent);
        if (most > 0 && exponent < t->lowest) t->lowest = exponent;
        if (most > 0 && exponent > t->highest) t->highest = exponent;
        if (b->unit <= 0) { /* the scale itself has become zero: nothing of the block is left */
            keep = 0;
            b->unit = most > 0 ? most : 1;
        }
    }
    for (Py_ssize_t i = first; i < last; i++) {
        s->inverse[i] = (float)(1.0 / b->unit);
        s->keep[i] = keep;
    }
    b->unit /= (double)f->norm;
}

/* A strip of the matrix: `high` rows and `wide` columns, from x on. */
static void measure_strip(const float *x, Py_ssize_t stride, Py_ssize_t high, Py_ssize_t wide, const format *f,
                          double whole, const strip *s, block_sums *blocks, Py_ssize_t row, Py_ssize_t column,
                          totals *t) {
    const Py_ssize_t block = f->columns, number = (wide + block - 1) / block;
#define END(b) ((b) + 1 < number ? ((b) + 1) * block : wide)
    if (f->scale != SCALE_NONE) {
        memset(s->most, 0, (size_t)wide * sizeof(float));
        for (Py_ssize_t r = 0; r < high; r++) add_most(x + r * stride, wide, s->most);
    }
    for (Py_ssize_t b = 0; b < number; b++) begin_block(s, b * block, END(b), f, whole, &blocks[b], t);
    for (Py_ssize_t top = 0; top < high; top += 128) { /* float32 sums of at most 128 numbers */
        const Py_ssize_t bottom = top + 128 < high ? top + 128 : high;
        for (int k = 0; k < 4; k++) {
            memset((&s->energy)[k], 0, (size_t)wide * sizeof(float));
            memset((&s->zeroed)[k], 0, (size_t)wide * sizeof(int32_t));
        }
        for (Py_ssize_t r = top; r < bottom; r++) add_row(x + r * stride, wide, f, s);
        for (Py_ssize_t b = 0; b < number; b++) add_block(s, b * block, END(b), &blocks[b], t);
    }
    for (Py_ssize_t b = 0; b < number; b++) end_block(&blocks[b], row, column + b, t);
#undef END
}

static int measure_matrix(const float *x, Py_ssize_t rows, Py_ssize_t columns, const format *f, double whole,
                          totals *t) {
    const Py_ssize_t most = f->columns >= WIDTH ? f->columns : WIDTH / f->columns * f->columns;
    const Py_ssize_t width = most < columns ? most : columns;
    block_sums *blocks = malloc((size_t)(width / f->columns + 1) * sizeof *blocks);
    strip s;
    if (!blocks || open_strip(&s, width)) {
        free(blocks);
        return -1;
    }
    for (Py_ssize_t top = 0; top < rows; top += f->rows) {
        const Py_ssize_t high = top + f->rows < rows ? f->rows : rows - top;
        for (Py_ssize_t left = 0; left < columns; left += width)
            measure_strip(x + top * columns + left, columns, high, left + width < columns ? width : columns - left, f,
                          whole, &s, blocks, top / f->rows, left / f->columns, t);
    }
    free(s.memory);
    free(blocks);
    return 0;
}

static int open_matrix(PyObject *object, Py_buffer *view) {
    if (PyObject_GetBuffer(object, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)) return -1;
    if (view->ndim == 2 && view->shape[0] > 0 && view->shape[1] > 0 && !strcmp(view->format, "f")) return 0;
    PyBuffer_Release(view);
    PyErr_SetString(PyExc_ValueError, "the matrix must be float32 and not empty");
    return -1;
}

PyObject *damage(PyObject *module, PyObject *args) {
    Py_buffer view;
    PyObject *matrix;
    format f;
    double whole;
    int status;
    totals t = {.lowest = 4096, .highest = -4096};
    (void)module;
    if (!PyArg_ParseTuple(args, "Oiifiiinnffd:damage", &matrix, &f.mantissa, &f.lowest, &f.largest, &f.has_inf,
                          &f.scale, &f.mode, &f.rows, &f.columns, &f.bulk, &f.norm, &whole))
        return NULL;
    if (f.mantissa < 1 || f.mantissa > 22 || f.rows < 1 || f.columns < 1 || !(f.norm > 0) || !(whole > 0)) {
        PyErr_SetString(PyExc_ValueError, "the format of damage() is out of range");
        return NULL;
    }
    if (open_matrix(matrix, &view)) return NULL;
    if (!add_row) choose();
    Py_BEGIN_ALLOW_THREADS status = measure_matrix(view.buf, view.shape[0], view.shape[1], &f, whole, &t);
    Py_END_ALLOW_THREADS PyBuffer_Release(&view);
    if (status) return PyErr_NoMemory();
    return Py_BuildValue("LLLLddddddnni", (long long)t.nonzero, (long long)t.zeroed, (long long)t.beyond,
                         (long long)t.tiny, t.energy, t.error, t.bulk_energy, t.bulk_error, t.worst_energy,
                         t.worst_error, t.worst_row, t.worst_column, t.highest >= t.lowest ? t.highest - t.lowest : 0);
}

/* The largest magnitude, its place, the number of elements that are not finite, and the moments 1 to 4 of the elements
   divided by the power of two above the largest. */
PyObject *extent(PyObject *module, PyObject *object) {
    Py_buffer view;
    (void)module;
    if (open_matrix(object, &view)) return NULL;
    const float *x = view.buf;
    const Py_ssize_t n = view.shape[0] * view.shape[1];
    Py_ssize_t place = 0, bad = 0;
    double moments[4] = {0};
    float most = 0;
    Py_BEGIN_ALLOW_THREADS float lanes[16] = {0};
    int32_t odd[16] = {0};
    Py_ssize_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int k = 0; k < 16; k++) {
            const float size = fabsf(x[i + k]);
            odd[k] += !(size <= 3.4028234e38f);
            lanes[k] = size > lanes[k] ? size : lanes[k];
        }
    for (; i < n; i++) {
        const float size = fabsf(x[i]);
        odd[0] += !(size <= 3.4028234e38f);
        lanes[0] = size > lanes[0] ? size : lanes[0];
    }
    for (int k = 0; k < 16; k++) {
        bad += odd[k];
        most = lanes[k] > most ? lanes[k] : most;
    }
    if (!bad && most > 0) {
        int exponent;
        frexp((double)most, &exponent);
        const float down = exponent > 0 ? ldexpf(1.0f, -exponent) : 1.0f;
        const float up = exponent > 0 ? 1.0f : ldexpf(1.0f, exponent < -120 ? 120 : -exponent);
        while (fabsf(x[place]) < most) place++;
        for (Py_ssize_t at = 0; at < n; at += 4096) { /* float32 sums of 256 numbers in each of sixteen lanes */
            const Py_ssize_t end = at + 4096 < n ? at + 4096 : n;
            float sums[4][16] = {{0}};
            Py_ssize_t j = at;
            for (; j + 16 <= end; j += 16)
                for (int k = 0; k < 16; k++) {
                    const float v = x[j + k] * down * up, square = v * v;
                    sums[0][k] += v;
                    sums[1][k] += square;
                    sums[2][k] += square * v;
                    sums[3][k] += square * square;
                }
            for (; j < end; j++) {
                const float v = x[j] * down * up, square = v * v;
                sums[0][0] += v;
                sums[1][0] += square;
                sums[2][0] += square * v;
                sums[3][0] += square * square;
            }
            for (int k = 0; k < 64; k++) moments[k / 16] += (double)sums[k / 16][k % 16];
        }
    }
    Py_END_ALLOW_THREADS PyBuffer_Release(&view);
    return Py_BuildValue("dnndddd", (double)most, place, bad, moments[0] / (double)n, moments[1] / (double)n,
                         moments[2] / (double)n, moments[3] / (double)n);
}
