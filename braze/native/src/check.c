/* When the checks of a guard program hold, except those on tensors and on the process's state. */
#include "guards.h"

static bool
same_tuple(PyObject *value, PyObject *expected)
{
    Py_ssize_t count = PyTuple_GET_SIZE(expected);
    if (PyTuple_GET_SIZE(value) != count) {
        return false;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!same_constant(PyTuple_GET_ITEM(value, i), PyTuple_GET_ITEM(expected, i))) {
            return false;
        }
    }
    return true;
}

/* Scalars of numpy show their bytes. */
static bool
same_bytes(PyObject *value, PyObject *expected)
{
    Py_buffer a, b;
    if (PyObject_GetBuffer(value, &a, PyBUF_SIMPLE) < 0) {
        PyErr_Clear();
        return false;
    }
    bool same = false;
    if (PyObject_GetBuffer(expected, &b, PyBUF_SIMPLE) < 0) {
        PyErr_Clear();
    }
    else {
        same = a.len == b.len && memcmp(a.buf, b.buf, a.len) == 0;
        PyBuffer_Release(&b);
    }
    PyBuffer_Release(&a);
    return same;
}

bool
same_constant(PyObject *value, PyObject *expected)
{
    if (value == expected) {
        return true;
    }
    if (Py_TYPE(value) != Py_TYPE(expected)) {
        return false;
    }
    if (PyFloat_CheckExact(value)) { /* bit by bit: tells -0.0 from 0.0, and nan is itself */
        return memcmp(&((PyFloatObject *)value)->ob_fval, &((PyFloatObject *)expected)->ob_fval, sizeof(double)) == 0;
    }
    if (PyComplex_CheckExact(value)) {
        return memcmp(&((PyComplexObject *)value)->cval, &((PyComplexObject *)expected)->cval, sizeof(Py_complex)) == 0;
    }
    if (PyTuple_Check(value)) {
        return same_tuple(value, expected);
    }
    if (!PyLong_CheckExact(value) && !PyUnicode_CheckExact(value) && !PyBytes_CheckExact(value)) {
        return PyObject_CheckBuffer(value) && same_bytes(value, expected);
    }
    int equal = PyObject_RichCompareBool(value, expected, Py_EQ);
    if (equal < 0) {
        PyErr_Clear();
    }
    return equal > 0;
}

static bool
length_is(PyObject *value, Py_ssize_t expected)
{
    if (PyDict_Check(value)) {
        return PyDict_GET_SIZE(value) == expected;
    }
    if (PyList_Check(value) || PyTuple_Check(value) || PyBytes_Check(value)) {
        return Py_SIZE(value) == expected;
    }
    if (PyAnySet_Check(value)) {
        return PySet_GET_SIZE(value) == expected;
    }
    if (PyUnicode_Check(value)) {
        return PyUnicode_GET_LENGTH(value) == expected;
    }
    static PyObject *name = NULL;
    if (name == NULL && (name = PyUnicode_InternFromString("__len__")) == NULL) {
        PyErr_Clear();
        return false;
    }
    PyObject *method = _PyType_Lookup(Py_TYPE(value), name);
    if (method == NULL || !Py_IS_TYPE(method, &PyWrapperDescr_Type)) { /* written in Python */
        return false;
    }
    Py_ssize_t found = PyObject_Size(value);
    if (found < 0) {
        PyErr_Clear();
    }
    return found == expected;
}

static bool
keys_are(Walk *walk, PyObject *value, PyObject *expected)
{
    if (!PyDict_Check(value) || PyDict_GET_SIZE(value) != PyTuple_GET_SIZE(expected)) {
        return false;
    }
    Py_ssize_t i = 0;
    if (PyDict_GET_SIZE(value) == 0) {
        return true;
    }
    if (is_ordered_dict(value)) {
        bool waits = collector_wait();
        PyObject *keys = may_look_up_all(walk, value) ? PyODict_Type.tp_iter(value) : NULL, *key;
        collector_go_on(waits);
        bool same = keys != NULL;
        while (same && i < PyTuple_GET_SIZE(expected) && (key = Py_TYPE(keys)->tp_iternext(keys)) != NULL) {
            same = same_constant(key, PyTuple_GET_ITEM(expected, i++));
            Py_DECREF(key);
        }
        Py_XDECREF(keys);
        same &= !PyErr_Occurred();
        forget_error();
        return same && i == PyTuple_GET_SIZE(expected);
    }
    PyObject *key, *item;
    Py_ssize_t position = 0;
    while (PyDict_Next(value, &position, &key, &item)) {
        if (!same_constant(key, PyTuple_GET_ITEM(expected, i++))) {
            return false;
        }
    }
    return true;
}

static bool
has_key_is(Walk *walk, PyObject *value, const Check *check)
{
    PyObject *key = PyTuple_GET_ITEM(check->expected, 0);
    if ((!PyDict_Check(value) && !PyAnySet_Check(value)) || !may_look_up(walk, value, key, check->number)) {
        return false;
    }
    Py_INCREF(value); /* an __eq__ of the program's may take it from where it was found */
    int found = !PyDict_Check(value)   ? PySet_Contains(value, key)
                : check->number == -1 ? PyDict_Contains(value, key)
                                      : _PyDict_GetItem_KnownHash(value, key, check->number) != NULL;
    Py_DECREF(value);
    if (found < 0 || PyErr_Occurred()) {
        forget_error();
        return false;
    }
    return (found != 0) == (PyTuple_GET_ITEM(check->expected, 1) == Py_True);
}

static bool
absent(Walk *walk, PyObject *value, PyObject *names)
{
    PyObject *dict = hold(walk, instance_dict(value));
    for (Py_ssize_t i = 0; dict != NULL && i < PyTuple_GET_SIZE(names); i++) {
        if (!may_look_up(walk, dict, PyTuple_GET_ITEM(names, i), -1)) {
            return false;
        }
        if (PyDict_Contains(dict, PyTuple_GET_ITEM(names, i)) != 0) {
            forget_error();
            return false;
        }
    }
    return true;
}

static bool
int_binds(PyObject *value, Py_ssize_t symbol, Symbols *symbols)
{
    if (!PyLong_CheckExact(value)) {
        return false;
    }
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    return !overflow && symbol_bind(symbols, symbol, number);
}

static bool
float_binds(PyObject *value, Py_ssize_t symbol, Symbols *symbols)
{
    if (!PyFloat_CheckExact(value)) {
        return false;
    }
    double number = PyFloat_AS_DOUBLE(value);
    int64_t bits;
    memcpy(&bits, &number, sizeof bits);
    return symbol_bind(symbols, symbol, bits);
}

static int
by_address(const void *a, const void *b)
{
    PyObject *x = *(PyObject *const *)a, *y = *(PyObject *const *)b;
    return x < y ? -1 : x > y;
}

static bool
all_different(PyObject **values, int count)
{
    qsort(values, count, sizeof(PyObject *), by_address);
    for (int i = 1; i < count; i++) {
        if (values[i] == values[i - 1]) {
            return false;
        }
    }
    return true;
}

/* Pointers that were all different still are if none has changed; so look at the changed ones only. */
static bool
distinct_holds(GuardProgram *program, Distinct *distinct)
{
    enum { FEW = 8 };
    int changed[FEW], nchanged = 0, count = distinct->count;
    PyObject **values = program->values, **last = distinct->last;
    for (int i = 0; i < count; i++) {
        PyObject *value = values[distinct->nodes[i]];
        if (value != last[i]) {
            if (nchanged < FEW) {
                changed[nchanged] = i;
            }
            nchanged++;
            last[i] = value;
        }
    }
    bool holds = true;
    if (nchanged > FEW) {
        PyObject **copy = PyMem_Malloc(count * sizeof(PyObject *));
        if (copy != NULL) {
            memcpy(copy, last, count * sizeof(PyObject *));
        }
        holds = copy != NULL && all_different(copy, count);
        PyMem_Free(copy);
    }
    else {
        for (int c = 0; holds && c < nchanged; c++) {
            for (int i = 0; i < count; i++) {
                if (i != changed[c] && last[i] == last[changed[c]]) {
                    holds = false;
                    break;
                }
            }
        }
    }
    if (!holds) { /* nothing is known any more: all differ from NULL */
        memset(last, 0, count * sizeof(PyObject *));
    }
    return holds;
}

static bool
tensor_is(Walk *walk, const Check *check, PyObject *value)
{
    GuardProgram *p = walk->program;
    TensorSpec *spec = &p->tensor[check->number];
    return (spec->type != NULL || may_run_code(walk)) && tensor_holds(spec, value, &p->symbols);
}

/* By the rules of vocabulary.py. */
bool
check_holds(Walk *walk, const Check *check)
{
    PyObject *value = check->node >= 0 ? walk->program->values[check->node] : NULL;
    switch (check->kind) {
#define CASE(NAME, rule) \
    case CHECK_##NAME: \
        return rule;
        CHECK_RULES(CASE)
    case CHECK_STATE:
        return state_holds(&walk->program->states[check->number]);
    default:
        return false;
    }
}
