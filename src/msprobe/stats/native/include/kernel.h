/* What the parts of the module share: _kernel.c, statistics of memory; described.c, a tensor as text; remembered.c. */
#ifndef MSPROBE_KERNEL_H
#define MSPROBE_KERNEL_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

#include "core.h"
#include "shortest.h"

#define PUT(to, text) (memcpy(to, text, sizeof text - 1), (to) + sizeof text - 1)
#define FIGURES_SIZE (40 + 4 * SHORTEST_SIZE)

/* -1 with an error set where it is no number, or not sizes. */
int read_int(PyObject *object, long *to);
int read_sizes(PyObject *tuple, const char *what, int64_t *to, Py_ssize_t *length);

/* Measures, without the interpreter lock where it takes long enough to be worth handing it over. */
int run_on(void *memory, int code, int ndim, const int64_t *shape, const int64_t *strides, unsigned want, int threads,
           mp_result *result);

/* Max, Min, Mean and Norm as JSON members, FIGURES_SIZE at most; one digest, 24 at most. Return the end. */
char *put_figures(char *to, const mp_result *r);
char *put_digest(char *to, const mp_result *r, unsigned want);

PyObject *none(void);

/* described.c: a function of the module, and what must be made once before it. */
PyObject *describe(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
int make_described(void);

/* remembered.c: adds its type to the module. */
int add_remembered(PyObject *module);

#endif
