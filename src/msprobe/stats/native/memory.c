/* The memory of a PyTorch tensor: its address, its number, and whether others may write it. */
#include "memory.h"

#include "tensor_json.h"

static struct {
    PyObject *storage, *data_ptr, *resizable, *is_shared, *is_cpu, *identity, *weak;
} names;
static PyObject *free_weak; /* the function of torch that drops a weak reference */

int make_memory(void) {
    return (names.storage = PyUnicode_InternFromString("untyped_storage")) &&
                   (names.data_ptr = PyUnicode_InternFromString("data_ptr")) &&
                   (names.resizable = PyUnicode_InternFromString("resizable")) &&
                   (names.is_shared = PyUnicode_InternFromString("is_shared")) &&
                   (names.is_cpu = PyUnicode_InternFromString("is_cpu")) &&
                   (names.identity = PyUnicode_InternFromString("_cdata")) &&
                   (names.weak = PyUnicode_InternFromString("_weak_ref"))
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

/* The number of a storage, or -2 with an error. */
static int64_t number_storage(PyObject *storage, PyObject *numbers) {
    PyObject *key = PyObject_GetAttr(storage, names.identity), *weak = NULL, *number = NULL;
    PyObject *known = key ? PyDict_GetItemWithError(numbers, key) : NULL;
    int64_t found = known ? PyLong_AsLongLong(known) : -2;
    if (!known && !PyErr_Occurred() &&
        (free_weak || (free_weak = PyObject_GetAttrString((PyObject *)Py_TYPE(storage), "_free_weak_ref"))) &&
        (number = PyLong_FromSsize_t(PyDict_GET_SIZE(numbers))) &&
        (weak = PyObject_CallMethodNoArgs(storage, names.weak)) && !PyDict_SetItem(numbers, weak, number))
        found = PyLong_AsLongLong(number);
    Py_XDECREF(key);
    Py_XDECREF(weak);
    Py_XDECREF(number);
    return found;
}

int64_t number_of(PyObject *tensor, PyObject *numbers) {
    PyObject *storage = PyObject_CallMethodNoArgs(tensor, names.storage);
    const int64_t number = storage ? number_storage(storage, numbers) : -2;
    Py_XDECREF(storage);
    if (number != -2 || !PyErr_ExceptionMatches(PyExc_RuntimeError)) return number;
    PyErr_Clear();
    return -1;
}

int release_storages(PyObject *numbers) {
    PyObject *storage, *number;
    Py_ssize_t at = 0;
    int failed = 0;
    while (!failed && PyDict_Next(numbers, &at, &storage, &number)) {
        PyObject *done = PyObject_CallOneArg(free_weak, storage);
        failed = !done;
        Py_XDECREF(done);
    }
    PyDict_Clear(numbers);
    return failed ? -1 : 0;
}

PyObject *storage_of(PyObject *tensor, int *private, PyObject *numbers, int64_t *number) {
    PyObject *storage = PyObject_CallMethodNoArgs(tensor, names.storage), *address = NULL;
    if (storage && private && (*private = owns(tensor, storage)) < 0) Py_CLEAR(storage);
    if (storage && numbers && (*number = number_storage(storage, numbers)) < 0) Py_CLEAR(storage);
    if (storage) address = PyObject_CallMethodNoArgs(storage, names.data_ptr);
    Py_XDECREF(storage);
    if (!address && PyErr_ExceptionMatches(PyExc_RuntimeError)) {
        PyErr_Clear();
        return none();
    }
    return address;
}
