/* Operators of ATen's that make their results, by the functions that libtorch exports for compiled graphs: no dispatcher, and no parsing
 * of Python arguments by a schema, which takes longer than all else where some of these are lists.
 *
 * braze/native/shims.py finds the functions. What is not plain goes through PyTorch's own function, as in products.c, and so does what
 * fails, which raises the error then. A function's name stands for its arguments for good: PyTorch gives a changed one another name.
 */
#include "ways.h"

#include <stddef.h>

enum { MOST_ARGUMENTS = 16, MOST_NUMBERS = 6, MOST_RESULTS = 9 };

/* An argument, as its kind says: T a tensor, A one that may lie on the processor, U one or nothing, O the same as C sees it (a pointer to
 * it, or NULL); L numbers, M numbers or nothing, B truths; i a number, b a truth; d a real number, D one or nothing. */
typedef struct {
    void *handle;
    int64_t number;
    double real;
    bool given; /* of M and D */
    int64_t length, numbers[MOST_NUMBERS];
    int32_t truths[MOST_NUMBERS];
} Given;

/* A result: T a tensor, i a number. */
typedef struct {
    void *handle;
    int64_t number;
} Result;

/* What the dispatcher leaves out below autograd: what these functions call in turn records no views, as of an operator that it has called. */
typedef struct {
    void *words[4]; /* c10::impl::ExcludeDispatchKeyGuard has two */
} Guard;

static struct {
    void (*begin)(Guard *, uint64_t); /* NULL: it is not known, and Python finds none of these functions */
    void (*end)(Guard *);
    uint64_t keys;
} below;

static void **
maybe_tensor(Given *given)
{
    return given->handle != NULL ? &given->handle : NULL;
}

static double *
maybe_real(Given *given)
{
    return given->given ? &given->real : NULL;
}

/* -- the functions --------------------------------------------------------------------------------- */

#define NUMBERS(given) (given).numbers, (given).length
#define TRUTHS(given) (given).truths, (given).length
typedef const int64_t *Numbers;

static int32_t
convolution(void *function, Given *g, Result *r)
{
    typedef int32_t (*Function)(void *, void *, void **, Numbers, int64_t, Numbers, int64_t, Numbers, int64_t, int32_t, Numbers,
                                int64_t, int64_t, void **);
    return ((Function)function)(g[0].handle, g[1].handle, maybe_tensor(&g[2]), NUMBERS(g[3]), NUMBERS(g[4]), NUMBERS(g[5]),
                                g[6].number, NUMBERS(g[7]), g[8].number, &r[0].handle);
}

static int32_t
convolution_backward(void *function, Given *g, Result *r)
{
    typedef int32_t (*Function)(void *, void *, void *, Numbers *, int64_t, Numbers, int64_t, Numbers, int64_t, Numbers, int64_t,
                                int32_t, Numbers, int64_t, int64_t, const int32_t *, int64_t, void **, void **, void **);
    Numbers bias = g[3].numbers;
    return ((Function)function)(g[0].handle, g[1].handle, g[2].handle, g[3].given ? &bias : NULL, g[3].length, NUMBERS(g[4]),
                                NUMBERS(g[5]), NUMBERS(g[6]), g[7].number, NUMBERS(g[8]), g[9].number, TRUTHS(g[10]),
                                &r[0].handle, &r[1].handle, &r[2].handle);
}

static int32_t
flash(void *function, Given *g, Result *r)
{
    typedef int32_t (*Function)(void *, void *, void *, double, int32_t, int32_t, double *, void **, void **, void **, void **,
                                int64_t *, int64_t *, void **, void **, void **);
    return ((Function)function)(g[0].handle, g[1].handle, g[2].handle, g[3].real, g[4].number, g[5].number, maybe_real(&g[6]),
                                &r[0].handle, &r[1].handle, &r[2].handle, &r[3].handle, &r[4].number, &r[5].number,
                                &r[6].handle, &r[7].handle, &r[8].handle);
}

static int32_t
flash_backward(void *function, Given *g, Result *r)
{
    typedef int32_t (*Function)(void *, void *, void *, void *, void *, void *, void *, void *, int64_t, int64_t, double, int32_t,
                                void *, void *, double *, void **, void **, void **);
    return ((Function)function)(g[0].handle, g[1].handle, g[2].handle, g[3].handle, g[4].handle, g[5].handle, g[6].handle,
                                g[7].handle, g[8].number, g[9].number, g[10].real, g[11].number, g[12].handle, g[13].handle,
                                maybe_real(&g[14]), &r[0].handle, &r[1].handle, &r[2].handle);
}

static int32_t
efficient(void *function, Given *g, Result *r)
{
    typedef int32_t (*Function)(void *, void *, void *, void **, int32_t, double, int32_t, double *, void **, void **, void **,
                                void **);
    return ((Function)function)(g[0].handle, g[1].handle, g[2].handle, maybe_tensor(&g[3]), g[4].number, g[5].real, g[6].number,
                                maybe_real(&g[7]), &r[0].handle, &r[1].handle, &r[2].handle, &r[3].handle);
}

static int32_t
efficient_backward(void *function, Given *g, Result *r)
{
    typedef int32_t (*Function)(void *, void *, void *, void *, void *, void *, void *, void *, void *, double, const int32_t *,
                                int64_t, int32_t, double *, void **, void **, void **, void **);
    return ((Function)function)(g[0].handle, g[1].handle, g[2].handle, g[3].handle, g[4].handle, g[5].handle, g[6].handle,
                                g[7].handle, g[8].handle, g[9].real, TRUTHS(g[10]), g[11].number, maybe_real(&g[12]),
                                &r[0].handle, &r[1].handle, &r[2].handle, &r[3].handle);
}

static int32_t
processor_flash(void *function, Given *g, Result *r)
{
    typedef int32_t (*Function)(void *, void *, void *, double, int32_t, void **, double *, void **, void **);
    return ((Function)function)(g[0].handle, g[1].handle, g[2].handle, g[3].real, g[4].number, maybe_tensor(&g[5]),
                                maybe_real(&g[6]), &r[0].handle, &r[1].handle);
}

static int32_t
processor_flash_backward(void *function, Given *g, Result *r)
{
    typedef int32_t (*Function)(void *, void *, void *, void *, void *, void *, double, int32_t, void **, double *, void **, void **,
                                void **);
    return ((Function)function)(g[0].handle, g[1].handle, g[2].handle, g[3].handle, g[4].handle, g[5].handle, g[6].real,
                                g[7].number, maybe_tensor(&g[8]), maybe_real(&g[9]), &r[0].handle, &r[1].handle, &r[2].handle);
}

static const struct Form {
    const char *name, *arguments, *results;
    int32_t (*call)(void *, Given *, Result *);
} forms[] = {
    {"convolution", "TTOLLLbLi", "T", convolution},
    {"convolution_backward", "TTTMLLLbLiB", "TTT", convolution_backward},
    {"_scaled_dot_product_flash_attention", "TTTdbbD", "TTTTiiTTT", flash},
    {"_scaled_dot_product_flash_attention_backward", "TTTTTTUUiidbAAD", "TTT", flash_backward},
    {"_scaled_dot_product_efficient_attention", "TTTObdbD", "TTTT", efficient},
    {"_scaled_dot_product_efficient_attention_backward", "TTTTUTTAAdBbD", "TTTT", efficient_backward},
    {"_scaled_dot_product_flash_attention_for_cpu", "TTTdbOD", "TT", processor_flash},
    {"_scaled_dot_product_flash_attention_for_cpu_backward", "TTTTTTdbOD", "TTT", processor_flash_backward},
};

/* -- a call ---------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    const struct Form *form;
    PyObject *names;    /* of the arguments, interned */
    PyObject *defaults; /* theirs; Ellipsis: there is none */
    PyObject *find;     /* (type of device) -> (address, keys) or None */
    PyObject *general;  /* PyTorch's function */
    Way ways[KINDS];
} Shim;

/* All of these: false, without an exception, where an argument is for PyTorch to take, or to refuse. */

static bool
read_tensor(const Way *way, char kind, PyObject *value, uint64_t elsewhere, Given *given)
{
    uint64_t keys;
    if (value == Py_None && kind != 'T' && kind != 'A') {
        given->handle = kind == 'U' ? undefined_handle() : NULL;
        return kind == 'O' || given->handle != NULL;
    }
    if (!tensor_keys(value, &keys) || keys & ~(kind == 'A' ? way->plain | elsewhere : way->plain)) {
        return false;
    }
    given->handle = tensor_handle(value);
    return true;
}

static bool
read_number(PyObject *value, int64_t *number)
{
    int overflow = 0;
    if (!PyLong_CheckExact(value)) {
        return false;
    }
    *number = PyLong_AsLongLongAndOverflow(value, &overflow);
    return !overflow;
}

static bool
read_list(char kind, PyObject *value, Given *given)
{
    bool is_list = PyList_CheckExact(value) || PyTuple_CheckExact(value);
    given->given = value != Py_None;
    given->length = 0;
    if (!is_list || PySequence_Fast_GET_SIZE(value) > MOST_NUMBERS) {
        return kind == 'M' && !given->given;
    }
    given->length = PySequence_Fast_GET_SIZE(value);
    for (Py_ssize_t i = 0; i < given->length; i++) {
        PyObject *item = PySequence_Fast_GET_ITEM(value, i);
        if (kind == 'B' ? !PyBool_Check(item) : !read_number(item, &given->numbers[i])) {
            return false;
        }
        given->truths[i] = item == Py_True;
    }
    return true;
}

static bool
read_argument(const Way *way, char kind, PyObject *value, uint64_t elsewhere, Given *given)
{
    switch (kind) {
    case 'L':
    case 'M':
    case 'B':
        return read_list(kind, value, given);
    case 'i':
        return read_number(value, &given->number);
    case 'b':
        given->number = value == Py_True;
        return PyBool_Check(value);
    case 'd':
    case 'D':
        given->given = value != Py_None;
        given->real = PyFloat_CheckExact(value) ? PyFloat_AS_DOUBLE(value) : 0;
        return PyFloat_CheckExact(value) || (kind == 'D' && !given->given);
    default:
        return read_tensor(way, kind, value, elsewhere, given);
    }
}

/* What is given for one argument, by place or by name (which is counted); NULL where nothing is, and there is no default. */
static PyObject *
value_of(const Shim *self, Py_ssize_t place, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, Py_ssize_t *named)
{
    if (place < nargs) {
        return args[place];
    }
    for (Py_ssize_t k = 0; kwnames != NULL && k < PyTuple_GET_SIZE(kwnames); k++) {
        if (PyTuple_GET_ITEM(kwnames, k) == PyTuple_GET_ITEM(self->names, place)) {
            ++*named;
            return args[nargs + k];
        }
    }
    PyObject *otherwise = PyTuple_GET_ITEM(self->defaults, place);
    return otherwise != Py_Ellipsis ? otherwise : NULL;
}

static bool
read_all(const Shim *self, const Way *way, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, Given *given)
{
    Py_ssize_t count = PyTuple_GET_SIZE(self->names), named = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *value = value_of(self, i, args, nargs, kwnames, &named);
        if (value == NULL || !read_argument(way, self->form->arguments[i], value, self->ways[0].plain, &given[i])) {
            return false;
        }
    }
    /* a name that is none of these, or of what is given by place, is refused by PyTorch */
    return nargs <= count && (kwnames == NULL || named == PyTuple_GET_SIZE(kwnames));
}

/* The results as Python has them, and none of them left; NULL with an exception set. */
static PyObject *
made(const char *kinds, Result *results)
{
    Py_ssize_t count = (Py_ssize_t)strlen(kinds);
    PyObject *items[MOST_RESULTS];
    bool whole = true;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (kinds[i] == 'i') {
            items[i] = PyLong_FromLongLong(results[i].number);
        }
        else {
            items[i] = results[i].handle != NULL ? tensor_of_handle(results[i].handle) : Py_NewRef(Py_None);
        }
        whole = whole && items[i] != NULL;
    }
    PyObject *all = whole && count > 1 ? PyTuple_New(count) : NULL;
    if (whole && count == 1) {
        return items[0];
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (all != NULL) {
            PyTuple_SET_ITEM(all, i, items[i]);
        }
        else {
            Py_XDECREF(items[i]);
        }
    }
    return all;
}

/* The results, or NULL: without an exception where they are PyTorch's to make; `refused` is then the way that was tried, if one was. */
static PyObject *
call_plain(Shim *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, Way **refused)
{
    Given given[MOST_ARGUMENTS];
    Result results[MOST_RESULTS];
    Way *way = nargs > 0 && tensors_are_made() ? way_of(self->ways, self->find, args[0]) : NULL;
    if (way != NULL && !self->ways[0].asked && way_learn(&self->ways[0], self->find, 0) < 0) {
        return NULL;
    }
    if (way == NULL || !read_all(self, way, args, nargs, kwnames, given)) {
        return NULL;
    }
    for (int i = 0; i < MOST_RESULTS; i++) {
        results[i].handle = NULL;
    }
    const struct Form *form = self->form;
    void *function = way->function;
    bool failed;
    Py_BEGIN_ALLOW_THREADS /* a full queue waits for the device */
    Guard guard;
    below.begin(&guard, below.keys);
    failed = form->call(function, given, results) != 0;
    below.end(&guard);
    Py_END_ALLOW_THREADS
    *refused = failed ? way : NULL;
    return failed ? NULL : made(form->results, results);
}

static PyObject *
shim_call(Shim *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Way *refused = NULL;
    PyObject *results = call_plain(self, args, PyVectorcall_NARGS(nargsf), kwnames, &refused);
    if (results != NULL || PyErr_Occurred()) {
        return results;
    }
    results = PyObject_Vectorcall(self->general, args, nargsf, kwnames);
    if (results != NULL && refused != NULL) {
        refused->function = NULL; /* it refuses what PyTorch takes, and prints so at each call: it is not tried again */
    }
    return results;
}

/* -- the type -------------------------------------------------------------------------------------- */

static int
shim_traverse(Shim *self, visitproc visit, void *arg)
{
    Py_VISIT(self->names);
    Py_VISIT(self->defaults);
    Py_VISIT(self->find);
    Py_VISIT(self->general);
    return 0;
}

static int
shim_clear(Shim *self)
{
    Py_CLEAR(self->names);
    Py_CLEAR(self->defaults);
    Py_CLEAR(self->find);
    Py_CLEAR(self->general);
    return 0;
}

static void
shim_dealloc(Shim *self)
{
    PyObject_GC_UnTrack(self);
    shim_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static const struct Form *
form_named(const char *name)
{
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        if (strcmp(forms[i].name, name) == 0) {
            return &forms[i];
        }
    }
    return NULL;
}

/* The same names, such that one may be compared with a call's by its address; NULL with an exception set. */
static PyObject *
interned(PyObject *names)
{
    PyObject *made = PyTuple_New(PyTuple_GET_SIZE(names));
    for (Py_ssize_t i = 0; made != NULL && i < PyTuple_GET_SIZE(names); i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        const char *text = PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
        PyObject *own = text != NULL ? PyUnicode_InternFromString(text) : NULL;
        if (own == NULL) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_TypeError, "Shim: names are strings");
            }
            Py_DECREF(made);
            return NULL;
        }
        PyTuple_SET_ITEM(made, i, own);
    }
    return made;
}

static PyObject *
shim_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *words[] = {"name", "names", "defaults", "find", "general", NULL};
    const char *name;
    PyObject *names, *defaults, *find, *general;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sO!O!OO:Shim", words, &name, &PyTuple_Type, &names, &PyTuple_Type, &defaults,
                                     &find, &general)) {
        return NULL;
    }
    const struct Form *form = form_named(name);
    Py_ssize_t count = PyTuple_GET_SIZE(names);
    if (form == NULL || count != (Py_ssize_t)strlen(form->arguments) || PyTuple_GET_SIZE(defaults) != count) {
        return PyErr_Format(PyExc_ValueError, "Shim: no %s of %zd arguments is known", name, count);
    }
    PyObject *own = interned(names);
    Shim *self = own != NULL ? (Shim *)type->tp_alloc(type, 0) : NULL;
    if (self == NULL) {
        Py_XDECREF(own);
        return NULL;
    }
    self->vectorcall = (vectorcallfunc)shim_call;
    self->form = form;
    self->names = own;
    self->defaults = Py_NewRef(defaults);
    self->find = Py_NewRef(find);
    self->general = Py_NewRef(general);
    return (PyObject *)self;
}

PyTypeObject Shim_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "braze.native._native.Shim",
    .tp_doc = "An operator of ATen's, past the dispatcher.",
    .tp_basicsize = sizeof(Shim),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC,
    .tp_vectorcall_offset = offsetof(Shim, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = shim_new,
    .tp_dealloc = (destructor)shim_dealloc,
    .tp_traverse = (traverseproc)shim_traverse,
    .tp_clear = (inquiry)shim_clear,
};

/* -- for calibration ------------------------------------------------------------------------------- */

static PyObject *
configure_shims(PyObject *module, PyObject *args)
{
    unsigned long long begin, end, keys;
    if (!PyArg_ParseTuple(args, "KKK:_configure_shims", &begin, &end, &keys)) {
        return NULL;
    }
    uintptr_t found[] = {begin && end ? (uintptr_t)begin : 0, (uintptr_t)end};
    memcpy(&below.begin, &found[0], sizeof(void *));
    memcpy(&below.end, &found[1], sizeof(void *));
    below.keys = keys;
    Py_RETURN_NONE;
}

static PyObject *
below_autograd(PyObject *module, PyObject *callable)
{
    if (below.begin == NULL) {
        return Py_NewRef(Py_None);
    }
    Guard guard;
    below.begin(&guard, below.keys);
    PyObject *result = PyObject_CallNoArgs(callable);
    below.end(&guard);
    return result;
}

PyMethodDef shims_functions[] = {
    {"_configure_shims", configure_shims, METH_VARARGS,
     "The addresses of the guard that leaves keys out and of its end, and the keys; zeros: there is none."},
    {"_below_autograd", below_autograd, METH_O, "The result of a callable, called as operators are below autograd."},
    {NULL},
};
