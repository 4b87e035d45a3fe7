/* Schubfach (R. Giulietti, "The Schubfach way to render doubles", 2020).

   A double is c * 2^q. Every number in the interval that rounds to it reads back as the same double. Let k be the
   decimal exponent at which that interval has a few integers. Three products with 10^-k give its ends and its middle,
   times four. If the interval has a multiple of ten, that is the result; otherwise the integer nearest to the middle.
 */
#include "shortest.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef unsigned __int128 uint128;

static struct {
    uint64_t low, high;
} powers[SHORTEST_POWERS];

void shortest_init(const void *data) {
    memcpy(powers, data, sizeof powers);
}

/* power * factor / 2^128; the last bit is also set if a remainder was cut off. */
static uint64_t scaled(int power, uint64_t factor) {
    const uint128 low = (uint128)powers[power].low * factor, high = (uint128)powers[power].high * factor;
    const uint128 sum = high + (uint64_t)(low >> 64);
    return (uint64_t)(sum >> 64) | ((uint64_t)sum > 1);
}

/* value = digits * 10^exponent, for a positive finite value given by its bits. */
static uint64_t shortest_digits(uint64_t bits, int *exponent) {
    const uint64_t fraction = bits & ((UINT64_C(1) << 52) - 1);
    const int biased = (int)(bits >> 52);
    const uint64_t c = biased ? fraction | UINT64_C(1) << 52 : fraction;
    const int q = (biased ? biased : 1) - 1075;
    const bool closer_below = biased > 1 && fraction == 0;           /* the neighbour below is half as far */
    const int k = (q * 1262611 - (closer_below ? 524031 : 0)) >> 22; /* floor(log10(2^q or 3/4 * 2^q)) */
    const int h = q + ((-k * 1741647) >> 19) + 1;                    /* >> 19: floor(log2(10^-k)) */
    const int power = -k - SHORTEST_MIN_POWER;
    const uint64_t odd = c & 1; /* the ends of the interval round to an even c only */
    const uint64_t below = scaled(power, (4 * c - (closer_below ? 1 : 2)) << h) + odd;
    const uint64_t middle = scaled(power, (4 * c) << h);
    const uint64_t above = scaled(power, (4 * c + 2) << h) - odd;
    const uint64_t s = middle / 4;
    *exponent = k;
    if (s >= 10) {
        const uint64_t tens = s / 10;
        const bool down = below <= 40 * tens, up = 40 * tens + 40 <= above;
        if (down != up) {
            *exponent = k + 1;
            return tens + up;
        }
    }
    const bool down = below <= 4 * s, up = 4 * s + 4 <= above;
    if (down != up) return s + up;
    return s + (middle > 4 * s + 2 || (middle == 4 * s + 2 && (s & 1)));
}

char *shortest_write(char *to, double value) {
    char digits[20];
    int exponent, count = 0;
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (bits >> 63) *to++ = '-';
    bits &= INT64_MAX;
    if (!bits) {
        memcpy(to, "0.0", 3);
        return to + 3;
    }
    uint64_t number = shortest_digits(bits, &exponent);
    for (; number % 10 == 0; number /= 10) exponent++;
    for (char *at = digits + sizeof digits; number; number /= 10) {
        *--at = (char)('0' + number % 10);
        count++;
    }
    const char *first = digits + sizeof digits - count;
    const int point = count + exponent; /* digits before the decimal point */
    if (point > 16 || point < -3) {
        *to++ = *first;
        if (count > 1) {
            *to++ = '.';
            memcpy(to, first + 1, (size_t)count - 1);
            to += count - 1;
        }
        int power = point - 1;
        *to++ = 'e';
        *to++ = power < 0 ? '-' : '+';
        power = power < 0 ? -power : power;
        if (power >= 100) *to++ = (char)('0' + power / 100);
        *to++ = (char)('0' + power / 10 % 10);
        *to++ = (char)('0' + power % 10);
        return to;
    }
    if (point <= 0) {
        memcpy(to, "0.0000", 6);
        to += 2 - point;
        memcpy(to, first, (size_t)count);
        return to + count;
    }
    if (count <= point) {
        memcpy(to, first, (size_t)count);
        memset(to + count, '0', (size_t)(point - count));
        memcpy(to + point, ".0", 2);
        return to + point + 2;
    }
    memcpy(to, first, (size_t)point);
    to[point] = '.';
    memcpy(to + point + 1, first + point, (size_t)(count - point));
    return to + count + 1;
}
