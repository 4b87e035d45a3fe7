/* One pass over a tensor: chunks of tiles. A tile fits in the first-level cache.

   Tiles and chunks depend only on element numbers and are added in order. So the result is the same to the last bit
   for any number of threads and any CPU instruction level. */
#include "internal.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

double mp_round(const dtype *d, double value) {
    if (!isfinite(value) || value == 0 || !d->mantissa) return value;
    int exponent;
    frexp(value, &exponent);
    exponent = (exponent - 1 < d->min_exponent ? d->min_exponent : exponent - 1) - d->mantissa;
    double rounded = ldexp(rint(ldexp(value, -exponent)), exponent);
    if (fabs(rounded) <= d->largest) return rounded;
    return d->has_inf ? copysign(INFINITY, value) : (double)NAN;
}

static void add(tile_result *to, const tile_result *from, const dtype *rounded) {
    to->sum += from->sum;
    to->squares += from->squares;
    to->order += from->order;
    if (rounded) {
        to->sum = mp_round(rounded, to->sum);
        to->squares = mp_round(rounded, to->squares);
    }
    to->total += from->total;
    to->low = from->low < to->low ? from->low : to->low;
    to->high = from->high > to->high ? from->high : to->high;
    to->nan += from->nan;
    to->posinf += from->posinf;
    to->neginf += from->neginf;
    to->zero += from->zero;
    to->below += from->below;
    to->above += from->above;
}

static const tile_result EMPTY = {.low = INT64_MAX, .high = INT64_MIN};

static uint64_t xor_words(const void *data, size_t size) {
    const char *bytes = data;
    uint64_t all = 0, word, tail = 0;
    for (size_t i = 0; i < size / 8; i++) {
        memcpy(&word, bytes + 8 * i, 8);
        all ^= word;
    }
    memcpy(&tail, bytes + size / 8 * 8, size % 8);
    return all ^ tail;
}

static void scale(const double *from, double *to, int64_t n, int exponent) {
    double first = ldexp(1.0, -exponent / 2), second = ldexp(1.0, -exponent - -exponent / 2);
    for (int64_t i = 0; i < n; i++) to[i] = from[i] * first * second;
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
    *p = (partial){.acc = EMPTY};
    if (!dense) cursor_seek(&c, walk, start);
    bool skipped = false;
    for (int64_t at = start; at < end; at += MP_TILE) {
        const int64_t n = end - at < MP_TILE ? end - at : MP_TILE;
        const double weight = j->want & MP_ORDER ? mp_tile_weight(at / MP_TILE) : 0;
        const char *data = gathered;
        if (!weight && !(j->want & (MP_STATS | MP_CRC | MP_XOR))) {
            skipped = true;
            continue;
        }
        if (skipped && !dense) cursor_seek(&c, walk, at);
        skipped = false;
        if (dense)
            data = walk->base + at * (int64_t)walk->itemsize;
        else
            cursor_take(&c, gathered, n);
        if (j->want & MP_STATS || weight) {
            tile_result tile = EMPTY;
            const void *values = data;
            if (j->loops->widen) {
                j->loops->widen(values, widened, n);
                values = widened;
            }
            if (j->exponent) {
                scale(values, widened, n, j->exponent);
                values = widened;
            }
            if (j->want & MP_STATS && (j->want & MP_ZEROS || j->range))
                mp_count_tile(j, values, n, &tile);
            else if (j->want & MP_STATS)
                j->loops->tile(values, n, &tile);
            if (weight) tile.order = j->loops->order(values, n) * weight;
            add(&p->acc, &tile, rounded);
        }
        if (j->want & MP_CRC) p->crc = mp_crc32(p->crc, data, (size_t)n * walk->itemsize);
        if (j->want & MP_XOR) p->xor64 ^= xor_words(data, (size_t)n * walk->itemsize);
    }
}

static void *work(void *argument) {
    job *j = argument;
    int64_t number;
    while ((number = __atomic_fetch_add(&j->next, 1, __ATOMIC_RELAXED)) < j->chunks) run_chunk(j, number);
    return NULL;
}

static int allowed_threads(int threads, int64_t chunks) {
    if (threads <= 0) {
        long cpus = sysconf(_SC_NPROCESSORS_ONLN);
        threads = cpus < 1 ? 1 : cpus > 4 ? 4 : (int)cpus;
    }
    threads = threads < 64 ? threads : 64;
    return chunks < threads ? (int)chunks : threads;
}

int mp_run(job *j, int threads, partial *out) {
    partial single;
    pthread_t others[64];
    int started = 0;
    j->chunks = (j->walk->count + MP_CHUNK - 1) / MP_CHUNK;
    j->next = 0;
    j->parts = j->chunks == 1 ? &single : malloc((size_t)j->chunks * sizeof *j->parts);
    if (!j->parts) return MP_NO_MEMORY;
    if ((uint64_t)j->walk->count * j->walk->itemsize >= MP_THREAD_BYTES) {
        pthread_attr_t attributes;
        const int most = allowed_threads(threads, j->chunks);
        pthread_attr_init(&attributes);
        pthread_attr_setstacksize(&attributes, 1 << 19);
        while (started < most - 1 && pthread_create(&others[started], &attributes, work, j) == 0) started++;
        pthread_attr_destroy(&attributes);
    }
    work(j);
    for (int i = 0; i < started; i++) pthread_join(others[i], NULL);
    *out = j->parts[0];
    for (int64_t k = 1; k < j->chunks; k++) {
        const partial *p = &j->parts[k];
        const int64_t left = j->walk->count - k * MP_CHUNK, n = left < MP_CHUNK ? left : MP_CHUNK;
        add(&out->acc, &p->acc, j->want & MP_LOW_PRECISION ? j->of : NULL);
        if (j->want & MP_CRC) out->crc = mp_crc32_combine(out->crc, p->crc, (uint64_t)n * j->walk->itemsize);
        out->xor64 ^= p->xor64;
    }
    if (j->parts != &single) free(j->parts);
    return MP_OK;
}
