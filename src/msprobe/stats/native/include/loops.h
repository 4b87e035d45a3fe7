/* The loops over one tile, written once and compiled for each CPU instruction level.

   tiles.c includes this file with TARGET (a function attribute) and SUFFIX set. No loop needs -ffast-math: extremes are
   found among integers with the same order as the floats, and sums run in sixteen fixed lanes of float64. So the result
   does not depend on the level. A sum that is not finite shows that the tile has NaN or inf. */

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
#define NAME(stem) JOIN(stem, SUFFIX)

#define STEPS (16 / WIDTH)
typedef double NAME(vd) __attribute__((vector_size(WIDTH * 8)));

#define VECTOR_OF(T) T __attribute__((vector_size(WIDTH * sizeof(T)), aligned(sizeof(T)), may_alias))

#define ADD_UP_LANES                                                                                                   \
    for (int half = 8; half; half /= 2)                                                                                \
        for (int lane = 0; lane < half; lane++) {                                                                      \
            sums[lane] += sums[lane + half];                                                                           \
            squared[lane] += squared[lane + half];                                                                     \
        }

#define ADD_LANES(T)                                                                                                   \
    typedef VECTOR_OF(T) loaded;                                                                                       \
    NAME(vd) s[STEPS] = {{0}}, q[STEPS] = {{0}};                                                                       \
    int64_t i = 0;                                                                                                     \
    for (; i + 16 <= n; i += 16)                                                                                       \
        for (int k = 0; k < STEPS; k++) {                                                                              \
            NAME(vd) v = __builtin_convertvector(*(const loaded *)(x + i + k * WIDTH), NAME(vd));                      \
            s[k] += v;                                                                                                 \
            q[k] += v * v;                                                                                             \
        }                                                                                                              \
    double sums[16], squared[16];                                                                                      \
    memcpy(sums, s, sizeof sums);                                                                                      \
    memcpy(squared, q, sizeof squared);                                                                                \
    for (int lane = 0; i < n; i++, lane++) {                                                                           \
        double v = (double)x[i];                                                                                       \
        sums[lane] += v;                                                                                               \
        squared[lane] += v * v;                                                                                        \
    }                                                                                                                  \
    ADD_UP_LANES                                                                                                       \
    double sum = sums[0], squares = squared[0]

#define FLOAT_TILE(STEM, T, BITS, MAGNITUDE, INF)                                                                      \
    TARGET static void NAME(STEM)(const void *data, int64_t n, tile_result *out) {                                     \
        const T *x = data;                                                                                             \
        const BITS *bits = data;                                                                                       \
        BITS low = MAGNITUDE, high = -MAGNITUDE - 1, zero = 0;                                                         \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            BITS b = bits[i], key = b ^ ((b >> (sizeof(T) * 8 - 1)) & MAGNITUDE);                                      \
            low = key < low ? key : low;                                                                               \
            high = key > high ? key : high;                                                                            \
            zero += (b & MAGNITUDE) == 0;                                                                              \
        }                                                                                                              \
        ADD_LANES(T);                                                                                                  \
        *out = (tile_result){.sum = sum, .squares = squares, .low = low, .high = high, .zero = zero};                  \
        if (!__builtin_isfinite(sum)) {                                                                                \
            BITS nan = 0, posinf = 0, neginf = 0;                                                                      \
            for (int64_t j = 0; j < n; j++) {                                                                          \
                BITS b = bits[j];                                                                                      \
                nan += (b & MAGNITUDE) > INF;                                                                          \
                posinf += b == INF;                                                                                    \
                neginf += b == (INF | (-MAGNITUDE - 1));                                                               \
            }                                                                                                          \
            out->nan = nan;                                                                                            \
            out->posinf = posinf;                                                                                      \
            out->neginf = neginf;                                                                                      \
        }                                                                                                              \
    }

FLOAT_TILE(tile_any_f32, float_any, int32_any, INT32_MAX, INT32_C(0x7f800000))
#ifdef FINITE_F32
/* One loop for a tile without NaN and inf. If the sum is not finite, the general loop runs instead. */
TARGET static void NAME(tile_f32)(const void *data, int64_t n, tile_result *out) {
    double sums[16] = {0}, squared[16] = {0};
    float low = INFINITY, high = -INFINITY;
    const int64_t i = n / 16 * 16;
    FINITE_F32(data, i, sums, squared, &low, &high);
    add_rest((const float_any *)data + i, n - i, sums, squared, &low, &high);
    ADD_UP_LANES
    if (!__builtin_isfinite(sums[0])) {
        NAME(tile_any_f32)(data, n, out);
        return;
    }
    *out = (tile_result){.sum = sums[0], .squares = squared[0], .low = key_of_float(low), .high = key_of_float(high)};
}

/* The same, and the elements closer to zero than the float with the bits `small`; zeros are counted apart. */
TARGET static void NAME(counted_f32)(const void *data, int64_t n, int32_t small, tile_result *out) {
    double sums[16] = {0}, squared[16] = {0};
    float low = INFINITY, high = -INFINITY;
    const int64_t i = n / 16 * 16;
    small_counts counts = {.small = small};
    COUNTED_F32(data, i, sums, squared, &low, &high, &counts);
    add_rest((const float_any *)data + i, n - i, sums, squared, &low, &high);
    count_rest((const int32_any *)data + i, n - i, &counts);
    ADD_UP_LANES
    *out = (tile_result){.sum = sums[0], .squares = squared[0], .low = key_of_float(low), .high = key_of_float(high)};
    if (!__builtin_isfinite(sums[0])) {
        NAME(tile_any_f32)(data, n, out);
        counts.zero = counts.under = 0;
        count_rest(data, n, &counts);
    }
    out->zero = counts.zero;
    out->below = small > 0 ? counts.under - counts.zero : 0;
}
#else
#define counted_f32_portable NULL
#define tile_f32_portable tile_any_f32_portable
#endif
FLOAT_TILE(tile_f64, double_any, int64_any, INT64_MAX, INT64_C(0x7ff0000000000000))

/* 64-bit integers are summed in halves, so that a tile cannot overflow. FLIP gives unsigned integers a signed order. */
#define INT_TILE(STEM, T, WIDE, FLIP)                                                                                  \
    TARGET static void NAME(STEM)(const void *data, int64_t n, tile_result *out) {                                     \
        const T *x = data;                                                                                             \
        T low = x[0], high = x[0];                                                                                     \
        int64_t zero = 0;                                                                                              \
        WIDE top = 0, bottom = 0;                                                                                      \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            T v = x[i];                                                                                                \
            low = v < low ? v : low;                                                                                   \
            high = v > high ? v : high;                                                                                \
            zero += v == 0;                                                                                            \
            if (sizeof(T) == 8) {                                                                                      \
                top += (WIDE)v >> 32;                                                                                  \
                bottom += (WIDE)(uint32_t)v;                                                                           \
            } else {                                                                                                   \
                bottom += v;                                                                                           \
            }                                                                                                          \
        }                                                                                                              \
        ADD_LANES(T);                                                                                                  \
        (void)sum;                                                                                                     \
        *out = (tile_result){.squares = squares,                                                                       \
                             .zero = zero,                                                                             \
                             .total = (int128)top * ((int128)1 << 32) + (int128)bottom,                                \
                             .low = (int64_t)((uint64_t)low ^ FLIP),                                                   \
                             .high = (int64_t)((uint64_t)high ^ FLIP)};                                                \
    }

INT_TILE(tile_i32, int32_any, int64_t, 0)
INT_TILE(tile_u32, uint32_any, uint64_t, 0)
INT_TILE(tile_i64, int64_any, int64_t, 0)
INT_TILE(tile_u64, uint64_any, uint64_t, MP_FLIP_TOP)

/* The sum of the weighted elements of a tile, in two sets of sixteen lanes: one set would wait for its own additions.
   ADD may be fused if products are exact. */
#define APART(sum, v, w) ((sum) + (v) * (w))
#define ORDER_TILE(STEM, T, ADD)                                                                                       \
    TARGET static double NAME(STEM)(const void *data, int64_t n) {                                                     \
        typedef VECTOR_OF(T) loaded;                                                                                   \
        const T *x = data;                                                                                             \
        NAME(vd) m[2 * STEPS] = {{0}};                                                                                 \
        int64_t i = 0;                                                                                                 \
        for (; i + 32 <= n; i += 32)                                                                                   \
            for (int k = 0; k < 2 * STEPS; k++) {                                                                      \
                NAME(vd) v = __builtin_convertvector(*(const loaded *)(x + i + k * WIDTH), NAME(vd));                  \
                m[k] = ADD(m[k], v, mp_group_weights[i / 16 + k / STEPS]);                                             \
            }                                                                                                          \
        double sums[32];                                                                                               \
        memcpy(sums, m, sizeof sums);                                                                                  \
        for (int lane = 0; i < n; i++, lane++) sums[lane] += (double)x[i] * mp_group_weights[i / 16];                  \
        for (int lane = 0; lane < 16; lane++) sums[lane] = (sums[lane] + sums[lane + 16]) * mp_lane_weights[lane];     \
        for (int half = 8; half; half /= 2)                                                                            \
            for (int lane = 0; lane < half; lane++) sums[lane] += sums[lane + half];                                   \
        return sums[0];                                                                                                \
    }

ORDER_TILE(order_f32, float_any, FUSED)
ORDER_TILE(order_f64, double_any, APART)
ORDER_TILE(order_i32, int32_any, FUSED)
ORDER_TILE(order_u32, uint32_any, FUSED)
ORDER_TILE(order_i64, int64_any, APART)
ORDER_TILE(order_u64, uint64_any, APART)

TARGET static void NAME(tile_bool)(const void *data, int64_t n, tile_result *out) {
    const uint8_t *x = data;
    int32_t zero = 0;
    for (int64_t i = 0; i < n; i++) zero += x[i] == 0;
    *out = (tile_result){.zero = zero};
}

/* Narrow types are converted to float32, exactly; complex types to their magnitude in float64. */
#define WIDEN(STEM, T, EXPRESSION)                                                                                     \
    TARGET static void NAME(STEM)(const void *data, void *to, int64_t n) {                                             \
        const T *x = data;                                                                                             \
        float *y = to;                                                                                                 \
        for (int64_t i = 0; i < n; i++) y[i] = EXPRESSION;                                                             \
    }

WIDEN(widen_i8, int8_t, (float)x[i])
WIDEN(widen_u8, uint8_t, (float)x[i])
WIDEN(widen_i16, int16_any, (float)x[i])
WIDEN(widen_u16, uint16_any, (float)x[i])
#ifdef HALF8
TARGET static void NAME(widen_f16)(const void *data, void *to, int64_t n) {
    const uint16_any *x = data;
    float *y = to;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, HALF8(x + i));
    for (; i < n; i++) y[i] = float_of_half(x[i]);
}
#else
WIDEN(widen_f16, uint16_any, float_of_half(x[i]))
#endif
WIDEN(widen_bf16, uint16_any, float_of_bits((uint32_t)x[i] << 16))
WIDEN(widen_e4m3fn, uint8_t, float8_values[0][x[i]])
WIDEN(widen_e5m2, uint8_t, float8_values[1][x[i]])
WIDEN(widen_e4m3fnuz, uint8_t, float8_values[2][x[i]])
WIDEN(widen_e5m2fnuz, uint8_t, float8_values[3][x[i]])
WIDEN(widen_e8m0fnu, uint8_t, float8_values[4][x[i]])

#define MAGNITUDES(STEM, T, VALUE)                                                                                     \
    TARGET static void NAME(STEM)(const void *data, void *to, int64_t n) {                                             \
        const T *x = data;                                                                                             \
        double *y = to;                                                                                                \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            double re = VALUE(x[2 * i]), im = VALUE(x[2 * i + 1]);                                                     \
            y[i] = sqrt(re * re + im * im);                                                                            \
        }                                                                                                              \
    }

MAGNITUDES(widen_c32, uint16_any, float_of_half)
MAGNITUDES(widen_c64, float_any, (double))

TARGET static void NAME(widen_c128)(const void *data, void *to, int64_t n) {
    const double_any *x = data;
    double *y = to;
    for (int64_t i = 0; i < n; i++) {
        double re = x[2 * i], im = x[2 * i + 1], square = re * re + im * im;
        if (square >= 0x1p-900 && square <= 0x1p1000)
            y[i] = sqrt(square);
        else
            y[i] = re != re || im != im ? (double)NAN : hypot(re, im);
    }
}

static const route NAME(routes)[MP_CODES] = {
    [MP_BOOL] = {NULL, NAME(tile_bool)},
    [MP_INT8] = {NAME(widen_i8), NAME(tile_f32), NAME(order_f32), NAME(counted_f32)},
    [MP_INT16] = {NAME(widen_i16), NAME(tile_f32), NAME(order_f32), NAME(counted_f32)},
    [MP_INT32] = {NULL, NAME(tile_i32), NAME(order_i32)},
    [MP_INT64] = {NULL, NAME(tile_i64), NAME(order_i64)},
    [MP_UINT8] = {NAME(widen_u8), NAME(tile_f32), NAME(order_f32), NAME(counted_f32)},
    [MP_UINT16] = {NAME(widen_u16), NAME(tile_f32), NAME(order_f32), NAME(counted_f32)},
    [MP_UINT32] = {NULL, NAME(tile_u32), NAME(order_u32)},
    [MP_UINT64] = {NULL, NAME(tile_u64), NAME(order_u64)},
    [MP_FLOAT16] = {NAME(widen_f16), NAME(tile_f32), NAME(order_f32), NAME(counted_f32)},
    [MP_BFLOAT16] = {NAME(widen_bf16), NAME(tile_f32), NAME(order_f32), NAME(counted_f32)},
    [MP_FLOAT32] = {NULL, NAME(tile_f32), NAME(order_f32), NAME(counted_f32)},
    [MP_FLOAT64] = {NULL, NAME(tile_f64), NAME(order_f64)},
    [MP_E4M3FN] = {NAME(widen_e4m3fn), NAME(tile_f32), NAME(order_f32), NAME(counted_f32)},
    [MP_E5M2] = {NAME(widen_e5m2), NAME(tile_f32), NAME(order_f32), NAME(counted_f32)},
    [MP_E4M3FNUZ] = {NAME(widen_e4m3fnuz), NAME(tile_f32), NAME(order_f32), NAME(counted_f32)},
    [MP_E5M2FNUZ] = {NAME(widen_e5m2fnuz), NAME(tile_f32), NAME(order_f32), NAME(counted_f32)},
    [MP_E8M0FNU] = {NAME(widen_e8m0fnu), NAME(tile_f32), NAME(order_f32), NAME(counted_f32)},
    [MP_COMPLEX32] = {NAME(widen_c32), NAME(tile_f64), NAME(order_f64)},
    [MP_COMPLEX64] = {NAME(widen_c64), NAME(tile_f64), NAME(order_f64)},
    [MP_COMPLEX128] = {NAME(widen_c128), NAME(tile_f64), NAME(order_f64)},
};

#undef JOIN2
#undef JOIN
#undef NAME
#undef STEPS
#undef VECTOR_OF
#undef ADD_LANES
#undef ADD_UP_LANES
#undef FLOAT_TILE
#undef INT_TILE
#undef ORDER_TILE
#undef APART
#undef FUSED
#undef WIDEN
#undef MAGNITUDES
#undef TARGET
#undef SUFFIX
#undef WIDTH
#undef FINITE_F32
#undef COUNTED_F32
