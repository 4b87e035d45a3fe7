/* A tensor of a framework as JSON, between described.c and remembered.c. */
#ifndef MSPROBE_DESCRIBED_H
#define MSPROBE_DESCRIBED_H

#include "kernel.h"

/* The text of a tensor: up to `figures` what it is and its statistics, from there on the member of its digest. */
typedef struct {
    char text[256 + 22 * MP_MAX_DIMS + FIGURES_SIZE + 48];
    char *figures, *end;
} rendered;

/* 1: `to` has the text of a tensor that can be read where it lies. 0: it cannot. -1: an error is set. */
int render_tensor(PyObject *tensor, PyObject *exchange, PyObject *heads, PyObject *strided, unsigned want, rendered *to);

int read_want(PyObject *flags, unsigned *want);

/* 1 when it is the object expected, 0 when another, -1 on error. Takes over `value`. */
int is_exactly(PyObject *value, PyObject *expected);

#endif
