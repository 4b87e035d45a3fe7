/* A framework tensor as JSON. Shared by tensor_json.c and tensor_cache.c. */
#ifndef MSPROBE_TENSOR_JSON_H
#define MSPROBE_TENSOR_JSON_H

#include "kernel.h"

/* Where a tensor is in host memory; strides count elements. */
typedef struct {
    void *memory;
    Py_ssize_t ndim;
    int64_t shape[MP_MAX_DIMS], strides[MP_MAX_DIMS];
} place;

/* The text of `heads` for a tensor that can be read in place, borrowed; NULL for others, or on error. */
PyObject *plain_head(PyObject *tensor, PyObject *exchange, PyObject *heads, PyObject *strided, long *code, place *to);

/* The text of a tensor: type, shape and statistics up to `figures`, then the member of its digest. */
typedef struct {
    char text[256 + 22 * MP_MAX_DIMS + FIGURES_SIZE + 48];
    char *figures, *end;
} rendered;

/* 1: `to` has the text of the tensor. 0: the tensor cannot be read in place. -1: an error is set. */
int render_tensor(PyObject *tensor, PyObject *exchange, PyObject *heads, PyObject *strided, unsigned want,
                  rendered *to);

/* Writes a number that is not negative. Returns the end. */
char *put_number(char *to, int64_t number);

int read_want(PyObject *flags, unsigned *want);

/* 1 if `value` is the expected object, 0 if it is another, -1 on error. Steals the reference to `value`. */
int is_exactly(PyObject *value, PyObject *expected);

#endif
