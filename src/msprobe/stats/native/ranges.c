/* How many elements of a tensor lie outside the range of another float type: below its smallest normal number (but not
   zero), and at or above its largest one (NaN are neither). */
#include "internal.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif

typedef int32_t __attribute__((may_alias)) bits32;

CLONES static void count_floats(const void *data, int64_t n, int32_t small, int32_t large, int64_t *below,
                                int64_t *above) {
    const bits32 *bits = data;
    int32_t under = 0, over = 0;
    for (int64_t i = 0; i < n; i++) {
        const int32_t size = bits[i] & INT32_MAX;
        under += (size < small) & (size > 0);
        over += (size >= large) & (size <= INT32_C(0x7f800000));
    }
    *below += under;
    *above += over;
}

static void count_doubles(const void *data, int64_t n, double small, double large, int64_t *below, int64_t *above) {
    const char *bytes = data;
    for (int64_t i = 0; i < n; i++) {
        double value;
        memcpy(&value, bytes + 8 * i, 8);
        value = fabs(value);
        *below += value < small && value > 0;
        *above += value >= large;
    }
}

int mp_count_outside(const void *memory, int code, int ndim, const int64_t *shape, const int64_t *strides, float small,
                     float large, int64_t *below, int64_t *above) {
    _Alignas(64) char gathered[MP_TILE * 16];
    _Alignas(64) double widened[MP_TILE];
    layout l;
    cursor c;
    int32_t small_bits, large_bits;
    *below = *above = 0;
    if (code < 0 || code >= MP_CODES) return MP_BAD_CODE;
    if (ndim < 0 || ndim > MP_MAX_DIMS) return MP_BAD_DIMS;
    const int status = mp_describe(memory, code, ndim, shape, strides, &l);
    if (status || !l.count || mp_dtypes[code].kind != MP_KIND_FLOAT) return status;
    const route *way = mp_route(code);
    const bool wide = code == MP_FLOAT64 || code >= MP_COMPLEX32;
    if (!layout_dense(&l)) layout_sort(&l);
    const bool dense = layout_dense(&l);
    memcpy(&small_bits, &small, sizeof small_bits);
    memcpy(&large_bits, &large, sizeof large_bits);
    if (!dense) cursor_seek(&c, &l, 0);
    for (int64_t at = 0; at < l.count; at += MP_TILE) {
        const int64_t n = l.count - at < MP_TILE ? l.count - at : MP_TILE;
        const void *values = gathered;
        if (dense)
            values = l.base + at * (int64_t)l.itemsize;
        else
            cursor_take(&c, gathered, n);
        if (way->widen) {
            way->widen(values, widened, n);
            values = widened;
        }
        if (wide)
            count_doubles(values, n, small, large, below, above);
        else
            count_floats(values, n, small_bits, large_bits, below, above);
    }
    *below *= l.repeats;
    *above *= l.repeats;
    return MP_OK;
}
