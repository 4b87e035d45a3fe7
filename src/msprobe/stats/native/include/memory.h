/* The memory of a PyTorch tensor. */
#ifndef MSPROBE_MEMORY_H
#define MSPROBE_MEMORY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Call once, before the other functions. */
int make_memory(void);

/* Whether only tensors of this process use the memory of a tensor: 1, 0, or -1 with an error. */
int is_private(PyObject *tensor);

/* The address of the storage, None if the tensor has no memory of its own, NULL on error. If `private` is not NULL, it
   gets the result of is_private. */
PyObject *storage_of(PyObject *tensor, int *private);

#endif
