/* The state of the process and the thread, and the `state` check: grad mode, autocast, default types, modes. */
#include "libtorch.h"

static int
parse_rows(StateSpec *spec, PyObject *rows)
{
    spec->nrows = (int)PyTuple_GET_SIZE(rows);
    spec->rows = PyMem_Calloc(spec->nrows + 1, sizeof(Autocast));
    if (spec->rows == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (int i = 0; i < spec->nrows; i++) {
        Autocast *row = &spec->rows[i];
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(rows, i), "iii", &row->device_type, &row->enabled, &row->dtype)) {
            return -1;
        }
    }
    return 0;
}

/* braze.native.encode.state_spec answers (kind, value, rows); kind is negative for the way through Python. */
int
state_spec_parse(StateSpec *spec, PyObject *name, PyObject *expected)
{
    spec->name = Py_NewRef(name);
    spec->expected = Py_NewRef(expected);
    PyObject *encode = package_function("braze.native.encode", "state_spec");
    PyObject *row = encode != NULL ? PyObject_CallFunctionObjArgs(encode, name, expected, NULL) : NULL;
    Py_XDECREF(encode);
    if (row == NULL) {
        return -1;
    }
    PyObject *rows;
    long long value;
    int failed = !PyArg_ParseTuple(row, "iLO!", &spec->kind, &value, &PyTuple_Type, &rows) || parse_rows(spec, rows) < 0;
    spec->value = failed ? 0 : value;
    spec->native = !failed && spec->kind >= 0 && (readings.states & (1u << spec->kind));
    Py_DECREF(row);
    return failed ? -1 : 0;
}

void
state_spec_clear(StateSpec *spec)
{
    Py_CLEAR(spec->name);
    Py_CLEAR(spec->expected);
    PyMem_Free(spec->rows);
    spec->rows = NULL;
}

static bool
state_through_python(const StateSpec *spec)
{
    PyObject *holds = package_function("braze.native.torch_state", "holds");
    PyObject *answer = holds != NULL ? PyObject_CallFunctionObjArgs(holds, spec->name, spec->expected, NULL) : NULL;
    bool result = answer == Py_True;
    Py_XDECREF(holds);
    Py_XDECREF(answer);
    forget_error();
    return result;
}

bool
state_holds(const StateSpec *spec)
{
    if (!spec->native) {
        return state_through_python(spec);
    }
    switch (spec->kind) {
    case STATE_GRAD_MODE:
        return torch.grad_mode() == spec->value;
    case STATE_INFERENCE_MODE:
        return torch.inference_mode() == spec->value;
    case STATE_AUTOCAST:
        for (int i = 0; i < spec->nrows; i++) {
            const Autocast *row = &spec->rows[i];
            if (torch.autocast_enabled((int8_t)row->device_type) != row->enabled
                || torch.autocast_dtype((int8_t)row->device_type) != row->dtype) {
                return false;
            }
        }
        return spec->value < 0 || torch.autocast_cache() == spec->value;
    case STATE_DEFAULT_DTYPE:
        return torch.default_dtype() == spec->value;
    case STATE_DEFAULT_DEVICE: /* encoded only for "none"; a default device is a function mode */
        return torch.function_modes() == 0 || state_through_python(spec);
    case STATE_FUNCTION_MODES:
        return torch.function_modes() + torch.dispatch_modes() == spec->value;
    case STATE_DETERMINISTIC:
        return torch.deterministic(torch.context()) == spec->value;
    default:
        return false;
    }
}

bool
operators_are_watched(void)
{
    return torch.grad_mode == NULL || torch.dispatch_modes == NULL || torch.grad_mode() || torch.dispatch_modes() > 0;
}

int
grad_mode_now(void)
{
    return torch.grad_mode != NULL ? torch.grad_mode() : -1;
}

int
inference_mode_now(void)
{
    static PyObject *ask;
    if (torch.inference_mode != NULL) {
        return torch.inference_mode();
    }
    if (ask == NULL && (ask = package_function("torch", "is_inference_mode_enabled")) == NULL) {
        return -1;
    }
    PyObject *answer = PyObject_CallNoArgs(ask);
    int on = answer != NULL ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    return on;
}
