/* A framework's tensor, described by one call: the table of C functions that its type offers by the DLPack standard
   (`__dlpack_c_exchange_api__`, a capsule). Needs Python.h before it. */
#ifndef MSPROBE_EXCHANGE_H
#define MSPROBE_EXCHANGE_H

#include <stdint.h>

/* Declarations of the standard, version 1, as far as they are used here. */
typedef struct {
    void *data;
    struct {
        int32_t type, id;
    } device;
    int32_t ndim;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} exchanged;

typedef struct {
    struct {
        uint32_t major, minor;
        void *older;
    } header;
    void *allocate, *export_owned, *import_owned;
    int (*borrow)(void *object, exchanged *out); /* what it fills in lives as long as the object is unchanged */
    void *stream;
} exchange_table;

enum { DLPACK_MAJOR = 1, ON_CPU = 1 };

/* 0: `out` describes a tensor. 1: it cannot be described. -1: an error is set. */
static inline int borrow(PyObject *exchange, PyObject *tensor, exchanged *out) {
    const exchange_table *table = PyCapsule_GetPointer(exchange, "dlpack_exchange_api");
    if (!table)
        return -1;
    if (table->header.major != DLPACK_MAJOR)
        return 1;
    if (!table->borrow(tensor, out))
        return 0;
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyErr_Clear(); /* a wrapper without memory, a layout of its own */
    return 1;
}

#endif
