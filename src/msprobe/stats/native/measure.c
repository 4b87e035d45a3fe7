/* Checks the arguments, runs the chunks, and computes the statistics from their sums. */
#include "fp_state.h"
#include "internal.h"

#include <math.h>
#include <string.h>

static double double_of_key(int64_t key) {
    double value;
    key ^= (key >> 63) & INT64_MAX;
    memcpy(&value, &key, sizeof value);
    return value + 0.0; /* -0.0 becomes 0.0 */
}

static double float_of_key(int64_t key) {
    int32_t narrow = (int32_t)key;
    float value;
    narrow ^= (narrow >> 31) & INT32_MAX;
    memcpy(&value, &narrow, sizeof value);
    return (double)value + 0.0;
}

static void finish_integers(const tile_result *t, int code, int64_t repeats, mp_result *out) {
    double sum = (double)(t->total * repeats);
    out->imax = t->high;
    out->imin = t->low;
    if (mp_dtypes[code].itemsize < 4) { /* these types are measured as float32 */
        out->imax = (int64_t)float_of_key(t->high);
        out->imin = (int64_t)float_of_key(t->low);
        sum = t->sum * (double)repeats;
    }
    out->umax = (uint64_t)t->high ^ MP_FLIP_TOP;
    out->umin = (uint64_t)t->low ^ MP_FLIP_TOP;
    out->mean = sum / (double)out->count;
    out->norm = sqrt(t->squares * (double)repeats);
}

/* Mean and Norm of finite values. Measures again with scaled values if squares may not fit float64. */
static int finish_sums(job *j, tile_result *t, int threads, mp_result *out) {
    const double repeats = (double)j->walk->repeats, count = (double)out->count;
    const double peak = fmax(fabs(out->max), fabs(out->min));
    const dtype *rounded = j->want & MP_LOW_PRECISION ? j->of : NULL;
    int exponent = 0;
    if (peak != 0 && (peak > 0x1p470 || peak < 0x1p-400)) {
        partial again;
        frexp(peak, &exponent);
        j->exponent = exponent;
        j->want &= ~(unsigned)(MP_CRC | MP_XOR | MP_ORDER);
        j->range = NULL;
        int status = mp_run(j, threads, &again);
        if (status) return status;
        *t = again.acc;
    }
    double sum = t->sum * repeats, squares = t->squares * repeats;
    if (rounded) {
        sum = mp_round(rounded, sum);
        squares = mp_round(rounded, squares);
    }
    out->mean = sum / count;
    out->norm = sqrt(squares);
    if (rounded) {
        out->mean = mp_round(rounded, out->mean);
        out->norm = mp_round(rounded, out->norm);
    }
    out->ordered = out->ordered && !exponent;
    out->mean = ldexp(out->mean, exponent);
    out->norm = ldexp(out->norm, exponent);
    return MP_OK;
}

static int finish(job *j, tile_result *t, int code, int threads, mp_result *out) {
    const int64_t repeats = j->walk->repeats;
    out->nan = t->nan * repeats;
    out->posinf = t->posinf * repeats;
    out->neginf = t->neginf * repeats;
    out->zero = t->zero * repeats;
    out->below = t->below * repeats;
    out->above = t->above * repeats;
    out->kind = mp_dtypes[code].kind;
    out->order = t->order;
    if (out->kind == MP_KIND_BOOL) {
        out->imax = out->zero < out->count;
        out->imin = out->zero == 0;
        out->mean = (double)(out->count - out->zero) / (double)out->count;
        return MP_OK;
    }
    if (out->kind != MP_KIND_FLOAT) {
        finish_integers(t, code, repeats, out);
        return MP_OK;
    }
    if (t->nan) {
        out->max = out->min = out->mean = out->norm = NAN;
        out->ordered = false;
        return MP_OK;
    }
    out->max = j->wide ? double_of_key(t->high) : float_of_key(t->high);
    out->min = j->wide ? double_of_key(t->low) : float_of_key(t->low);
    if (t->posinf || t->neginf) {
        out->mean = t->posinf && t->neginf ? NAN : t->posinf ? INFINITY : -INFINITY;
        out->norm = INFINITY;
        out->ordered = false;
        return MP_OK;
    }
    return finish_sums(j, t, threads, out);
}

/* Converts shape and strides to a layout in bytes. Checks all that can be checked without reading the memory. */
static int describe(const void *memory, int code, int ndim, const int64_t *shape, const int64_t *strides, layout *l) {
    const int64_t limit = INT64_C(1) << 62, size = (int64_t)mp_dtypes[code].itemsize;
    int64_t bytes = size, below = 0, above = size, address = (int64_t)(uintptr_t)memory;
    l->base = memory;
    l->itemsize = (size_t)size;
    l->ndim = ndim;
    l->repeats = 1;
    l->count = 1;
    for (int d = 0; d < ndim; d++) {
        if (shape[d] < 0) return MP_BAD_SHAPE;
        if (shape[d] == 0) l->count = 0;
    }
    if (!l->count) return MP_OK;
    for (int d = 0; d < ndim; d++) {
        int64_t step = 0, span;
        if (__builtin_mul_overflow(bytes, shape[d], &bytes) || bytes >= limit) return MP_BAD_SIZE;
        if (shape[d] > 1 && __builtin_mul_overflow(strides[d], size, &step)) return MP_BAD_SIZE;
        if (__builtin_mul_overflow(step, shape[d] - 1, &span) ||
            __builtin_add_overflow(span < 0 ? below : above, span, span < 0 ? &below : &above))
            return MP_BAD_SIZE;
        l->shape[d] = shape[d];
        l->step[d] = step;
    }
    l->count = bytes / size;
    if (below <= -limit || above >= limit || above - below >= limit) return MP_BAD_SIZE;
    if (address <= 0 || address + below <= 0 || __builtin_add_overflow(address, above, &address)) return MP_BAD_ADDRESS;
    layout_join(l);
    return MP_OK;
}

static int measure(const layout *logical, int code, unsigned want, int threads, const mp_range *range, mp_result *out) {
    layout sorted;
    partial result = {0}, sums;
    job j = {.walk = logical,
             .of = &mp_dtypes[code],
             .loops = mp_route(code),
             .want = want,
             .range = mp_dtypes[code].kind == MP_KIND_FLOAT ? range : NULL,
             .wide = code == MP_FLOAT64 || code >= MP_COMPLEX32};
    int status;
    out->ordered = want & MP_STATS && mp_order_wanted(logical, code, want);
    if (!out->ordered) j.want &= ~(unsigned)MP_ORDER;
    const bool apart = want & MP_STATS && !layout_dense(logical);
    if (apart) {
        sorted = *logical;
        layout_sort(&sorted);
        j.want &= ~(unsigned)MP_STATS;
    }
    if (j.want & (MP_STATS | MP_CRC | MP_XOR | MP_ORDER)) {
        if ((status = mp_run(&j, threads, &result))) return status;
        out->crc = result.crc;
        out->xor64 = result.xor64;
    }
    if (apart) {
        j.walk = &sorted;
        j.want = want & (MP_STATS | MP_LOW_PRECISION | MP_ZEROS);
        if ((status = mp_run(&j, threads, &sums))) return status;
        sums.acc.order = result.acc.order;
        result.acc = sums.acc;
    }
    return want & MP_STATS ? finish(&j, &result.acc, code, threads, out) : MP_OK;
}

int mp_measure(const void *memory, int code, int ndim, const int64_t *shape, const int64_t *strides, unsigned want,
               int threads, const mp_range *range, mp_result *out) {
    layout logical;
    memset(out, 0, sizeof *out);
    if (code < 0 || code >= MP_CODES) return MP_BAD_CODE;
    if (want & ~(unsigned)(MP_STATS | MP_CRC | MP_XOR | MP_LOW_PRECISION | MP_ORDER | MP_ZEROS)) return MP_BAD_WANT;
    if (ndim < 0 || ndim > MP_MAX_DIMS) return MP_BAD_DIMS;
    int status = describe(memory, code, ndim, shape, strides, &logical);
    if (status) return status;
    out->count = logical.count;
    if (!logical.count) return MP_OK;
    fp_state before = fp_exact();
    status = measure(&logical, code, want, threads, range, out);
    fp_restore(before);
    return status;
}

const char *mp_error(int status) {
    static const char *const TEXTS[] = {
        "no error",
        "unknown dtype code",
        "unknown flags in want",
        "shape and strides must have the same length, at most 64",
        "negative size in shape",
        "the size of the tensor overflows",
        "the address of the tensor is not in the memory of this process",
        "out of memory",
    };
    return TEXTS[status];
}
