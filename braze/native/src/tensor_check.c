/* The `tensor` check: a tensor's metadata are the expected ones; sizes that vary bind symbols. */
#include "libtorch.h"

bool
symbol_bind(Symbols *symbols, int64_t index, int64_t value)
{
    if (!symbols->bound[index]) {
        symbols->bound[index] = 1;
        symbols->values[index] = value;
        return true;
    }
    return symbols->values[index] == value;
}

static int
parse_dim(Dim *dim, PyObject *item, int nsymbols)
{
    if (item == Py_None) {
        dim->kind = DIM_ANY;
        return 0;
    }
    dim->kind = PyTuple_Check(item) ? DIM_SYMBOL : DIM_EXACT;
    dim->value = PyLong_AsLongLong(dim->kind == DIM_SYMBOL ? PyTuple_GET_ITEM(item, 1) : item);
    if (dim->value == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (dim->kind == DIM_SYMBOL && (dim->value < 0 || dim->value >= nsymbols)) {
        PyErr_Format(PyExc_ValueError, "no symbol %lld", (long long)dim->value);
        return -1;
    }
    return 0;
}

static int
parse_dims(TensorSpec *spec, PyObject *sizes, PyObject *strides, int nsymbols)
{
    spec->ndim = (int)PyTuple_GET_SIZE(sizes);
    spec->has_strides = strides != Py_None;
    int count = spec->ndim * (spec->has_strides ? 2 : 1);
    if (spec->has_strides && PyTuple_GET_SIZE(strides) != spec->ndim) {
        PyErr_SetString(PyExc_ValueError, "as many strides as sizes, please");
        return -1;
    }
    spec->dims = PyMem_Calloc(count + 1, sizeof(Dim));
    spec->plain = PyMem_Calloc(count + 1, sizeof(int64_t));
    if (spec->dims == NULL || spec->plain == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    spec->exact = true;
    for (int i = 0; i < count; i++) {
        PyObject *item = i < spec->ndim ? PyTuple_GET_ITEM(sizes, i) : PyTuple_GET_ITEM(strides, i - spec->ndim);
        if (parse_dim(&spec->dims[i], item, nsymbols) < 0) {
            return -1;
        }
        spec->exact &= spec->dims[i].kind == DIM_EXACT;
        spec->plain[i] = spec->dims[i].value;
    }
    return 0;
}

/* braze.native.encode.tensor_spec turns dtype and device into numbers; None: go through Python. */
int
tensor_spec_parse(TensorSpec *spec, PyObject *expected, int nsymbols)
{
    PyObject *encode = package_function("braze.native.encode", "tensor_spec");
    PyObject *row = encode != NULL ? PyObject_CallOneArg(encode, expected) : NULL;
    Py_XDECREF(encode);
    if (row == NULL) {
        return -1;
    }
    PyObject *sizes, *strides, *keys, *type;
    int failed = 0;
    spec->python = Py_NewRef(expected);
    if (row != Py_None) {
        failed = !PyArg_ParseTuple(row, "OiiiO!OiO", &type, &spec->dtype, &spec->device_type, &spec->device_index,
                                   &PyTuple_Type, &sizes, &strides, &spec->requires_grad, &keys)
                 || parse_dims(spec, sizes, strides, nsymbols) < 0;
        if (!failed) {
            spec->type = (PyTypeObject *)Py_NewRef(type);
            spec->has_keys = keys != Py_None;
            spec->keys = spec->has_keys ? PyLong_AsUnsignedLongLong(keys) : 0;
            failed = PyErr_Occurred() != NULL;
        }
    }
    Py_DECREF(row);
    return failed ? -1 : 0;
}

void
tensor_spec_clear(TensorSpec *spec)
{
    Py_CLEAR(spec->type);
    Py_CLEAR(spec->python);
    PyMem_Free(spec->dims);
    PyMem_Free(spec->plain);
    PyMem_Free(spec->image);
    spec->image = NULL;
    spec->dims = NULL;
    spec->plain = NULL;
}

static bool
dims_hold(const Dim *dims, const int64_t *found, int count, Symbols *symbols)
{
    for (int i = 0; i < count; i++) {
        if (dims[i].kind == DIM_EXACT ? found[i] != dims[i].value
                                      : dims[i].kind == DIM_SYMBOL && !symbol_bind(symbols, dims[i].value, found[i])) {
            return false;
        }
    }
    return true;
}

static inline bool
numbers_equal(const int64_t *a, const int64_t *b, int count)
{
    for (int i = 0; i < count; i++) {
        if (a[i] != b[i]) {
            return false;
        }
    }
    return true;
}

/* braze.native.walk.tensor_symbols answers with the symbols bound, or None. */
static bool
holds_through_python(const TensorSpec *spec, PyObject *value, Symbols *symbols)
{
    PyObject *check = package_function("braze.native.walk", "tensor_symbols");
    PyObject *bound = check != NULL ? PyObject_CallFunction(check, "OOi", value, spec->python, symbols->count) : NULL;
    bool holds = bound != NULL && bound != Py_None;
    for (Py_ssize_t i = 0; holds && i < symbols->count; i++) {
        PyObject *number = PyList_GET_ITEM(bound, i);
        holds = number == Py_None || symbol_bind(symbols, i, PyLong_AsLongLong(number));
    }
    Py_XDECREF(check);
    Py_XDECREF(bound);
    forget_error();
    return holds;
}

static bool
holds_by_calls(const TensorSpec *spec, PyObject *value, Symbols *symbols)
{
    if (Py_TYPE(value) != spec->type) {
        return false;
    }
    void *handle = handle_of(value), *sizes, *strides;
    int64_t ndim;
    int32_t dtype, device;
    if (spec->has_keys && keys_of(handle) != spec->keys) {
        return false;
    }
    if (torch.get_dim(handle, &ndim) != 0 || ndim != spec->ndim || torch.get_sizes(handle, &sizes) != 0) {
        return false;
    }
    if (spec->exact ? !numbers_equal(sizes, spec->plain, spec->ndim)
                    : !dims_hold(spec->dims, sizes, spec->ndim, symbols)) {
        return false;
    }
    if (spec->has_strides) {
        if (torch.get_strides(handle, &strides) != 0
            || (spec->exact ? !numbers_equal(strides, spec->plain + ndim, spec->ndim)
                            : !dims_hold(spec->dims + ndim, strides, spec->ndim, symbols))) {
            return false;
        }
    }
    if (torch.get_dtype(handle, &dtype) != 0 || dtype != spec->dtype) {
        return false;
    }
    if (spec->requires_grad >= 0 && torch.requires_grad(*(void **)handle) != spec->requires_grad) {
        return false;
    }
    if (spec->has_keys && spec->device_type == 0) { /* the keys say CPU */
        return true;
    }
    return torch.get_device_type(handle, &device) == 0 && device == spec->device_type
           && (spec->device_index < 0
               || (torch.get_device_index(handle, &device) == 0 && device == spec->device_index));
}

bool
tensor_holds(TensorSpec *spec, PyObject *value, Symbols *symbols)
{
    if (spec->type == NULL) {
        return holds_through_python(spec, value, symbols);
    }
    if (spec->image != NULL && image_holds(spec->image, value)) {
        return true;
    }
    if (!holds_by_calls(spec, value, symbols)) {
        return false;
    }
    if (spec->exact) {
        spec->image = image_again(spec->image, value, spec->requires_grad);
    }
    return true;
}
