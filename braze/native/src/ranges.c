/* Ranges of whoever listens to PyTorch's operators: its profiler, emit_nvtx, emit_itt. Who calls compiled code sees there what ran.
 *
 * Asked at each call of an entry and on each way back, so the question is one function of libtorch's, and where nobody listens that is
 * all. All this happens under the GIL.
 */
#include "braze.h"

static bool (*listening)(void); /* whether a profiler is on in this thread; NULL: it is not known */
static PyObject *range_type;    /* range_type(name) is a context manager */
static int open;                /* ranges of all threads: what lies within one asks only where there are any */

bool
ranges_wanted(void)
{
    return listening != NULL && listening();
}

bool
ranges_wanted_within(void)
{
    return open != 0 && ranges_wanted();
}

PyObject *
range_begun(PyObject *name)
{
    if (!ranges_wanted()) {
        return NULL;
    }
    PyObject *range = PyObject_CallOneArg(range_type, name);
    PyObject *entered = range != NULL ? PyObject_CallMethod(range, "__enter__", NULL) : NULL;
    if (entered == NULL) {
        Py_CLEAR(range);
        PyErr_Clear();
    }
    Py_XDECREF(entered);
    open += range != NULL;
    return range;
}

void
range_ended(PyObject *range)
{
    if (range == NULL) {
        return;
    }
    open--;
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyObject *left = PyObject_CallMethod(range, "__exit__", "OOO", Py_None, Py_None, Py_None);
    if (left == NULL) {
        PyErr_Clear();
    }
    Py_XDECREF(left);
    Py_DECREF(range);
    PyErr_Restore(type, error, traceback);
}

PyObject *
called_in_range(PyObject *name, PyObject *callable, PyObject *const *args, size_t nargsf)
{
    PyObject *range = range_begun(name);
    PyObject *result = PyObject_Vectorcall(callable, args, nargsf, NULL);
    range_ended(range);
    return result;
}

static PyObject *
in_range(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs < 2 || !PyUnicode_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "in_range takes a name, a callable and its arguments");
        return NULL;
    }
    return called_in_range(args[0], args[1], args + 2, nargs - 2);
}

static PyObject *
watch_ranges(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "watch_ranges takes a class of ranges and an address");
        return NULL;
    }
    void *address = PyLong_AsVoidPtr(args[1]);
    if (address == NULL && PyErr_Occurred()) {
        return NULL;
    }
    Py_XSETREF(range_type, Py_NewRef(args[0]));
    memcpy(&listening, &address, sizeof(address));
    Py_RETURN_NONE;
}

PyMethodDef ranges_functions[] = {
    {"watch_ranges", (PyCFunction)(void (*)(void))watch_ranges, METH_FASTCALL,
     "watch_ranges(range, address)\n--\n\nHow calls are told of: `range(name)` is a context manager; the address is that of a function "
     "that says whether anybody listens in this thread, or 0."},
    {"in_range", (PyCFunction)(void (*)(void))in_range, METH_FASTCALL,
     "in_range(name, callable, *args)\n--\n\n`callable(*args)`, in a range of this name if anybody listens."},
    {NULL},
};
