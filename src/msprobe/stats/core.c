/* One pass over a tensor: chunks of tiles, each tile read while it is in the first-level cache.

   Tiles and chunks are cut by element number alone and added up in their order, so that the result is the same to
   the last bit for any number of threads and any level of the CPU's instructions. */
#include "core.h"
#include "layout.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the digests and the float8 tables assume a little-endian machine"
#endif

#define FLIP_TOP (UINT64_C(1) << 63)
#define ANY __attribute__((may_alias))

typedef __int128 int128;
typedef float ANY float_any;
typedef double ANY double_any;
typedef int16_t ANY int16_any;
typedef uint16_t ANY uint16_any;
typedef int32_t ANY int32_any;
typedef uint32_t ANY uint32_any;
typedef int64_t ANY int64_any;
typedef uint64_t ANY uint64_any;
typedef double v8d __attribute__((vector_size(64)));
typedef double v8d_any __attribute__((vector_size(64), aligned(8), may_alias));
typedef float v8f_any __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t v8i32_any __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint32_t v8u32_any __attribute__((vector_size(32), aligned(4), may_alias));
typedef int64_t v8i64_any __attribute__((vector_size(64), aligned(8), may_alias));
typedef uint64_t v8u64_any __attribute__((vector_size(64), aligned(8), may_alias));

typedef struct {
    double sum, squares; /* floats */
    int128 total;        /* integers of 32 and 64 bits */
    int64_t low, high;   /* the extremes, as integers that sort like them */
    int64_t nan, posinf, neginf, zero;
} tile_result;

typedef struct {
    void (*widen)(const void *, void *, int64_t);
    void (*tile)(const void *, int64_t, tile_result *);
} route;

typedef struct {
    size_t itemsize;
    int kind, mantissa, min_exponent; /* the last three: of floats, for rounding to them */
    double largest;
    bool has_inf;
} dtype;

static const dtype DTYPES[MP_CODES] = {
    [MP_BOOL] = {.itemsize = 1, .kind = MP_KIND_BOOL},
    [MP_INT8] = {.itemsize = 1, .kind = MP_KIND_INT},
    [MP_INT16] = {.itemsize = 2, .kind = MP_KIND_INT},
    [MP_INT32] = {.itemsize = 4, .kind = MP_KIND_INT},
    [MP_INT64] = {.itemsize = 8, .kind = MP_KIND_INT},
    [MP_UINT8] = {.itemsize = 1, .kind = MP_KIND_INT},
    [MP_UINT16] = {.itemsize = 2, .kind = MP_KIND_INT},
    [MP_UINT32] = {.itemsize = 4, .kind = MP_KIND_INT},
    [MP_UINT64] = {.itemsize = 8, .kind = MP_KIND_UINT},
    [MP_FLOAT16] = {2, MP_KIND_FLOAT, 10, -14, 65504.0, true},
    [MP_BFLOAT16] = {2, MP_KIND_FLOAT, 7, -126, 0x1.fep127, true},
    [MP_FLOAT32] = {4, MP_KIND_FLOAT, 23, -126, 0x1.fffffep127, true},
    [MP_FLOAT64] = {.itemsize = 8, .kind = MP_KIND_FLOAT},
    [MP_E4M3FN] = {1, MP_KIND_FLOAT, 3, -6, 448.0, false},
    [MP_E5M2] = {1, MP_KIND_FLOAT, 2, -14, 57344.0, true},
    [MP_E4M3FNUZ] = {1, MP_KIND_FLOAT, 3, -7, 240.0, false},
    [MP_E5M2FNUZ] = {1, MP_KIND_FLOAT, 2, -15, 57344.0, false},
    [MP_E8M0FNU] = {.itemsize = 1, .kind = MP_KIND_FLOAT},
    [MP_COMPLEX32] = {4, MP_KIND_FLOAT, 10, -14, 65504.0, true},
    [MP_COMPLEX64] = {8, MP_KIND_FLOAT, 23, -126, 0x1.fffffep127, true},
    [MP_COMPLEX128] = {.itemsize = 16, .kind = MP_KIND_FLOAT},
};

static float float8_values[5][256];

static inline float float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Without branches, and without float32 subnormals, which a CPU may be set to flush. */
static inline float float_of_half(uint16_t half) {
    uint32_t rest = half & 0x7fffu, small, bits = (rest << 13) + (112u << 23);
    float subnormal = (float)(int32_t)rest * 0x1p-24f;
    memcpy(&small, &subnormal, sizeof small);
    bits += rest >= 0x7c00u ? 112u << 23 : 0;
    bits = rest < 0x400u ? small : bits;
    return float_of_bits(bits | (uint32_t)(half & 0x8000u) << 16);
}

#define TARGET
#define SUFFIX _portable
#include "loops.h"
#if defined(__x86_64__)
#define TARGET __attribute__((target("avx2,f16c")))
#define SUFFIX _avx2
#include "loops.h"
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c,prefer-vector-width=512")))
#define SUFFIX _avx512
#include "loops.h"
static const route *const LEVELS[] = {routes_portable, routes_avx2, routes_avx512};
static const char *const LEVEL_NAMES[] = {"portable", "avx2", "avx512"};
#else
static const route *const LEVELS[] = {routes_portable};
static const char *const LEVEL_NAMES[] = {"portable"};
#endif

static int best_level, level_in_use, default_threads;

/* Values of the 8-bit floats: `infinities` when the top exponent holds them (e5m2), `unsigned_zero` for fnuz. */
static void fill_float8(float *values, int mantissa, int bias, bool infinities, bool unsigned_zero) {
    for (int i = 0; i < 256; i++) {
        int exponent = (i & 127) >> mantissa, fraction = i & ((1 << mantissa) - 1);
        int top = (128 >> mantissa) - 1;
        float value = exponent ? ldexpf((float)(fraction + (1 << mantissa)), exponent - bias - mantissa)
                               : ldexpf((float)fraction, 1 - bias - mantissa);
        if (infinities && exponent == top)
            value = fraction ? NAN : INFINITY;
        else if (unsigned_zero ? i == 128 : !infinities && (i & 127) == 127)
            value = NAN;
        values[i] = i & 128 ? -value : value;
    }
}

void mp_init(void) {
    fill_float8(float8_values[0], 3, 7, false, false);
    fill_float8(float8_values[1], 2, 15, true, false);
    fill_float8(float8_values[2], 3, 8, false, true);
    fill_float8(float8_values[3], 2, 16, false, true);
    for (int i = 0; i < 256; i++)
        float8_values[4][i] = i == 255 ? NAN : ldexpf(1.0f, i - 127);
    mp_crc32_init();
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"))
        best_level = 1;
    if (best_level && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        best_level = 2;
#endif
    level_in_use = best_level;
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    default_threads = cpus < 1 ? 1 : cpus > 4 ? 4 : (int)cpus;
}

int mp_select(int level) {
    level_in_use = level < 0 ? 0 : level < best_level ? level : best_level;
    mp_crc32_select(level < 0 ? 0 : level);
    return level_in_use;
}

const char *mp_level_name(int level) {
    return LEVEL_NAMES[level];
}

size_t mp_itemsize(int code) {
    return code >= 0 && code < MP_CODES ? DTYPES[code].itemsize : 0;
}

/* To nearest even in a float dtype; overflow becomes infinity, or NaN where there is none. */
static double round_to(const dtype *d, double value) {
    if (!isfinite(value) || value == 0 || !d->mantissa)
        return value;
    int exponent;
    frexp(value, &exponent);
    exponent = (exponent - 1 < d->min_exponent ? d->min_exponent : exponent - 1) - d->mantissa;
    double rounded = ldexp(rint(ldexp(value, -exponent)), exponent);
    if (fabs(rounded) <= d->largest)
        return rounded;
    return d->has_inf ? copysign(INFINITY, value) : (double)NAN;
}

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

static void add(tile_result *to, const tile_result *from, const dtype *rounded) {
    to->sum += from->sum;
    to->squares += from->squares;
    if (rounded) {
        to->sum = round_to(rounded, to->sum);
        to->squares = round_to(rounded, to->squares);
    }
    to->total += from->total;
    to->low = from->low < to->low ? from->low : to->low;
    to->high = from->high > to->high ? from->high : to->high;
    to->nan += from->nan;
    to->posinf += from->posinf;
    to->neginf += from->neginf;
    to->zero += from->zero;
}

static const tile_result NOTHING = {.low = INT64_MAX, .high = INT64_MIN};

static uint64_t xor_words(const void *data, size_t size) {
    const uint64_any *words = data;
    uint64_t all = 0, tail = 0;
    for (size_t i = 0; i < size / 8; i++)
        all ^= words[i];
    memcpy(&tail, (const char *)data + size / 8 * 8, size % 8);
    return all ^ tail;
}

static void scale(const double *from, double *to, int64_t n, int exponent) {
    double first = ldexp(1.0, -exponent / 2), second = ldexp(1.0, -exponent - -exponent / 2);
    for (int64_t i = 0; i < n; i++)
        to[i] = from[i] * first * second;
}

static void run_chunk(const job *j, int64_t number) {
    _Alignas(64) char gathered[MP_TILE * 16];
    _Alignas(64) double widened[MP_TILE];
    const layout *walk = j->walk;
    const bool dense = layout_dense(walk);
    const int64_t start = number * MP_CHUNK;
    const int64_t end = walk->count - start < MP_CHUNK ? walk->count : start + MP_CHUNK;
    const dtype *rounded = j->want & MP_LOW_PRECISION ? j->of : NULL;
    partial *p = &j->parts[number];
    cursor c;
    *p = (partial){.acc = NOTHING};
    if (!dense)
        cursor_seek(&c, walk, start);
    for (int64_t at = start; at < end; at += MP_TILE) {
        const int64_t n = end - at < MP_TILE ? end - at : MP_TILE;
        const char *data = gathered;
        if (dense)
            data = walk->base + at * (int64_t)walk->itemsize;
        else
            cursor_take(&c, gathered, n);
        if (j->want & MP_STATS) {
            tile_result tile;
            const void *values = data;
            if (j->way->widen) {
                j->way->widen(values, widened, n);
                values = widened;
            }
            if (j->exponent) {
                scale(values, widened, n, j->exponent);
                values = widened;
            }
            j->way->tile(values, n, &tile);
            add(&p->acc, &tile, rounded);
        }
        if (j->want & MP_CRC)
            p->crc = mp_crc32(p->crc, data, (size_t)n * walk->itemsize);
        if (j->want & MP_XOR)
            p->xor64 ^= xor_words(data, (size_t)n * walk->itemsize);
    }
}

static void *work(void *argument) {
    job *j = argument;
    int64_t number;
    while ((number = __atomic_fetch_add(&j->next, 1, __ATOMIC_RELAXED)) < j->chunks)
        run_chunk(j, number);
    return NULL;
}

/* Runs every chunk, on this thread and on as many others as are allowed and start, and adds the parts up. */
static int run(job *j, int threads, partial *out) {
    partial single;
    pthread_t others[64];
    int started = 0;
    j->chunks = (j->walk->count + MP_CHUNK - 1) / MP_CHUNK;
    j->next = 0;
    j->parts = j->chunks == 1 ? &single : malloc((size_t)j->chunks * sizeof *j->parts);
    if (!j->parts)
        return MP_NO_MEMORY;
    if ((uint64_t)j->walk->count * j->walk->itemsize >= MP_THREAD_BYTES) {
        pthread_attr_t attributes;
        int most = threads <= 0 ? default_threads : threads < 64 ? threads : 64;
        most = j->chunks < most ? (int)j->chunks : most;
        pthread_attr_init(&attributes);
        pthread_attr_setstacksize(&attributes, 1 << 19);
        while (started < most - 1 && pthread_create(&others[started], &attributes, work, j) == 0)
            started++;
        pthread_attr_destroy(&attributes);
    }
    work(j);
    for (int i = 0; i < started; i++)
        pthread_join(others[i], NULL);
    *out = j->parts[0];
    for (int64_t k = 1; k < j->chunks; k++) {
        const partial *p = &j->parts[k];
        const int64_t left = j->walk->count - k * MP_CHUNK, n = left < MP_CHUNK ? left : MP_CHUNK;
        add(&out->acc, &p->acc, j->want & MP_LOW_PRECISION ? j->of : NULL);
        if (j->want & MP_CRC)
            out->crc = mp_crc32_combine(out->crc, p->crc, (uint64_t)n * j->walk->itemsize);
        out->xor64 ^= p->xor64;
    }
    if (j->parts != &single)
        free(j->parts);
    return MP_OK;
}

#include "finish.h"
