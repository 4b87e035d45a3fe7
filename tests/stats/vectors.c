/* Runs the kernel's core without Python over the cases of a file, and prints each result bit by bit.

   For other machines (under an emulator) and for sanitizers. Usage: vectors FILE LEVEL.
   A case: seven int64 (code, want, threads, ndim, offset of element 0, bytes, 0), shape, strides, the bytes. */
#include "core.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t bits(double value) {
    uint64_t result;
    memcpy(&result, &value, sizeof result);
    return value != value ? UINT64_C(0x7ff8000000000000) : result;
}

static void need(FILE *file, void *to, size_t size) {
    if (size && fread(to, size, 1, file) != 1) {
        fprintf(stderr, "the file of cases is cut short\n");
        exit(2);
    }
}

int main(int argc, char **argv) {
    int64_t head[7], shape[MP_MAX_DIMS], strides[MP_MAX_DIMS];
    FILE *file = argc == 3 ? fopen(argv[1], "rb") : NULL;
    if (!file) {
        fprintf(stderr, "usage: vectors FILE LEVEL\n");
        return 2;
    }
    mp_init();
    mp_select(atoi(argv[2]));
    while (fread(head, sizeof head, 1, file) == 1) {
        if (head[3] < 0 || head[3] > MP_MAX_DIMS || head[5] < 0) return 2;
        need(file, shape, (size_t)head[3] * 8);
        need(file, strides, (size_t)head[3] * 8);
        char *data = malloc(head[5] ? (size_t)head[5] : 1); /* exactly: a sanitizer sees every byte too many */
        if (!data) return 2;
        need(file, data, (size_t)head[5]);
        mp_result r;
        int status = mp_measure(data + head[4], (int)head[0], (int)head[3], shape, strides,
                                (unsigned)head[1] | MP_ZEROS, (int)head[2], NULL, &r);
        printf("%d %d %016" PRIx64 " %016" PRIx64 " %016" PRIx64 " %016" PRIx64 " %" PRId64 " %" PRId64 " %" PRIu64
               " %" PRIu64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %08x %016" PRIx64
               " %016" PRIx64 "\n",
               status, r.kind, bits(r.max), bits(r.min), bits(r.mean), bits(r.norm), r.imax, r.imin, r.umax, r.umin,
               r.nan, r.posinf, r.neginf, r.zero, r.count, (unsigned)r.crc, r.xor64, bits(r.ordered ? r.order : NAN));
        free(data);
    }
    fclose(file);
    return 0;
}
