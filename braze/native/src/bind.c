/* Binding: the arguments of a call, in the slots of the function's frame. */
#include "braze.h"

Py_ssize_t
code_slot_count(PyCodeObject *code)
{
    return code->co_argcount + code->co_kwonlyargcount + ((code->co_flags & CO_VARARGS) != 0)
           + ((code->co_flags & CO_VARKEYWORDS) != 0);
}

static Py_ssize_t
parameter_named(PyCodeObject *code, PyObject *name)
{
    PyObject **names = &PyTuple_GET_ITEM(code->co_localsplusnames, 0);
    Py_ssize_t end = code->co_argcount + code->co_kwonlyargcount;
    for (Py_ssize_t i = code->co_posonlyargcount; i < end; i++) {
        if (names[i] == name) {
            return i;
        }
    }
    for (Py_ssize_t i = code->co_posonlyargcount; i < end; i++) {
        if (PyUnicode_Check(name) && PyUnicode_Compare(names[i], name) == 0) {
            return i;
        }
    }
    return -1;
}

static bool
bind_keywords(PyCodeObject *code, Bound *bound, PyObject *const *values, PyObject *kwnames)
{
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(kwnames); k++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, k);
        Py_ssize_t slot = parameter_named(code, name);
        if (slot >= 0) {
            if (bound->slots[slot] != NULL) {
                return false;
            }
            bound->slots[slot] = values[k];
        }
        else if (bound->keywords == NULL || PyDict_SetItem(bound->keywords, name, values[k]) < 0) {
            return false;
        }
    }
    return true;
}

static bool
bind_defaults(PyFunctionObject *function, PyCodeObject *code, Bound *bound)
{
    PyObject *defaults = function->func_defaults;
    Py_ssize_t count = defaults != NULL ? PyTuple_GET_SIZE(defaults) : 0, first = code->co_argcount - count;
    for (Py_ssize_t i = 0; i < code->co_argcount; i++) {
        if (bound->slots[i] == NULL) {
            if (i < first) {
                return false;
            }
            bound->slots[i] = PyTuple_GET_ITEM(defaults, i - first);
        }
    }
    for (Py_ssize_t i = code->co_argcount; i < code->co_argcount + code->co_kwonlyargcount; i++) {
        if (bound->slots[i] == NULL) {
            PyObject *name = PyTuple_GET_ITEM(code->co_localsplusnames, i);
            PyObject *known = function->func_kwdefaults;
            if (known == NULL || (bound->slots[i] = PyDict_GetItemWithError(known, name)) == NULL) {
                return false;
            }
        }
    }
    return true;
}

bool
bind_arguments(PyFunctionObject *function, PyObject *self, Bound *bound, PyObject *const *args, Py_ssize_t nargs,
               PyObject *kwnames)
{
    PyCodeObject *code = (PyCodeObject *)function->func_code;
    Py_ssize_t lead = self != NULL, npos = code->co_argcount, given = nargs + lead;
    Py_ssize_t next = npos + code->co_kwonlyargcount;
    if (given > npos && !(code->co_flags & CO_VARARGS)) {
        return false;
    }
    memset(bound->slots, 0, code_slot_count(code) * sizeof(PyObject *));
    if (lead && npos > 0) {
        bound->slots[0] = self;
    }
    for (Py_ssize_t i = lead; i < given && i < npos; i++) {
        bound->slots[i] = args[i - lead];
    }
    if (code->co_flags & CO_VARARGS) {
        Py_ssize_t extra = given > npos ? given - npos : 0;
        if ((bound->rest = PyTuple_New(extra)) == NULL) {
            return false;
        }
        for (Py_ssize_t i = 0; i < extra; i++) {
            Py_ssize_t at = npos + i; /* of self and what is given: of a method of *args alone, self is the first of these */
            PyTuple_SET_ITEM(bound->rest, i, Py_NewRef(at < lead ? self : args[at - lead]));
        }
        bound->slots[next++] = bound->rest;
    }
    if (code->co_flags & CO_VARKEYWORDS) {
        if ((bound->keywords = PyDict_New()) == NULL) {
            return false;
        }
        bound->slots[next] = bound->keywords;
    }
    return (kwnames == NULL || bind_keywords(code, bound, args + nargs, kwnames))
           && bind_defaults(function, code, bound);
}
