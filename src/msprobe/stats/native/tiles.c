/* The loops for each dtype and each CPU instruction level. */
#include "internal.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the digests and the float8 tables assume a little-endian machine"
#endif

#define ANY __attribute__((may_alias))

typedef float ANY float_any;
typedef double ANY double_any;
typedef int16_t ANY int16_any;
typedef uint16_t ANY uint16_any;
typedef int32_t ANY int32_any;
typedef uint32_t ANY uint32_any;
typedef int64_t ANY int64_any;
typedef uint64_t ANY uint64_any;

const dtype mp_dtypes[MP_CODES] = {
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

/* No branches, and no float32 subnormals: the CPU may be set to flush them. */
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
#define FUSED(sum, v, w) ((sum) + (v) * (w))
#define WIDTH 2
#include "loops.h"
#if defined(__x86_64__)
#include "x86_float32.h"
#define HALF8(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p)))
#define FINITE_F32 finite_f32_avx2
#define COUNTED_F32 counted_f32_avx2_loop
#define TARGET __attribute__((target("avx2,fma,f16c")))
#define SUFFIX _avx2
#define FUSED(sum, v, w) _mm256_fmadd_pd(v, _mm256_set1_pd(w), sum)
#define WIDTH 4
#include "loops.h"
#define FINITE_F32 finite_f32_avx512
#define COUNTED_F32 counted_f32_avx512_loop
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")))
#define SUFFIX _avx512
#define FUSED(sum, v, w) _mm512_fmadd_pd(v, _mm512_set1_pd(w), sum)
#define WIDTH 8
#include "loops.h"
static const route *const LEVELS[] = {routes_portable, routes_avx2, routes_avx512};
static const char *const LEVEL_NAMES[] = {"portable", "avx2", "avx512"};
#else
static const route *const LEVELS[] = {routes_portable};
static const char *const LEVEL_NAMES[] = {"portable"};
#endif

static int best_level, level_in_use;

/* The values of the 8-bit floats. `infinities`: the top exponent means infinity (e5m2). `unsigned_zero`: fnuz. */
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
    for (int i = 0; i < 256; i++) float8_values[4][i] = i == 255 ? NAN : ldexpf(1.0f, i - 127);
    mp_crc32_init();
    mp_order_init();
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
        best_level = 1;
    if (best_level && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        best_level = 2;
#endif
    level_in_use = best_level;
}

int mp_select(int level) {
    level_in_use = level < 0 ? 0 : level < best_level ? level : best_level;
    mp_crc32_select(level < 0 ? 0 : level);
    return level_in_use;
}

int mp_level(void) {
    return level_in_use;
}

const char *mp_level_name(int level) {
    return LEVEL_NAMES[level];
}

size_t mp_itemsize(int code) {
    return code >= 0 && code < MP_CODES ? mp_dtypes[code].itemsize : 0;
}

const route *mp_route(int code) {
    return &LEVELS[level_in_use][code];
}
