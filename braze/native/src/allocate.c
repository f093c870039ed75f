/* New tensors without the parsing of arguments, the dispatcher and the checks of torch.empty_strided.
 *
 * braze/native/allocation.py finds the functions and switches on the dtypes, and the devices ("cuda:0"), for which the
 * tensors are those of torch.empty_strided; whatever else is asked for goes there.
 */
#include "braze.h"

#include <dlfcn.h>

enum { MOST_DIMS = 16, MOST_DTYPES = 32, MOST_DEVICES = 10 };
enum { CPU = 0, CUDA = 1 }; /* of c10::DeviceType */

static struct {
    int32_t (*make)(int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, void **);
    int32_t (*release)(void *);
    int32_t (*again)(void *, int64_t, const int64_t *, const int64_t *, int64_t, void **);
    PyObject *(*wrap)(const void *);
    void *undefined; /* a tensor that is none */
} torch;

/* What is switched on: dtypes (kept) and their numbers. */
static struct {
    PyObject *dtype;
    int number;
} known[MOST_DTYPES];
static int nknown;

/* Whether tensors on "cuda:<index>" are made here. */
static enum { UNKNOWN, OURS, THEIRS } devices[MOST_DEVICES];

/* The index of the device that a string names, if tensors are made here on it; or -1 (no exception set). */
static int
device_index(PyObject *device)
{
    Py_ssize_t length;
    const char *text = PyUnicode_CheckExact(device) ? PyUnicode_AsUTF8AndSize(device, &length) : NULL;
    if (text == NULL || length != 6 || memcmp(text, "cuda:", 5) != 0 || text[5] < '0' || text[5] > '9') {
        PyErr_Clear();
        return -1;
    }
    int index = text[5] - '0';
    if (devices[index] == UNKNOWN) {
        devices[index] = OURS; /* the comparison itself asks for tensors made here */
        PyObject *agrees = package_function("braze.native.allocation", "agrees_on");
        PyObject *answer = agrees != NULL ? PyObject_CallOneArg(agrees, device) : NULL;
        devices[index] = answer == Py_True ? OURS : THEIRS;
        Py_XDECREF(agrees);
        Py_XDECREF(answer);
        PyErr_Clear(); /* what went wrong there goes wrong again where PyTorch makes the tensor */
    }
    return devices[index] == OURS ? index : -1;
}

static int
number_of(PyObject *dtype)
{
    for (int i = 0; i < nknown; i++) {
        if (known[i].dtype == dtype) {
            return known[i].number;
        }
    }
    return -1;
}

/* The numbers of a tuple; their count, or -1 (no exception set) where they are something else. */
static Py_ssize_t
plain_numbers(PyObject *tuple, int64_t *numbers)
{
    if (!PyTuple_CheckExact(tuple) || PyTuple_GET_SIZE(tuple) > MOST_DIMS) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        PyObject *item = PyTuple_GET_ITEM(tuple, i);
        int overflow = 0;
        numbers[i] = PyLong_CheckExact(item) ? PyLong_AsLongLongAndOverflow(item, &overflow) : -1;
        if (numbers[i] < 0 || overflow) {
            return -1;
        }
    }
    return PyTuple_GET_SIZE(tuple);
}

bool
tensors_are_made(void)
{
    return nknown > 0;
}

PyObject *
tensor_of_handle(void *handle)
{
    PyObject *tensor = torch.wrap(handle);
    torch.release(handle);
    return tensor;
}

bool
handle_view(void *handle, const ViewLayout *layout, void **made)
{
    return torch.again != NULL
           && torch.again(handle, layout->ndim, layout->sizes, layout->strides, layout->offset, made) == 0;
}

void *
undefined_handle(void)
{
    return torch.undefined;
}

void
handle_release(void *handle)
{
    torch.release(handle);
}

/* A new tensor; NULL (no exception set) where it is for PyTorch to make, or to refuse. */
static PyObject *
make_tensor(PyObject *sizes, PyObject *strides, int number, int type, int index)
{
    int64_t size[MOST_DIMS], stride[MOST_DIMS];
    Py_ssize_t ndim = plain_numbers(sizes, size);
    void *handle = NULL;
    if (ndim < 0 || plain_numbers(strides, stride) != ndim || torch.make(ndim, size, stride, number, type, index, &handle) != 0) {
        return NULL;
    }
    PyObject *tensor = tensor_of_handle(handle);
    if (tensor == NULL) {
        PyErr_Clear();
    }
    return tensor;
}

PyObject *
dense_tensor(int number, Py_ssize_t ndim, const int64_t *sizes, void **memory)
{
    int64_t stride[MOST_DIMS], next = 1;
    void *handle = NULL;
    bool made_here = false;
    for (int i = 0; i < nknown; i++) {
        made_here |= known[i].number == number;
    }
    if (!made_here || ndim > MOST_DIMS) {
        return NULL;
    }
    for (Py_ssize_t i = ndim - 1; i >= 0; i--) {
        stride[i] = next;
        next *= sizes[i] > 0 ? sizes[i] : 1;
    }
    if (torch.make(ndim, sizes, stride, number, CPU, 0, &handle) != 0) {
        return NULL;
    }
    PyObject *tensor = tensor_of_handle(handle);
    if (tensor == NULL || buffer_address(tensor, memory) < 0) {
        PyErr_Clear();
        Py_CLEAR(tensor);
    }
    return tensor;
}

PyObject *
tensor_again(PyObject *tensor)
{
    static PyObject *plainly;
    void *handle = tensor_handle(tensor), *made = NULL;
    TensorLayout layout;
    if (handle != NULL && torch.again != NULL && torch.wrap != NULL && tensor_layout(tensor, &layout)
        && torch.again(handle, layout.ndim, layout.sizes, layout.strides, 0, &made) == 0) {
        return tensor_of_handle(made);
    }
    if (plainly == NULL && (plainly = package_function("braze.native.allocation", "again")) == NULL) {
        return NULL;
    }
    return PyObject_CallOneArg(plainly, tensor);
}

static PyObject *
again(PyObject *module, PyObject *tensor)
{
    return tensor_again(tensor);
}

static PyObject *
empty_strided(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static PyObject *dtype_name, *device_name, *plainly;
    Py_ssize_t named = kwnames != NULL ? PyTuple_GET_SIZE(kwnames) : 0;
    if (dtype_name == NULL
        && ((dtype_name = PyUnicode_InternFromString("dtype")) == NULL
            || (device_name = PyUnicode_InternFromString("device")) == NULL)) {
        return NULL;
    }
    if (nargs == 2 && nknown > 0 && (named == 1 || (named == 2 && PyTuple_GET_ITEM(kwnames, 1) == device_name))) {
        int number = PyTuple_GET_ITEM(kwnames, 0) == dtype_name ? number_of(args[2]) : -1;
        int index = number >= 0 && named == 2 ? device_index(args[3]) : 0;
        int type = named == 2 ? CUDA : CPU;
        PyObject *tensor = number >= 0 && index >= 0 ? make_tensor(args[0], args[1], number, type, index) : NULL;
        if (tensor != NULL) {
            return tensor;
        }
    }
    if (plainly == NULL && (plainly = package_function("torch", "empty_strided")) == NULL) {
        return NULL;
    }
    return PyObject_Vectorcall(plainly, args, nargs, kwnames);
}

/* -- for calibration ------------------------------------------------------------------------------- */

static void *
symbol_in(const char *path, const char *name)
{
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    void *address = library != NULL ? dlsym(library, name) : NULL;
    if (library != NULL) {
        dlclose(library); /* it was loaded before, and stays */
    }
    return address;
}

static PyObject *
load_allocation(PyObject *module, PyObject *args)
{
    const char *libtorch, *libtorch_python;
    if (!PyArg_ParseTuple(args, "ss:_load_allocation", &libtorch, &libtorch_python)) {
        return NULL;
    }
    void *make = symbol_in(libtorch, "aoti_torch_empty_strided");
    void *release = symbol_in(libtorch, "aoti_torch_delete_tensor_object");
    void *again = symbol_in(libtorch, "aoti_torch__reinterpret_tensor");
    void *wrap = symbol_in(libtorch_python, "_Z16THPVariable_WrapRKN2at10TensorBaseE");
    memcpy(&torch.make, &make, sizeof(make));
    memcpy(&torch.release, &release, sizeof(release));
    memcpy(&torch.again, &again, sizeof(again));
    memcpy(&torch.wrap, &wrap, sizeof(wrap));
    int32_t (*undefined)(void **) = NULL;
    void *found = symbol_in(libtorch, "aoti_torch_new_uninitialized_tensor");
    memcpy(&undefined, &found, sizeof(found));
    if (torch.undefined == NULL && undefined != NULL && undefined(&torch.undefined) != 0) {
        torch.undefined = NULL;
    }
    return PyBool_FromLong(make != NULL && release != NULL && wrap != NULL);
}

static PyObject *
configure_allocation(PyObject *module, PyObject *rows)
{
    if (!PyTuple_Check(rows) || torch.make == NULL || torch.release == NULL || torch.wrap == NULL) {
        PyErr_SetString(PyExc_TypeError, "_configure_allocation takes a tuple, after _load_allocation found all");
        return NULL;
    }
    while (nknown > 0) {
        Py_DECREF(known[--nknown].dtype);
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rows) && nknown < MOST_DTYPES; i++) {
        PyObject *dtype;
        int number;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(rows, i), "Oi", &dtype, &number)) {
            return NULL;
        }
        known[nknown].dtype = Py_NewRef(dtype);
        known[nknown++].number = number;
    }
    memset(devices, 0, sizeof(devices));
    Py_RETURN_NONE;
}

PyMethodDef allocation_functions[] = {
    {"empty_strided", (PyCFunction)(void (*)(void))empty_strided, METH_FASTCALL | METH_KEYWORDS,
     "empty_strided(sizes, strides, *, dtype, device=None)\n--\n\nWhat torch.empty_strided makes."},
    {"_again", again, METH_O, "A tensor of its own over the memory of another, in its layout."},
    {"_load_allocation", load_allocation, METH_VARARGS,
     "Look up what is needed in libtorch and libtorch_python; whether all was found."},
    {"_configure_allocation", configure_allocation, METH_O, "((dtype, its number), ...) to make here from now on."},
    {NULL},
};
