/* Describes a framework tensor with one call: through the table of C functions that its type has by the DLPack standard
   (`__dlpack_c_exchange_api__`, a capsule). Include Python.h first. */
#ifndef MSPROBE_EXCHANGE_H
#define MSPROBE_EXCHANGE_H

#include <stdint.h>

/* The declarations of the standard, version 1, that we use. */
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
    int (*borrow)(void *object, exchanged *out); /* its result is valid as long as the object is unchanged */
    void *stream;
} exchange_table;

enum { DLPACK_MAJOR = 1, ON_CPU = 1 };

/* 0: `out` describes a tensor. 1: it cannot be described. -1: an error is set. */
static inline int borrow(PyObject *exchange, PyObject *tensor, exchanged *out) {
    const exchange_table *table = PyCapsule_GetPointer(exchange, "dlpack_exchange_api");
    if (!table) return -1;
    if (table->header.major != DLPACK_MAJOR || !table->borrow) return 1;
    if (!table->borrow(tensor, out)) return 0;
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) return -1;
    PyErr_Clear(); /* a wrapper without memory, or another layout */
    return 1;
}

/* Whether a CPU tensor has memory: 1, 0, or -1 with an error. FSDP frees the storage between uses; then the address of
   a view is only its offset. */
static int has_memory(PyObject *tensor, const void *address) {
    static PyObject *storage_name, *size_name;
    if (!address) return 0;
    if (!size_name && (!(storage_name = PyUnicode_InternFromString("untyped_storage")) ||
                       !(size_name = PyUnicode_InternFromString("nbytes"))))
        return -1;
    PyObject *storage = PyObject_CallMethodNoArgs(tensor, storage_name);
    PyObject *size = storage ? PyObject_CallMethodNoArgs(storage, size_name) : NULL;
    const int there = size ? PyObject_IsTrue(size) : -1;
    Py_XDECREF(storage);
    Py_XDECREF(size);
    return there;
}

#endif
