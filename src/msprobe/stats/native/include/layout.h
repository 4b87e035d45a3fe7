/* Walks a strided tensor: in logical order for the digests, in memory order for the statistics. */
#ifndef MSPROBE_LAYOUT_H
#define MSPROBE_LAYOUT_H

#include "core.h"

#include <stdbool.h>

typedef struct {
    const char *base;
    size_t itemsize;
    int ndim;                                      /* at least 1 */
    int64_t shape[MP_MAX_DIMS], step[MP_MAX_DIMS]; /* steps in bytes */
    int64_t count, repeats;                        /* elements to read; how often each counts */
} layout;

typedef struct {
    const layout *of;
    int64_t index[MP_MAX_DIMS], offset;
} cursor;

/* Removes dimensions of size 1 and joins neighbouring dimensions that have one common step. */
void layout_join(layout *l);

/* Sorts the elements by address. Elements of an expanded dimension are read once. */
void layout_sort(layout *l);

/* Whether the memory can be read as an array. An unaligned address cannot: its elements are copied, which is slower. */
bool layout_dense(const layout *l);

/* Moves to an element by number. */
void cursor_seek(cursor *c, const layout *l, int64_t element);

/* Copies the next n elements. */
void cursor_take(cursor *c, char *to, int64_t n);

#endif
