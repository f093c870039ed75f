/* torch.tensor of lists of numbers, as the walk over guards reads them.
 *
 * PyTorch's own lets other threads run meanwhile, which may end what the walk has borrowed. Here nothing does: no code of
 * the program's runs, and the lock is kept.
 */
#include "libtorch.h"

/* Lists in lists, at most. */
enum { MOST_NESTED = 8 };
/* Of c10::ScalarType. */
enum { UINT8 = 0, INT8 = 1, INT16 = 2, INT32 = 3, INT64 = 4, FLOAT32 = 6, FLOAT64 = 7, BOOL = 11 };

static const struct {
    const char *name;
    int number;
    int64_t least, most; /* of whole numbers */
} named[] = {
    {"int64", INT64, INT64_MIN, INT64_MAX}, {"int32", INT32, INT32_MIN, INT32_MAX}, {"int16", INT16, INT16_MIN, INT16_MAX},
    {"int8", INT8, INT8_MIN, INT8_MAX},     {"uint8", UINT8, 0, UINT8_MAX},         {"float32", FLOAT32, 0, 0},
    {"float64", FLOAT64, 0, 0},
};

typedef struct {
    int64_t sizes[MOST_NESTED];
    int ndim;
    bool whole, real, truths; /* there are such numbers in it */
} Numbers;

static bool
is_sequence(PyObject *value)
{
    return PyList_CheckExact(value) || PyTuple_CheckExact(value);
}

/* The sizes as the first elements say them. */
static bool
take_sizes(Numbers *found, PyObject *value)
{
    for (found->ndim = 0; is_sequence(value); value = PySequence_Fast_GET_ITEM(value, 0)) {
        if (found->ndim == MOST_NESTED) {
            return false;
        }
        if ((found->sizes[found->ndim++] = Py_SIZE(value)) == 0) {
            return true;
        }
    }
    return true;
}

/* Whether all has these sizes, and is made of Python's own numbers. */
static bool
take_kinds(Numbers *found, PyObject *value, int depth)
{
    if (depth == found->ndim) {
        bool truth = PyBool_Check(value), whole = PyLong_CheckExact(value), real = PyFloat_CheckExact(value);
        found->truths |= truth;
        found->whole |= whole;
        found->real |= real;
        return truth || whole || real;
    }
    if (!is_sequence(value) || Py_SIZE(value) != found->sizes[depth]) {
        return false;
    }
    for (Py_ssize_t i = 0; i < Py_SIZE(value); i++) {
        if (!take_kinds(found, PySequence_Fast_GET_ITEM(value, i), depth + 1)) {
            return false;
        }
    }
    return true;
}

/* The dtype's number; -1 where none is made here. Truths beside other numbers are left to PyTorch. */
static int
dtype_of(const Numbers *found, PyObject *dtype, int64_t *least, int64_t *most)
{
    *least = INT64_MIN;
    *most = INT64_MAX;
    if (found->truths) {
        return PyUnicode_GET_LENGTH(dtype) == 0 && !found->whole && !found->real ? BOOL : -1;
    }
    if (PyUnicode_GET_LENGTH(dtype) == 0) {
        int inferred = torch.default_dtype != NULL ? torch.default_dtype() : -1;
        return found->whole && !found->real ? INT64 : inferred == FLOAT32 || inferred == FLOAT64 ? inferred : -1;
    }
    for (size_t i = 0; i < sizeof(named) / sizeof(named[0]); i++) {
        if (PyUnicode_CompareWithASCIIString(dtype, named[i].name) == 0) {
            *least = named[i].least;
            *most = named[i].most;
            bool fits = !found->real || named[i].number == FLOAT32 || named[i].number == FLOAT64;
            return fits ? named[i].number : -1;
        }
    }
    return -1;
}

/* Store one number, if there is a place for it; false where the dtype does not hold it. */
static bool
store(PyObject *value, int number, int64_t least, int64_t most, char **place)
{
    double real = 0;
    float single;
    int64_t whole = 0;
    const void *bytes;
    size_t size;
    if (number == FLOAT32 || number == FLOAT64) {
        real = PyFloat_AsDouble(value);
        if (real == -1 && PyErr_Occurred()) {
            PyErr_Clear();
            return false;
        }
        single = (float)real;
        bytes = number == FLOAT32 ? (void *)&single : (void *)&real;
        size = number == FLOAT32 ? sizeof(single) : sizeof(real);
    }
    else {
        int overflow = 0;
        whole = PyLong_AsLongLongAndOverflow(value, &overflow);
        if (overflow != 0 || whole < least || whole > most) {
            return false;
        }
        bytes = &whole; /* the machine has the low bytes first */
        size = number == INT64 ? 8 : number == INT32 ? 4 : number == INT16 ? 2 : 1;
    }
    if (*place != NULL) {
        memcpy(*place, bytes, size);
        *place += size;
    }
    return true;
}

static bool
store_all(PyObject *value, int depth, int number, int64_t least, int64_t most, char **place)
{
    if (depth == 0) {
        return store(value, number, least, most, place);
    }
    for (Py_ssize_t i = 0; i < Py_SIZE(value); i++) {
        if (!store_all(PySequence_Fast_GET_ITEM(value, i), depth - 1, number, least, most, place)) {
            return false;
        }
    }
    return true;
}

PyObject *
tensor_of_numbers(PyObject *list, PyObject *dtype)
{
    Numbers found = {0};
    int64_t least, most;
    void *memory = NULL;
    if (!PyList_CheckExact(list) || !take_sizes(&found, list) || !take_kinds(&found, list, 0)) {
        return NULL;
    }
    int number = dtype_of(&found, dtype, &least, &most);
    /* first whether all fit: other threads may run at the end of a tensor */
    if (number < 0 || !store_all(list, found.ndim, number, least, most, (char **)&memory)) {
        return NULL;
    }
    bool waits = collector_wait();
    PyObject *tensor = dense_tensor(number, found.ndim, found.sizes, &memory);
    if (tensor != NULL) {
        store_all(list, found.ndim, number, least, most, (char **)&memory);
    }
    collector_go_on(waits);
    return tensor;
}

static PyObject *
made_of_numbers(PyObject *module, PyObject *args)
{
    PyObject *list, *dtype;
    if (!PyArg_ParseTuple(args, "OU:tensor_of_numbers", &list, &dtype)) {
        return NULL;
    }
    PyObject *tensor = tensor_of_numbers(list, dtype);
    return tensor != NULL ? tensor : Py_NewRef(Py_None);
}

PyMethodDef numbers_functions[] = {
    {"tensor_of_numbers", made_of_numbers, METH_VARARGS,
     "tensor_of_numbers(list, dtype)\n--\n\nWhat torch.tensor makes of a list of numbers; None where none is made here."},
    {NULL},
};
