/* The warm path of a recorded graph (braze/cudagraphs): one call compares addresses, looks whether outputs are still held, copies
 * inputs into place or has kernels told where they lie, replays, and makes the output tensors.
 *
 * A Replay is one recording; a Replays is all of a graph's, under the device's lock. None as an answer means: ask in Python.
 */
#include "braze.h"

#include <stddef.h>

enum { MOST_COPIES = 4, ALIGNED = 15 }; /* on a GPU, one by one; what kernels are built for */

/* -- Replay ------------------------------------------------------------------------------------------- */

typedef struct {
    Py_ssize_t place;
    uint64_t address, bytes;
} Input;

typedef struct {
    PyObject_HEAD
    PyObject *holders;
    int64_t first; /* the number from which on nothing may be held */
    int64_t stream;
    int device; /* index of the GPU; -1: the processor */
    Py_ssize_t nfixed, ncopied, nmoved, least;
    Input *inputs; /* those read where they lie, then those that are copied, then those that kernels are told of */
    PyObject *place, *replay, *outputs, *move;
} Replay;

/* The address of a tensor; 0 where it cannot be read here. */
static uint64_t
address_of(PyObject *value)
{
    void *address;
    if (buffer_address(value, &address) < 0) {
        PyErr_Clear();
        return 0;
    }
    return (uint64_t)(uintptr_t)address;
}

/* Whether what is read where it lies lies there, and kernels can be told of the rest. */
static bool
fits(const Replay *self, PyObject *const *inputs)
{
    for (Py_ssize_t i = 0; i < self->nfixed; i++) {
        void *address;
        if (buffer_address(inputs[self->inputs[i].place], &address) < 0) {
            PyErr_Clear();
            return false;
        }
        if ((uint64_t)(uintptr_t)address != self->inputs[i].address) {
            return false;
        }
    }
    for (Py_ssize_t i = self->nfixed + self->ncopied; i < self->nfixed + self->ncopied + self->nmoved; i++) {
        uint64_t address = address_of(inputs[self->inputs[i].place]);
        if (address == 0 || (address & ALIGNED)) {
            return false;
        }
    }
    return true;
}

/* Have kernels told where the inputs lie that nobody copies. */
static int
move_inputs(const Replay *self, PyObject *const *inputs)
{
    for (Py_ssize_t i = self->nfixed + self->ncopied; i < self->nfixed + self->ncopied + self->nmoved; i++) {
        PyObject *args[] = {PyLong_FromUnsignedLongLong(self->inputs[i].address),
                            PyLong_FromUnsignedLongLong(address_of(inputs[self->inputs[i].place]))};
        PyObject *done = args[0] != NULL && args[1] != NULL ? PyObject_Vectorcall(self->move, args, 2, NULL) : NULL;
        Py_XDECREF(args[0]);
        Py_XDECREF(args[1]);
        if (done == NULL) {
            return -1;
        }
        Py_DECREF(done);
    }
    return 0;
}

/* Copy one input to where it is read; false (no exception set) where that is for Python. */
static bool
copy_input(const Replay *self, const Input *input, PyObject *value)
{
    void *to = (void *)(uintptr_t)input->address, *from;
    if (buffer_address(value, &from) < 0) {
        PyErr_Clear();
        return false;
    }
    if (self->device >= 0) {
        return device_copy(self->device, to, from, input->bytes);
    }
    memmove(to, from, input->bytes);
    return true;
}

/* Copy the others to where they are read: here, or by Python in one launch, which is quicker for many on a GPU. */
static int
copy_inputs(const Replay *self, PyObject *given, PyObject *const *inputs)
{
    const Input *copied = self->inputs + self->nfixed;
    Py_ssize_t done = 0;
    if (self->device < 0 || self->ncopied <= MOST_COPIES) {
        while (done < self->ncopied && copy_input(self, &copied[done], inputs[copied[done].place])) {
            done++;
        }
    }
    if (done == self->ncopied) {
        return 0;
    }
    PyObject *placed = PyObject_CallOneArg(self->place, given);
    Py_XDECREF(placed);
    return placed == NULL ? -1 : 0;
}

/* One output in memory of its own, from (what makes a tensor, where to copy from, bytes, a function of the inputs that does all of it). */
static PyObject *
copied_output(const Replay *self, PyObject *made, PyObject *given)
{
    unsigned long long from = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(made, 1));
    unsigned long long bytes = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(made, 2));
    PyObject *tensor = PyErr_Occurred() ? NULL : PyObject_CallNoArgs(PyTuple_GET_ITEM(made, 0));
    if (tensor == NULL) {
        return NULL;
    }
    void *to;
    bool done = false;
    if (buffer_address(tensor, &to) < 0) {
        PyErr_Clear();
    } else if (self->device >= 0) {
        done = device_copy(self->device, to, (const void *)(uintptr_t)from, bytes);
    } else {
        memcpy(to, (const void *)(uintptr_t)from, bytes);
        done = true;
    }
    if (done) {
        return tensor;
    }
    Py_DECREF(tensor);
    return PyObject_CallOneArg(PyTuple_GET_ITEM(made, 3), given);
}

/* One output: a pair of tensors whose memory it has (outside inference mode, inside), four things where it is copied out, or a function of
 * the inputs. */
static PyObject *
output(const Replay *self, PyObject *made, PyObject *given)
{
    if (!PyTuple_CheckExact(made)) {
        return PyObject_CallOneArg(made, given);
    }
    if (PyTuple_GET_SIZE(made) == 4) {
        return copied_output(self, made, given);
    }
    int inference = inference_mode_now();
    return inference < 0 ? NULL : tensor_again(PyTuple_GET_ITEM(made, inference));
}

static PyObject *
all_outputs(const Replay *self, PyObject *given)
{
    Py_ssize_t count = PyTuple_GET_SIZE(self->outputs);
    PyObject *made = PyTuple_New(count);
    for (Py_ssize_t i = 0; made != NULL && i < count; i++) {
        PyObject *item = output(self, PyTuple_GET_ITEM(self->outputs, i), given);
        if (item == NULL) {
            Py_CLEAR(made);
        } else {
            PyTuple_SET_ITEM(made, i, item);
        }
    }
    return made;
}

/* The outputs for these inputs; NULL without an exception where this recording does not serve. */
static PyObject *
replay_run(Replay *self, PyObject *given)
{
    bool list = PyList_CheckExact(given);
    if (!list && !PyTuple_CheckExact(given)) {
        return NULL;
    }
    PyObject *const *inputs = list ? ((PyListObject *)given)->ob_item : ((PyTupleObject *)given)->ob_item;
    if (Py_SIZE(given) < self->least || !fits(self, inputs) || !holders_free(self->holders, self->first)) {
        return NULL;
    }
    holders_use(self->holders);
    if (copy_inputs(self, given, inputs) < 0 || move_inputs(self, inputs) < 0) {
        return NULL;
    }
    PyObject *name = ranges_wanted_within() ? PyUnicode_FromString("braze: replay") : NULL;
    PyObject *range = name != NULL ? range_begun(name) : NULL;
    PyObject *done = PyObject_CallNoArgs(self->replay);
    range_ended(range);
    Py_XDECREF(name);
    if (done == NULL) {
        return NULL;
    }
    Py_DECREF(done);
    return all_outputs(self, given);
}

static PyObject *
replay_call(Replay *self, PyObject *args, PyObject *kwargs)
{
    PyObject *given;
    if (!PyArg_ParseTuple(args, "O:Replay", &given)) {
        return NULL;
    }
    PyObject *outputs = replay_run(self, given);
    if (outputs == NULL && !PyErr_Occurred()) {
        Py_RETURN_NONE;
    }
    return outputs;
}

static int
replay_traverse(Replay *self, visitproc visit, void *arg)
{
    Py_VISIT(self->holders);
    Py_VISIT(self->place);
    Py_VISIT(self->replay);
    Py_VISIT(self->outputs);
    Py_VISIT(self->move);
    return 0;
}

static void
replay_dealloc(Replay *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->holders);
    Py_XDECREF(self->place);
    Py_XDECREF(self->replay);
    Py_XDECREF(self->outputs);
    Py_XDECREF(self->move);
    PyMem_Free(self->inputs);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* Fill `inputs` from rows of (place, address, bytes); -1 with an exception set. */
static int
parse_inputs(Replay *self, PyObject *const rows[3])
{
    self->nfixed = PyTuple_GET_SIZE(rows[0]);
    self->ncopied = PyTuple_GET_SIZE(rows[1]);
    self->nmoved = PyTuple_GET_SIZE(rows[2]);
    Input *input = self->inputs = PyMem_Calloc(self->nfixed + self->ncopied + self->nmoved + 1, sizeof(Input));
    if (input == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (int kind = 0; kind < 3; kind++) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rows[kind]); i++, input++) {
            unsigned long long address, bytes;
            if (!PyArg_ParseTuple(PyTuple_GET_ITEM(rows[kind], i), "nKK", &input->place, &address, &bytes)) {
                return -1;
            }
            input->address = address;
            input->bytes = bytes;
            self->least = input->place + 1 > self->least ? input->place + 1 : self->least;
        }
    }
    return 0;
}

static PyObject *
replay_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"holders", "first", "stream", "device", "fixed", "copied", "moved", "place", "move", "replay",
                            "outputs", NULL};
    PyObject *holders, *rows[3], *place, *move, *replay, *outputs;
    long long first, stream;
    int device;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!LLiO!O!O!OOOO!:Replay", names, &Holders_Type, &holders, &first, &stream,
                                     &device, &PyTuple_Type, &rows[0], &PyTuple_Type, &rows[1], &PyTuple_Type, &rows[2],
                                     &place, &move, &replay, &PyTuple_Type, &outputs)) {
        return NULL;
    }
    Replay *self = (Replay *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->holders = Py_NewRef(holders);
    self->first = first;
    self->stream = stream;
    self->device = device;
    self->place = Py_NewRef(place);
    self->move = Py_NewRef(move);
    self->replay = Py_NewRef(replay);
    self->outputs = Py_NewRef(outputs);
    if (parse_inputs(self, rows) < 0) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

PyTypeObject Replay_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "braze.native._native.Replay",
    .tp_doc = "Replay one recording for inputs that fit; None where they do not, or its outputs are held.",
    .tp_basicsize = sizeof(Replay),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = replay_new,
    .tp_call = (ternaryfunc)replay_call,
    .tp_dealloc = (destructor)replay_dealloc,
    .tp_traverse = (traverseproc)replay_traverse,
};

/* -- Replays ------------------------------------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *acquire, *release, *busy, *stream;
    PyObject *recordings; /* a tuple of Replay */
} Replays;

/* The outputs of the first recording that serves; NULL with or without an exception. Called under the lock. */
static PyObject *
first_that_serves(Replays *self, PyObject *given)
{
    PyObject *number = PyObject_CallNoArgs(self->stream);
    long long stream = number != NULL ? PyLong_AsLongLong(number) : -1;
    Py_XDECREF(number);
    if (stream == -1 && PyErr_Occurred()) {
        return NULL;
    }
    PyObject *recordings = Py_NewRef(self->recordings), *outputs = NULL;
    for (Py_ssize_t i = 0; outputs == NULL && i < PyTuple_GET_SIZE(recordings); i++) {
        Replay *each = (Replay *)PyTuple_GET_ITEM(recordings, i);
        if (each->stream == stream) {
            outputs = replay_run(each, given);
            if (outputs == NULL && PyErr_Occurred()) {
                break;
            }
        }
    }
    Py_DECREF(recordings);
    return outputs;
}

static PyObject *
replays_call(Replays *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    if (PyVectorcall_NARGS(nargsf) != 1 || kwnames != NULL) {
        PyErr_SetString(PyExc_TypeError, "Replays takes the inputs");
        return NULL;
    }
    if (PyTuple_GET_SIZE(self->recordings) == 0) {
        Py_RETURN_NONE;
    }
    PyObject *busy = PyObject_CallNoArgs(self->busy);
    int taken = busy != NULL ? PyObject_IsTrue(busy) : -1;
    Py_XDECREF(busy);
    if (taken != 0) {
        return taken < 0 ? NULL : Py_NewRef(Py_None);
    }
    PyObject *locked = PyObject_CallNoArgs(self->acquire);
    if (locked == NULL) {
        return NULL;
    }
    Py_DECREF(locked);
    PyObject *outputs = first_that_serves(self, args[0]);
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *unlocked = PyObject_CallNoArgs(self->release);
    if (unlocked == NULL) {
        Py_CLEAR(outputs);
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(trace);
        return NULL;
    }
    Py_DECREF(unlocked);
    PyErr_Restore(type, value, trace);
    if (outputs == NULL && !PyErr_Occurred()) {
        Py_RETURN_NONE;
    }
    return outputs;
}

/* The recordings from now on, in the order in which they are tried. */
static PyObject *
replays_fill(Replays *self, PyObject *recordings)
{
    bool fine = PyTuple_Check(recordings);
    for (Py_ssize_t i = 0; fine && i < PyTuple_GET_SIZE(recordings); i++) {
        fine = Py_IS_TYPE(PyTuple_GET_ITEM(recordings, i), &Replay_Type);
    }
    if (!fine) {
        PyErr_SetString(PyExc_TypeError, "fill takes a tuple of Replay");
        return NULL;
    }
    Py_SETREF(self->recordings, Py_NewRef(recordings));
    Py_RETURN_NONE;
}

static int
replays_traverse(Replays *self, visitproc visit, void *arg)
{
    Py_VISIT(self->acquire);
    Py_VISIT(self->release);
    Py_VISIT(self->busy);
    Py_VISIT(self->stream);
    Py_VISIT(self->recordings);
    return 0;
}

static void
replays_dealloc(Replays *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->acquire);
    Py_XDECREF(self->release);
    Py_XDECREF(self->busy);
    Py_XDECREF(self->stream);
    Py_XDECREF(self->recordings);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *
replays_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"acquire", "release", "busy", "stream", NULL};
    PyObject *acquire, *release, *busy, *stream;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOO:Replays", names, &acquire, &release, &busy, &stream)) {
        return NULL;
    }
    PyObject *none = PyTuple_New(0);
    Replays *self = none != NULL ? (Replays *)type->tp_alloc(type, 0) : NULL;
    if (self == NULL) {
        Py_XDECREF(none);
        return NULL;
    }
    self->vectorcall = (vectorcallfunc)replays_call;
    self->acquire = Py_NewRef(acquire);
    self->release = Py_NewRef(release);
    self->busy = Py_NewRef(busy);
    self->stream = Py_NewRef(stream);
    self->recordings = none;
    return (PyObject *)self;
}

static PyMethodDef replays_methods[] = {
    {"fill", (PyCFunction)replays_fill, METH_O, "fill(recordings)\n--\n\nThe recordings from now on, in order."},
    {NULL},
};

PyTypeObject Replays_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "braze.native._native.Replays",
    .tp_doc = "The outputs of a graph's first recording that serves, or None.",
    .tp_basicsize = sizeof(Replays),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC,
    .tp_vectorcall_offset = offsetof(Replays, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_methods = replays_methods,
    .tp_new = replays_new,
    .tp_dealloc = (destructor)replays_dealloc,
    .tp_traverse = (traverseproc)replays_traverse,
};
