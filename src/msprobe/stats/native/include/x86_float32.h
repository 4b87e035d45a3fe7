/* A hand-written loop for float32, the most common type. Extremes are floats; sums use the same sixteen float64 lanes
   as loops.h, so that every level gives the same bits. The square of a float32 is exact in float64, so a fused
   multiply-add gives the same result as a multiplication and an addition.

   `n` is a multiple of 16. The extremes may miss NaN; the sum shows it. Zeros are counted separately, only on request:
   they would be two of twelve instructions. */

/* Bytes to prefetch: memory outside of the cache is read 1.5 times as fast with it. */
#define AHEAD 8192

static inline int64_t key_of_float(float value) {
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits ^ ((bits >> 31) & INT32_MAX);
}

__attribute__((target("avx2,fma"))) static void finite_f32_avx2(const void *data, int64_t n, double *sums,
                                                                double *squared, float *low, float *high) {
    const float_any *x = data;
    __m256 lowest = _mm256_set1_ps(*low), highest = _mm256_set1_ps(*high);
    __m256d s[4], q[4];
    float extremes[8];
    for (int k = 0; k < 4; k++) s[k] = q[k] = _mm256_setzero_pd();
    for (int64_t i = 0; i < n; i += 16)
        for (int k = 0; k < 2; k++) {
            const float *at = (const float *)x + i + 8 * k;
            __m256 v = _mm256_loadu_ps(at);
            _mm_prefetch((const char *)at + AHEAD, _MM_HINT_T0);
            __m256d first = _mm256_cvtps_pd(_mm_loadu_ps(at)), second = _mm256_cvtps_pd(_mm_loadu_ps(at + 4));
            lowest = _mm256_min_ps(lowest, v);
            highest = _mm256_max_ps(highest, v);
            s[2 * k] = _mm256_add_pd(s[2 * k], first);
            s[2 * k + 1] = _mm256_add_pd(s[2 * k + 1], second);
            q[2 * k] = _mm256_fmadd_pd(first, first, q[2 * k]);
            q[2 * k + 1] = _mm256_fmadd_pd(second, second, q[2 * k + 1]);
        }
    for (int k = 0; k < 4; k++) {
        _mm256_storeu_pd(sums + 4 * k, s[k]);
        _mm256_storeu_pd(squared + 4 * k, q[k]);
    }
    _mm256_storeu_ps(extremes, lowest);
    for (int lane = 0; lane < 8; lane++) *low = extremes[lane] < *low ? extremes[lane] : *low;
    _mm256_storeu_ps(extremes, highest);
    for (int lane = 0; lane < 8; lane++) *high = extremes[lane] > *high ? extremes[lane] : *high;
}

__attribute__((target("avx512f,avx512dq"))) static void finite_f32_avx512(const void *data, int64_t n, double *sums,
                                                                          double *squared, float *low, float *high) {
    const float_any *x = data;
    __m512 lowest = _mm512_set1_ps(*low), highest = _mm512_set1_ps(*high);
    __m512d s[2], q[2];
    for (int k = 0; k < 2; k++) s[k] = q[k] = _mm512_setzero_pd();
    for (int64_t i = 0; i < n; i += 16) {
        const float *at = (const float *)x + i;
        __m512 v = _mm512_loadu_ps(at);
        _mm_prefetch((const char *)at + AHEAD, _MM_HINT_T0);
        __m512d first = _mm512_cvtps_pd(_mm256_loadu_ps(at)), second = _mm512_cvtps_pd(_mm256_loadu_ps(at + 8));
        lowest = _mm512_min_ps(lowest, v);
        highest = _mm512_max_ps(highest, v);
        s[0] = _mm512_add_pd(s[0], first);
        s[1] = _mm512_add_pd(s[1], second);
        q[0] = _mm512_fmadd_pd(first, first, q[0]);
        q[1] = _mm512_fmadd_pd(second, second, q[1]);
    }
    for (int k = 0; k < 2; k++) {
        _mm512_storeu_pd(sums + 8 * k, s[k]);
        _mm512_storeu_pd(squared + 8 * k, q[k]);
    }
    if (n) {
        *low = _mm512_reduce_min_ps(lowest);
        *high = _mm512_reduce_max_ps(highest);
    }
}
