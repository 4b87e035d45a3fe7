/* How many elements of a tile are zero, and how many lie outside the range of another float type. */
#include "internal.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif

typedef int32_t __attribute__((may_alias)) bits32;

static int32_t bits_of(float value) {
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

CLONES static void count_small(const bits32 *bits, int64_t n, int32_t small, tile_result *tile) {
    int32_t under = 0, zero = 0;
    for (int64_t i = 0; i < n; i++) {
        const int32_t size = bits[i] & INT32_MAX;
        under += size < small;
        zero += size == 0;
    }
    tile->zero = zero;
    tile->below = small > 0 ? under - zero : 0;
}

CLONES static void count_large(const bits32 *bits, int64_t n, int32_t large, tile_result *tile) {
    int32_t over = 0;
    for (int64_t i = 0; i < n; i++) {
        const int32_t size = bits[i] & INT32_MAX;
        over += (size >= large) & (size <= INT32_C(0x7f800000));
    }
    tile->above = over;
}

static void count_doubles(const char *bytes, int64_t n, const mp_range *range, tile_result *tile) {
    tile->below = tile->above = 0;
    for (int64_t i = 0; i < n; i++) {
        double value;
        memcpy(&value, bytes + 8 * i, 8);
        value = fabs(value);
        tile->below += value < (double)range->small && value > 0;
        tile->above += value >= (double)range->large;
    }
}

void mp_count_tile(const job *j, const void *values, int64_t n, tile_result *tile) {
    const int32_t small = j->range ? bits_of(j->range->small) : 0,
                  large = j->range ? bits_of(j->range->large) : INT32_MAX;
    if (j->loops->counted)
        j->loops->counted(values, n, small, tile);
    else
        j->loops->tile(values, n, tile);
    if (!j->range) return;
    if (j->wide) {
        count_doubles(values, n, j->range, tile);
        return;
    }
    if (!j->loops->counted) count_small(values, n, small, tile);
    if (tile->high >= large || tile->low <= ~large)
        count_large(values, n, large, tile); /* the keys of the extremes say that there are some, or NaN */
    else
        tile->above = 0;
}
