/* What _scan.c and watched.c share. Needs Python.h before it. */
#ifndef MSPROBE_SCAN_H
#define MSPROBE_SCAN_H

#include <stddef.h>
#include <stdint.h>

enum { FLOAT16, BFLOAT16, FLOAT32, FLOAT64, FORMATS };

static inline size_t size_of(int code) {
    return code < FLOAT32 ? 2 : code == FLOAT32 ? 4 : 8;
}

/* The largest |bit pattern| of `count` numbers, and how many are subnormal, which is counted in 16 bits only. Hands over
   the interpreter lock where that is worth it. */
void scan_memory(const void *memory, int code, int64_t count, uint64_t *top, int64_t *tiny);

PyObject *watched_look(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *watched_run(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
int watched_init(PyObject *module);

#endif
