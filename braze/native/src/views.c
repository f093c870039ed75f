/* Tensors that an operator is given in another layout than they lie in: a view is 60 ns where torch.as_strided takes 600, and with a
 * Python object 200.
 *
 * Layouts are those that a graph was compiled for, within the tensor's memory, which guards have seen to. What may be seen by others
 * (gradients, a mode, a tensor of unusual kind) is PyTorch's view.
 */
#include "views.h"

#include <stddef.h>

static bool
parse_numbers(PyObject *tuple, int64_t *numbers)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        numbers[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
    }
    return !PyErr_Occurred();
}

bool
layout_parse(PyObject *row, ViewLayout *layout)
{
    PyObject *sizes, *strides;
    long long offset;
    if (!PyTuple_Check(row)) {
        PyErr_SetString(PyExc_TypeError, "a layout is a tuple");
        return false;
    }
    if (!PyArg_ParseTuple(row, "O!O!L:layout", &PyTuple_Type, &sizes, &PyTuple_Type, &strides, &offset)) {
        return false;
    }
    layout->ndim = PyTuple_GET_SIZE(sizes);
    layout->offset = offset;
    if (layout->ndim != PyTuple_GET_SIZE(strides) || layout->ndim > LAYOUT_DIMS) {
        PyErr_Format(PyExc_ValueError, "a layout has as many strides as sizes, at most %d", LAYOUT_DIMS);
        return false;
    }
    return parse_numbers(sizes, layout->sizes) && parse_numbers(strides, layout->strides);
}

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *find, *general; /* (type of device) -> (0, keys of plain tensors); PyTorch's view */
    Way ways[KINDS];
    ViewLayout layout;
} View;

static PyObject *
view_call(View *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
    if (nargs == 1 && kwnames == NULL && tensors_are_made()) {
        void *made;
        const Way *way = way_of(self->ways, self->find, args[0]);
        if (way != NULL && handle_view(tensor_handle(args[0]), &self->layout, &made)) {
            return tensor_of_handle(made);
        }
        if (PyErr_Occurred()) {
            return NULL;
        }
    }
    return PyObject_Vectorcall(self->general, args, nargsf, kwnames);
}

static int
view_traverse(View *self, visitproc visit, void *arg)
{
    Py_VISIT(self->find);
    Py_VISIT(self->general);
    return 0;
}

static int
view_clear(View *self)
{
    Py_CLEAR(self->find);
    Py_CLEAR(self->general);
    return 0;
}

static void
view_dealloc(View *self)
{
    PyObject_GC_UnTrack(self);
    view_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *
view_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"layout", "find", "general", NULL};
    PyObject *row, *find, *general;
    ViewLayout layout;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO:View", names, &row, &find, &general) || !layout_parse(row, &layout)) {
        return NULL;
    }
    View *self = (View *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->vectorcall = (vectorcallfunc)view_call;
        self->find = Py_NewRef(find);
        self->general = Py_NewRef(general);
        self->layout = layout;
    }
    return (PyObject *)self;
}

PyTypeObject View_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "braze.native._native.View",
    .tp_doc = "A tensor in another layout.",
    .tp_basicsize = sizeof(View),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC,
    .tp_vectorcall_offset = offsetof(View, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = view_new,
    .tp_dealloc = (destructor)view_dealloc,
    .tp_traverse = (traverseproc)view_traverse,
    .tp_clear = (inquiry)view_clear,
};
