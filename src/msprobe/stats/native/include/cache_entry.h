/* One entry of the tensor cache. */
#ifndef MSPROBE_CACHE_ENTRY_H
#define MSPROBE_CACHE_ENTRY_H

#include "kernel.h"

/* The text of one tensor, and the state of the tensor for which it is valid. */
typedef struct {
    PyObject_HEAD PyObject *tensor; /* a weak reference */
    PyObject *text, *saved;
    Py_ssize_t at;
    PyObject *storage; /* the address of its storage, NULL if the entry is not in the cache */
    int64_t version, writes;
    void *address;
    int grad;
    int64_t value_id, memory; /* the numbers in the text; -1: it has none */
} Entry;

/* An empty entry, or NULL with an error. */
Entry *new_entry(void);

/* Call once, before new_entry. */
int make_entry_type(void);

#endif
