/* Matrix products into given memory, by the functions that libtorch exports for compiled graphs: no dispatcher, and no
 * parsing of Python arguments.
 *
 * braze/native/products.py finds the functions. What is not plain (a mode that wants to see operators, a profiler that records them, gradients, a tensor of
 * unusual kind, other arguments) goes through PyTorch's own function, and so does what fails, which raises the error then.
 */
#include "views.h"

#include <stddef.h>

enum { FEWEST = 2, MOST = 3 };
enum { NONE = -1 }; /* dimensions of a layout that is none */

typedef int32_t (*Product)(void *out, void *a, void *b);
typedef int32_t (*Sum)(void *out, void *bias, void *a, void *b, double beta, double alpha);

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    int nargs;
    PyObject *find;    /* (type of device) -> (address, keys) or None */
    PyObject *general; /* PyTorch's function */
    PyObject *out;     /* "out" */
    ViewLayout *layouts;   /* of the arguments, of which those that are NONE stay as they lie; NULL: all do */
    Way ways[KINDS];
} OutProduct;

/* The handles of the arguments as the product sees them, of which the first `*nmade` of `made` are to be released; false where they are PyTorch's. */
static bool
read_arguments(const OutProduct *self, const Way *way, PyObject *const *args, void **handles, void **made, int *nmade)
{
    for (int i = 0; i < self->nargs; i++) {
        uint64_t keys;
        if (!tensor_keys(args[i], &keys) || keys & ~way->plain) {
            return false;
        }
        handles[i] = tensor_handle(args[i]);
        if (self->layouts != NULL && self->layouts[i].ndim != NONE) {
            if (!handle_view(handles[i], &self->layouts[i], &made[*nmade])) {
                return false;
            }
            handles[i] = made[(*nmade)++];
        }
    }
    return true;
}

/* Whether the product was made; false without an exception where it is PyTorch's. */
static bool
multiply(OutProduct *self, PyObject *const *args)
{
    void *handles[MOST], *made[MOST];
    int nmade = 0;
    const Way *way = way_of(self->ways, self->find, args[self->nargs]);
    if (way == NULL || (self->layouts != NULL && !tensors_are_made())) {
        return false;
    }
    bool plain = read_arguments(self, way, args, handles, made, &nmade);
    if (plain) {
        void *out = tensor_handle(args[self->nargs]), *function = way->function;
        int32_t failed;
        Py_BEGIN_ALLOW_THREADS /* a full queue waits for the device */
        failed = self->nargs == FEWEST ? ((Product)function)(out, handles[0], handles[1])
                                       : ((Sum)function)(out, handles[0], handles[1], handles[2], 1.0, 1.0);
        Py_END_ALLOW_THREADS
        plain = failed == 0;
    }
    while (nmade > 0) {
        handle_release(made[--nmade]);
    }
    return plain;
}

static PyObject *
out_product_call(OutProduct *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
    bool plain = nargs == self->nargs && kwnames != NULL && PyTuple_GET_SIZE(kwnames) == 1
                 && PyUnicode_Compare(PyTuple_GET_ITEM(kwnames, 0), self->out) == 0;
    if (plain && multiply(self, args)) {
        return Py_NewRef(args[nargs]);
    }
    return PyErr_Occurred() ? NULL : PyObject_Vectorcall(self->general, args, nargs, kwnames);
}

static int
out_product_traverse(OutProduct *self, visitproc visit, void *arg)
{
    Py_VISIT(self->find);
    Py_VISIT(self->general);
    return 0;
}

static int
out_product_clear(OutProduct *self)
{
    Py_CLEAR(self->find);
    Py_CLEAR(self->general);
    Py_CLEAR(self->out);
    return 0;
}

static void
out_product_dealloc(OutProduct *self)
{
    PyObject_GC_UnTrack(self);
    out_product_clear(self);
    PyMem_Free(self->layouts);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* Enter the layouts of the arguments, each a tuple or None; false with an exception set. */
static bool
fill_layouts(OutProduct *self, PyObject *rows)
{
    if (!PyTuple_Check(rows) || PyTuple_GET_SIZE(rows) != self->nargs) {
        PyErr_SetString(PyExc_ValueError, "OutProduct: a layout, or None, for each argument");
        return false;
    }
    if ((self->layouts = PyMem_Calloc(self->nargs, sizeof(ViewLayout))) == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (int i = 0; i < self->nargs; i++) {
        PyObject *row = PyTuple_GET_ITEM(rows, i);
        self->layouts[i].ndim = NONE;
        if (row != Py_None && !layout_parse(row, &self->layouts[i])) {
            return false;
        }
    }
    return true;
}

static PyObject *
out_product_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"nargs", "find", "general", "layouts", NULL};
    int nargs;
    PyObject *find, *general, *layouts = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iOO|O:OutProduct", names, &nargs, &find, &general, &layouts)) {
        return NULL;
    }
    if (nargs < FEWEST || nargs > MOST) {
        return PyErr_Format(PyExc_ValueError, "OutProduct: %d or %d arguments", FEWEST, MOST);
    }
    PyObject *out = PyUnicode_InternFromString("out");
    OutProduct *self = out != NULL ? (OutProduct *)type->tp_alloc(type, 0) : NULL;
    if (self == NULL) {
        Py_XDECREF(out);
        return NULL;
    }
    self->vectorcall = (vectorcallfunc)out_product_call;
    self->nargs = nargs;
    self->find = Py_NewRef(find);
    self->general = Py_NewRef(general);
    self->out = out;
    if (layouts != Py_None && !fill_layouts(self, layouts)) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

PyTypeObject OutProduct_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "braze.native._native.OutProduct",
    .tp_doc = "A matrix product into given memory, past the dispatcher.",
    .tp_basicsize = sizeof(OutProduct),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC,
    .tp_vectorcall_offset = offsetof(OutProduct, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = out_product_new,
    .tp_dealloc = (destructor)out_product_dealloc,
    .tp_traverse = (traverseproc)out_product_traverse,
    .tp_clear = (inquiry)out_product_clear,
};
