/* Weak references for all versions of Python. Include Python.h first. */
#ifndef MSPROBE_WEAK_H
#define MSPROBE_WEAK_H

static int refers_to(PyObject *reference, PyObject *object) {
#if PY_VERSION_HEX >= 0x030d0000
    PyObject *found = NULL;
    const int same = PyWeakref_GetRef(reference, &found) == 1 && found == object;
    Py_XDECREF(found);
    return same;
#else
    return PyWeakref_GetObject(reference) == object;
#endif
}

#endif
