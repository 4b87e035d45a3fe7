/* The lines of a journal, written and read: the frequent kinds of line in their regular form.

   journal.py has the same in Python and documents the lines; it also handles every line that is not as expected here.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

static PyObject *quote; /* json.encoder.encode_basestring_ascii */

/* Writing. */

/* Whether a string is its own JSON text between quotes. */
static int is_plain(PyObject *text) {
    if (!PyUnicode_IS_COMPACT_ASCII(text)) return 0;
    const unsigned char *at = PyUnicode_1BYTE_DATA(text), *end = at + PyUnicode_GET_LENGTH(text);
    for (; at < end; at++)
        if (*at < 0x20 || *at == '"' || *at == '\\' || *at == 0x7f) return 0;
    return 1;
}

/* A piece of a line: characters of C, or a string. */
typedef struct {
    const char *start;
    Py_ssize_t length;
    PyObject *string;
} piece;

#define MOST 16

typedef struct {
    piece pieces[MOST];
    PyObject *made[4]; /* strings that this line owns */
    int count, owned;
} line;

static void put(line *to, const char *text) {
    to->pieces[to->count++] = (piece){text, (Py_ssize_t)strlen(text), NULL};
}

static void put_string(line *to, PyObject *string) {
    to->pieces[to->count++] = (piece){NULL, PyUnicode_GET_LENGTH(string), string};
}

static int put_quoted(line *to, PyObject *string) {
    if (!PyUnicode_Check(string)) {
        PyErr_SetString(PyExc_TypeError, "the name of a record must be a string");
        return -1;
    }
    if (is_plain(string)) {
        put(to, "\"");
        put_string(to, string);
        put(to, "\"");
        return 0;
    }
    PyObject *text = PyObject_CallOneArg(quote, string);
    if (!text) return -1;
    to->made[to->owned++] = text;
    put_string(to, text);
    return 0;
}

static int put_number(line *to, PyObject *number) {
    if (number == Py_None) {
        put(to, "null");
        return 0;
    }
    PyObject *text = PyObject_Str(number);
    if (!text) return -1;
    to->made[to->owned++] = text;
    put_string(to, text);
    return 0;
}

static int put_parent(line *to, PyObject *parent) {
    if (parent != Py_None) return put_quoted(to, parent);
    put(to, "null");
    return 0;
}

/* The string of all pieces, and a line feed. */
static PyObject *join(line *from) {
    Py_ssize_t length = 1;
    Py_UCS4 widest = 127;
    PyObject *all = NULL;
    for (int i = 0; i < from->count; i++) {
        const piece *p = &from->pieces[i];
        length += p->length;
        if (p->string && PyUnicode_MAX_CHAR_VALUE(p->string) > widest) widest = PyUnicode_MAX_CHAR_VALUE(p->string);
    }
    if ((all = PyUnicode_New(length, widest))) {
        const int kind = PyUnicode_KIND(all);
        char *data = PyUnicode_DATA(all), *ascii = kind == PyUnicode_1BYTE_KIND ? data : NULL;
        Py_ssize_t at = 0;
        for (int i = 0; i < from->count; i++) {
            const piece *p = &from->pieces[i];
            if (p->string && !(ascii && PyUnicode_KIND(p->string) == PyUnicode_1BYTE_KIND))
                PyUnicode_CopyCharacters(all, at, p->string, 0, p->length);
            else if (ascii)
                memcpy(ascii + at, p->string ? (const char *)PyUnicode_1BYTE_DATA(p->string) : p->start,
                       (size_t)p->length);
            else
                for (Py_ssize_t k = 0; k < p->length; k++) PyUnicode_WRITE(kind, data, at + k, p->start[k]);
            at += p->length;
        }
        PyUnicode_WRITE(kind, data, at, '\n');
    }
    for (int i = 0; i < from->owned; i++) Py_DECREF(from->made[i]);
    return all;
}

static PyObject *give_up(line *to) {
    for (int i = 0; i < to->owned; i++) Py_DECREF(to->made[i]);
    return NULL;
}

static int is_called(const char *name, PyObject *const *args, Py_ssize_t count, Py_ssize_t wanted) {
    if (count == wanted && PyUnicode_Check(args[wanted - 1])) return 1;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, the last is a string", name, wanted);
    return 0;
}

static PyObject *begin_line(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    line to = {.count = 0};
    (void)self;
    if (!is_called("begin_line", args, count, 5)) return NULL;
    put(&to, "[\"begin\", ");
    if (put_number(&to, args[0])) return give_up(&to);
    put(&to, ", ");
    if (put_quoted(&to, args[1])) return give_up(&to);
    put(&to, ", ");
    if (put_parent(&to, args[2])) return give_up(&to);
    put(&to, ", ");
    if (put_number(&to, args[3])) return give_up(&to);
    put(&to, ", {");
    put_string(&to, args[4]);
    put(&to, "}]");
    return join(&to);
}

static PyObject *end_line(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    line to = {.count = 0};
    (void)self;
    if (!is_called("end_line", args, count, 2)) return NULL;
    put(&to, "[\"end\", ");
    if (put_number(&to, args[0])) return give_up(&to);
    put(&to, ", {");
    put_string(&to, args[1]);
    put(&to, "}]");
    return join(&to);
}

static PyObject *record_line(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    line to = {.count = 0};
    (void)self;
    if (!is_called("record_line", args, count, 4)) return NULL;
    put(&to, "[\"record\", ");
    if (put_quoted(&to, args[0])) return give_up(&to);
    put(&to, ", ");
    if (put_parent(&to, args[1])) return give_up(&to);
    put(&to, ", ");
    if (put_number(&to, args[2])) return give_up(&to);
    put(&to, ", {");
    put_string(&to, args[3]);
    put(&to, "}]");
    return join(&to);
}

/* Reading. Each function moves `at`, or returns 0 at anything that is not regular. */

typedef struct {
    const char *at, *end;
} cursor;

static int pass(cursor *c, const char *text, size_t length) {
    if ((size_t)(c->end - c->at) < length || memcmp(c->at, text, length)) return 0;
    c->at += length;
    return 1;
}
#define PASS(c, text) pass(c, text, sizeof text - 1)

static int pass_comma(cursor *c) {
    if (!PASS(c, ",")) return 0;
    (void)PASS(c, " ");
    return 1;
}

static int pass_number(cursor *c, int64_t *number) {
    const int negative = PASS(c, "-");
    const char *first = c->at;
    int64_t value = 0;
    while (c->at < c->end && *c->at >= '0' && *c->at <= '9' && c->at - first < 18)
        value = 10 * value + (*c->at++ - '0');
    *number = negative ? -value : value;
    return c->at > first && c->at < c->end && !(*c->at >= '0' && *c->at <= '9');
}

/* A string without escapes. */
static int pass_string(cursor *c) {
    if (!PASS(c, "\"")) return 0;
    for (; c->at < c->end && *c->at != '\\'; c->at++)
        if (*c->at == '"') {
            c->at++;
            return 1;
        }
    return 0;
}

typedef struct {
    int kind; /* 'b', 'e' or 'r' */
    int64_t call;
    const char *name, *name_end, *parent, *parent_end, *stack, *stack_end, *body, *body_end;
} regular;

static int read_place(cursor *c, regular *to) {
    int64_t number;
    to->name = c->at;
    if (!pass_string(c)) return 0;
    to->name_end = c->at;
    if (!pass_comma(c)) return 0;
    to->parent = c->at;
    if (!PASS(c, "null") && !pass_string(c)) return 0;
    to->parent_end = c->at;
    if (!pass_comma(c)) return 0;
    to->stack = c->at;
    if (!PASS(c, "null") && !pass_number(c, &number)) return 0;
    to->stack_end = c->at;
    return pass_comma(c);
}

static int read_line(const char *start, const char *end, regular *to) {
    cursor c = {start, end};
    if (PASS(&c, "[\"begin\",")) {
        to->kind = 'b';
        (void)PASS(&c, " ");
        if (!pass_number(&c, &to->call) || !pass_comma(&c) || !read_place(&c, to)) return 0;
    } else if (PASS(&c, "[\"end\",")) {
        to->kind = 'e';
        (void)PASS(&c, " ");
        if (!pass_number(&c, &to->call) || !pass_comma(&c)) return 0;
    } else if (PASS(&c, "[\"record\",")) {
        to->kind = 'r';
        (void)PASS(&c, " ");
        if (!read_place(&c, to)) return 0;
    } else {
        return 0;
    }
    to->body = c.at;
    to->body_end = end - 1;
    return to->body_end - to->body >= 2 && *to->body == '{' && to->body_end[-1] == '}' && *to->body_end == ']';
}

/* What a scan fills, all borrowed. */
typedef struct {
    const char *data;
    PyObject *records, *begun, *phase;
    PyTypeObject *entry;
} target;

static PyObject *span(const target *to, const regular *l) {
    return Py_BuildValue("(nn)", (Py_ssize_t)(l->body - to->data), (Py_ssize_t)(l->body_end - to->data));
}

/* Adds Entry(parent, stack, bodies, False, phase). Takes `bodies`. */
static int keep(const target *to, PyObject *name, PyObject *parent, PyObject *stack, PyObject *bodies,
                PyObject *phase) {
    PyObject *number = NULL, *members = NULL, *wrapped = NULL, *entry = NULL;
    if (PyBytes_GET_SIZE(stack) == 4 && !memcmp(PyBytes_AS_STRING(stack), "null", 4)) {
        number = Py_None;
        Py_INCREF(number);
    } else {
        number = PyLong_FromString(PyBytes_AS_STRING(stack), NULL, 10);
    }
    if (number && bodies) members = PyTuple_Pack(5, parent, number, bodies, Py_False, phase);
    if (members) wrapped = PyTuple_Pack(1, members);
    if (wrapped) entry = PyTuple_Type.tp_new(to->entry, wrapped, NULL);
    const int failed = !entry || PyDict_SetItem(to->records, name, entry);
    Py_XDECREF(number);
    Py_XDECREF(members);
    Py_XDECREF(wrapped);
    Py_XDECREF(entry);
    Py_XDECREF(bodies);
    return failed ? -1 : 1;
}

static PyObject *bytes_of(const char *start, const char *end) {
    return PyBytes_FromStringAndSize(start, end - start);
}

/* `begin` and `record`. */
static int take_place(const target *to, const regular *l) {
    PyObject *name = bytes_of(l->name, l->name_end), *parent = bytes_of(l->parent, l->parent_end);
    PyObject *stack = bytes_of(l->stack, l->stack_end), *body = span(to, l), *call = NULL, *begun = NULL;
    int done = -1;
    if (name && parent && stack && body) {
        if (l->kind == 'b') {
            call = PyLong_FromLongLong(l->call);
            begun = PyTuple_Pack(5, name, parent, stack, body, to->phase);
            done = call && begun && !PyDict_SetItem(to->begun, call, begun) ? 1 : -1;
        } else {
            done = PyDict_Contains(to->records, name);
            done = done ? (done > 0 ? 0 : -1) : keep(to, name, parent, stack, PyTuple_Pack(1, body), to->phase);
        }
    }
    Py_XDECREF(name);
    Py_XDECREF(parent);
    Py_XDECREF(stack);
    Py_XDECREF(body);
    Py_XDECREF(call);
    Py_XDECREF(begun);
    return done;
}

static int take_end(const target *to, const regular *l) {
    PyObject *call = PyLong_FromLongLong(l->call);
    PyObject *begun = call ? PyDict_GetItemWithError(to->begun, call) : NULL;
    int done = PyErr_Occurred() ? -1 : 0;
    if (begun && PyTuple_Check(begun) && PyTuple_GET_SIZE(begun) == 5) {
        PyObject *name = PyTuple_GET_ITEM(begun, 0), *stack = PyTuple_GET_ITEM(begun, 2);
        const int known = PyDict_Contains(to->records, name);
        if (known < 0) {
            done = -1;
        } else if (!known && PyBytes_Check(stack)) {
            PyObject *body = span(to, l);
            PyObject *bodies = body ? PyTuple_Pack(2, PyTuple_GET_ITEM(begun, 3), body) : NULL;
            Py_INCREF(begun);
            done = keep(to, name, PyTuple_GET_ITEM(begun, 1), stack, bodies, PyTuple_GET_ITEM(begun, 4));
            if (done == 1 && PyDict_DelItem(to->begun, call)) done = -1;
            Py_DECREF(begun);
            Py_XDECREF(body);
        }
    }
    Py_XDECREF(call);
    return done;
}

/* scan(data, position, longest, records, begun, phase, entry): takes regular lines into `records` and `begun`. Returns
   the position of the first line that is not regular, or is no line. */
static PyObject *scan(PyObject *self, PyObject *args) {
    Py_buffer data;
    Py_ssize_t position, longest;
    target to;
    int done = 1;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*nnO!O!OO!:scan", &data, &position, &longest, &PyDict_Type, &to.records, &PyDict_Type,
                          &to.begun, &to.phase, &PyType_Type, &to.entry))
        return NULL;
    if (!PyType_IsSubtype(to.entry, &PyTuple_Type)) {
        PyErr_SetString(PyExc_TypeError, "an entry must be a tuple");
        done = -1;
    }
    to.data = data.buf;
    while (done == 1 && position >= 0 && position < data.len) {
        regular l;
        const Py_ssize_t left = data.len - position;
        const char *start = to.data + position;
        const char *end = memchr(start, '\n', (size_t)(left < longest ? left : longest));
        if (!end || !read_line(start, end, &l)) break;
        done = l.kind == 'e' ? take_end(&to, &l) : take_place(&to, &l);
        if (done == 1) position = end + 1 - to.data;
    }
    PyBuffer_Release(&data);
    return done < 0 ? NULL : PyLong_FromSsize_t(position);
}

static int is_blank(const char *text, Py_ssize_t length) {
    for (Py_ssize_t i = 0; i < length; i++)
        if (text[i] != ' ' && (text[i] < '\t' || text[i] > '\r')) return 0;
    return 1;
}

/* member(data, name, bodies, unfinished): the record as a member of dump.json. */
static PyObject *member(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Py_buffer data;
    PyObject *all = NULL;
    (void)self;
    if (count != 4 || !PyBytes_Check(args[1]) || !PyTuple_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "member takes a buffer, bytes, a tuple and a bool");
        return NULL;
    }
    const int unfinished = PyObject_IsTrue(args[3]);
    if (unfinished < 0 || PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE)) return NULL;
    static const char mark[] = "\"unfinished\": true";
    const Py_ssize_t bodies = PyTuple_GET_SIZE(args[2]), named = PyBytes_GET_SIZE(args[1]);
    Py_ssize_t length = named + 4 + (unfinished ? (Py_ssize_t)sizeof mark + 1 : 0), starts[2], lengths[2];
    int parts = 0;
    for (Py_ssize_t i = 0; i < bodies; i++) {
        Py_ssize_t from, to;
        if (bodies > 2 || !PyTuple_Check(PyTuple_GET_ITEM(args[2], i)) ||
            !PyArg_ParseTuple(PyTuple_GET_ITEM(args[2], i), "nn", &from, &to) || from < 0 || to - from < 2 ||
            to > data.len) {
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a body lies outside the journal");
            goto done;
        }
        if (is_blank((const char *)data.buf + from + 1, to - from - 2)) continue;
        starts[parts] = from + 1;
        lengths[parts] = to - from - 2;
        length += lengths[parts++] + 2;
    }
    if (parts) length -= 2;
    if (unfinished && !parts) length -= 2;
    if ((all = PyBytes_FromStringAndSize(NULL, length))) {
        char *at = PyBytes_AS_STRING(all);
        at = (char *)memcpy(at, PyBytes_AS_STRING(args[1]), (size_t)named) + named;
        at = (char *)memcpy(at, ": {", 3) + 3;
        for (int i = 0; i < parts; i++) {
            if (i) at = (char *)memcpy(at, ", ", 2) + 2;
            at = (char *)memcpy(at, (const char *)data.buf + starts[i], (size_t)lengths[i]) + lengths[i];
        }
        if (unfinished) {
            if (parts) at = (char *)memcpy(at, ", ", 2) + 2;
            at = (char *)memcpy(at, mark, sizeof mark - 1) + sizeof mark - 1;
        }
        *at = '}';
    }
done:
    PyBuffer_Release(&data);
    return all;
}

static PyMethodDef methods[] = {
    {"begin_line", (PyCFunction)(void (*)(void))begin_line, METH_FASTCALL, "The line of a call that begins."},
    {"end_line", (PyCFunction)(void (*)(void))end_line, METH_FASTCALL, "The line of a call that has returned."},
    {"record_line", (PyCFunction)(void (*)(void))record_line, METH_FASTCALL, "The line of a record with one event."},
    {"scan", scan, METH_VARARGS, "Takes regular lines; returns the position of the first other one."},
    {"member", (PyCFunction)(void (*)(void))member, METH_FASTCALL, "A record as a member of dump.json."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_journal", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__journal(void) {
    PyObject *encoder = PyImport_ImportModule("json.encoder");
    if (!encoder) return NULL;
    quote = PyObject_GetAttrString(encoder, "encode_basestring_ascii");
    Py_DECREF(encoder);
    return quote ? PyModule_Create(&module) : NULL;
}
