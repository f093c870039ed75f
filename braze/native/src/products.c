/* Matrix products into given memory, by the functions that libtorch exports for compiled graphs: no dispatcher, and no
 * parsing of Python arguments.
 *
 * braze/native/products.py finds the functions. What is not plain (a mode that wants to see operators, a profiler that records them, gradients, a tensor of
 * unusual kind, other arguments) goes through PyTorch's own function, and so does what fails, which raises the error then.
 */
#include "braze.h"

#include <stddef.h>

enum { FEWEST = 2, MOST = 3, KINDS = 2 };

typedef int32_t (*Product)(void *out, void *a, void *b);
typedef int32_t (*Sum)(void *out, void *bias, void *a, void *b, double beta, double alpha);

/* The function for one type of device. */
typedef struct {
    bool asked;
    void *function; /* NULL: PyTorch's own is called */
    uint64_t plain; /* the dispatch keys that plain tensors may have */
} Way;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    int nargs;
    PyObject *find;    /* (type of device) -> (address, keys) or None */
    PyObject *general; /* PyTorch's function */
    PyObject *out;     /* "out" */
    Way ways[KINDS];   /* of processors, of CUDA */
} OutProduct;

/* Ask Python once for each type of device; -1 with an exception set. */
static int
learn(OutProduct *self, int kind)
{
    Way *way = &self->ways[kind];
    PyObject *found = PyObject_CallFunction(self->find, "i", kind);
    unsigned long long function = 0, plain = 0;
    if (found == NULL || (found != Py_None && !PyArg_ParseTuple(found, "KK", &function, &plain))) {
        Py_XDECREF(found);
        return -1;
    }
    Py_DECREF(found);
    way->function = (void *)(uintptr_t)function;
    way->plain = plain;
    way->asked = true;
    return 0;
}

/* Whether the product was made; false without an exception where it is PyTorch's. */
static bool
multiply(OutProduct *self, PyObject *const *args)
{
    void *handles[MOST + 1];
    TensorFacts facts, first;
    if (!tensor_facts(args[self->nargs], &first) || first.device_type < 0 || first.device_type >= KINDS) {
        return false;
    }
    Way *way = &self->ways[first.device_type];
    if (!way->asked && learn(self, first.device_type) < 0) {
        return false;
    }
    if (way->function == NULL || first.keys & ~way->plain || operators_are_watched() || ranges_wanted_within()) {
        return false;
    }
    for (int i = 0; i < self->nargs; i++) {
        if (!tensor_facts(args[i], &facts) || facts.keys & ~way->plain) {
            return false;
        }
        handles[i] = tensor_handle(args[i]);
    }
    void *out = tensor_handle(args[self->nargs]);
    int32_t failed;
    Py_BEGIN_ALLOW_THREADS /* a full queue waits for the device */
    failed = self->nargs == FEWEST ? ((Product)way->function)(out, handles[0], handles[1])
                                   : ((Sum)way->function)(out, handles[0], handles[1], handles[2], 1.0, 1.0);
    Py_END_ALLOW_THREADS
    return failed == 0;
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
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *
out_product_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"nargs", "find", "general", NULL};
    int nargs;
    PyObject *find, *general;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iOO:OutProduct", names, &nargs, &find, &general)) {
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
