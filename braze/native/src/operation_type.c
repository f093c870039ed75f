/* The type of an operation of autograd's: made of rows that `braze/aot/calls/autograd.py` writes, seen by the collector, ended. */
#include "operation.h"

#include <structmember.h>

/* Rows of a tuple, read one by one into an array of their own; -1 with an exception set. */
static Py_ssize_t
parse_rows(PyObject *rows, size_t size, int (*parse)(PyObject *, void *), void **made)
{
    Py_ssize_t count = PyTuple_GET_SIZE(rows);
    char *array = PyMem_Calloc(count + 1, size);
    *made = array;
    if (array == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (parse(PyTuple_GET_ITEM(rows, i), array + i * size) < 0) {
            return -1;
        }
    }
    return count;
}

static int
is_place(Py_ssize_t number)
{
    if (number < 0) {
        PyErr_SetString(PyExc_ValueError, "Operation: places are not negative");
    }
    return number < 0 ? -1 : 0;
}

static int
parse_kept(PyObject *row, void *made)
{
    Kept *kept = made;
    bool read = PyArg_ParseTuple(row, "pnppp", &kept->input, &kept->index, &kept->foreign, &kept->early, &kept->given);
    return read ? is_place(kept->index) : -1;
}

static int
parse_argument(PyObject *row, void *made)
{
    Argument *argument = made;
    return PyArg_ParseTuple(row, "nK", &argument->input, &argument->keys) ? is_place(argument->input) : -1;
}

static int
parse_read(PyObject *row, void *made)
{
    Read *read = made;
    PyObject *sizes, *strides;
    PyTypeObject *const tuple = &PyTuple_Type;
    if (!PyArg_ParseTuple(row, "nKiO!O!n", &read->place, &read->keys, &read->dtype, tuple, &sizes, tuple, &strides, &read->bytes)) {
        return -1;
    }
    read->ndim = PyTuple_GET_SIZE(strides);
    if (read->ndim > DIMS || PyTuple_GET_SIZE(sizes) != read->ndim) {
        PyErr_Format(PyExc_ValueError, "Operation: as many sizes as strides, of at most %d dimensions", DIMS);
        return -1;
    }
    for (Py_ssize_t d = 0; d < read->ndim; d++) {
        read->sizes[d] = PyLong_AsLongLong(PyTuple_GET_ITEM(sizes, d));
        read->strides[d] = PyLong_AsLongLong(PyTuple_GET_ITEM(strides, d));
    }
    return PyErr_Occurred() ? -1 : is_place(read->place);
}

static int
operation_traverse(Operation *self, visitproc visit, void *arg)
{
    Py_VISIT(self->apply);
    Py_VISIT(self->transforms);
    Py_VISIT(self->general);
    Py_VISIT(self->forward);
    Py_VISIT(self->save);
    Py_VISIT(self->find);
    Py_VISIT(self->late);
    Py_VISIT(self->holds.ask);
    Py_VISIT(self->holds.empties);
    Py_VISIT(self->backward);
    Py_VISIT(self->name);
    return 0;
}

static int
operation_clear(Operation *self)
{
    Py_CLEAR(self->apply);
    Py_CLEAR(self->transforms);
    Py_CLEAR(self->general);
    Py_CLEAR(self->forward);
    Py_CLEAR(self->save);
    Py_CLEAR(self->find);
    Py_CLEAR(self->late);
    Py_CLEAR(self->holds.ask);
    Py_CLEAR(self->holds.empties);
    Py_CLEAR(self->backward);
    Py_CLEAR(self->name);
    return 0;
}

static void
operation_dealloc(Operation *self)
{
    PyObject_GC_UnTrack(self);
    operation_clear(self);
    PyMem_Free(self->kept);
    PyMem_Free(self->arguments);
    PyMem_Free(self->saved);
    PyMem_Free(self->tangents);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *
operation_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"apply", "transforms", "general", "forward", "save", "find", "late", "held", "name", "results", "kept", "arguments", "saved", "tangents", NULL};
    PyObject *apply, *transforms, *general, *forward, *save, *find, *late, *held, *name, *kept, *arguments, *saved, *tangents;
    Py_ssize_t results;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOOOOOUnO!O!O!O!:Operation", names, &apply, &transforms, &general, &forward, &save,
                                     &find, &late, &held, &name, &results, &PyTuple_Type, &kept, &PyTuple_Type, &arguments, &PyTuple_Type, &saved,
                                     &PyTuple_Type, &tangents)
        || operation_intern_names() < 0) {
        return NULL;
    }
    Operation *self = (Operation *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = (vectorcallfunc)operation_call;
    self->apply = Py_NewRef(apply);
    self->transforms = Py_NewRef(transforms);
    self->general = Py_NewRef(general);
    self->forward = Py_NewRef(forward);
    self->save = save != Py_None ? Py_NewRef(save) : NULL;
    self->find = Py_NewRef(find);
    self->late = Py_NewRef(late);
    self->holds.ask = Py_NewRef(held);
    self->name = Py_NewRef(name);
    self->nresults = results;
    self->boxed = 1;
    if ((self->nkept = parse_rows(kept, sizeof(Kept), parse_kept, (void **)&self->kept)) < 0
        || (self->narguments = parse_rows(arguments, sizeof(Argument), parse_argument, (void **)&self->arguments)) < 0
        || (self->nsaved = parse_rows(saved, sizeof(Read), parse_read, (void **)&self->saved)) < 0
        || (self->ntangents = parse_rows(tangents, sizeof(Read), parse_read, (void **)&self->tangents)) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < self->nkept; i++) {
        self->some_given |= self->kept[i].given;
    }
    return (PyObject *)self;
}

/* backward as a method of whoever's class has it. */
static PyObject *
operation_step(Operation *self, void *closure)
{
    PyObject *bound = PyObject_GetAttrString((PyObject *)self, "backward");
    PyObject *method = bound != NULL ? PyInstanceMethod_New(bound) : NULL;
    Py_XDECREF(bound);
    return method;
}

static PyMethodDef operation_methods[] = {
    {"forward", (PyCFunction)(void (*)(void))operation_forward, METH_FASTCALL,
     "forward(ctx, inputs, *arguments)\n--\n\nThe graph's results, after what the backward reads has been kept."},
    {"backward", (PyCFunction)(void (*)(void))operation_backward, METH_FASTCALL,
     "backward(ctx, *tangents)\n--\n\nNone, and the gradients of the arguments."},
    {NULL},
};

static PyGetSetDef operation_properties[] = {
    {"step", (getter)operation_step, NULL, "``backward``, to be a method of a context's class.", NULL},
    {NULL},
};

static PyMemberDef operation_members[] = {
    {"boxed", T_BOOL, offsetof(Operation, boxed), READONLY, NULL},
    {"general", T_OBJECT, offsetof(Operation, general), READONLY, NULL},
    {NULL},
};

PyTypeObject Operation_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "braze.native._native.Operation",
    .tp_doc = "The call of a graph that is one operation of autograd's.",
    .tp_basicsize = sizeof(Operation),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC,
    .tp_vectorcall_offset = offsetof(Operation, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = operation_new,
    .tp_dealloc = (destructor)operation_dealloc,
    .tp_traverse = (traverseproc)operation_traverse,
    .tp_clear = (inquiry)operation_clear,
    .tp_methods = operation_methods,
    .tp_getset = operation_properties,
    .tp_members = operation_members,
};
