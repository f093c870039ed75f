/* Whether another tracer is at work in this thread: to it a compiled function is its original.
 *
 * Asked at each call, so three words are compared first: the state of TorchScript's tracer, the interpreter's
 * frame evaluator, which Dynamo replaces, and the stamp of nn.Module, whose __call__ torch.fx replaces. Only
 * where one is not as usual does Python say more (braze.native.torch_state.traced_by_another).
 */
#include "braze.h"

typedef void *const *(*TracingState)(void); /* a reference to a shared_ptr: its first word is the pointer */

static PyObject *ask;             /* NULL: no tracer is looked for */
static TracingState tracing_state; /* NULL: Python is asked at each call */
static PyTypeObject *module_type;
static unsigned int module_stamp; /* at which torch.fx was not at work */

bool
surely_traced_by_another(void)
{
    if (ask == NULL) {
        return false;
    }
    int mode = current_mode;
    current_mode = MODE_OFF;
    unsigned int stamp = type_stamp(module_type);
    PyObject *answer = PyObject_CallNoArgs(ask);
    bool traced = answer == Py_True;
    if (answer == NULL) {
        PyErr_Clear();
    }
    else if (!traced) {
        module_stamp = stamp;
    }
    Py_XDECREF(answer);
    current_mode = mode;
    return traced;
}

bool
traced_by_another(void)
{
    if (ask == NULL) {
        return false;
    }
    unsigned int stamp = type_stamp(module_type);
    if (tracing_state != NULL && *tracing_state() == NULL && stamp == module_stamp && stamp != 0
        && !hook_is_overlaid()) {
        return false;
    }
    return surely_traced_by_another();
}

static PyObject *
watch_tracers(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3 || !PyType_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "watch_tracers takes a function, the class nn.Module and an address");
        return NULL;
    }
    void *address = PyLong_AsVoidPtr(args[2]);
    if (address == NULL && PyErr_Occurred()) {
        return NULL;
    }
    tracing_state = (TracingState)address;
    module_stamp = 0;
    Py_XSETREF(module_type, (PyTypeObject *)Py_NewRef(args[1]));
    Py_XSETREF(ask, Py_NewRef(args[0]));
    Py_RETURN_NONE;
}

PyMethodDef tracers_functions[] = {
    {"watch_tracers", (PyCFunction)(void (*)(void))watch_tracers, METH_FASTCALL,
     "watch_tracers(ask, module_class, address)\n--\n\nHow entries learn that another tracer is at work: `ask()`, where "
     "cheaper signs leave it open; the address is that of TorchScript's getTracingState, or 0."},
    {NULL},
};
