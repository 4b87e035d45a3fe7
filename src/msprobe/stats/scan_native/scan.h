/* Shared by _scan.c and watched.c. Include Python.h first. */
#ifndef MSPROBE_SCAN_H
#define MSPROBE_SCAN_H

#include <stddef.h>
#include <stdint.h>

enum { FLOAT16, BFLOAT16, FLOAT32, FLOAT64, FORMATS };

static inline size_t size_of(int code) {
    return code < FLOAT32 ? 2 : code == FLOAT32 ? 4 : 8;
}

/* The largest |bit pattern| of `count` numbers, and the number of subnormals (counted only for 16-bit types). Releases
   the interpreter lock if there is enough work. */
void scan_memory(const void *memory, int code, int64_t count, uint64_t *top, int64_t *tiny);

PyObject *watched_look(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *watched_run(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
int watched_init(PyObject *module);

#endif
