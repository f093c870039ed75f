/* What stands around a graph's calls of ATen, without frames of Python: grad mode off, results in the layout that was planned.
 *
 * braze/native/around.py makes these; what cannot be told here goes through the same in Python.
 */
#include "braze.h"

#include <dlfcn.h>
#include <structmember.h>

enum { CPU = 0, CUDA = 1 }; /* of c10::DeviceType: the devices that graphs are compiled for */

static struct {
    bool (*grad_mode)(void);
    void (*set_grad_mode)(bool);
    bool (*autocast)(int8_t); /* by c10::DeviceType */
} torch;

/* -- grad mode ------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *call;     /* the graph's: (inputs) -> results */
    PyObject *general;  /* the same in Python */
    PyObject *host;     /* what the graph's call is made of, for who keeps it */
    char boxed;
} GradOff;

static PyObject *
grad_off_call(GradOff *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    if (PyVectorcall_NARGS(nargsf) != 1 || (kwnames != NULL && PyTuple_GET_SIZE(kwnames) > 0)) {
        PyErr_SetString(PyExc_TypeError, "the call of a graph takes its inputs as one list");
        return NULL;
    }
    if (torch.autocast(CPU) || torch.autocast(CUDA)) {
        return PyObject_CallOneArg(self->general, args[0]);
    }
    if (!torch.grad_mode()) {
        return PyObject_CallOneArg(self->call, args[0]);
    }
    torch.set_grad_mode(false);
    PyObject *results = PyObject_CallOneArg(self->call, args[0]);
    torch.set_grad_mode(true);
    return results;
}

static int
grad_off_traverse(GradOff *self, visitproc visit, void *arg)
{
    Py_VISIT(self->call);
    Py_VISIT(self->general);
    Py_VISIT(self->host);
    return 0;
}

static int
grad_off_clear(GradOff *self)
{
    Py_CLEAR(self->call);
    Py_CLEAR(self->general);
    Py_CLEAR(self->host);
    return 0;
}

static void
grad_off_dealloc(GradOff *self)
{
    PyObject_GC_UnTrack(self);
    grad_off_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *
grad_off_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"call", "general", NULL};
    PyObject *call, *general;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:GradOff", names, &call, &general)) {
        return NULL;
    }
    if (torch.grad_mode == NULL || torch.set_grad_mode == NULL || torch.autocast == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "GradOff: libtorch's functions are not known");
        return NULL;
    }
    GradOff *self = (GradOff *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->vectorcall = (vectorcallfunc)grad_off_call;
        self->call = Py_NewRef(call);
        self->general = Py_NewRef(general);
        self->boxed = 1;
    }
    return (PyObject *)self;
}

static PyMemberDef grad_off_members[] = {
    {"boxed", T_BOOL, offsetof(GradOff, boxed), READONLY, NULL},
    {"call", T_OBJECT, offsetof(GradOff, call), READONLY, NULL},
    {"general", T_OBJECT, offsetof(GradOff, general), READONLY, NULL},
    {"host", T_OBJECT, offsetof(GradOff, host), 0, NULL},
    {NULL},
};

PyTypeObject GradOff_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "braze.native._native.GradOff",
    .tp_doc = "The call of a graph with grad mode off.",
    .tp_basicsize = sizeof(GradOff),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC,
    .tp_vectorcall_offset = offsetof(GradOff, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = grad_off_new,
    .tp_dealloc = (destructor)grad_off_dealloc,
    .tp_traverse = (traverseproc)grad_off_traverse,
    .tp_clear = (inquiry)grad_off_clear,
    .tp_members = grad_off_members,
};

/* -- layouts --------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_VAR_HEAD
    vectorcallfunc vectorcall;
    PyObject *general; /* (tensor) -> itself, or a copy in the layout */
    PyObject *dtype, *name;
    int64_t numbers[]; /* sizes, then strides */
} Planned;

static bool
fits(const Planned *self, PyObject *value)
{
    TensorLayout layout;
    int64_t const ndim = Py_SIZE(self) / 2;
    if (!is_tensor(value) || !tensor_layout(value, &layout) || layout.ndim != ndim
        || memcmp(layout.sizes, self->numbers, ndim * sizeof(int64_t)) != 0
        || memcmp(layout.strides, self->numbers + ndim, ndim * sizeof(int64_t)) != 0) {
        return false;
    }
    PyObject *dtype = PyObject_GetAttr(value, self->name);
    PyErr_Clear(); /* the general way meets it again */
    Py_XDECREF(dtype);
    return dtype == self->dtype;
}

static PyObject *
planned_call(Planned *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    if (PyVectorcall_NARGS(nargsf) != 1 || (kwnames != NULL && PyTuple_GET_SIZE(kwnames) > 0)) {
        PyErr_SetString(PyExc_TypeError, "a layout is asked of one tensor");
        return NULL;
    }
    return fits(self, args[0]) ? Py_NewRef(args[0]) : PyObject_CallOneArg(self->general, args[0]);
}

static int
planned_traverse(Planned *self, visitproc visit, void *arg)
{
    Py_VISIT(self->general);
    Py_VISIT(self->dtype);
    return 0;
}

static int
planned_clear(Planned *self)
{
    Py_CLEAR(self->general);
    Py_CLEAR(self->dtype);
    Py_CLEAR(self->name);
    return 0;
}

static void
planned_dealloc(Planned *self)
{
    PyObject_GC_UnTrack(self);
    planned_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *
planned_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"general", "sizes", "strides", "dtype", NULL};
    PyObject *general, *sizes, *strides, *dtype;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!O!O:Planned", names, &general, &PyTuple_Type, &sizes,
                                     &PyTuple_Type, &strides, &dtype)) {
        return NULL;
    }
    Py_ssize_t ndim = PyTuple_GET_SIZE(sizes);
    if (PyTuple_GET_SIZE(strides) != ndim) {
        PyErr_SetString(PyExc_ValueError, "Planned: as many strides as sizes");
        return NULL;
    }
    PyObject *name = PyUnicode_InternFromString("dtype");
    Planned *self = name != NULL ? (Planned *)type->tp_alloc(type, 2 * ndim) : NULL;
    if (self == NULL) {
        Py_XDECREF(name);
        return NULL;
    }
    self->vectorcall = (vectorcallfunc)planned_call;
    self->general = Py_NewRef(general);
    self->dtype = Py_NewRef(dtype);
    self->name = name;
    for (Py_ssize_t i = 0; i < 2 * ndim; i++) {
        PyObject *number = i < ndim ? PyTuple_GET_ITEM(sizes, i) : PyTuple_GET_ITEM(strides, i - ndim);
        self->numbers[i] = PyLong_AsLongLong(number);
    }
    if (PyErr_Occurred()) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

PyTypeObject Planned_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "braze.native._native.Planned",
    .tp_doc = "A tensor in a layout: itself where it lies so.",
    .tp_basicsize = offsetof(Planned, numbers),
    .tp_itemsize = sizeof(int64_t),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC,
    .tp_vectorcall_offset = offsetof(Planned, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = planned_new,
    .tp_dealloc = (destructor)planned_dealloc,
    .tp_traverse = (traverseproc)planned_traverse,
    .tp_clear = (inquiry)planned_clear,
};

/* -- libtorch -------------------------------------------------------------------------------------- */

static PyObject *
load_grad_mode(PyObject *module, PyObject *args)
{
    const char *path;
    if (!PyArg_ParseTuple(args, "s:_load_grad_mode", &path)) {
        return NULL;
    }
    struct {
        const char *name;
        void *slot;
    } const wanted[] = {
        {"aoti_torch_grad_mode_is_enabled", &torch.grad_mode},
        {"aoti_torch_grad_mode_set_enabled", &torch.set_grad_mode},
        {"_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE", &torch.autocast},
    };
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    bool found = true;
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        void *address = library != NULL ? dlsym(library, wanted[i].name) : NULL;
        memcpy(wanted[i].slot, &address, sizeof(address));
        found &= address != NULL;
    }
    return PyBool_FromLong(found);
}

PyMethodDef around_functions[] = {
    {"_load_grad_mode", load_grad_mode, METH_VARARGS, "Look up libtorch's functions; whether they were found."},
    {NULL},
};
