/* What a frame that goes on after a break needs of CPython's own state: exceptions as they were, and no reference too many. */

#include "braze.h"

/* What a frame calls from an except block knows which exception is handled there, though it is called for the frame. */
static PyObject *
handling(PyObject *module, PyObject *error)
{
    _PyErr_StackItem *here = PyThreadState_Get()->exc_info;
    PyObject *before = here->exc_value;
    here->exc_value = error == Py_None ? NULL : Py_NewRef(error);
    return before != NULL ? before : Py_NewRef(Py_None);
}

/* What has been raised already goes on as it is: `raise` would put what is handled here in place of its context. */
static PyObject *
throw(PyObject *module, PyObject *error)
{
    if (!PyExceptionInstance_Check(error)) {
        PyErr_Format(PyExc_TypeError, "expected an exception, not %.100s", Py_TYPE(error)->tp_name);
        return NULL;
    }
    PyErr_Restore(Py_NewRef(Py_TYPE(error)), Py_NewRef(error), PyException_GetTraceback(error));
    return NULL;
}

/* Callers hold the state of a frame for as long as the frame runs; what the frame has dropped must be freed before. */
static PyObject *
emptied(PyObject *module, PyObject *state)
{
    if (!PyTuple_CheckExact(state)) {
        PyErr_Format(PyExc_TypeError, "expected a tuple, not %.100s", Py_TYPE(state)->tp_name);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(state); i++) {
        PyObject *held = PyTuple_GET_ITEM(state, i);
        PyTuple_SET_ITEM(state, i, Py_NewRef(Py_None));
        Py_XDECREF(held);
    }
    Py_RETURN_NONE;
}

PyMethodDef resumed_methods[] = {
    {"handling", handling, METH_O,
     "handling(error)\n--\n\nLet an exception, or none, be the one that is handled here; gives the one before."},
    {"throw", throw, METH_O,
     "throw(error)\n--\n\nRaise an exception with the context that it has."},
    {"emptied", emptied, METH_O,
     "emptied(state)\n--\n\nPut None in place of all items of a tuple that nobody else reads any more."},
    {NULL},
};
