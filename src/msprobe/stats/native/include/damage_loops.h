/* The loops of damage.c for one CPU instruction level, which defines TARGET, SUFFIX, LANES (numbers in a vector), LOW1
   to LOW8 (half a step of `turn`), FMA(a, b, c), which is a * b + c, and for vectors of integers LARGER(a, b),
   SMALLER(a, b), COUNT(n, a, b), which is n plus 1 in the lanes where a < b, and ANY(mask). */
#define NAME(stem) JOIN(stem, SUFFIX)
#define INLINE TARGET __attribute__((always_inline)) static inline
#define floats NAME(floats)
#define ints NAME(ints)
#define unaligned NAME(unaligned)
#define lane_sums NAME(lane_sums)
#define counts NAME(counts)
#define block_sums NAME(block_sums)
#define INTS(value) ((ints){0} + (value))
#define LOAD(at) (*(unaligned *)(at))

typedef float floats __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef float unaligned __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

typedef struct {
    floats energy, error, bulk_energy, bulk_error;
} lane_sums;

typedef struct {
    ints zero, tiny, beyond;
    int64_t elements; /* with those that fill up a vector */
} counts;

/* Sums of blocks, one in each lane. They go to the totals before float32 becomes too short for them. */
typedef struct {
    lane_sums sums;
    counts counted;
    ints lowest, highest;
    int number;
} block_sums;

INLINE double NAME(total)(const floats *values) {
    double sum = 0;
    for (int k = 0; k < LANES; k++) sum += (double)(*values)[k];
    return sum;
}

INLINE int NAME(any_of)(ints mask) {
    int32_t found = 0;
    for (int k = 0; k < LANES; k++) found |= mask[k];
    return found != 0;
}

/* The larger ones of `most` and the magnitudes of n vectors, as bits. */
INLINE ints NAME(largest)(const float *x, ptrdiff_t n, ptrdiff_t stride, ints most) {
    for (ptrdiff_t i = 0; i < n; i++, x += stride) {
        const ints size = (ints)LOAD(x) & INT32_MAX;
        most = LARGER(most, size);
    }
    return most;
}

/* To nearest even: adds a number that leaves no room for more bits than the exponent, or the lowest one, allows. `size`
   has the bits of |s|. */
#define ROUNDED(s, size, lowest, step)                                                                                 \
    ({                                                                                                                 \
        const floats power_ = (floats)LARGER((size) & 0x7f800000, lowest), s_ = (s);                                   \
        FMA(power_, -(step), FMA(power_, step, s_));                                                                   \
    })

/* Usual blocks: everything is bulk, and unless `is_full` nothing is larger than the largest number. With `top` it
   becomes the largest magnitudes, times `inverse`. */
INLINE void NAME(add_usual)(const float *x, ptrdiff_t n, ptrdiff_t stride, floats inverse, const format *f,
                            lane_sums *sums, counts *c, const int is_full, ints *top) {
    const ints lowest = INTS(f->lowest_bits), limit = INTS(f->largest_bits), one = INTS(1);
    const floats step = f->step - (floats){0};
    floats energy = {0}, error = {0};
    counts k = *c;
    for (ptrdiff_t i = 0; i < n; i++, x += stride) {
        const ints bits = (ints)(LOAD(x) * inverse) & INT32_MAX;
        const floats s = (floats)bits;
        ints size = (ints)ROUNDED(s, bits, lowest, step);
        if (top) *top = LARGER(*top, bits);
        k.zero = COUNT(k.zero, size, one);
        k.tiny = COUNT(k.tiny, size, lowest);
        if (is_full) {
            k.beyond = COUNT(k.beyond, limit, size);
            size = SMALLER(size, limit);
        }
        const floats off = (floats)size - s;
        energy = FMA(s, s, energy);
        error = FMA(off, off, error);
    }
    sums->energy += energy;
    sums->error += error;
    sums->bulk_energy += energy;
    sums->bulk_error += error;
    *c = k;
}

/* Any blocks. In a plain cast (`is_cast`) elements have any exponent: those with a full mantissa are rounded by their
   bits, and all are made about 1 before they are squared. */
INLINE void NAME(add_any)(const float *x, ptrdiff_t n, ptrdiff_t stride, floats inverse, const format *f,
                          lane_sums *sums, counts *c, const int is_cast) {
    const ints lowest = INTS(f->lowest_bits), one = INTS(1), magnitude = INTS(INT32_MAX);
    const floats step = f->step - (floats){0};
    const ints limit = INTS(f->largest_bits), over = INTS(f->over_bits), reach = INTS(f->bulk_bits);
    const int drop = 23 - f->mantissa;
    lane_sums t = *sums;
    counts k = *c;
    for (ptrdiff_t i = 0; i < n; i++, x += stride) {
        const floats given = LOAD(x), s = is_cast ? given : given * inverse;
        const ints bits = (ints)s & magnitude;
        ints size;
        if (is_cast) {
            const ints whole = (bits + ((1 << (drop - 1)) - 1) + ((bits >> drop) & 1)) & -(1 << drop);
            const ints few = (ints)(((floats)bits + f->magic) - f->magic), is_few = bits < lowest;
            size = (few & is_few) | (whole & ~is_few);
        } else {
            size = (ints)ROUNDED((floats)bits, bits, lowest, step);
        }
        const ints beyond = size > limit, within = ((ints)given & magnitude) <= reach;
        k.zero = COUNT(k.zero, size, one);
        k.tiny = COUNT(k.tiny, size, lowest);
        k.beyond -= beyond;
        floats off = (floats)((size & ~beyond) | (over & beyond)) - (floats)bits, even = s;
        if (is_cast) {
            off *= f->norm;
            even *= f->norm;
        }
        const floats lost = off * off, full = even * even;
        t.energy += full;
        t.error += lost;
        t.bulk_energy += (floats)((ints)full & within);
        t.bulk_error += (floats)((ints)lost & within);
    }
    *sums = t;
    *c = k;
}

/* Which loop adds a block whose largest magnitudes are `most`. */
INLINE int NAME(kind_of)(ints most, floats inverse, const format *f) {
    const floats top = (floats)most * inverse;
    const ints rounded = (ints)ROUNDED(top, (ints)top, INTS(f->lowest_bits), f->step - (floats){0});
    if (f->scale == SCALE_NONE || ANY(most > f->bulk_bits)) return ANY_KIND;
    return ANY(rounded > f->largest_bits) ? FULL : USUAL;
}

TARGET static void NAME(add_unusual)(const float *x, ptrdiff_t n, ptrdiff_t stride, const floats *inverse,
                                     const format *f, lane_sums *sums, counts *c) {
    if (f->scale == SCALE_NONE)
        NAME(add_any)(x, n, stride, *inverse, f, sums, c, 1);
    else
        NAME(add_any)(x, n, stride, *inverse, f, sums, c, 0);
}

INLINE void NAME(add_kind)(const float *x, ptrdiff_t n, ptrdiff_t stride, int kind, floats inverse, const format *f,
                           lane_sums *sums, counts *c) {
    if (kind == USUAL)
        NAME(add_usual)(x, n, stride, inverse, f, sums, c, 0, NULL);
    else if (kind == FULL)
        NAME(add_usual)(x, n, stride, inverse, f, sums, c, 1, NULL);
    else
        NAME(add_unusual)(x, n, stride, &inverse, f, sums, c);
}

/* Adds n vectors whose largest magnitudes are `most`. */
INLINE void NAME(add_vectors)(const float *x, ptrdiff_t n, ptrdiff_t stride, ints most, floats inverse, const format *f,
                              lane_sums *sums, counts *c) {
    c->elements += LANES * n;
    NAME(add_kind)(x, n, stride, NAME(kind_of)(most, inverse, f), inverse, f, sums, c);
}

/* LANES rows of LANES elements, `stride` apart, become columns. */
INLINE void NAME(turn)(const float *x, ptrdiff_t stride, floats *to) {
#if defined(__clang__)
    for (int k = 0; k < LANES * LANES; k++) to[k / LANES][k % LANES] = x[k % LANES * stride + k / LANES];
#else
#define STAGE(gap)                                                                                                     \
    if (gap < LANES) {                                                                                                 \
        const ints low = {LOW##gap};                                                                                   \
        _Pragma("GCC unroll 16") for (int k = 0; k < LANES; k++) if (!(k & gap) && k + gap < LANES) {                  \
            const floats first = to[k], second = to[k + gap];                                                          \
            to[k] = __builtin_shuffle(first, second, low);                                                             \
            to[k + gap] = __builtin_shuffle(first, second, low + gap);                                                 \
        }                                                                                                              \
    }
    _Pragma("GCC unroll 16") for (int k = 0; k < LANES; k++) to[k] = LOAD(x + k * stride);
    STAGE(1)
    STAGE(2)
    STAGE(4)
    STAGE(8)
#undef STAGE
#endif
}

/* The same, with the magnitudes. Returns the largest ones, as bits. */
INLINE ints NAME(turn_magnitudes)(const float *x, ptrdiff_t stride, float *to, ints most) {
    floats turned[LANES];
    NAME(turn)(x, stride, turned);
    _Pragma("GCC unroll 16") for (int k = 0; k < LANES; k++) {
        const ints size = (ints)turned[k] & INT32_MAX;
        most = LARGER(most, size);
        LOAD(to + LANES * k) = (floats)size;
    }
    return most;
}

/* The scales of LANES blocks, what elements are multiplied by, and which blocks have a scale, from the bits of their
   largest magnitudes. */
INLINE void NAME(find_scales)(ints most, const format *f, floats *unit, floats *inverse, ints *used) {
    *used = most > 0;
    if (f->scale == SCALE_E8M0 || f->scale == SCALE_POWER) {
        const ints found = ((most + f->carry) >> 23) - f->highest,
                   biased = LARGER(found, INTS(f->scale == SCALE_POWER));
        *unit = (floats)LARGER(biased << 23, INTS(1 << 22)); /* 2^-127 is a subnormal number */
        *inverse = (floats)((254 - biased) << 23);
    } else if (f->scale == SCALE_E4M3) {
        const floats share = (floats)most * f->share;
        const ints bits = (ints)ROUNDED(share, (ints)share, INTS(121 << 23), 0x1.8p20f - (floats){0});
        const ints limit = INTS(0x43e00000), over = bits > limit; /* 448 */
        const ints gone = bits == 0;
        *unit = (floats)((bits & ~over) | (limit & over)) * f->whole;
        *inverse = 1.0f / *unit;
        if (!ANY(gone)) return;
        /* If the scale itself has become zero, nothing of the block is left: its elements are made so small that all
           are rounded to zero. */
        const ints lost = (ints)(f->vanish / (floats)most), limited = lost > 0x7f7fffff;
        const ints small = (lost & ~limited) | (0x7f7fffff & limited);
        *inverse = (floats)((small & gone) | ((ints)*inverse & ~gone));
        *unit = (floats)(((ints)(1.0f / (floats)small) & gone) | ((ints)*unit & ~gone));
        *used &= ~gone;
    } else if (f->scale == SCALE_FLOAT32) {
        *unit = (floats)LARGER((ints)((floats)most / f->largest), INTS(1 << 23));
        *inverse = 1.0f / *unit;
    } else {
        *unit = *inverse = 1.0f - (floats){0};
    }
}

INLINE void NAME(flush)(block_sums *b, totals *t) {
    t->energy += NAME(total)(&b->sums.energy);
    t->error += NAME(total)(&b->sums.error);
    t->bulk_energy += NAME(total)(&b->sums.bulk_energy);
    t->bulk_error += NAME(total)(&b->sums.bulk_error);
    for (int k = 0; k < LANES; k++) {
        note_scales(b->lowest[k], b->highest[k], t);
        t->zero += b->counted.zero[k];
        t->tiny += b->counted.tiny[k];
        t->beyond += b->counted.beyond[k];
    }
    t->elements += b->counted.elements;
    *b = (block_sums){.lowest = INTS(NO_SCALE)};
}

/* Adds blocks, one in each lane; `place` is the number of the first. */
INLINE void NAME(add_blocks)(const lane_sums *s, floats unit, ints used, const format *f, ptrdiff_t place,
                             block_sums *b, totals *t) {
    const floats even = unit * f->norm, square = even * even;
    const ints exponent = (ints)unit >> 23, low = (exponent & used) | (NO_SCALE & ~used), high = exponent & used;
    b->sums.energy = FMA(s->energy, square, b->sums.energy);
    b->sums.error = FMA(s->error, square, b->sums.error);
    b->sums.bulk_energy = FMA(s->bulk_energy, square, b->sums.bulk_energy);
    b->sums.bulk_error = FMA(s->bulk_error, square, b->sums.bulk_error);
    b->highest = LARGER(b->highest, high);
    b->lowest = SMALLER(b->lowest, low);
    if (++b->number == SHORT) NAME(flush)(b, t);
    if (!ANY(s->error > s->energy * (float)t->worst_ratio)) return;
    for (int k = 0; k < LANES; k++)
        if ((double)s->error[k] > t->worst_ratio * (double)s->energy[k]) {
            t->worst_ratio = (double)s->error[k] / (double)s->energy[k];
            t->worst = t->base + place + k;
        }
}

/* LANES blocks of `size` elements, in the rows of `packed`, whose largest magnitudes are `most`. */
INLINE void NAME(measure_packed)(const float *packed, ptrdiff_t size, ints most, const format *f, ptrdiff_t place,
                                 block_sums *b, totals *t) {
    lane_sums sums = {0};
    floats unit, inverse;
    ints used;
    NAME(find_scales)(most, f, &unit, &inverse, &used);
    NAME(add_vectors)(packed, size, LANES, most, inverse, f, &sums, &b->counted);
    NAME(add_blocks)(&sums, unit, used, f, place, b, t);
}

/* Blocks of 16 or 32 in a row. They follow each other in memory if the last one of a row is as long as the others. */
INLINE void NAME(measure_short_rows)(const float *x, ptrdiff_t rows, ptrdiff_t columns, const ptrdiff_t size,
                                     const format *f, block_sums *b, totals *t) {
    _Alignas(64) float packed[32 * LANES], padded[32 * LANES];
    const int even = columns % size == 0;
    const ptrdiff_t across = even ? rows * columns : columns, down = even ? 1 : rows;
    const ptrdiff_t number = (across + size - 1) / size;
    for (ptrdiff_t row = 0; row < down; row++)
        for (ptrdiff_t block = 0; block < number; block += LANES) {
            const float *from = x + row * across + block * size;
            const ptrdiff_t left = across - block * size;
            ints most = {0};
            if (left < LANES * size) {
                memset(padded, 0, (size_t)(LANES * size) * sizeof(float));
                memcpy(padded, from, (size_t)left * sizeof(float));
                from = padded;
            }
            for (ptrdiff_t part = 0; part < size; part += LANES)
                most = NAME(turn_magnitudes)(from + part, size, packed + part * LANES, most);
            NAME(measure_packed)(packed, size, most, f, row * number + block, b, t);
        }
}

TARGET static void NAME(measure_rows)(const float *x, ptrdiff_t rows, ptrdiff_t columns, const format *f, block_sums *b,
                                      totals *t) {
    if (f->columns == 16)
        NAME(measure_short_rows)(x, rows, columns, 16, f, b, t);
    else
        NAME(measure_short_rows)(x, rows, columns, 32, f, b, t);
}

/* Copies the magnitudes of `high` rows of `wide` columns, LANES columns after LANES, and finds the largest ones of each
   column. The place that is copied to stays in the cache; rows whose addresses differ by a power of two do not. */
INLINE void NAME(pack)(const float *x, ptrdiff_t stride, ptrdiff_t high, ptrdiff_t wide, float *to, ints *most,
                       const int fetches) {
    const ptrdiff_t whole = wide / LANES, rest = wide % LANES;
    for (ptrdiff_t row = 0; row < high; row++, x += stride, to += LANES) {
        for (ptrdiff_t k = 0; k < whole; k++) {
            const ints size = (ints)LOAD(x + LANES * k) & INT32_MAX;
            if (fetches) __builtin_prefetch(x + LANES * k + stride * high, 0, 2); /* the same place further below */
            most[k] = LARGER(most[k], size);
            LOAD(to + LANES * high * k) = (floats)size;
        }
        if (rest) {
            ints size = {0};
            memcpy(&size, x + LANES * whole, (size_t)rest * sizeof(float));
            size &= INT32_MAX;
            most[whole] = LARGER(most[whole], size);
            LOAD(to + LANES * high * whole) = (floats)size;
        }
    }
}

/* Columns that are higher than `packed`, up to HIGH_STRIP of them, are read twice. */
TARGET static void NAME(measure_high)(const float *x, ptrdiff_t high, ptrdiff_t columns, ptrdiff_t wide,
                                      const format *f, float *packed, ptrdiff_t place, block_sums *b, totals *t) {
    enum { GROUPS = HIGH_STRIP / LANES, ROWS = PACKED / HIGH_STRIP };
    lane_sums sums[GROUPS] = {0};
    floats unit[GROUPS], inverse[GROUPS];
    ints used[GROUPS], most[GROUPS] = {0};
    const ptrdiff_t groups = (wide + LANES - 1) / LANES;
    for (int again = 0; again < 2; again++) {
        for (ptrdiff_t row = 0; row < high; row += ROWS) {
            const ptrdiff_t part = row + ROWS < high ? ROWS : high - row;
            NAME(pack)(x + row * columns, columns, part, wide, packed, most, 1);
            for (ptrdiff_t k = 0; again && k < groups; k++)
                NAME(add_vectors)(packed + LANES * part * k, part, LANES, most[k], inverse[k], f, &sums[k],
                                  &b->counted);
        }
        for (ptrdiff_t k = 0; k < groups; k++)
            if (again)
                NAME(add_blocks)(&sums[k], unit[k], used[k], f, place + LANES * k, b, t);
            else
                NAME(find_scales)(most[k], f, &unit[k], &inverse[k], &used[k]);
    }
}

/* Blocks of one column. */
TARGET static void NAME(measure_columns)(const float *x, ptrdiff_t rows, ptrdiff_t columns, const format *f,
                                         block_sums *b, totals *t) {
    _Alignas(64) float packed[PACKED];
    ints most[WIDEST / LANES];
    for (ptrdiff_t top = 0; top < rows; top += f->rows) {
        const ptrdiff_t high = top + f->rows < rows ? f->rows : rows - top, fits = PACKED / LANES / high * LANES;
        const ptrdiff_t strip = high > MOST_ROWS ? HIGH_STRIP : fits < WIDEST ? fits : WIDEST;
        for (ptrdiff_t left = 0; left < columns; left += strip) {
            const ptrdiff_t wide = left + strip < columns ? strip : columns - left;
            const float *from = x + top * columns + left;
            const ptrdiff_t place = top / f->rows * columns + left;
            if (high > MOST_ROWS) {
                NAME(measure_high)(from, high, columns, wide, f, packed, place, b, t);
                continue;
            }
            memset(most, 0, sizeof most);
            NAME(pack)(from, columns, high, wide, packed, most, 0);
            for (ptrdiff_t k = 0; LANES * k < wide; k++)
                NAME(measure_packed)(packed + LANES * high * k, high, most[k], f, place + LANES * k, b, t);
        }
    }
}

/* Adds what all lanes have of one block. */
INLINE void NAME(add_lanes)(lane_sums *s, wide_sums *w) {
    w->energy += NAME(total)(&s->energy);
    w->error += NAME(total)(&s->error);
    w->bulk_energy += NAME(total)(&s->bulk_energy);
    w->bulk_error += NAME(total)(&s->bulk_error);
    s->energy = s->error = s->bulk_energy = s->bulk_error = (floats){0};
}

/* Adds n vectors of a block that has an element outside of the bulk: most of its parts have none. */
INLINE void NAME(add_part)(const float *x, ptrdiff_t n, floats inverse, const format *f, lane_sums *sums, counts *c) {
    const lane_sums before = *sums;
    const counts counted = *c;
    const floats reach = f->bulk * inverse;
    ints top = {0};
    NAME(add_usual)(x, n, LANES, inverse, f, sums, c, 1, &top);
    if (ANY(top >= (ints)reach)) {
        *sums = before;
        *c = counted;
        NAME(add_unusual)(x, n, LANES, &inverse, f, sums, c);
    }
    c->elements += LANES * n;
}

/* One block: `wide` elements that follow each other in each of `high` rows. */
TARGET static void NAME(measure_block)(const float *x, ptrdiff_t stride, ptrdiff_t high, ptrdiff_t wide,
                                       const format *f, ptrdiff_t place, block_sums *b, totals *t) {
    _Alignas(64) float padded[LANES] = {0};
    const ptrdiff_t whole = wide / LANES, rest = wide % LANES;
    lane_sums sums = {0};
    wide_sums all = {0};
    floats unit, inverse;
    ints used, most = {0};
    ptrdiff_t waiting = 0;
    int32_t peak = f->peak_bits;
    for (ptrdiff_t row = 0; !peak && row < high; row++) {
        if (rest) memcpy(padded, x + row * stride + LANES * whole, (size_t)rest * sizeof(float));
        most = NAME(largest)(x + row * stride, whole, LANES, most);
        most = NAME(largest)(padded, 1, LANES, most);
    }
    for (int k = 0; k < LANES; k++) peak = most[k] > peak ? most[k] : peak;
    most = INTS(peak);
    NAME(find_scales)(most, f, &unit, &inverse, &used);
    const int is_whole = f->scale == SCALE_NONE || peak <= f->bulk_bits;
    for (ptrdiff_t row = 0; row < high; row++) {
        const float *from = x + row * stride;
        for (ptrdiff_t at = 0; at < whole; at += SHORT) {
            const ptrdiff_t n = at + SHORT < whole ? SHORT : whole - at;
            if (is_whole)
                NAME(add_vectors)(from + LANES * at, n, LANES, most, inverse, f, &sums, &b->counted);
            else
                NAME(add_part)(from + LANES * at, n, inverse, f, &sums, &b->counted);
            waiting += n;
            if (waiting >= SHORT) {
                NAME(add_lanes)(&sums, &all);
                waiting = 0;
            }
        }
        if (rest) {
            memcpy(padded, from + LANES * whole, (size_t)rest * sizeof(float));
            NAME(add_vectors)(padded, 1, LANES, most, inverse, f, &sums, &b->counted);
        }
    }
    NAME(add_lanes)(&sums, &all);
    add_block(&all, unit[0], used[0], f, place, t);
}

/* Lane k becomes the sum of the lanes of vector k. */
INLINE floats NAME(sums_of)(const floats *each) {
    floats turned[LANES], sum = {0};
    NAME(turn)((const float *)each, LANES, turned);
    for (int k = 0; k < LANES; k++) sum += turned[k];
    return sum;
}

/* Up to LANES blocks beside each other. Their width is a multiple of 16. Blocks of 16 columns are copied first. */
TARGET static void NAME(measure_group)(const float *x, ptrdiff_t stride, ptrdiff_t high, ptrdiff_t number,
                                       const format *f, ptrdiff_t place, block_sums *b, totals *t) {
    _Alignas(64) float packed[16 * 16 * LANES];
    const ptrdiff_t wide = f->columns, vectors = wide / LANES;
    const int is_packed = wide == 16 && high <= 16;
    const ptrdiff_t rows = is_packed ? 1 : high, length = is_packed ? vectors * high : vectors;
    ints each[LANES] = {0}, most = {0}, used;
    floats turned[LANES], unit, inverse, energy[LANES] = {0}, error[LANES] = {0}, bulk_energy[LANES] = {0},
                                         bulk_error[LANES] = {0};
    lane_sums sums;
    if (is_packed) {
        ints columns[16] = {0};
        NAME(pack)(x, stride, high, wide * number, packed, columns, 1);
        for (ptrdiff_t k = 0; k < number; k++)
            for (ptrdiff_t i = 0; i < vectors; i++) each[k] = LARGER(each[k], columns[vectors * k + i]);
    }
    for (ptrdiff_t k = 0; !is_packed && k < number; k++)
        for (ptrdiff_t row = 0; row < high; row++)
            each[k] = NAME(largest)(x + row * stride + k * wide, vectors, LANES, each[k]);
    NAME(turn)((const float *)each, LANES, turned);
    for (int k = 0; k < LANES; k++) most = LARGER(most, (ints)turned[k]);
    NAME(find_scales)(most, f, &unit, &inverse, &used);
    const int kind = NAME(kind_of)(most, inverse, f);
    b->counted.elements += LANES * vectors * high * number;
    for (ptrdiff_t k = 0; k < number; k++) {
        const floats one = inverse[k] - (floats){0};
        const float *from = is_packed ? packed + LANES * length * k : x + wide * k;
        sums = (lane_sums){0};
        for (ptrdiff_t row = 0; row < rows; row++, from += stride)
            NAME(add_kind)(from, length, LANES, kind, one, f, &sums, &b->counted);
        energy[k] = sums.energy;
        error[k] = sums.error;
        bulk_energy[k] = sums.bulk_energy;
        bulk_error[k] = sums.bulk_error;
    }
    sums.energy = NAME(sums_of)(energy);
    sums.error = NAME(sums_of)(error);
    sums.bulk_energy = kind == ANY_KIND ? NAME(sums_of)(bulk_energy) : sums.energy;
    sums.bulk_error = kind == ANY_KIND ? NAME(sums_of)(bulk_error) : sums.error;
    NAME(add_blocks)(&sums, unit, used, f, place, b, t);
}

/* Blocks of more than one column, or long rows. */
TARGET static void NAME(measure_wide)(const float *x, ptrdiff_t rows, ptrdiff_t columns, const format *f, block_sums *b,
                                      totals *t) {
    const ptrdiff_t high = f->rows, wide = f->columns, across = (columns + wide - 1) / wide;
    const int small = wide % 16 == 0 && wide * high <= MOST_ELEMENTS && f->scale != SCALE_NONE;
    const ptrdiff_t whole = columns / wide;
    for (ptrdiff_t top = 0, place = 0; top < rows; top += high, place += across) {
        const ptrdiff_t down = top + high < rows ? high : rows - top;
        const float *strip = x + top * columns;
        for (ptrdiff_t block = 0; small && block < whole; block += LANES)
            NAME(measure_group)(strip + block * wide, columns, down, whole - block < LANES ? whole - block : LANES, f,
                                place + block, b, t);
        for (ptrdiff_t block = small ? whole : 0; block < across; block++)
            NAME(measure_block)(strip + block * wide, columns, down, block < whole ? wide : columns - block * wide, f,
                                place + block, b, t);
    }
}

TARGET static void NAME(measure)(const float *x, ptrdiff_t rows, ptrdiff_t columns, const format *f, totals *t) {
    block_sums b = {.lowest = INTS(NO_SCALE)};
    if (f->rows >= rows && f->columns >= columns)
        NAME(measure_block)(x, 0, 1, rows * columns, f, 0, &b, t);
    else if (f->rows == 1 && (f->columns == 16 || f->columns == 32))
        NAME(measure_rows)(x, rows, columns, f, &b, t);
    else if (f->columns == 1)
        NAME(measure_columns)(x, rows, columns, f, &b, t);
    else
        NAME(measure_wide)(x, rows, columns, f, &b, t);
    NAME(flush)(&b, t);
}

/* A tile of `number` elements, a multiple of 16. Returns 0 if one is not finite. The powers are of the elements divided
   by the power of two of an earlier tile, so that one loop does everything: it waits for memory. */
TARGET static int NAME(add_tile)(const float *x, ptrdiff_t number, extents *e) {
    const ptrdiff_t n = number / LANES;
    floats sums[2][4];
    int32_t peak, nearest;
    for (int is_known = 0; !is_known;) {
        const floats down = float_of((127 - e->exponent) << 23) - (floats){0};
        ints most = {0}, least = INTS(INT32_MAX);
        memset(sums, 0, sizeof sums);
        for (ptrdiff_t i = 0; i < n; i += 2)
            for (ptrdiff_t k = 0; k < 2; k++) { /* two sets, as sums wait for themselves */
                const ptrdiff_t at = LANES * (i + k < n ? i + k : i);
                const ints size = (ints)LOAD(x + at) & INT32_MAX;
                const floats v = LOAD(x + at) * (i + k < n ? down : (floats){0}), square = v * v;
                __builtin_prefetch(x + at + AHEAD, 0, 2);
                most = LARGER(most, size);
                least = SMALLER(least, size);
                sums[k][0] += v;
                sums[k][1] += square;
                sums[k][2] = FMA(square, v, sums[k][2]);
                sums[k][3] = FMA(square, square, sums[k][3]);
            }
        peak = 0;
        nearest = INT32_MAX;
        for (int k = 0; k < LANES; k++) {
            peak = most[k] > peak ? most[k] : peak;
            nearest = least[k] < nearest ? least[k] : nearest;
        }
        if (peak >= 0x7f800000) break;
        int exponent = (peak >> 23) - 127;
        exponent = exponent < -120 ? -120 : exponent > 120 ? 120 : exponent;
        is_known = !peak || (exponent - e->exponent <= NEAR && e->exponent - exponent <= NEAR);
        if (!is_known) e->exponent = exponent;
    }
    e->peak = peak;
    if (peak >= 0x7f800000) return 0;
    if (!nearest) {
        ints zero = {0};
        for (ptrdiff_t i = 0; i < n; i++) zero = COUNT(zero, (ints)LOAD(x + LANES * i) & INT32_MAX, INTS(1));
        for (int k = 0; k < LANES; k++) e->zeros += zero[k];
    }
    for (int m = 0; m < 4; m++) {
        double sum = 0;
        for (int k = 0; k < LANES; k++) sum += (double)sums[0][m][k] + (double)sums[1][m][k];
        e->moments[m] += ldexp(sum, e->exponent * (m + 1));
    }
    return 1;
}

#undef ROUNDED
#undef LOAD
#undef INTS
#undef floats
#undef ints
#undef unaligned
#undef lane_sums
#undef counts
#undef FMA
#undef block_sums
#undef INLINE
#undef NAME
#undef TARGET
#undef SUFFIX
#undef LANES
#undef LOW1
#undef LOW2
#undef LOW4
#undef LOW8
#undef LARGER
#undef SMALLER
#undef COUNT
#undef ANY
