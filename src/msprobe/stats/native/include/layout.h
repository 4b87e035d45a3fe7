/* Walking a strided tensor: in logical order for the digests, in memory order for everything else. */
#ifndef MSPROBE_LAYOUT_H
#define MSPROBE_LAYOUT_H

#include "core.h"

#include <stdbool.h>

typedef struct {
    const char *base;
    size_t itemsize;
    int ndim; /* at least 1 */
    int64_t shape[MP_MAX_DIMS], step[MP_MAX_DIMS]; /* steps in bytes */
    int64_t count, repeats;                        /* elements to visit; how often each of them counts */
} layout;

typedef struct {
    const layout *of;
    int64_t index[MP_MAX_DIMS], offset;
} cursor;

/* Drops dimensions of one element and joins neighbours that one step walks. */
void layout_join(layout *l);

/* The same elements by ascending address; those of an expanded dimension once. */
void layout_sort(layout *l);

/* Can its memory be read as an array? An odd address cannot: copying is right there, and slower. */
bool layout_dense(const layout *l);

/* Goes to an element by its number. */
void cursor_seek(cursor *c, const layout *l, int64_t element);

/* Copies the next n elements. */
void cursor_take(cursor *c, char *to, int64_t n);

#endif
