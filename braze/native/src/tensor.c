/* What is read of tensors: address, layout, device, keys, whether they require grad. */
#include "libtorch.h"

int
buffer_address(PyObject *value, void **address)
{
    if (PyLong_CheckExact(value)) {
        *address = PyLong_AsVoidPtr(value);
        return *address == NULL && PyErr_Occurred() ? -1 : 0;
    }
    if (readings.tensor_type != NULL && PyObject_TypeCheck(value, readings.tensor_type)) {
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
    PyTypeObject *type = readings.tensor_type;
    return type != NULL && (Py_IS_TYPE(value, type) || PyType_IsSubtype(Py_TYPE(value), type));
}

void *
tensor_handle(PyObject *value)
{
    return is_tensor(value) ? handle_of(value) : NULL;
}

bool
tensor_facts(PyObject *value, TensorFacts *facts)
{
    if (readings.tensor_type == NULL || readings.keys_offset < 0 || !PyObject_TypeCheck(value, readings.tensor_type)) {
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
    if (readings.keys_offset < 0 || !is_tensor(value)) {
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

/* How a tensor lies in its memory: the bytes of that, below zero where something lies before it; given the bytes of a number, whether
 * the tensor is all of it. NULL, with no exception set, where that cannot be read. */
PyObject *
tensor_memory(PyObject *value, Py_ssize_t itemsize)
{
    TensorLayout layout;
    int64_t begin, bytes, reach = 1;
    if (!is_tensor(value) || !tensor_layout(value, &layout) || torch.get_storage_offset(handle_of(value), &begin) != 0
        || torch.get_storage_size(handle_of(value), &bytes) != 0) {
        return NULL;
    }
    if (itemsize == 0) {
        return PyLong_FromLongLong(begin == 0 ? bytes : -bytes);
    }
    for (int64_t dim = 0; dim < layout.ndim; dim++) {
        reach = layout.sizes[dim] == 0 || reach == 0 ? 0 : reach + (layout.sizes[dim] - 1) * layout.strides[dim];
    }
    return PyLong_FromLong(begin == 0 && bytes == reach * itemsize);
}

static PyObject *
memory(PyObject *module, PyObject *args)
{
    PyObject *value;
    Py_ssize_t itemsize;
    if (!PyArg_ParseTuple(args, "On:memory", &value, &itemsize)) {
        return NULL;
    }
    PyObject *found = tensor_memory(value, itemsize);
    if (found == NULL && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_ValueError, "not a tensor in memory, or torch is not bound");
    }
    return found;
}

static PyObject *
data_ptr(PyObject *module, PyObject *value)
{
    void *address;
    return buffer_address(value, &address) < 0 ? NULL : PyLong_FromVoidPtr(address);
}

PyMethodDef tensor_methods[] = {
    {"data_ptr", data_ptr, METH_O, "data_ptr(tensor)\n--\n\nThe address of a tensor's first element."},
    {"memory", memory, METH_VARARGS, "memory(tensor, itemsize)\n--\n\nHow a tensor lies in its memory, as guards read it."},
    {NULL},
};
