/* The identity of the Python stack: for each frame the address of its code and the instruction it is at, as bytes.

   What a call came from is asked at every call; walking the frames in Python costs five times as much. stacks.py has
   the same walk for machines without a compiler. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <frameobject.h>

#define MOST 1000 /* frames; what is above is left out */

static int instruction(PyFrameObject *frame) {
#if PY_VERSION_HEX >= 0x030b0000
    return PyFrame_GetLasti(frame);
#elif PY_VERSION_HEX >= 0x030a0000
    return frame->f_lasti < 0 ? frame->f_lasti : frame->f_lasti * 2; /* 3.10 counts instructions here, not bytes */
#else
    return frame->f_lasti;
#endif
}

/* key(skip): the stack without its `skip` innermost frames; the caller's own frame is the first. */
static PyObject *key(PyObject *self, PyObject *argument) {
    uintptr_t words[2 * MOST];
    Py_ssize_t count = 0;
    long skip = PyLong_AsLong(argument);
    PyFrameObject *frame;
    (void)self;
    if (skip == -1 && PyErr_Occurred()) return NULL;
    frame = PyEval_GetFrame();
    Py_XINCREF(frame);
    while (frame != NULL && count < MOST) {
        PyFrameObject *back = PyFrame_GetBack(frame);
        if (skip > 0) {
            skip--;
        } else {
            PyCodeObject *code = PyFrame_GetCode(frame);
            words[2 * count] = (uintptr_t)code;
            words[2 * count + 1] = (uintptr_t)instruction(frame);
            count++;
            Py_DECREF(code);
        }
        Py_DECREF(frame);
        frame = back;
    }
    Py_XDECREF(frame);
    return PyBytes_FromStringAndSize((const char *)words, count * 2 * (Py_ssize_t)sizeof words[0]);
}

static PyMethodDef methods[] = {
    {"key", key, METH_O, "key(skip): the identity of the stack without its `skip` innermost frames."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_frames", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__frames(void) {
    return PyModule_Create(&module);
}
