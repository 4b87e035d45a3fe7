/* A hand-written loop for float32, the most common type. Extremes are floats; sums use the same sixteen float64 lanes
   as loops.h, so that every level gives the same bits. The square of a float32 is exact in float64, so a fused
   multiply-add gives the same result as a multiplication and an addition.

   `n` is a multiple of 16. The extremes and counts may miss NaN and its neighbours; the sum shows NaN. With
   `counts` the loop also counts zeros and what is closer to zero than the float with the bits `small`. */

/* Bytes to prefetch: memory outside of the cache is read 1.5 times as fast with it. */
#define AHEAD 8192

static inline int64_t key_of_float(float value) {
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits ^ ((bits >> 31) & INT32_MAX);
}

typedef struct {
    int32_t small;
    int64_t zero, under;
} small_counts;

/* The part of a loop that is kept in registers. */
typedef struct {
    __m256d s[4], q[4];
    __m256 lowest, highest;
} sums_avx2;

#define GROUP_TARGET(TARGET) __attribute__((target(TARGET), always_inline)) static inline

/* Adds `vectors` times 16 elements. Counts only in a group that has a small element: most groups have none. */
GROUP_TARGET("avx2,fma,popcnt") void group_avx2(const float *x, int vectors, sums_avx2 *t, small_counts *counts) {
    const __m256i magnitude = _mm256_set1_epi32(INT32_MAX);
    __m256i least = magnitude;
    for (int k = 0; k < 2 * vectors; k++) {
        const float *at = x + 8 * k;
        const __m256 v = _mm256_loadu_ps(at);
        const int lane = k % 2 * 2;
        _mm_prefetch((const char *)at + AHEAD, _MM_HINT_T1);
        const __m256d first = _mm256_cvtps_pd(_mm_loadu_ps(at)), second = _mm256_cvtps_pd(_mm_loadu_ps(at + 4));
        t->lowest = _mm256_min_ps(t->lowest, v);
        t->highest = _mm256_max_ps(t->highest, v);
        if (counts) least = _mm256_min_epu32(least, _mm256_and_si256(_mm256_castps_si256(v), magnitude));
        t->s[lane] = _mm256_add_pd(t->s[lane], first);
        t->s[lane + 1] = _mm256_add_pd(t->s[lane + 1], second);
        t->q[lane] = _mm256_fmadd_pd(first, first, t->q[lane]);
        t->q[lane + 1] = _mm256_fmadd_pd(second, second, t->q[lane + 1]);
    }
    if (!counts) return;
    const __m256i small = _mm256_set1_epi32(counts->small), limit = _mm256_max_epi32(small, _mm256_set1_epi32(1));
    if (!_mm256_movemask_epi8(_mm256_cmpgt_epi32(limit, least))) return;
    for (int k = 0; k < 2 * vectors; k++) {
        const __m256i size = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(x + 8 * k)), magnitude);
        const __m256i empty = _mm256_cmpeq_epi32(size, _mm256_setzero_si256()), under = _mm256_cmpgt_epi32(small, size);
        counts->zero += __builtin_popcount((unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(empty)));
        counts->under += __builtin_popcount((unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(under)));
    }
}

GROUP_TARGET("avx2,fma,popcnt")
void float32_avx2(const void *data, int64_t n, double *sums, double *squared, float *low, float *high,
                  small_counts *counts) {
    const float *x = data;
    sums_avx2 t = {.lowest = _mm256_set1_ps(*low), .highest = _mm256_set1_ps(*high)};
    float extremes[8];
    int64_t i = 0;
    for (int k = 0; k < 4; k++) t.s[k] = t.q[k] = _mm256_setzero_pd();
    for (; i + 64 <= n; i += 64) group_avx2(x + i, 4, &t, counts);
    for (; i < n; i += 16) group_avx2(x + i, 1, &t, counts);
    for (int k = 0; k < 4; k++) {
        _mm256_storeu_pd(sums + 4 * k, t.s[k]);
        _mm256_storeu_pd(squared + 4 * k, t.q[k]);
    }
    _mm256_storeu_ps(extremes, t.lowest);
    for (int lane = 0; lane < 8; lane++) *low = extremes[lane] < *low ? extremes[lane] : *low;
    _mm256_storeu_ps(extremes, t.highest);
    for (int lane = 0; lane < 8; lane++) *high = extremes[lane] > *high ? extremes[lane] : *high;
}

typedef struct {
    __m512d s[2], q[2];
    __m512 lowest, highest;
    __m512i under;
} sums_avx512;

/* Of two floats the one closer to zero, without its sign. */
#define NEARER 0xa

/* Small elements are counted in every group: a branch that the CPU cannot predict costs more. */
GROUP_TARGET("avx512f,avx512dq,popcnt")
void group_avx512(const float *x, int vectors, sums_avx512 *t, small_counts *counts, int32_t small) {
    const __m512i magnitude = _mm512_set1_epi32(INT32_MAX);
    __m512 nearest = _mm512_set1_ps(INFINITY); /* misses the neighbours of a signalling NaN */
    for (int k = 0; k < vectors; k++) {
        const float *at = x + 16 * k;
        const __m512 v = _mm512_loadu_ps(at);
        _mm_prefetch((const char *)at + AHEAD, _MM_HINT_T1);
        const __m512d first = _mm512_cvtps_pd(_mm256_loadu_ps(at)), second = _mm512_cvtps_pd(_mm256_loadu_ps(at + 8));
        t->lowest = _mm512_min_ps(t->lowest, v);
        t->highest = _mm512_max_ps(t->highest, v);
        if (counts) nearest = _mm512_range_ps(nearest, v, NEARER);
        if (small) {
            const __m512i size = _mm512_and_si512(_mm512_castps_si512(v), magnitude);
            const __mmask16 under = _mm512_cmpgt_epi32_mask(_mm512_set1_epi32(small), size);
            t->under = _mm512_mask_sub_epi32(t->under, under, t->under, _mm512_set1_epi32(-1));
        }
        t->s[0] = _mm512_add_pd(t->s[0], first);
        t->s[1] = _mm512_add_pd(t->s[1], second);
        t->q[0] = _mm512_fmadd_pd(first, first, t->q[0]);
        t->q[1] = _mm512_fmadd_pd(second, second, t->q[1]);
    }
    if (!counts || !_mm512_testn_epi32_mask(_mm512_castps_si512(nearest), _mm512_castps_si512(nearest))) return;
    for (int k = 0; k < vectors; k++) {
        const __m512i size = _mm512_and_si512(_mm512_loadu_si512(x + 16 * k), magnitude);
        counts->zero += __builtin_popcount(_mm512_testn_epi32_mask(size, size));
    }
}

GROUP_TARGET("avx512f,avx512dq,popcnt")
void float32_avx512(const void *data, int64_t n, double *sums, double *squared, float *low, float *high,
                    small_counts *counts) {
    const float *x = data;
    sums_avx512 t = {.lowest = _mm512_set1_ps(*low), .highest = _mm512_set1_ps(*high), .under = _mm512_setzero_si512()};
    int64_t i = 0;
    for (int k = 0; k < 2; k++) t.s[k] = t.q[k] = _mm512_setzero_pd();
    const int32_t small = counts ? counts->small : 0;
    if (small)
        for (; i + 64 <= n; i += 64) group_avx512(x + i, 4, &t, counts, small);
    for (; i + 64 <= n; i += 64) group_avx512(x + i, 4, &t, counts, 0);
    for (; i < n; i += 16) group_avx512(x + i, 1, &t, counts, small);
    for (int k = 0; k < 2; k++) {
        _mm512_storeu_pd(sums + 8 * k, t.s[k]);
        _mm512_storeu_pd(squared + 8 * k, t.q[k]);
    }
    if (counts) counts->under += _mm512_reduce_add_epi32(t.under);
    if (n) {
        *low = _mm512_reduce_min_ps(t.lowest);
        *high = _mm512_reduce_max_ps(t.highest);
    }
}
#undef GROUP_TARGET
#undef NEARER

/* The last elements of a tile, fewer than sixteen. */
static inline void add_rest(const float_any *x, int64_t n, double *sums, double *squared, float *low, float *high) {
    for (int64_t i = 0; i < n; i++) {
        double v = (double)x[i];
        sums[i] += v;
        squared[i] += v * v;
        *low = x[i] < *low ? x[i] : *low;
        *high = x[i] > *high ? x[i] : *high;
    }
}

static inline void count_rest(const int32_any *bits, int64_t n, small_counts *counts) {
    for (int64_t i = 0; i < n; i++) {
        const int32_t size = bits[i] & INT32_MAX;
        counts->zero += size == 0;
        counts->under += size < counts->small;
    }
}

/* Each level with and without counting. */
#define LEVEL(NAME, TARGET, LOOP)                                                                                      \
    __attribute__((target(TARGET))) static void finite_##NAME(const void *data, int64_t n, double *sums,               \
                                                              double *squared, float *low, float *high) {              \
        LOOP(data, n, sums, squared, low, high, NULL);                                                                 \
    }                                                                                                                  \
    __attribute__((target(TARGET))) static void counted_##NAME##_loop(                                                 \
        const void *data, int64_t n, double *sums, double *squared, float *low, float *high, small_counts *counts) {   \
        LOOP(data, n, sums, squared, low, high, counts);                                                               \
    }
LEVEL(f32_avx2, "avx2,fma,popcnt", float32_avx2)
LEVEL(f32_avx512, "avx512f,avx512dq,popcnt", float32_avx512)
#undef LEVEL
