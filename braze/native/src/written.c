/* Calls of graphs that write some of their inputs where these lie, without Python around the graph's own.
 *
 * What is done here for a call is what `braze/aot/calls/wrap.py` and `braze/graph_calls.py` do: see that no written input
 * shares memory with another, have autograd count the writes, hand over the inputs, and take the results out. A call that
 * is not plain (memory that may be shared, inference tensors, tensors of other kinds) is theirs.
 */
#include "braze.h"

#include <structmember.h>

enum { MOST = 32 };

/* A tensor among the inputs; `itemsize`: bytes of an element. */
typedef struct {
    Py_ssize_t input;
    int64_t itemsize;
    bool written;
} Looked;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *call, *count, *failed, *general; /* the graph; autograd's counter of writes; who is told of an error; the way of all other calls */
    unsigned long long counted;       /* dispatch keys of which tensors have one whose writes are counted */
    Py_ssize_t nlooked, nagain, nresults;
    Looked looked[MOST];
    Py_ssize_t again[MOST], results[MOST]; /* inputs that follow once more; the graph's items that are results */
    char boxed;
} WrittenCall;

typedef struct {
    const char *begin, *end;
    bool written;
} Span;

/* Where a tensor's elements lie, if it is one of plain memory. */
static bool
span_of(PyObject *value, const Looked *looked, Span *span)
{
    TensorLayout layout;
    if (!is_tensor(value) || !tensor_layout(value, &layout)) {
        return false;
    }
    int64_t last = 0;
    for (int64_t d = 0; d < layout.ndim; d++) {
        if (layout.sizes[d] == 0) {
            last = -1;
            break;
        }
        last += (layout.sizes[d] - 1) * layout.strides[d];
    }
    span->begin = layout.data;
    span->end = span->begin + (last + 1) * looked->itemsize;
    span->written = looked->written;
    return true;
}

/* Whether no written input reaches into another. */
static bool
are_apart(const WrittenCall *self, PyObject *const *inputs)
{
    Span spans[MOST];
    for (Py_ssize_t i = 0; i < self->nlooked; i++) {
        const Span *const new = &spans[i];
        if (!span_of(inputs[self->looked[i].input], &self->looked[i], &spans[i])) {
            return false;
        }
        for (Py_ssize_t j = 0; j < i; j++) {
            if ((new->written || spans[j].written) && new->begin < spans[j].end && spans[j].begin < new->end) {
                return false;
            }
        }
    }
    return true;
}

/* Have autograd count the writes to what is put into a list: 1 if it did, 0 if this call is not for here, -1 with an exception set. */
static int
count_writes(const WrittenCall *self, PyObject *const *inputs, PyObject *written)
{
    int done = 1;
    for (Py_ssize_t i = 0; done > 0 && i < self->nlooked; i++) {
        if (!self->looked[i].written) {
            continue;
        }
        TensorFacts facts;
        PyObject *input = inputs[self->looked[i].input];
        if (!tensor_facts(input, &facts) || !(facts.keys & self->counted)) {
            done = 0;
        }
        else if (PyList_Append(written, input) < 0) {
            done = -1;
        }
    }
    if (done > 0) {
        PyObject *answer = PyObject_CallOneArg(self->count, written);
        done = answer != NULL ? 1 : -1;
        Py_XDECREF(answer);
    }
    return done;
}

/* Tell of the error that is set, which stays. */
static void
tell(const WrittenCall *self, PyObject *written)
{
    PyObject *type, *error, *trace;
    if (!PyErr_ExceptionMatches(PyExc_Exception)) {
        return;
    }
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    PyObject *answer = PyObject_CallFunctionObjArgs(self->failed, error, written, NULL);
    if (answer == NULL) {
        PyErr_WriteUnraisable(self->failed);
    }
    Py_XDECREF(answer);
    PyErr_Restore(type, error, trace);
}

/* The graph's inputs: those of the call, and some of them once more. */
static PyObject *
with_again(const WrittenCall *self, PyObject *given, PyObject *const *inputs, Py_ssize_t count)
{
    if (self->nagain == 0) {
        return Py_NewRef(given);
    }
    PyObject *list = PyList_New(count + self->nagain);
    for (Py_ssize_t i = 0; list != NULL && i < count + self->nagain; i++) {
        PyList_SET_ITEM(list, i, Py_NewRef(inputs[i < count ? i : self->again[i - count]]));
    }
    return list;
}

static PyObject *
results_of(const WrittenCall *self, PyObject *items)
{
    PyObject *list = PyTuple_Check(items) ? PyList_New(self->nresults) : NULL;
    if (list == NULL && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_TypeError, "a graph gives a tuple");
    }
    for (Py_ssize_t i = 0; list != NULL && i < self->nresults; i++) {
        if (self->results[i] >= PyTuple_GET_SIZE(items)) {
            PyErr_SetString(PyExc_IndexError, "a graph gives fewer results than it should");
            Py_CLEAR(list);
        }
        else {
            PyList_SET_ITEM(list, i, Py_NewRef(PyTuple_GET_ITEM(items, self->results[i])));
        }
    }
    return list;
}

static PyObject *
written_call(WrittenCall *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    if (PyVectorcall_NARGS(nargsf) != 1 || (kwnames != NULL && PyTuple_GET_SIZE(kwnames) > 0)) {
        PyErr_SetString(PyExc_TypeError, "the call of a graph takes its inputs as one list");
        return NULL;
    }
    PyObject *given = args[0];
    if (!PyList_CheckExact(given) && !PyTuple_CheckExact(given)) {
        return PyObject_CallOneArg(self->general, given);
    }
    PyObject *const *inputs = PySequence_Fast_ITEMS(given);
    Py_ssize_t count = PySequence_Fast_GET_SIZE(given);
    for (Py_ssize_t i = 0; i < self->nlooked; i++) {
        if (self->looked[i].input >= count) {
            return PyObject_CallOneArg(self->general, given); /* it tells what is wrong */
        }
    }
    PyObject *written = PyList_New(0);
    int counted = written == NULL ? -1 : are_apart(self, inputs) ? count_writes(self, inputs, written) : 0;
    if (counted <= 0) {
        Py_XDECREF(written);
        return counted < 0 ? NULL : PyObject_CallOneArg(self->general, given);
    }
    PyObject *whole = with_again(self, given, inputs, count);
    PyObject *items = whole != NULL ? PyObject_CallOneArg(self->call, whole) : NULL;
    PyObject *results = items != NULL ? results_of(self, items) : NULL;
    if (whole != NULL && items == NULL) {
        tell(self, written);
    }
    Py_DECREF(written);
    Py_XDECREF(whole);
    Py_XDECREF(items);
    return results;
}

/* -- the type --------------------------------------------------------------------------------------- */

static Py_ssize_t
numbers_of(PyObject *tuple, Py_ssize_t *numbers)
{
    Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    if (count > MOST) {
        PyErr_Format(PyExc_ValueError, "WrittenCall: at most %d of each", MOST);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        numbers[i] = PyLong_AsSsize_t(PyTuple_GET_ITEM(tuple, i));
        if (numbers[i] < 0) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_ValueError, "WrittenCall: places are not negative");
            }
            return -1;
        }
    }
    return count;
}

static int
parse_looked(WrittenCall *self, PyObject *rows)
{
    self->nlooked = PyTuple_GET_SIZE(rows);
    if (self->nlooked > MOST) {
        PyErr_Format(PyExc_ValueError, "WrittenCall: at most %d of each", MOST);
        return -1;
    }
    for (Py_ssize_t i = 0; i < self->nlooked; i++) {
        int written;
        long long itemsize;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(rows, i), "nLp", &self->looked[i].input, &itemsize, &written)) {
            return -1;
        }
        self->looked[i].itemsize = itemsize;
        self->looked[i].written = written;
    }
    return 0;
}

static int
written_traverse(WrittenCall *self, visitproc visit, void *arg)
{
    Py_VISIT(self->call);
    Py_VISIT(self->count);
    Py_VISIT(self->failed);
    Py_VISIT(self->general);
    return 0;
}

static int
written_clear(WrittenCall *self)
{
    Py_CLEAR(self->call);
    Py_CLEAR(self->count);
    Py_CLEAR(self->failed);
    Py_CLEAR(self->general);
    return 0;
}

static void
written_dealloc(WrittenCall *self)
{
    PyObject_GC_UnTrack(self);
    written_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *
written_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"call", "count", "failed", "general", "counted", "looked", "again", "results", NULL};
    PyObject *call, *count, *failed, *general, *looked, *again, *results;
    unsigned long long counted;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOKO!O!O!:WrittenCall", names, &call, &count, &failed, &general, &counted,
                                     &PyTuple_Type, &looked, &PyTuple_Type, &again, &PyTuple_Type, &results)) {
        return NULL;
    }
    WrittenCall *self = (WrittenCall *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = (vectorcallfunc)written_call;
    self->call = Py_NewRef(call);
    self->count = Py_NewRef(count);
    self->failed = Py_NewRef(failed);
    self->general = Py_NewRef(general);
    self->counted = counted;
    self->boxed = 1;
    if (parse_looked(self, looked) < 0 || (self->nagain = numbers_of(again, self->again)) < 0
        || (self->nresults = numbers_of(results, self->results)) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static PyMemberDef written_members[] = {
    {"boxed", T_BOOL, offsetof(WrittenCall, boxed), READONLY, NULL},
    {"call", T_OBJECT, offsetof(WrittenCall, call), READONLY, NULL},
    {"general", T_OBJECT, offsetof(WrittenCall, general), READONLY, NULL},
    {NULL},
};

PyTypeObject WrittenCall_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "braze.native._native.WrittenCall",
    .tp_doc = "The call of a graph that writes inputs where they lie.",
    .tp_basicsize = sizeof(WrittenCall),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC,
    .tp_vectorcall_offset = offsetof(WrittenCall, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = written_new,
    .tp_dealloc = (destructor)written_dealloc,
    .tp_traverse = (traverseproc)written_traverse,
    .tp_clear = (inquiry)written_clear,
    .tp_members = written_members,
};
