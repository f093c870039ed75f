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

/* Whether the place of one instruction, as co_positions gives it, is another's. */
static int
is_at(PyObject *place, PyObject *other)
{
    return PyObject_RichCompareBool(place, other, Py_EQ);
}

enum { CODE_UNIT = 2 }; /* bytes of a code unit, of which co_positions tells one by one */

/* The offset of an instruction of `code` at the place of a stand-in's only line; 0 where there is none. */
static int
offset_like(PyCodeObject *code, PyCodeObject *stand_in)
{
    int found = 0;
    PyObject *places = PyObject_CallMethod((PyObject *)code, "co_positions", NULL);
    PyObject *wanted = PyObject_CallMethod((PyObject *)stand_in, "co_positions", NULL);
    PyObject *place = wanted != NULL ? PyIter_Next(wanted) : NULL, *next;
    for (int i = 0; places != NULL && place != NULL && (next = PyIter_Next(places)) != NULL; i++) {
        int same = is_at(next, place);
        Py_DECREF(next);
        if (same) {
            found = same > 0 ? i * CODE_UNIT : 0;
            break;
        }
    }
    Py_XDECREF(place);
    Py_XDECREF(wanted);
    Py_XDECREF(places);
    return found;
}

/* Whether `code` is of a stand-in for frames of `own`: a generator under the name of what is none (capture/facts/stand_ins.py). */
static int
stands_for(PyCodeObject *code, PyCodeObject *own)
{
    return (code->co_flags & CO_GENERATOR) && !(own->co_flags & CO_GENERATOR)
           && is_at(code->co_filename, own->co_filename) == 1 && is_at(code->co_qualname, own->co_qualname) == 1;
}

/* A frame that goes on while it handles an exception stands in its traceback, and with it what the frame holds: in place of a frame
   that holds nothing. The first entry is of the frame that has caught the exception. */
static PyObject *
taken_over(PyObject *module, PyObject *error)
{
    PyObject *traceback = PyExceptionInstance_Check(error) ? PyException_GetTraceback(error) : NULL;
    PyFrameObject *frame = traceback != NULL ? PyThreadState_GetFrame(PyThreadState_Get()) : NULL;
    if (frame != NULL) {
        PyTracebackObject *first = (PyTracebackObject *)traceback;
        PyCodeObject *code = PyFrame_GetCode(first->tb_frame), *own = PyFrame_GetCode(frame);
        if (stands_for(code, own)) {
            PyObject *next = first->tb_next != NULL ? (PyObject *)first->tb_next : Py_None;
            PyObject *made = PyObject_CallFunction((PyObject *)&PyTraceBack_Type, "OOii", next, frame, offset_like(own, code), first->tb_lineno);
            if (made != NULL) {
                PyException_SetTraceback(error, made);
                Py_DECREF(made);
            }
        }
        Py_DECREF(code);
        Py_DECREF(own);
        Py_DECREF(frame);
    }
    Py_XDECREF(traceback);
    return PyErr_Occurred() ? NULL : Py_NewRef(error);
}

PyMethodDef resumed_methods[] = {
    {"handling", handling, METH_O,
     "handling(error)\n--\n\nLet an exception, or none, be the one that is handled here; gives the one before."},
    {"throw", throw, METH_O,
     "throw(error)\n--\n\nRaise an exception with the context that it has."},
    {"taken_over", taken_over, METH_O,
     "taken_over(error)\n--\n\nPut the calling frame in place of the stand-in for it that begins an exception's traceback; gives the exception."},
    {"emptied", emptied, METH_O,
     "emptied(state)\n--\n\nPut None in place of all items of a tuple that nobody else reads any more."},
    {NULL},
};
