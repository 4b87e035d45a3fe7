/* The weights of Order: fixed numbers that look random, one for each place of an element.

   Each is the product of three weights: of the lane, of the group of sixteen in its tile, and of the tile. Each of the
   three is +-(0.5 + k / 2^20) with k < 2^20, from a hash of its number. So its product with an element of up to 32 bits
   is exact in float64, and a fused multiply-add gives the same result as a multiplication and an addition. */
#include "internal.h"

double mp_lane_weights[MP_LANES], mp_group_weights[MP_GROUPS];

#define COMPLETE 16 /* tiles that all count; of the later ones about one of four counts, twice as much */

/* The last step of MurmurHash3: each bit of the result depends on all bits of the number (stochastic.py has it too). */
static uint32_t mixed(uint32_t number) {
    number = (number ^ number >> 16) * UINT32_C(0x85ebca6b);
    number = (number ^ number >> 13) * UINT32_C(0xc2b2ae35);
    return number ^ number >> 16;
}

static double weight(uint32_t bits) {
    const double size = 0.5 + (double)(bits & 0xfffff) * 0x1p-20;
    return bits >> 31 ? -size : size;
}

double mp_tile_weight(int64_t number) {
    const uint32_t bits = mixed((uint32_t)(1 + MP_LANES + MP_GROUPS + number));
    if (number < COMPLETE) return weight(bits);
    return bits >> 29 & 3 ? 0.0 : 2.0 * weight(bits);
}

void mp_order_init(void) {
    for (uint32_t i = 0; i < MP_LANES; i++) mp_lane_weights[i] = weight(mixed(1 + i));
    for (uint32_t i = 0; i < MP_GROUPS; i++) mp_group_weights[i] = weight(mixed(1 + MP_LANES + i));
}

#define SMALL (1 << 16) /* elements that fit in the cache: any order is cheap */
#define RUN 64          /* bytes that follow each other: as cheap to read as memory in order */

bool mp_order_wanted(const layout *logical, int code, unsigned want) {
    if (!(want & MP_ORDER) || mp_dtypes[code].kind == MP_KIND_BOOL || logical->count == 1) return false;
    if (logical->count <= SMALL || want & (MP_CRC | MP_XOR)) return true; /* a digest reads in this order anyway */
    const int last = logical->ndim - 1;
    for (int d = 0; d <= last; d++)
        if (logical->step[d] == 0) return false;
    return logical->step[last] == (int64_t)logical->itemsize && logical->shape[last] * logical->step[last] >= RUN;
}
