/* The figures of many tensors, written into the rows of a float64 table: for the monitor, which reads all parameters at
   each step. msprobe/stats/figures.py has the same in Python and names the columns. */
#include "tensor_json.h"

#include <math.h>

#include "exchange.h"

enum { COLUMNS = 10 };

static int open_table(PyObject *object, Py_buffer *table) {
    if (PyObject_GetBuffer(object, table, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE | PyBUF_FORMAT)) return -1;
    if (table->ndim == 2 && table->shape[1] == COLUMNS && !strcmp(table->format, "d")) return 0;
    PyBuffer_Release(table);
    PyErr_Format(PyExc_ValueError, "the table must have %d columns of float64", COLUMNS);
    return -1;
}

/* The bounds as floats, or NULL in `to` if they are None. */
static int read_range(PyObject *bounds, mp_range *range, const mp_range **to) {
    *to = NULL;
    if (bounds == Py_None) return 0;
    if (!PyTuple_Check(bounds) || PyTuple_GET_SIZE(bounds) != 2) {
        PyErr_SetString(PyExc_TypeError, "the range must be None or a tuple of two numbers");
        return -1;
    }
    range->small = (float)PyFloat_AsDouble(PyTuple_GET_ITEM(bounds, 0));
    range->large = (float)PyFloat_AsDouble(PyTuple_GET_ITEM(bounds, 1));
    *to = range;
    return PyErr_Occurred() ? -1 : 0;
}

/* 1: the row has the figures. 0: a tensor without elements, or of a type without a norm. -1: an error is set. */
static int put(const place *at, long code, const mp_range *range, const Py_buffer *table, Py_ssize_t row) {
    mp_result r;
    if (row < 0 || row >= table->shape[0]) {
        PyErr_Format(PyExc_IndexError, "row %zd of a table of %zd", row, table->shape[0]);
        return -1;
    }
    if (run_on(at->memory, (int)code, (int)at->ndim, at->shape, at->strides, MP_STATS | MP_ZEROS, 0, range, &r))
        return -1;
    if (!r.count || r.kind <= MP_KIND_BOOL) return 0;
    const double most = r.kind == MP_KIND_FLOAT ? r.max : r.kind == MP_KIND_INT ? (double)r.imax : (double)r.umax;
    const double least = r.kind == MP_KIND_FLOAT ? r.min : r.kind == MP_KIND_INT ? (double)r.imin : (double)r.umin;
    const double count = (double)r.count;
    const double figures[COLUMNS] = {
        r.norm,
        most,
        least,
        r.mean,
        (double)r.nan,
        (double)(r.posinf + r.neginf),
        (double)r.zero / count,
        range ? (double)r.below / count : (double)NAN,
        range ? (double)r.above / count : (double)NAN,
        1,
    };
    memcpy((double *)table->buf + row * COLUMNS, figures, sizeof figures);
    return 1;
}

/* 1: done, or nothing to do. 0: the tensor cannot be read in place. -1: an error is set. */
static int gauge_one(PyObject *tensor, PyObject *const *args, const mp_range *range, const Py_buffer *table,
                     Py_ssize_t row) {
    place at;
    long code;
    if (tensor == Py_None) return 1;
    if (!plain_head(tensor, args[4], args[3], args[5], &code, &at)) return PyErr_Occurred() ? -1 : 0;
    for (Py_ssize_t i = 0; i < at.ndim; i++)
        if (!at.shape[i]) return 1;
    const int there = has_memory(tensor, at.memory);
    if (there != 1) return there < 0 ? -1 : 1;
    return put(&at, code, range, table, row) < 0 ? -1 : 1;
}

/* tensors, rows, table, heads, exchange, strided, range */
PyObject *gauge(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    mp_range bounds;
    const mp_range *range;
    Py_buffer table;
    (void)module;
    if (nargs != 7 || !PyList_Check(args[0]) || !PyList_Check(args[1]) || !PyDict_Check(args[3]) ||
        PyList_GET_SIZE(args[0]) != PyList_GET_SIZE(args[1])) {
        PyErr_SetString(
            PyExc_TypeError,
            "gauge takes lists of tensors and rows, a table, heads, an exchange table, a layout and a range");
        return NULL;
    }
    if (read_range(args[6], &bounds, &range) || open_table(args[2], &table)) return NULL;
    PyObject *left = PyList_New(0);
    for (Py_ssize_t i = 0; left && i < PyList_GET_SIZE(args[0]) && i < PyList_GET_SIZE(args[1]); i++) {
        PyObject *tensor = PyList_GET_ITEM(args[0], i);
        const Py_ssize_t row = PyLong_AsSsize_t(PyList_GET_ITEM(args[1], i));
        Py_INCREF(tensor);
        const int done = row == -1 && PyErr_Occurred() ? -1 : gauge_one(tensor, args, range, &table, row);
        Py_DECREF(tensor);
        PyObject *number = done ? NULL : PyLong_FromSsize_t(i);
        if (done < 0 || (!done && (!number || PyList_Append(left, number)))) Py_CLEAR(left);
        Py_XDECREF(number);
    }
    PyBuffer_Release(&table);
    return left;
}

/* ptr, code, shape, strides, table, row, range */
PyObject *gauge_memory(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    mp_range bounds;
    const mp_range *range;
    Py_buffer table;
    place at;
    Py_ssize_t nstrides;
    long code, row;
    (void)module;
    if (nargs != 7) {
        PyErr_Format(PyExc_TypeError, "gauge_memory takes 7 positional arguments, got %zd", nargs);
        return NULL;
    }
    at.memory = PyLong_AsVoidPtr(args[0]);
    if (PyErr_Occurred() || read_int(args[1], &code) || read_sizes(args[2], "shape", at.shape, &at.ndim) ||
        read_sizes(args[3], "strides", at.strides, &nstrides) || read_int(args[5], &row) ||
        read_range(args[6], &bounds, &range))
        return NULL;
    if (at.ndim != nstrides || code < 0 || code >= MP_CODES) {
        PyErr_SetString(PyExc_ValueError, mp_error(at.ndim != nstrides ? MP_BAD_DIMS : MP_BAD_CODE));
        return NULL;
    }
    if (open_table(args[4], &table)) return NULL;
    const int done = put(&at, code, range, &table, row);
    PyBuffer_Release(&table);
    return done < 0 ? NULL : PyBool_FromLong(done);
}
