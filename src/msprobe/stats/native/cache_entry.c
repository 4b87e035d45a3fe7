/* See cache_entry.h. */
#include "cache_entry.h"

#include <structmember.h>

static void free_entry(Entry *self) {
    Py_XDECREF(self->tensor);
    Py_XDECREF(self->text);
    Py_XDECREF(self->saved);
    Py_XDECREF(self->storage);
    PyObject_Free(self);
}

static PyMemberDef entry_members[] = {
    {"text", T_OBJECT, offsetof(Entry, text), READONLY, "The JSON of the tensor."},
    {"at", T_PYSSIZET, offsetof(Entry, at), READONLY, "The position in it for further members."},
    {NULL, 0, 0, 0, NULL},
};

/* Created on first use: most tensors are not saved, and a list for each would start the garbage collector. */
static PyObject *saved_of(Entry *self, void *closure) {
    (void)closure;
    if (!self->saved && !(self->saved = PyList_New(0))) return NULL;
    Py_INCREF(self->saved);
    return self->saved;
}

static PyGetSetDef entry_made[] = {
    {"saved", (getter)saved_of, NULL, "A list: the file of the tensor, if it has been saved.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject entry_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "msprobe.stats._kernel.Entry",
    .tp_basicsize = sizeof(Entry),
    .tp_dealloc = (destructor)free_entry,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_members = entry_members,
    .tp_getset = entry_made,
};

Entry *new_entry(void) {
    Entry *entry = PyObject_New(Entry, &entry_type);
    if (!entry) return NULL;
    entry->tensor = entry->text = entry->saved = entry->storage = NULL;
    entry->at = 0;
    entry->value_id = entry->memory = -1;
    return entry;
}

int make_entry_type(void) {
    return PyType_Ready(&entry_type);
}
