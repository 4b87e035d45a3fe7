/* zlib's CRC-32: by carry-less multiplication on x86-64, the CRC instructions on aarch64, tables elsewhere.

   Bits are reflected: bit 31 of a word is the coefficient of x^0. All constants are computed from the polynomial. */
#include "core.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <sys/auxv.h>
#endif

#define POLYNOMIAL 0xEDB88320u

static uint32_t table[8][256];
static int crc_level, crc_best;

/* a * b modulo the polynomial. */
static uint32_t multiply(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
        if (a & bit) product ^= b;
        b = b & 1 ? (b >> 1) ^ POLYNOMIAL : b >> 1;
    }
    return product;
}

/* x^n modulo the polynomial. */
static uint32_t power(uint64_t n) {
    uint32_t result = 1u << 31, base = 1u << 30;
    for (; n; n >>= 1) {
        if (n & 1) result = multiply(base, result);
        base = multiply(base, base);
    }
    return result;
}

uint32_t mp_crc32_combine(uint32_t first, uint32_t second, uint64_t second_size) {
    return multiply(power(second_size * 8), first) ^ second;
}

static uint32_t by_table(uint32_t crc, const uint8_t *p, size_t size) {
    for (; size >= 8; p += 8, size -= 8) {
        uint32_t low, high;
        memcpy(&low, p, 4);
        memcpy(&high, p + 4, 4);
        low ^= crc;
        crc = table[7][low & 255] ^ table[6][low >> 8 & 255] ^ table[5][low >> 16 & 255] ^ table[4][low >> 24] ^
              table[3][high & 255] ^ table[2][high >> 8 & 255] ^ table[1][high >> 16 & 255] ^ table[0][high >> 24];
    }
    while (size--) crc = table[0][(crc ^ *p++) & 255] ^ (crc >> 8);
    return crc;
}

#if defined(__x86_64__)
/* Folding over d bits multiplies the halves of 128 bits by x^(d+32) and x^(d-32); reflection adds the shift. */
static uint64_t fold_2048[2], fold_512[2], fold_128[2];

static void fold_constants(uint64_t k[2], uint64_t distance) {
    k[0] = (uint64_t)power(distance + 32) << 1;
    k[1] = (uint64_t)power(distance - 32) << 1;
}

#define LOAD(q) _mm_loadu_si128((const __m128i *)(q))
#define FOLD(a, k, b)                                                                                                  \
    _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(a, k, 0x00), _mm_clmulepi64_si128(a, k, 0x11)), b)

/* The CRC of the last 16 bytes, by table, is the CRC of all. Compiled twice: a function for old CPUs must not run
   between wide instructions, because mixing the two encodings costs more than the work. */
#define FINISH(NAME, TARGET)                                                                                           \
    __attribute__((target(TARGET))) static uint32_t NAME(__m128i a, const uint8_t *p, size_t size) {                   \
        const __m128i k = LOAD(fold_128);                                                                              \
        uint8_t rest[16];                                                                                              \
        for (; size >= 16; p += 16, size -= 16) a = FOLD(a, k, LOAD(p));                                               \
        _mm_storeu_si128((__m128i *)rest, a);                                                                          \
        return by_table(by_table(0, rest, 16), p, size);                                                               \
    }
/* Four registers a, b, c, d of WIDTH bytes fold the data side by side with k; then k1 folds them into a. */
#define FOLD_FOUR(FOLD_ONE, LOAD_ONE, WIDTH)                                                                           \
    for (p += 4 * (WIDTH), size -= 4 * (WIDTH); size >= 4 * (WIDTH); p += 4 * (WIDTH), size -= 4 * (WIDTH)) {          \
        a = FOLD_ONE(a, k, LOAD_ONE(p));                                                                               \
        b = FOLD_ONE(b, k, LOAD_ONE(p + (WIDTH)));                                                                     \
        c = FOLD_ONE(c, k, LOAD_ONE(p + 2 * (WIDTH)));                                                                 \
        d = FOLD_ONE(d, k, LOAD_ONE(p + 3 * (WIDTH)));                                                                 \
    }                                                                                                                  \
    a = FOLD_ONE(a, k1, b);                                                                                            \
    a = FOLD_ONE(a, k1, c);                                                                                            \
    a = FOLD_ONE(a, k1, d);
#define WIDE_TARGET "avx512f,avx512vl,vpclmulqdq,pclmul"
FINISH(finish, "sse4.1,pclmul")
FINISH(finish_wide, WIDE_TARGET)

__attribute__((target("sse4.1,pclmul"))) static uint32_t by_pclmul(uint32_t crc, const uint8_t *p, size_t size) {
    if (size < 64) return by_table(crc, p, size);
    const __m128i k = LOAD(fold_512), k1 = LOAD(fold_128);
    __m128i a = _mm_xor_si128(LOAD(p), _mm_cvtsi32_si128((int)crc));
    __m128i b = LOAD(p + 16), c = LOAD(p + 32), d = LOAD(p + 48);
    FOLD_FOUR(FOLD, LOAD, 16)
    return finish(a, p, size);
}

#define WIDE_LOAD(q) _mm512_loadu_si512((const void *)(q))
#define WIDE_FOLD(a, k, b)                                                                                             \
    _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(a, k, 0x00), _mm512_clmulepi64_epi128(a, k, 0x11), b, 0x96)

__attribute__((target(WIDE_TARGET))) static uint32_t by_vpclmul(uint32_t crc, const uint8_t *p, size_t size) {
    if (size < 256) return by_pclmul(crc, p, size);
    const __m512i k = _mm512_broadcast_i32x4(LOAD(fold_2048)), k1 = _mm512_broadcast_i32x4(LOAD(fold_512));
    __m512i a = _mm512_xor_si512(WIDE_LOAD(p), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    __m512i b = WIDE_LOAD(p + 64), c = WIDE_LOAD(p + 128), d = WIDE_LOAD(p + 192);
    FOLD_FOUR(WIDE_FOLD, WIDE_LOAD, 64)
    for (; size >= 64; p += 64, size -= 64) a = WIDE_FOLD(a, k1, WIDE_LOAD(p));
    const __m128i k2 = LOAD(fold_128);
    __m128i one = _mm512_castsi512_si128(a);
    one = FOLD(one, k2, _mm512_extracti32x4_epi32(a, 1));
    one = FOLD(one, k2, _mm512_extracti32x4_epi32(a, 2));
    one = FOLD(one, k2, _mm512_extracti32x4_epi32(a, 3));
    _mm256_zeroupper();
    return finish_wide(one, p, size);
}
#endif

#if defined(__aarch64__) && defined(__linux__)
__attribute__((target("+crc"))) static uint32_t by_instruction(uint32_t crc, const uint8_t *p, size_t size) {
    uint64_t word;
    for (; size >= 8; p += 8, size -= 8) {
        memcpy(&word, p, 8);
        crc = __crc32d(crc, word);
    }
    while (size--) crc = __crc32b(crc, *p++);
    return crc;
}
#endif

void mp_crc32_init(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >> 1) ^ POLYNOMIAL : crc >> 1;
        table[0][i] = crc;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int k = 1; k < 8; k++) table[k][i] = (table[k - 1][i] >> 8) ^ table[0][table[k - 1][i] & 255];
#if defined(__x86_64__)
    fold_constants(fold_2048, 2048);
    fold_constants(fold_512, 512);
    fold_constants(fold_128, 128);
    __builtin_cpu_init();
    if (__builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1")) crc_best = 1;
    if (crc_best && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("vpclmulqdq"))
        crc_best = 2;
#elif defined(__aarch64__) && defined(__linux__)
    crc_best = getauxval(AT_HWCAP) & HWCAP_CRC32 ? 1 : 0;
#endif
    crc_level = crc_best;
}

void mp_crc32_select(int level) {
    crc_level = level < crc_best ? level : crc_best;
}

uint32_t mp_crc32(uint32_t crc, const void *data, size_t size) {
    const uint8_t *p = data;
#if defined(__x86_64__)
    if (crc_level == 2) return ~by_vpclmul(~crc, p, size);
    if (crc_level == 1) return ~by_pclmul(~crc, p, size);
#elif defined(__aarch64__) && defined(__linux__)
    if (crc_level) return ~by_instruction(~crc, p, size);
#endif
    return ~by_table(~crc, p, size);
}
