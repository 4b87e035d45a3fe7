/* The statistics kernel without Python. Called by _kernel.c and by the cross-compiled test. */
#ifndef MSPROBE_CORE_H
#define MSPROBE_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MP_TILE 4096       /* elements measured together, in the first-level cache */
#define MP_CHUNK (1 << 18) /* elements summed separately: the unit of work of a thread */
#define MP_MAX_DIMS 64
#define MP_THREAD_BYTES (4 << 20) /* for less memory a thread costs more than it saves */

/* The flags of result.py, and one of the kernel's own: without MP_ZEROS, the zeros of float types are not counted. */
enum { MP_STATS = 1, MP_CRC = 2, MP_XOR = 4, MP_LOW_PRECISION = 8, MP_ORDER = 16, MP_ZEROS = 1 << 16 };

/* The codes of dtypes.py. */
enum {
    MP_BOOL,
    MP_INT8,
    MP_INT16,
    MP_INT32,
    MP_INT64,
    MP_UINT8,
    MP_UINT16,
    MP_UINT32,
    MP_UINT64,
    MP_FLOAT16,
    MP_BFLOAT16,
    MP_FLOAT32,
    MP_FLOAT64,
    MP_E4M3FN,
    MP_E5M2,
    MP_E4M3FNUZ,
    MP_E5M2FNUZ,
    MP_E8M0FNU,
    MP_COMPLEX32,
    MP_COMPLEX64,
    MP_COMPLEX128,
    MP_CODES
};

enum { MP_OK, MP_BAD_CODE, MP_BAD_WANT, MP_BAD_DIMS, MP_BAD_SHAPE, MP_BAD_SIZE, MP_BAD_ADDRESS, MP_NO_MEMORY };

/* Which members of mp_result have the extremes. */
enum { MP_KIND_NONE, MP_KIND_BOOL, MP_KIND_INT, MP_KIND_UINT, MP_KIND_FLOAT };

typedef struct {
    int kind;
    double max, min, mean, norm, order;
    bool ordered;        /* whether `order` was computed */
    int64_t imax, imin;  /* MP_KIND_INT, MP_KIND_BOOL */
    uint64_t umax, umin; /* MP_KIND_UINT */
    int64_t nan, posinf, neginf, zero, count;
    int64_t below, above; /* elements outside a range, if one is given */
    uint32_t crc;
    uint64_t xor64;
} mp_result;

/* Floats closer to zero than `small` (without zeros) count as below, those at least as far from it as `large` as above.
   Both are float32 numbers; NaN are neither. */
typedef struct {
    float small, large;
} mp_range;

/* Call once, before all other functions. */
void mp_init(void);

/* Limits the CPU instructions from now on (0: portable); returns the level in use. */
int mp_select(int level);
int mp_level(void);
const char *mp_level_name(int level);

/* Strides count elements. All elements must be in `memory`. `range` may be NULL. Returns MP_OK or an error. */
int mp_measure(const void *memory, int code, int ndim, const int64_t *shape, const int64_t *strides, unsigned want,
               int threads, const mp_range *range, mp_result *out);
const char *mp_error(int status);
size_t mp_itemsize(int code);

/* zlib's CRC-32. combine: the CRC of two joined buffers, from their CRCs and the size of the second. */
void mp_crc32_init(void);
void mp_crc32_select(int level);
uint32_t mp_crc32(uint32_t crc, const void *data, size_t size);
uint32_t mp_crc32_combine(uint32_t first, uint32_t second, uint64_t second_size);

#endif
