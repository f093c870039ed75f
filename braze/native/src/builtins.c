/* Whether the program has deleted or replaced a builtin that braze's own code calls, too: until it is back nothing is compiled.
 *
 * Asked where something is to be compiled, never where compiled code serves. The names are looked up in our own
 * table: one of the program's among the builtins may be of a class whose comparison runs code.
 */
#include "braze.h"

static PyObject *builtins; /* the dict of the module */
static PyObject *usual;    /* dict: names -> what they held; NULL: nobody asks */
static PyObject *tell;     /* called until it says that it has told the program */

static bool
as_usual(void)
{
    PyObject *key, *value;
    Py_ssize_t at = 0, found = 0;
    while (PyDict_Next(builtins, &at, &key, &value)) {
        PyObject *held = PyUnicode_CheckExact(key) ? PyDict_GetItemWithError(usual, key) : NULL;
        if (held != NULL && held != value) {
            return false;
        }
        found += held != NULL;
    }
    return found == PyDict_GET_SIZE(usual);
}

bool
builtins_replaced(void)
{
    if (usual == NULL || as_usual()) {
        return false;
    }
    if (tell != NULL) {
        int mode = current_mode;
        current_mode = MODE_OFF;
        PyObject *told = PyObject_CallNoArgs(tell);
        current_mode = mode;
        if (told == NULL) { /* it misses the builtin, too */
            PyErr_Clear();
        }
        else {
            if (told == Py_True) {
                Py_CLEAR(tell);
            }
            Py_DECREF(told);
        }
    }
    return true;
}

static PyObject *
watch_builtins(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3 || !PyDict_Check(args[0]) || !PyDict_Check(args[1]) || !PyCallable_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "watch_builtins takes the builtins, those that matter, and a function");
        return NULL;
    }
    Py_XSETREF(builtins, Py_NewRef(args[0]));
    Py_XSETREF(usual, Py_NewRef(args[1]));
    Py_XSETREF(tell, Py_NewRef(args[2]));
    Py_RETURN_NONE;
}

PyMethodDef builtins_functions[] = {
    {"watch_builtins", (PyCFunction)(void (*)(void))watch_builtins, METH_FASTCALL,
     "watch_builtins(builtins, usual, tell)\n--\n\nCompile nothing while `builtins` does not hold what `usual` holds; "
     "`tell()` is called until it returns True."},
    {NULL},
};
