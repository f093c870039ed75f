/* What stands in some dicts now, and where tensors among that lie: asked before each replay of what reads a model's tensors where they lay. */
#include "braze.h"

static PyObject *
addresses(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || !PyTuple_Check(args[0]) || !PyTuple_Check(args[1])
        || PyTuple_GET_SIZE(args[0]) != PyTuple_GET_SIZE(args[1])) {
        PyErr_SetString(PyExc_TypeError, "addresses takes a tuple of dicts and one of as many keys");
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(args[0]);
    PyObject *found = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(uint64_t[2]));
    if (found == NULL) {
        return NULL;
    }
    char *place = PyBytes_AS_STRING(found);
    for (Py_ssize_t i = 0; i < count; i++, place += sizeof(uint64_t[2])) {
        PyObject *space = PyTuple_GET_ITEM(args[0], i);
        PyObject *value = PyDict_Check(space) ? PyDict_GetItemWithError(space, PyTuple_GET_ITEM(args[1], i)) : NULL;
        void *address = NULL;
        if (value != NULL && is_tensor(value) && buffer_address(value, &address) < 0) {
            PyErr_Clear(); /* it has no memory */
        }
        if (PyErr_Occurred()) {
            Py_DECREF(found);
            return NULL;
        }
        uint64_t numbers[2] = {(uint64_t)(uintptr_t)value, (uint64_t)(uintptr_t)address};
        memcpy(place, numbers, sizeof(numbers));
    }
    return found;
}

PyMethodDef addresses_functions[] = {
    {"addresses", (PyCFunction)(void (*)(void))addresses, METH_FASTCALL,
     "addresses(dicts, keys)\n--\n\nOf each dict the address of the object under its key, and that of its memory if it is a tensor; sixteen "
     "bytes each, 0 where there is none."},
    {NULL},
};
