/* The loops of damage.c for one CPU instruction level, which defines TARGET, SUFFIX, LANES (numbers in a vector), LOW1
   to LOW8 (half a step of `turn`), and for vectors of integers LARGER(a, b), SMALLER(a, b), COUNT(n, a, b), which is n
   plus 1 in the lanes where a < b, and ANY(mask). */
#define NAME(stem) JOIN(stem, SUFFIX)
#define INLINE TARGET __attribute__((always_inline)) static inline
#define floats NAME(floats)
#define ints NAME(ints)
#define unaligned NAME(unaligned)
#define lane_sums NAME(lane_sums)
#define block_sums NAME(block_sums)
#define INTS(value) ((ints){0} + (value))
#define LOAD(at) (*(unaligned *)(at))

typedef float floats __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef float unaligned __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

typedef struct {
    floats energy, error, bulk_energy, bulk_error;
    ints zero, tiny, beyond;
    int64_t elements; /* with those that fill up a vector */
} lane_sums;

/* Sums of blocks, one in each lane. They go to the totals before float32 becomes too short for them. */
typedef struct {
    floats energy, error, bulk_energy, bulk_error;
    ints lowest, highest;
    int number;
} block_sums;

INLINE double NAME(total)(const floats *values) {
    double sum = 0;
    for (int k = 0; k < LANES; k++) sum += (double)(*values)[k];
    return sum;
}

INLINE void NAME(add_counts)(const lane_sums *s, totals *t) {
    for (int k = 0; k < LANES; k++) {
        t->zero += s->zero[k];
        t->tiny += s->tiny[k];
        t->beyond += s->beyond[k];
    }
    t->elements += s->elements;
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

/* To nearest even: adds a number that leaves no room for more bits than the exponent, or the lowest one, allows. */
#define ROUNDED(s, lowest, shift)                                                                                      \
    ({                                                                                                                 \
        const ints exponent_ = (ints)(s) & 0x7f800000;                                                                 \
        const floats large_ = (floats)(LARGER(exponent_, lowest) + (shift));                                           \
        ((s) + large_) - large_;                                                                                       \
    })

/* Usual blocks: nothing is larger than the largest number, and everything is bulk. */
INLINE void NAME(add_usual)(const float *x, ptrdiff_t n, ptrdiff_t stride, floats inverse, const format *f,
                            lane_sums *sums) {
    const ints lowest = INTS(f->lowest_bits), shift = INTS(f->shift), one = INTS(1), magnitude = INTS(INT32_MAX);
    floats energy = {0}, error = {0};
    ints zero = sums->zero, tiny = sums->tiny;
    for (ptrdiff_t i = 0; i < n; i++, x += stride) {
        const floats s = LOAD(x) * inverse, rounded = ROUNDED(s, lowest, shift), off = rounded - s;
        const ints size = (ints)rounded & magnitude;
        energy += s * s;
        error += off * off;
        zero = COUNT(zero, size, one);
        tiny = COUNT(tiny, size, lowest);
    }
    sums->energy += energy;
    sums->error += error;
    sums->bulk_energy += energy;
    sums->bulk_error += error;
    sums->zero = zero;
    sums->tiny = tiny;
}

/* Any blocks. In a plain cast (`is_cast`) elements have any exponent: those with a full mantissa are rounded by their
   bits, and all are made about 1 before they are squared. */
INLINE void NAME(add_any)(const float *x, ptrdiff_t n, ptrdiff_t stride, floats inverse, const format *f,
                          lane_sums *sums, const int is_cast) {
    const ints lowest = INTS(f->lowest_bits), shift = INTS(f->shift), one = INTS(1), magnitude = INTS(INT32_MAX);
    const ints limit = INTS(f->largest_bits), over = INTS(f->over_bits), reach = INTS(f->bulk_bits);
    const int drop = 23 - f->mantissa;
    lane_sums t = *sums;
    for (ptrdiff_t i = 0; i < n; i++, x += stride) {
        const floats given = LOAD(x), s = is_cast ? given : given * inverse;
        const ints bits = (ints)s & magnitude;
        ints size;
        if (is_cast) {
            const ints whole = (bits + ((1 << (drop - 1)) - 1) + ((bits >> drop) & 1)) & -(1 << drop);
            const ints few = (ints)(((floats)bits + f->magic) - f->magic), is_few = bits < lowest;
            size = (few & is_few) | (whole & ~is_few);
        } else {
            const floats rounded = ROUNDED(s, lowest, shift);
            size = (ints)rounded & magnitude;
        }
        const ints beyond = size > limit, within = ((ints)given & magnitude) <= reach;
        t.zero = COUNT(t.zero, size, one);
        t.tiny = COUNT(t.tiny, size, lowest);
        t.beyond -= beyond;
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
}

/* Adds n vectors whose largest magnitudes are `most`. */
TARGET static void NAME(add_vectors)(const float *x, ptrdiff_t n, ptrdiff_t stride, const ints *most,
                                     const floats *inverse, const format *f, lane_sums *sums) {
    const floats top = (floats)*most * *inverse, rounded = ROUNDED(top, INTS(f->lowest_bits), INTS(f->shift));
    sums->elements += LANES * n;
    if (f->scale == SCALE_NONE)
        NAME(add_any)(x, n, stride, *inverse, f, sums, 1);
    else if (ANY(((ints)rounded > f->largest_bits) | (*most > f->bulk_bits)))
        NAME(add_any)(x, n, stride, *inverse, f, sums, 0);
    else
        NAME(add_usual)(x, n, stride, *inverse, f, sums);
}

/* LANES rows of LANES elements, `stride` apart, become columns. */
INLINE void NAME(turn)(const float *x, ptrdiff_t stride, float *to) {
#if defined(__clang__)
    for (int k = 0; k < LANES * LANES; k++) to[k] = x[k % LANES * stride + k / LANES];
#else
    floats a[LANES];
#define STAGE(gap)                                                                                                     \
    if (gap < LANES) {                                                                                                 \
        const ints low = {LOW##gap};                                                                                   \
        _Pragma("GCC unroll 16") for (int k = 0; k < LANES; k++) if (!(k & gap) && k + gap < LANES) {                  \
            const floats first = a[k], second = a[k + gap];                                                            \
            a[k] = __builtin_shuffle(first, second, low);                                                              \
            a[k + gap] = __builtin_shuffle(first, second, low + gap);                                                  \
        }                                                                                                              \
    }
    _Pragma("GCC unroll 16") for (int k = 0; k < LANES; k++) a[k] = LOAD(x + k * stride);
    STAGE(1)
    STAGE(2)
    STAGE(4)
    STAGE(8)
#undef STAGE
    _Pragma("GCC unroll 16") for (int k = 0; k < LANES; k++) LOAD(to + LANES * k) = a[k];
#endif
}

/* The scales of LANES blocks, what elements are multiplied by, and which blocks have a scale, from the bits of their
   largest magnitudes. */
TARGET static void NAME(find_scales)(const ints *largest, const format *f, floats *unit, floats *inverse, ints *used) {
    const ints most = *largest;
    *used = most > 0;
    if (f->scale == SCALE_E8M0 || f->scale == SCALE_POWER) {
        const ints found = ((most + f->carry) >> 23) - f->highest,
                   biased = LARGER(found, INTS(f->scale == SCALE_POWER));
        *unit = (floats)LARGER(biased << 23, INTS(1 << 22)); /* 2^-127 is a subnormal number */
        *inverse = (floats)((254 - biased) << 23);
    } else if (f->scale == SCALE_E4M3) {
        const floats share = (floats)most * f->share;
        const ints bits = (ints)ROUNDED(share, INTS(121 << 23), INTS((20 << 23) + (1 << 22)));
        const ints limit = INTS(0x43e00000), over = bits > limit; /* 448 */
        const floats scale = (floats)((bits & ~over) | (limit & over)) * f->whole;
        /* If the scale itself has become zero, nothing of the block is left: its elements are made so small that all
           are rounded to zero. */
        const ints gone = bits == 0, lost = (ints)(f->vanish / (floats)most), limited = lost > 0x7f7fffff;
        const ints small = (lost & ~limited) | (0x7f7fffff & limited);
        *inverse = (floats)((small & gone) | ((ints)(1.0f / scale) & ~gone));
        *unit = (floats)(((ints)(1.0f / (floats)small) & gone) | ((ints)scale & ~gone));
        *used &= ~gone;
    } else if (f->scale == SCALE_FLOAT32) {
        *unit = (floats)LARGER((ints)((floats)most / f->largest), INTS(1 << 23));
        *inverse = 1.0f / *unit;
    } else {
        *unit = *inverse = 1.0f - (floats){0};
    }
}

INLINE void NAME(flush)(block_sums *b, totals *t) {
    t->energy += NAME(total)(&b->energy);
    t->error += NAME(total)(&b->error);
    t->bulk_energy += NAME(total)(&b->bulk_energy);
    t->bulk_error += NAME(total)(&b->bulk_error);
    for (int k = 0; k < LANES; k++) note_scales(b->lowest[k], b->highest[k], t);
    *b = (block_sums){.lowest = INTS(NO_SCALE)};
}

/* Adds blocks, one in each lane; `place` is the number of the first. */
INLINE void NAME(add_blocks)(const lane_sums *s, floats unit, ints used, const format *f, ptrdiff_t place,
                             block_sums *b, totals *t) {
    const floats even = unit * f->norm, square = even * even, ratio = s->error / s->energy;
    const ints exponent = (ints)unit >> 23, low = (exponent & used) | (NO_SCALE & ~used), high = exponent & used;
    b->energy += s->energy * square;
    b->error += s->error * square;
    b->bulk_energy += s->bulk_energy * square;
    b->bulk_error += s->bulk_error * square;
    b->highest = LARGER(b->highest, high);
    b->lowest = SMALLER(b->lowest, low);
    NAME(add_counts)(s, t);
    if (++b->number == SHORT) NAME(flush)(b, t);
    if (!ANY(ratio > (float)t->worst_ratio)) return;
    for (int k = 0; k < LANES; k++)
        if ((double)ratio[k] > t->worst_ratio) {
            t->worst_ratio = (double)ratio[k];
            t->worst = place + k;
        }
}

/* LANES blocks of `size` elements, in the rows of `packed`. */
TARGET static void NAME(measure_packed)(const float *packed, ptrdiff_t size, const format *f, ptrdiff_t place,
                                        block_sums *b, totals *t) {
    lane_sums sums = {0};
    floats unit, inverse;
    ints used;
    const ints most = NAME(largest)(packed, size, LANES, (ints){0});
    NAME(find_scales)(&most, f, &unit, &inverse, &used);
    NAME(add_vectors)(packed, size, LANES, &most, &inverse, f, &sums);
    NAME(add_blocks)(&sums, unit, used, f, place, b, t);
}

/* Blocks of 16 or 32 in a row. They follow each other in memory if the last one of a row is as long as the others. */
TARGET static void NAME(measure_rows)(const float *x, ptrdiff_t rows, ptrdiff_t columns, const format *f, block_sums *b,
                                      totals *t) {
    _Alignas(64) float packed[32 * LANES], padded[32 * LANES];
    const ptrdiff_t size = f->columns;
    const int even = columns % size == 0;
    const ptrdiff_t across = even ? rows * columns : columns, down = even ? 1 : rows;
    const ptrdiff_t number = (across + size - 1) / size;
    for (ptrdiff_t row = 0; row < down; row++)
        for (ptrdiff_t block = 0; block < number; block += LANES) {
            const float *from = x + row * across + block * size;
            const ptrdiff_t left = across - block * size;
            if (left < LANES * size) {
                memset(padded, 0, (size_t)(LANES * size) * sizeof(float));
                memcpy(padded, from, (size_t)left * sizeof(float));
                from = padded;
            }
            for (ptrdiff_t part = 0; part < size; part += LANES) NAME(turn)(from + part, size, packed + part * LANES);
            NAME(measure_packed)(packed, size, f, row * number + block, b, t);
        }
}

/* Copies `high` rows of at most STRIP columns, LANES columns after LANES. Reading all of them at once is faster. */
INLINE void NAME(pack)(const float *x, ptrdiff_t stride, ptrdiff_t high, ptrdiff_t wide, float *to) {
    for (ptrdiff_t row = 0; row < high; row++)
        for (ptrdiff_t column = 0; column < STRIP && column < wide; column += LANES) {
            float *into = to + column * MOST_ROWS + LANES * row;
            __builtin_prefetch(x + row * stride + column + STRIP);
            if (column + LANES <= wide)
                LOAD(into) = LOAD(x + row * stride + column);
            else
                for (ptrdiff_t k = 0; k < LANES; k++) into[k] = column + k < wide ? x[row * stride + column + k] : 0.0f;
        }
}

/* Columns that are higher than `packed` are read twice. */
TARGET static void NAME(measure_high)(const float *x, ptrdiff_t high, ptrdiff_t columns, ptrdiff_t wide,
                                      const format *f, float *packed, ptrdiff_t place, block_sums *b, totals *t) {
    enum { GROUPS = STRIP / LANES };
    lane_sums sums[GROUPS] = {0};
    floats unit[GROUPS], inverse[GROUPS];
    ints used[GROUPS], most[GROUPS] = {0};
    for (int again = 0; again < 2; again++) {
        for (ptrdiff_t row = 0; row < high; row += MOST_ROWS) {
            const ptrdiff_t part = row + MOST_ROWS < high ? MOST_ROWS : high - row;
            NAME(pack)(x + row * columns, columns, part, wide, packed);
            for (ptrdiff_t k = 0; k < GROUPS && LANES * k < wide; k++) {
                const float *from = packed + LANES * k * MOST_ROWS;
                if (again)
                    NAME(add_vectors)(from, part, LANES, &most[k], &inverse[k], f, &sums[k]);
                else
                    most[k] = NAME(largest)(from, part, LANES, most[k]);
            }
        }
        for (ptrdiff_t k = 0; k < GROUPS && LANES * k < wide; k++)
            if (again)
                NAME(add_blocks)(&sums[k], unit[k], used[k], f, place + LANES * k, b, t);
            else
                NAME(find_scales)(&most[k], f, &unit[k], &inverse[k], &used[k]);
    }
}

/* Blocks of one column. */
TARGET static void NAME(measure_columns)(const float *x, ptrdiff_t rows, ptrdiff_t columns, const format *f,
                                         block_sums *b, totals *t) {
    _Alignas(64) float packed[MOST_ROWS * STRIP];
    for (ptrdiff_t top = 0; top < rows; top += f->rows)
        for (ptrdiff_t left = 0; left < columns; left += STRIP) {
            const ptrdiff_t high = top + f->rows < rows ? f->rows : rows - top, wide = columns - left;
            const float *from = x + top * columns + left;
            const ptrdiff_t place = top / f->rows * columns + left;
            if (high > MOST_ROWS) {
                NAME(measure_high)(from, high, columns, wide, f, packed, place, b, t);
                continue;
            }
            NAME(pack)(from, columns, high, wide, packed);
            for (ptrdiff_t k = 0; k < STRIP && k < wide; k += LANES)
                NAME(measure_packed)(packed + k * MOST_ROWS, high, f, place + k, b, t);
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

/* One block: `wide` elements that follow each other in each of `high` rows. */
TARGET static void NAME(measure_block)(const float *x, ptrdiff_t stride, ptrdiff_t high, ptrdiff_t wide,
                                       const format *f, ptrdiff_t place, totals *t) {
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
    NAME(find_scales)(&most, f, &unit, &inverse, &used);
    const int is_usual = f->scale == SCALE_NONE || peak <= f->bulk_bits; /* otherwise most of its parts may be */
    for (ptrdiff_t row = 0; row < high; row++) {
        const float *from = x + row * stride;
        for (ptrdiff_t at = 0; at < whole; at += SHORT) {
            const ptrdiff_t n = at + SHORT < whole ? SHORT : whole - at;
            const ints near = is_usual ? most : NAME(largest)(from + LANES * at, n, LANES, (ints){0});
            NAME(add_vectors)(from + LANES * at, n, LANES, &near, &inverse, f, &sums);
            waiting += n;
            if (waiting >= SHORT) {
                NAME(add_lanes)(&sums, &all);
                waiting = 0;
            }
        }
        if (rest) {
            memcpy(padded, from + LANES * whole, (size_t)rest * sizeof(float));
            NAME(add_vectors)(padded, 1, LANES, &most, &inverse, f, &sums);
        }
    }
    NAME(add_lanes)(&sums, &all);
    NAME(add_counts)(&sums, t);
    add_block(&all, unit[0], used[0], f, place, t);
}

/* Lane k becomes the sum of the lanes of vector k. */
INLINE floats NAME(sums_of)(const floats *each) {
    floats turned[LANES], sum = {0};
    NAME(turn)((const float *)each, LANES, (float *)turned);
    for (int k = 0; k < LANES; k++) sum += turned[k];
    return sum;
}

/* Up to LANES blocks beside each other. Their width is a multiple of 16. */
TARGET static void NAME(measure_group)(const float *x, ptrdiff_t stride, ptrdiff_t high, ptrdiff_t number,
                                       const format *f, ptrdiff_t place, block_sums *b, totals *t) {
    const ptrdiff_t wide = f->columns, vectors = wide / LANES;
    ints each[LANES] = {0}, turned[LANES], most = {0}, used;
    floats unit, inverse, energy[LANES] = {0}, error[LANES] = {0}, bulk_energy[LANES] = {0}, bulk_error[LANES] = {0};
    lane_sums sums = {0};
    for (ptrdiff_t k = 0; k < number; k++)
        for (ptrdiff_t row = 0; row < high; row++)
            each[k] = NAME(largest)(x + row * stride + k * wide, vectors, LANES, each[k]);
    NAME(turn)((const float *)each, LANES, (float *)turned);
    for (int k = 0; k < LANES; k++) most = LARGER(most, turned[k]);
    NAME(find_scales)(&most, f, &unit, &inverse, &used);
    for (ptrdiff_t k = 0; k < number; k++) {
        const floats one = inverse[k] - (floats){0};
        const ints peak = INTS(most[k]);
        if (vectors == 1)
            NAME(add_vectors)(x + k * wide, high, stride, &peak, &one, f, &sums);
        else
            for (ptrdiff_t row = 0; row < high; row++)
                NAME(add_vectors)(x + row * stride + k * wide, vectors, LANES, &peak, &one, f, &sums);
        energy[k] = sums.energy;
        error[k] = sums.error;
        bulk_energy[k] = sums.bulk_energy;
        bulk_error[k] = sums.bulk_error;
        sums.energy = sums.error = sums.bulk_energy = sums.bulk_error = (floats){0};
    }
    sums.energy = NAME(sums_of)(energy);
    sums.error = NAME(sums_of)(error);
    sums.bulk_energy = NAME(sums_of)(bulk_energy);
    sums.bulk_error = NAME(sums_of)(bulk_error);
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
                                place + block, t);
    }
}

TARGET static void NAME(measure)(const float *x, ptrdiff_t rows, ptrdiff_t columns, const format *f, totals *t) {
    block_sums b = {.lowest = INTS(NO_SCALE)};
    if (f->rows >= rows && f->columns >= columns)
        NAME(measure_block)(x, 0, 1, rows * columns, f, 0, t);
    else if (f->rows == 1 && (f->columns == 16 || f->columns == 32))
        NAME(measure_rows)(x, rows, columns, f, &b, t);
    else if (f->columns == 1)
        NAME(measure_columns)(x, rows, columns, f, &b, t);
    else
        NAME(measure_wide)(x, rows, columns, f, &b, t);
    NAME(flush)(&b, t);
}

/* A tile of `number` elements, a multiple of 16. Returns 0 if one is not finite. */
TARGET static int NAME(add_tile)(const float *x, ptrdiff_t number, extents *e) {
    const ptrdiff_t n = number / LANES;
    ints most = {0}, least = INTS(INT32_MAX), zero = {0};
    for (ptrdiff_t i = 0; i < n; i++) {
        const ints size = (ints)LOAD(x + LANES * i) & INT32_MAX;
        most = LARGER(most, size);
        least = SMALLER(least, size);
    }
    int32_t peak = 0, nearest = INT32_MAX;
    for (int k = 0; k < LANES; k++) {
        peak = most[k] > peak ? most[k] : peak;
        nearest = least[k] < nearest ? least[k] : nearest;
    }
    e->peak = peak;
    if (peak >= 0x7f800000) return 0;
    if (!nearest) {
        for (ptrdiff_t i = 0; i < n; i++) {
            const ints size = (ints)LOAD(x + LANES * i) & INT32_MAX;
            zero = COUNT(zero, size, INTS(1));
        }
        for (int k = 0; k < LANES; k++) e->zeros += zero[k];
    }
    int exponent = (peak >> 23) - 127;
    exponent = exponent < -120 ? -120 : exponent > 120 ? 120 : exponent;
    const floats down = float_of((127 - exponent) << 23) - (floats){0};
    floats first = {0}, second = {0}, third = {0}, fourth = {0};
    for (ptrdiff_t i = 0; i < n; i++) {
        const floats v = LOAD(x + LANES * i) * down, square = v * v;
        first += v;
        second += square;
        third += square * v;
        fourth += square * square;
    }
    const floats sums[4] = {first, second, third, fourth};
    for (int m = 0; m < 4; m++) {
        double sum = 0;
        for (int k = 0; k < LANES; k++) sum += (double)sums[m][k];
        e->moments[m] += ldexp(sum, exponent * (m + 1));
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
