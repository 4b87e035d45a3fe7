/* The memory that a tensor of PyTorch lies in. */
#ifndef MSPROBE_MEMORY_H
#define MSPROBE_MEMORY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Once, before the others. */
int make_memory(void);

/* Whether nobody but the process's own tensors knows of a tensor's memory: 1, 0, or -1 with an error. */
int is_private(PyObject *tensor);

/* The address that it begins at, None where a tensor has none of its own; NULL on error. `private`, where it is wanted,
   is what is_private says. */
PyObject *storage_of(PyObject *tensor, int *private);

#endif
