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
   gets the result of is_private. If `numbers` is not NULL, `number` gets the number of the storage. */
PyObject *storage_of(PyObject *tensor, int *private, PyObject *numbers, int64_t *number);

/* The number of the storage of a tensor; -1 if it has none, -2 on error. `numbers` is a dict: a storage gets the next
   number, and a weak reference, so that no later storage has its address. release_storages drops these. */
int64_t number_of(PyObject *tensor, PyObject *numbers);
int release_storages(PyObject *numbers);

#endif
