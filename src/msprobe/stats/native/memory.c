/* The memory of a PyTorch tensor: its address, and whether others may write it. */
#include "memory.h"

#include "tensor_json.h"

static struct {
    PyObject *storage, *data_ptr, *resizable, *is_shared, *is_cpu;
} names;

int make_memory(void) {
    return (names.storage = PyUnicode_InternFromString("untyped_storage")) &&
                   (names.data_ptr = PyUnicode_InternFromString("data_ptr")) &&
                   (names.resizable = PyUnicode_InternFromString("resizable")) &&
                   (names.is_shared = PyUnicode_InternFromString("is_shared")) &&
                   (names.is_cpu = PyUnicode_InternFromString("is_cpu"))
               ? 0
               : -1;
}

/* Whether only this process can write the memory. Memory of numpy cannot be resized; another process may write shared
   memory (on an accelerator all memory is called shared). -1 on error. */
static int owns(PyObject *tensor, PyObject *storage) {
    const int resizable = is_exactly(PyObject_CallMethodNoArgs(storage, names.resizable), Py_True);
    const int shared = resizable == 1 ? is_exactly(PyObject_CallMethodNoArgs(storage, names.is_shared), Py_True) : 0;
    if (shared != 1) return shared < 0 ? -1 : resizable;
    const int here = is_exactly(PyObject_GetAttr(tensor, names.is_cpu), Py_True);
    return here < 0 ? -1 : !here;
}

int is_private(PyObject *tensor) {
    PyObject *storage = PyObject_CallMethodNoArgs(tensor, names.storage);
    const int is = storage ? owns(tensor, storage) : -1;
    Py_XDECREF(storage);
    return is;
}

PyObject *storage_of(PyObject *tensor, int *private) {
    PyObject *storage = PyObject_CallMethodNoArgs(tensor, names.storage), *address = NULL;
    if (storage && private && (*private = owns(tensor, storage)) < 0) Py_CLEAR(storage);
    if (storage) address = PyObject_CallMethodNoArgs(storage, names.data_ptr);
    Py_XDECREF(storage);
    if (!address && PyErr_ExceptionMatches(PyExc_RuntimeError)) {
        PyErr_Clear();
        return none();
    }
    return address;
}
