/* A framework tensor as JSON, read in place. */
#include "tensor_json.h"

#include "exchange.h"

/* The names of the attributes and methods that we read. */
static struct {
    PyObject *dtype, *layout, *is_cpu, *is_neg, *is_conj, *shape, *stride, *data_ptr;
} names;

int make_tensor_json(void) {
    const struct {
        PyObject **name;
        const char *text;
    } all[] = {
        {&names.dtype, "dtype"},   {&names.layout, "layout"},     {&names.is_cpu, "is_cpu"},
        {&names.is_neg, "is_neg"}, {&names.is_conj, "is_conj"},   {&names.shape, "shape"},
        {&names.stride, "stride"}, {&names.data_ptr, "data_ptr"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!*all[i].name && !(*all[i].name = PyUnicode_InternFromString(all[i].text))) return -1;
    return 0;
}

int is_exactly(PyObject *value, PyObject *expected) {
    Py_XDECREF(value);
    return value ? value == expected : -1;
}

/* 1: `to` has the memory of a framework tensor. 0: the tensor cannot be read in place. -1: an error is set. */
static int find_exchanged(PyObject *exchange, PyObject *tensor, place *to) {
    exchanged found;
    const int failed = borrow(exchange, tensor, &found);
    if (failed || found.device.type != ON_CPU || found.ndim > MP_MAX_DIMS || !found.strides) return failed < 0 ? -1 : 0;
    to->memory = (char *)found.data + found.byte_offset;
    to->ndim = found.ndim;
    for (int i = 0; i < found.ndim;
         i++) { /* a copy: the tensor may be resized while the interpreter lock is released */
        to->shape[i] = found.shape[i];
        to->strides[i] = found.strides[i];
    }
    return 1;
}

/* The same, from the attributes of the tensor. */
static int find_by_attributes(PyObject *tensor, PyObject *strided, place *to) {
    Py_ssize_t nstrides;
    int is = is_exactly(PyObject_GetAttr(tensor, names.layout), strided);
    if (is == 1) is = is_exactly(PyObject_GetAttr(tensor, names.is_cpu), Py_True);
    if (is != 1) return is;
    PyObject *address = PyObject_CallMethodNoArgs(tensor, names.data_ptr);
    PyObject *sizes = address ? PyObject_GetAttr(tensor, names.shape) : NULL;
    PyObject *steps = sizes ? PyObject_CallMethodNoArgs(tensor, names.stride) : NULL;
    to->memory = steps ? PyLong_AsVoidPtr(address) : NULL;
    is = PyErr_Occurred() || read_sizes(sizes, "shape", to->shape, &to->ndim) ||
                 read_sizes(steps, "strides", to->strides, &nstrides)
             ? -1
             : to->ndim == nstrides;
    Py_XDECREF(address);
    Py_XDECREF(sizes);
    Py_XDECREF(steps);
    return is;
}

PyObject *plain_head(PyObject *tensor, PyObject *exchange, PyObject *heads, PyObject *strided, long *code, place *to) {
    PyObject *dtype = PyObject_GetAttr(tensor, names.dtype);
    PyObject *head = dtype ? PyDict_GetItemWithError(heads, dtype) : NULL;
    Py_XDECREF(dtype);
    if (!head) return NULL;
    if (!PyTuple_Check(head) || PyTuple_GET_SIZE(head) != 2) {
        PyErr_SetString(PyExc_TypeError, "the values of heads must be (code, text)");
        return NULL;
    }
    if (read_int(PyTuple_GET_ITEM(head, 0), code)) return NULL;
    if ((exchange == Py_None ? find_by_attributes(tensor, strided, to) : find_exchanged(exchange, tensor, to)) != 1 ||
        is_exactly(PyObject_CallMethodNoArgs(tensor, names.is_neg), Py_False) != 1 ||
        (*code >= MP_COMPLEX32 && is_exactly(PyObject_CallMethodNoArgs(tensor, names.is_conj), Py_False) != 1))
        return NULL;
    return PyTuple_GET_ITEM(head, 1);
}

char *put_number(char *to, int64_t number) {
    char digits[20], *first = digits + sizeof digits;
    do *--first = (char)('0' + number % 10);
    while (number /= 10);
    const size_t length = (size_t)(digits + sizeof digits - first);
    return (char *)memcpy(to, first, length) + length;
}

int render_tensor(PyObject *tensor, PyObject *exchange, PyObject *heads, PyObject *strided, unsigned want,
                  rendered *to) {
    place at;
    Py_ssize_t length;
    long code;
    bool empty = false;
    mp_result r;
    PyObject *head = plain_head(tensor, exchange, heads, strided, &code, &at);
    if (!head) return PyErr_Occurred() ? -1 : 0;
    const char *start = PyUnicode_AsUTF8AndSize(head, &length);
    if (!start) return -1;
    for (Py_ssize_t i = 0; i < at.ndim; i++) empty |= at.shape[i] == 0;
    if (code < 0 || code >= MP_CODES || length > 200) {
        PyErr_SetString(PyExc_ValueError, "an entry of heads has an unknown code or a text that is too long");
        return -1;
    }
    const int there = empty ? 1 : has_memory(tensor, at.memory);
    if (there != 1) return there;
    if (run_on(at.memory, (int)code, (int)at.ndim, at.shape, at.strides, want, 0, NULL, &r)) return -1;
    char *end = (char *)memcpy(to->text, start, (size_t)length) + length;
    *end++ = '[';
    for (Py_ssize_t i = 0; i < at.ndim; i++) end = put_number(i ? PUT(end, ", ") : end, at.shape[i]);
    end = PUT(end, "], ");
    if (want & MP_STATS) {
        end = put_figures(end, &r);
        end = PUT(end, ", ");
    }
    to->figures = end;
    if (want & (MP_CRC | MP_XOR)) {
        end = put_digest(PUT(end, ", \"md5\": \""), &r, want);
        *end++ = '"';
    }
    to->end = end;
    return 1;
}

int read_want(PyObject *flags, unsigned *want) {
    long value;
    if (read_int(flags, &value)) return -1;
    if (value < 0 || value > 0xff || (value & (MP_CRC | MP_XOR)) == (MP_CRC | MP_XOR)) {
        PyErr_SetString(PyExc_ValueError, "unknown flags, or flags that cannot be combined");
        return -1;
    }
    *want = (unsigned)value;
    return 0;
}

PyObject *describe(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    rendered r;
    unsigned want;
    (void)module;
    if (nargs != 5 || !PyDict_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "describe takes a tensor, a table of functions, a dict, a layout and flags");
        return NULL;
    }
    const int done = read_want(args[4], &want) ? -1 : render_tensor(args[0], args[1], args[2], args[3], want, &r);
    if (done != 1) return done < 0 ? NULL : none();
    return Py_BuildValue("s#s#", r.text, (Py_ssize_t)(r.figures - r.text), r.figures, (Py_ssize_t)(r.end - r.figures));
}
