/* libtorch's exported functions, found by name; no PyTorch header is needed.
 *
 * braze/native/calibrate.py finds the library, checks on sample tensors where the at::Tensor stands in its
 * Python object and that every reading agrees with Python's, and only then switches a reading on here.
 * What is off goes through Python.
 */
#include "libtorch.h"

#include <dlfcn.h>

LibTorch torch;
Readings readings = {.keys_offset = -1};

static struct {
    const char *name;
    void *slot;
} const symbols_wanted[] = {
    {"aoti_torch_get_dtype", &torch.get_dtype},
    {"aoti_torch_get_device_type", &torch.get_device_type},
    {"aoti_torch_get_device_index", &torch.get_device_index},
    {"aoti_torch_get_dim", &torch.get_dim},
    {"aoti_torch_get_sizes", &torch.get_sizes},
    {"aoti_torch_get_strides", &torch.get_strides},
    {"aoti_torch_get_data_ptr", &torch.get_data_ptr},
    {"aoti_torch_get_storage_offset", &torch.get_storage_offset},
    {"aoti_torch_get_storage_size", &torch.get_storage_size},
    {"_ZNK3c1010TensorImpl13requires_gradEv", &torch.requires_grad},
    {"aoti_torch_grad_mode_is_enabled", &torch.grad_mode},
    {"_ZN3c1013InferenceMode10is_enabledEv", &torch.inference_mode},
    {"_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE", &torch.autocast_enabled},
    {"_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE", &torch.autocast_dtype},
    {"_ZN2at8autocast25is_autocast_cache_enabledEv", &torch.autocast_cache},
    {"_ZN3c1031get_default_dtype_as_scalartypeEv", &torch.default_dtype},
    {"_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv", &torch.function_modes},
    {"_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv", &torch.dispatch_modes},
    {"_ZN2at13globalContextEv", &torch.context},
    {"_ZNK2at7Context23deterministicAlgorithmsEv", &torch.deterministic},
};

static PyObject *
load_torch(PyObject *module, PyObject *args)
{
    const char *path;
    if (!PyArg_ParseTuple(args, "s:_load_torch", &path)) {
        return NULL;
    }
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    PyObject *found = PyDict_New();
    for (size_t i = 0; found != NULL && i < sizeof(symbols_wanted) / sizeof(symbols_wanted[0]); i++) {
        void *address = library != NULL ? dlsym(library, symbols_wanted[i].name) : NULL;
        memcpy(symbols_wanted[i].slot, &address, sizeof(address));
        if (PyDict_SetItemString(found, symbols_wanted[i].name, address != NULL ? Py_True : Py_False) < 0) {
            Py_CLEAR(found);
        }
    }
    return found;
}

static PyObject *
configure(PyObject *module, PyObject *args)
{
    PyObject *type;
    int grad;
    if (!PyArg_ParseTuple(args, "OnnpI:_configure", &type, &readings.handle_offset, &readings.keys_offset, &grad,
                          &readings.states)) {
        return NULL;
    }
    readings.requires_grad = grad;
    Py_XSETREF(readings.tensor_type, type == Py_None ? NULL : (PyTypeObject *)Py_NewRef(type));
    Py_RETURN_NONE;
}

static PyObject *
numbers(const int64_t *values, int64_t count)
{
    PyObject *tuple = PyTuple_New(count);
    for (int64_t i = 0; tuple != NULL && i < count; i++) {
        PyTuple_SET_ITEM(tuple, i, PyLong_FromLongLong(values[i]));
    }
    return tuple;
}

static PyObject *
raw_meta(PyObject *module, PyObject *value)
{
    if (readings.tensor_type == NULL || !PyObject_TypeCheck(value, readings.tensor_type)) {
        PyErr_SetString(PyExc_TypeError, "not a tensor, or torch is not bound");
        return NULL;
    }
    void *handle = handle_of(value), *sizes = NULL, *strides = NULL;
    int32_t dtype, type, index;
    int64_t ndim;
    if (torch.get_dtype(handle, &dtype) != 0 || torch.get_device_type(handle, &type) != 0
        || torch.get_device_index(handle, &index) != 0 || torch.get_dim(handle, &ndim) != 0
        || torch.get_sizes(handle, &sizes) != 0 || torch.get_strides(handle, &strides) != 0) {
        PyErr_SetString(PyExc_ValueError, "this tensor has no plain sizes and strides");
        return NULL;
    }
    int grad = readings.requires_grad ? torch.requires_grad(*(void **)handle) : -1;
    uint64_t keys = readings.keys_offset >= 0 ? keys_of(handle) : 0;
    return Py_BuildValue("iiiNNiK", dtype, type, index, numbers(sizes, ndim), numbers(strides, ndim), grad,
                         (unsigned long long)keys);
}

static PyObject *
raw_state(PyObject *module, PyObject *args)
{
    int kind, device = 0;
    if (!PyArg_ParseTuple(args, "i|i:_raw_state", &kind, &device)) {
        return NULL;
    }
    switch (kind) {
    case STATE_GRAD_MODE:
        return PyBool_FromLong(torch.grad_mode());
    case STATE_INFERENCE_MODE:
        return PyBool_FromLong(torch.inference_mode());
    case STATE_AUTOCAST:
        return Py_BuildValue("iii", torch.autocast_enabled((int8_t)device), torch.autocast_dtype((int8_t)device),
                             torch.autocast_cache());
    case STATE_DEFAULT_DTYPE:
        return PyLong_FromLong(torch.default_dtype());
    case STATE_DEFAULT_DEVICE:
        return PyLong_FromLongLong(torch.function_modes());
    case STATE_FUNCTION_MODES:
        return PyLong_FromLongLong(torch.function_modes() + torch.dispatch_modes());
    case STATE_DETERMINISTIC:
        return PyBool_FromLong(torch.deterministic(torch.context()));
    default:
        PyErr_SetString(PyExc_ValueError, "unknown state");
        return NULL;
    }
}

PyMethodDef libtorch_methods[] = {
    {"_load_torch", load_torch, METH_VARARGS, "Look up libtorch's functions; which were found, by symbol."},
    {"_configure", configure, METH_VARARGS,
     "(tensor type or None, handle offset, keys offset or -1, requires_grad?, bits of states) to use from now on."},
    {"_raw_meta", raw_meta, METH_O, "A tensor's metadata as numbers."},
    {"_raw_state", raw_state, METH_VARARGS, "One kind of state as numbers."},
    {NULL},
};
