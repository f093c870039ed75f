/* Tensors and PyTorch's state, read through libtorch's exported functions; no PyTorch header is needed.
 *
 * braze/native/calibrate.py finds the library, checks on sample tensors where the at::Tensor stands in its
 * Python object and that every reading agrees with Python's, and only then switches a reading on here.
 * What is off goes through Python.
 */
#include "braze.h"

#include <dlfcn.h>

typedef int32_t (*GetInt32)(void *, int32_t *);
typedef int32_t (*GetInt64)(void *, int64_t *);
typedef int32_t (*GetPointer)(void *, void **);

static struct {
    GetInt32 get_dtype, get_device_type, get_device_index;
    GetInt64 get_dim;
    GetPointer get_sizes, get_strides, get_data_ptr;
    bool (*requires_grad)(const void *); /* of a TensorImpl */
    bool (*grad_mode)(void);
    bool (*inference_mode)(void);
    bool (*autocast_enabled)(int8_t);
    int8_t (*autocast_dtype)(int8_t);
    bool (*autocast_cache)(void);
    int8_t (*default_dtype)(void);
    int64_t (*function_modes)(void);
    int64_t (*dispatch_modes)(void);
    void *(*context)(void);
    bool (*deterministic)(const void *);
} torch;

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

/* What calibration has switched on. */
static PyTypeObject *tensor_type; /* NULL: no reading of tensors */
static Py_ssize_t handle_offset;
static Py_ssize_t keys_offset = -1; /* in a TensorImpl */
static bool use_requires_grad;
static unsigned int use_states; /* bits 1 << STATE_... */

static inline void *
handle_of(PyObject *tensor)
{
    return (char *)tensor + handle_offset;
}

static inline uint64_t
keys_of(void *handle)
{
    return *(uint64_t *)(*(char **)handle + keys_offset);
}

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

/* -- the `tensor` check --------------------------------------------------------------------------- */

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

/* -- the state of the process and the thread --------------------------------------------------------- */

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
    spec->native = !failed && spec->kind >= 0 && (use_states & (1u << spec->kind));
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

/* -- addresses ------------------------------------------------------------------------------------- */

int
buffer_address(PyObject *value, void **address)
{
    if (PyLong_CheckExact(value)) {
        *address = PyLong_AsVoidPtr(value);
        return *address == NULL && PyErr_Occurred() ? -1 : 0;
    }
    if (tensor_type != NULL && PyObject_TypeCheck(value, tensor_type)) {
        if (torch.get_data_ptr(handle_of(value), address) == 0) {
            return 0;
        }
        PyErr_SetString(PyExc_ValueError, "this tensor has no data pointer");
        return -1;
    }
    PyObject *number = PyObject_CallMethod(value, "data_ptr", NULL);
    if (number == NULL) {
        return -1;
    }
    *address = PyLong_AsVoidPtr(number);
    Py_DECREF(number);
    return *address == NULL && PyErr_Occurred() ? -1 : 0;
}

bool
is_tensor(PyObject *value)
{
    return tensor_type != NULL && (Py_IS_TYPE(value, tensor_type) || PyType_IsSubtype(Py_TYPE(value), tensor_type));
}

void *
tensor_handle(PyObject *value)
{
    return is_tensor(value) ? handle_of(value) : NULL;
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

bool
tensor_facts(PyObject *value, TensorFacts *facts)
{
    if (tensor_type == NULL || keys_offset < 0 || !PyObject_TypeCheck(value, tensor_type)) {
        return false;
    }
    void *handle = handle_of(value);
    facts->keys = keys_of(handle);
    return torch.get_dtype(handle, &facts->dtype) == 0 && torch.get_device_type(handle, &facts->device_type) == 0
           && torch.get_device_index(handle, &facts->device_index) == 0;
}

bool
tensor_keys(PyObject *value, uint64_t *keys)
{
    if (keys_offset < 0 || !is_tensor(value)) {
        return false;
    }
    *keys = keys_of(handle_of(value));
    return true;
}

bool
tensor_requires_grad(PyObject *value)
{
    return is_tensor(value) && torch.requires_grad != NULL && torch.requires_grad(*(void **)handle_of(value));
}

/* As autograd says, a view's by its base; true where nobody can be asked. */
bool
implementation_requires_grad(const void *implementation)
{
    return torch.requires_grad == NULL || torch.requires_grad(implementation);
}

bool
tensor_place(PyObject *value, int *index)
{
    int32_t found;
    if (!is_tensor(value) || torch.get_device_index(handle_of(value), &found) != 0) {
        return false;
    }
    *index = found;
    return true;
}

bool
tensor_layout(PyObject *value, TensorLayout *layout)
{
    void *handle = handle_of(value), *sizes, *strides;
    if (torch.get_dim(handle, &layout->ndim) != 0 || torch.get_sizes(handle, &sizes) != 0
        || torch.get_strides(handle, &strides) != 0 || torch.get_data_ptr(handle, &layout->data) != 0) {
        return false;
    }
    layout->sizes = sizes;
    layout->strides = strides;
    return true;
}

static PyObject *
data_ptr(PyObject *module, PyObject *value)
{
    void *address;
    return buffer_address(value, &address) < 0 ? NULL : PyLong_FromVoidPtr(address);
}

/* -- for calibration ------------------------------------------------------------------------------- */

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
    if (!PyArg_ParseTuple(args, "OnnpI:_configure", &type, &handle_offset, &keys_offset, &grad, &use_states)) {
        return NULL;
    }
    use_requires_grad = grad;
    Py_XSETREF(tensor_type, type == Py_None ? NULL : (PyTypeObject *)Py_NewRef(type));
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
    if (tensor_type == NULL || !PyObject_TypeCheck(value, tensor_type)) {
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
    int grad = use_requires_grad ? torch.requires_grad(*(void **)handle) : -1;
    uint64_t keys = keys_offset >= 0 ? keys_of(handle) : 0;
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

PyMethodDef tensor_methods[] = {
    {"data_ptr", data_ptr, METH_O, "data_ptr(tensor)\n--\n\nThe address of a tensor's first element."},
    {"_load_torch", load_torch, METH_VARARGS, "Look up libtorch's functions; which were found, by symbol."},
    {"_configure", configure, METH_VARARGS,
     "(tensor type or None, handle offset, keys offset or -1, requires_grad?, bits of states) to use from now on."},
    {"_raw_meta", raw_meta, METH_O, "A tensor's metadata as numbers."},
    {"_raw_state", raw_state, METH_VARARGS, "One kind of state as numbers."},
    {NULL},
};
