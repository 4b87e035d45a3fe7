/* See layout.h. */
#include "layout.h"

#include <string.h>

void layout_join(layout *l) {
    int kept = 0;
    for (int d = 0; d < l->ndim; d++) {
        if (l->shape[d] == 1) continue;
        if (kept && l->step[kept - 1] == l->shape[d] * l->step[d]) {
            l->shape[kept - 1] *= l->shape[d];
            l->step[kept - 1] = l->step[d];
        } else {
            l->shape[kept] = l->shape[d];
            l->step[kept++] = l->step[d];
        }
    }
    if (!kept) {
        l->shape[0] = 1;
        l->step[0] = (int64_t)l->itemsize;
        kept = 1;
    }
    l->ndim = kept;
}

void layout_sort(layout *l) {
    int kept = 0;
    for (int d = 0; d < l->ndim; d++) {
        int64_t size = l->shape[d], step = l->step[d];
        if (step == 0) {
            l->repeats *= size;
            l->count /= size;
            continue;
        }
        if (step < 0) {
            l->base += (size - 1) * step;
            step = -step;
        }
        int at = kept++;
        for (; at > 0 && l->step[at - 1] < step; at--) {
            l->shape[at] = l->shape[at - 1];
            l->step[at] = l->step[at - 1];
        }
        l->shape[at] = size;
        l->step[at] = step;
    }
    l->ndim = kept;
    layout_join(l);
}

bool layout_dense(const layout *l) {
    size_t align = l->itemsize < 8 ? l->itemsize : 8;
    return l->ndim == 1 && l->step[0] == (int64_t)l->itemsize && (uintptr_t)l->base % align == 0;
}

void cursor_seek(cursor *c, const layout *l, int64_t element) {
    c->of = l;
    c->offset = 0;
    for (int d = l->ndim - 1; d >= 0; d--) {
        c->index[d] = d ? element % l->shape[d] : element;
        c->offset += c->index[d] * l->step[d];
        element /= l->shape[d];
    }
}

#define COPY_RUN(SIZE)                                                                                                 \
    case SIZE:                                                                                                         \
        for (int64_t i = 0; i < n; i++) memcpy(to + i * SIZE, from + i * step, SIZE);                                  \
        break

static void copy_run(char *to, const char *from, int64_t step, int64_t n, size_t itemsize) {
    if (step == (int64_t)itemsize) {
        memcpy(to, from, (size_t)n * itemsize);
        return;
    }
    switch (itemsize) {
        COPY_RUN(1);
        COPY_RUN(2);
        COPY_RUN(4);
        COPY_RUN(8);
        COPY_RUN(16);
    }
}

void cursor_take(cursor *c, char *to, int64_t n) {
    const layout *l = c->of;
    int last = l->ndim - 1;
    while (n) {
        int64_t left = l->shape[last] - c->index[last], run = left < n ? left : n;
        copy_run(to, l->base + c->offset, l->step[last], run, l->itemsize);
        to += (size_t)run * l->itemsize;
        n -= run;
        c->index[last] += run;
        c->offset += run * l->step[last];
        for (int d = last; d > 0 && c->index[d] == l->shape[d]; d--) {
            c->offset += l->step[d - 1] - l->shape[d] * l->step[d];
            c->index[d] = 0;
            c->index[d - 1]++;
        }
    }
}
