/* What the kernel's files share: tiles.c measures a tile, chunks.c runs over all of them, measure.c concludes. */
#ifndef MSPROBE_INTERNAL_H
#define MSPROBE_INTERNAL_H

#include "core.h"
#include "layout.h"

#define MP_FLIP_TOP (UINT64_C(1) << 63) /* makes unsigned 64-bit integers sort as signed ones */

typedef __int128 int128;

typedef struct {
    double sum, squares; /* floats */
    int128 total;        /* integers of 32 and 64 bits */
    int64_t low, high;   /* the extremes, as integers that sort like them */
    int64_t nan, posinf, neginf, zero;
} tile_result;

typedef struct {
    void (*widen)(const void *, void *, int64_t);
    void (*tile)(const void *, int64_t, tile_result *);
    int64_t (*zeros)(const void *, int64_t); /* where `tile` does not count them */
} route;

typedef struct {
    size_t itemsize;
    int kind;
    int mantissa, min_exponent; /* these and the next two: of floats that can be rounded to, else 0 */
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
    const route *way;
    unsigned want;
    int exponent;   /* float64 values are multiplied by 2^-exponent first */
    int64_t chunks, next;
    partial *parts;
} job;

extern const dtype mp_dtypes[MP_CODES];

/* How to measure tiles of a dtype with the instructions in use. */
const route *mp_route(int code);

/* Reads shape and strides into a layout in bytes; finds everything that can be wrong without touching the memory. */
int mp_describe(const void *memory, int code, int ndim, const int64_t *shape, const int64_t *strides, layout *l);

/* To nearest even in a float dtype; overflow becomes infinity, or NaN where there is none. */
double mp_round(const dtype *to, double value);

/* Runs every chunk, on this thread and on as many others as are allowed and start, and adds the parts up. */
int mp_run(job *j, int threads, partial *out);

#endif
