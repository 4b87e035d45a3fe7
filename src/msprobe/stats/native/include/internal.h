/* Shared by the files of the kernel: tiles.c measures a tile, chunks.c runs over all tiles, measure.c finishes. */
#ifndef MSPROBE_INTERNAL_H
#define MSPROBE_INTERNAL_H

#include "core.h"
#include "layout.h"

#define MP_FLIP_TOP (UINT64_C(1) << 63) /* makes unsigned 64-bit integers sort as signed ones */

typedef __int128 int128;

typedef struct {
    double sum, squares; /* floats */
    double order;
    int128 total;      /* integers of 32 and 64 bits */
    int64_t low, high; /* the extremes, as integers with the same order */
    int64_t nan, posinf, neginf, zero;
    int64_t below, above;
} tile_result;

typedef struct {
    void (*widen)(const void *, void *, int64_t);
    void (*tile)(const void *, int64_t, tile_result *);
    double (*order)(const void *, int64_t); /* the weighted sum of a tile; NULL for bool */
    /* Set if `tile` does not count zeros: counts them, and what is closer to zero than the float with these bits. */
    void (*counted)(const void *, int64_t, int32_t, tile_result *);
} route;

typedef struct {
    size_t itemsize;
    int kind;
    int mantissa, min_exponent; /* this and the next two lines: for floats that can be rounded to, else 0 */
    double largest;
    bool has_inf;
} dtype;

typedef struct {
    tile_result acc;
    uint32_t crc;
    uint64_t xor64;
} partial;

typedef struct {
    const layout *walk;
    const dtype *of;
    const route *loops;
    unsigned want;
    const mp_range *range;
    bool wide;    /* tiles are float64 */
    int exponent; /* float64 values are multiplied by 2^-exponent first */
    int64_t chunks, next;
    partial *parts;
} job;

extern const dtype mp_dtypes[MP_CODES];

/* The loops for tiles of a dtype, at the instruction level in use. */
const route *mp_route(int code);

/* The weights of MP_ORDER: that of element i is lane[i % 16] * group[i / 16 % 256] * mp_tile_weight(i / 4096). */
#define MP_LANES 16
#define MP_GROUPS (MP_TILE / MP_LANES)
extern double mp_lane_weights[MP_LANES], mp_group_weights[MP_GROUPS];
double mp_tile_weight(int64_t number);
void mp_order_init(void);

/* Whether MP_ORDER is computed: in logical order, which costs much for some large views. */
bool mp_order_wanted(const layout *logical, int code, unsigned want);

/* Measures a tile with its zeros and, if the job has a range, what is outside of it. */
void mp_count_tile(const job *j, const void *values, int64_t n, tile_result *tile);

/* Rounds to nearest even in a float dtype. Overflow gives infinity, or NaN if the dtype has none. */
double mp_round(const dtype *to, double value);

/* Runs all chunks, on this thread and on others up to the limit, and adds the results. */
int mp_run(job *j, int threads, partial *out);

#endif
