/* Shared by the files of the module: _kernel.c (statistics), tensor_json.c (a tensor as text), tensor_cache.c,
   figures.c (tensors as rows of a table), samples.c (how far tensors have moved). */
#ifndef MSPROBE_KERNEL_H
#define MSPROBE_KERNEL_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

#include "core.h"
#include "shortest.h"

#define PUT(to, text) (memcpy(to, text, sizeof text - 1), (to) + sizeof text - 1)
#define FIGURES_SIZE (52 + 5 * SHORTEST_SIZE)

/* Return -1 with an error if the object has another type. */
int read_int(PyObject *object, long *to);
int read_sizes(PyObject *tuple, const char *what, int64_t *to, Py_ssize_t *length);

/* Measures. Releases the interpreter lock if the work is long enough. */
int run_on(void *memory, int code, int ndim, const int64_t *shape, const int64_t *strides, unsigned want, int threads,
           const mp_range *range, mp_result *result);

/* Write Max, Min, Mean, Norm and, if computed, Order as JSON members (at most FIGURES_SIZE), or a digest (at most 24).
 * Return the end. */
char *put_figures(char *to, const mp_result *r);
char *put_digest(char *to, const mp_result *r, unsigned want);

PyObject *none(void);

/* tensor_json.c: a function of the module, and its initialisation. */
PyObject *describe(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
int make_tensor_json(void);

/* figures.c: functions of the module. */
PyObject *gauge(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *gauge_memory(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

/* samples.c: a function of the module. */
PyObject *advance(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

/* damage.c: functions of the module. */
PyObject *damage(PyObject *module, PyObject *args);
PyObject *extent(PyObject *module, PyObject *object);

/* tensor_cache.c: adds its type to the module. */
int add_tensor_cache(PyObject *module);

#endif
