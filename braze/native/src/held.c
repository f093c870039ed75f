/* Whether anybody else holds a tensor: then its memory may not be written over, and does not change hands.
 *
 * What braze/graph/private/holders.py does, which says how many holders there are of a tensor of which it is known who holds it.
 */
#include "braze.h"

static PyObject *name_uses, *name_storage, *name_bytes, *name_resizable, *name_address, *name_new, *name_data, *use_count, *plain_type;

static int
find_names(void)
{
    struct {
        PyObject **name;
        const char *text;
    } const names[] = {
        {&name_uses, "_use_count"},      {&name_storage, "untyped_storage"}, {&name_bytes, "nbytes"},
        {&name_resizable, "resizable"}, {&name_address, "_cdata"},          {&name_new, "new_empty"},
        {&name_data, "data"},
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (*names[i].name == NULL && (*names[i].name = PyUnicode_InternFromString(names[i].text)) == NULL) {
            return -1;
        }
    }
    return (use_count == NULL && (use_count = package_function("torch._C", "_storage_Use_Count")) == NULL)
                   || (plain_type == NULL && (plain_type = package_function("torch", "Tensor")) == NULL)
               ? -1
               : 0;
}

/* A number that is there; -1 with an exception set where there is none. */
static Py_ssize_t
number_of(PyObject *found)
{
    Py_ssize_t number = found != NULL ? PyLong_AsSsize_t(found) : -1;
    Py_XDECREF(found);
    return number;
}

/* How many hold a tensor's memory, if that is PyTorch's own, the tensor's, and all there is of it; or -1 (an exception may be set). */
static Py_ssize_t
holders_of_own(PyObject *tensor, Py_ssize_t bytes)
{
    PyObject *storage = PyObject_CallMethodNoArgs(tensor, name_storage);
    if (storage == NULL) {
        return -1;
    }
    Py_ssize_t uses = -1;
    /* of as many bytes as the tensor has: it begins where they do */
    if (number_of(PyObject_CallMethodNoArgs(storage, name_bytes)) == bytes
        && number_of(PyObject_CallMethodNoArgs(storage, name_resizable)) == 1) {
        PyObject *address = PyObject_GetAttr(storage, name_address);
        uses = address != NULL ? number_of(PyObject_CallOneArg(use_count, address)) : -1;
        Py_XDECREF(address);
    }
    Py_DECREF(storage);
    return uses;
}

int
tensor_held_by(PyObject *tensor, Py_ssize_t bytes, const Py_ssize_t *uses)
{
    if (find_names() < 0) {
        return -1;
    }
    bool held = number_of(PyObject_CallMethodNoArgs(tensor, name_uses)) == uses[0] && holders_of_own(tensor, bytes) == uses[1];
    return PyErr_Occurred() ? -1 : held;
}

/* Whether nobody but the engine holds a gradient: 1, 0, or -1 with an exception set. */
static int
is_engines(EngineHolds *self, PyObject *gradient, Py_ssize_t bytes)
{
    if (self->counts[0] == 0) {
        PyObject *told = PyObject_CallNoArgs(self->ask);
        self->counts[0] = -1;
        bool read = told != NULL
                    && (told == Py_None || PyArg_ParseTuple(told, "nnn", &self->counts[0], &self->counts[1], &self->counts[2]));
        Py_XDECREF(told);
        if (!read) {
            return -1;
        }
    }
    if (Py_REFCNT(gradient) != self->counts[0] || tensor_requires_grad(gradient)) {
        return 0;
    }
    return tensor_held_by(gradient, bytes, self->counts + 1);
}

/* A tensor of no elements like a gradient, the same each time for one number (a new reference). */
static PyObject *
empty_for(EngineHolds *self, Py_ssize_t number, PyObject *gradient)
{
    if (self->empties == NULL && (self->empties = PyDict_New()) == NULL) {
        return NULL;
    }
    PyObject *key = PyLong_FromSsize_t(number), *empty = key != NULL ? PyDict_GetItemWithError(self->empties, key) : NULL;
    Py_XINCREF(empty);
    if (empty == NULL && !PyErr_Occurred()) {
        PyObject *none = PyLong_FromLong(0);
        empty = none != NULL ? PyObject_CallMethodOneArg(gradient, name_new, none) : NULL;
        Py_XDECREF(none);
        if (empty != NULL && PyDict_SetItem(self->empties, key, empty) < 0) {
            Py_CLEAR(empty);
        }
    }
    Py_XDECREF(key);
    return empty;
}

PyObject *
gradient_taken(EngineHolds *self, Py_ssize_t number, PyObject *gradient, Py_ssize_t bytes)
{
    int alone = bytes > 0 ? is_engines(self, gradient, bytes) : 0;
    if (alone <= 0) {
        return alone < 0 ? NULL : Py_NewRef(gradient);
    }
    PyObject *empty = empty_for(self, number, gradient), *own = empty != NULL ? tensor_again(gradient) : NULL;
    if (own != NULL && PyObject_SetAttr(gradient, name_data, empty) < 0) {
        Py_CLEAR(own);
    }
    Py_XDECREF(empty);
    return own;
}

/* counts: (references to the object while one variable of the caller has it, uses of the tensor, of its memory) */
static PyObject *
held_once(PyObject *counts, PyObject *tensor)
{
    Py_ssize_t references = Py_REFCNT(tensor), known, uses[2];
    if (!PyArg_ParseTuple(counts, "nnn", &known, &uses[0], &uses[1]) || find_names() < 0) {
        return NULL;
    }
    if (references != known || !Py_IS_TYPE(tensor, (PyTypeObject *)plain_type) || tensor_requires_grad(tensor)) {
        Py_RETURN_FALSE;
    }
    Py_ssize_t bytes = number_of(PyObject_GetAttr(tensor, name_bytes));
    int held = bytes >= 0 ? tensor_held_by(tensor, bytes, uses) : -1;
    return held < 0 ? NULL : PyBool_FromLong(held);
}

static PyMethodDef bound = {"held_once", held_once, METH_O,
                            "held_once(tensor)\n--\n\nWhether one variable of the caller is all that holds a tensor and its memory."};

static PyObject *
make_held_once(PyObject *module, PyObject *counts)
{
    if (!PyTuple_CheckExact(counts)) {
        PyErr_SetString(PyExc_TypeError, "_held_once takes a tuple of three counts");
        return NULL;
    }
    return PyCFunction_New(&bound, counts);
}

static PyObject *
references(PyObject *module, PyObject *value)
{
    return PyLong_FromSsize_t(Py_REFCNT(value));
}

/* A step back that notes how many references there are to the gradient that it gives on. */
static PyObject *
look(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "a context and one gradient");
        return NULL;
    }
    PyObject *count = PyLong_FromSsize_t(Py_REFCNT(args[1]));
    int done = count != NULL ? PyObject_SetAttrString(args[0], "references", count) : -1;
    Py_XDECREF(count);
    return done < 0 ? NULL : Py_NewRef(args[1]);
}

static PyMethodDef looks = {"look", (PyCFunction)(void (*)(void))look, METH_FASTCALL, "look(context, gradient)\n--\n\nThe gradient."};

static PyObject *
make_look(PyObject *module, PyObject *ignored)
{
    PyObject *function = PyCFunction_New(&looks, NULL);
    PyObject *method = function != NULL ? PyInstanceMethod_New(function) : NULL;
    Py_XDECREF(function);
    return method;
}

PyMethodDef held_functions[] = {
    {"_held_once", make_held_once, METH_O,
     "(references, uses, uses of the memory): the function that says of a tensor whether it has as many."},
    {"_look", make_look, METH_NOARGS, "What an autograd function's context may have as its step back: it notes the references to a gradient."},
    {"_references", references, METH_O, "The references to an object, as a function of C counts them."},
    {NULL},
};
