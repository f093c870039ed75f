/* The warm path of a recorded graph (braze/cudagraphs): one call compares addresses, looks whether outputs are still held, copies
 * inputs into place, replays, and makes the output tensors.
 *
 * A Holders knows the memory that recordings of one pool write and callers see: who holds it is told by the reference count of
 * PyTorch's StorageImpl, read where calibration has found it (braze/native/allocation.py), and by that of the Python storage. A Replay is one
 * recording; a Replays is all of a graph's, under the device's lock. None as an answer means: ask in Python.
 */
#include "braze.h"

#include <stddef.h>

enum { MOST_COPIES = 4 }; /* on a GPU, one by one */

static Py_ssize_t count_offset = -1; /* of the reference count in a StorageImpl; -1: not known */
static int64_t clock_now;            /* counts replays: which pool was used last */

/* -- Holders ------------------------------------------------------------------------------------------ */

typedef struct {
    int64_t number; /* of the recording that writes it */
    PyObject *held;    /* strong: what keeps the storage */
    PyObject *storage; /* borrowed: a reference of ours would count as somebody's */
    const char *implementation;
    uint32_t idle;    /* references of PyTorch's while nobody else holds it */
    Py_ssize_t named; /* the same of Python's */
} Piece;

typedef struct {
    PyObject_HEAD
    Piece *pieces;
    Py_ssize_t count;
    int64_t used;
} Holders;

static void
release_pieces(Piece *pieces, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_XDECREF(pieces[i].held);
    }
    PyMem_Free(pieces);
}

static bool
held_by_others(const Piece *piece)
{
    uint32_t count;
    memcpy(&count, piece->implementation + count_offset, sizeof(count));
    return count > piece->idle || Py_REFCNT(piece->storage) > piece->named;
}

/* Whether nobody holds what a recording of at least this number writes. */
static bool
free_from(const Holders *self, int64_t number)
{
    for (Py_ssize_t i = 0; i < self->count; i++) {
        if (self->pieces[i].number >= number && held_by_others(&self->pieces[i])) {
            return false;
        }
    }
    return true;
}

static PyObject *
holders_free_from(Holders *self, PyObject *number)
{
    long long from = PyLong_AsLongLong(number);
    return from == -1 && PyErr_Occurred() ? NULL : PyBool_FromLong(free_from(self, from));
}

/* ((number, held, storage, its implementation's address, idle, named), ...): what there is now. */
static PyObject *
holders_fill(Holders *self, PyObject *rows)
{
    if (!PyTuple_Check(rows)) {
        PyErr_SetString(PyExc_TypeError, "fill takes a tuple");
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(rows);
    Piece *made = PyMem_Calloc(count + 1, sizeof(Piece));
    if (made == NULL) {
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        long long number;
        unsigned long long implementation;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(rows, i), "LOOKIn", &number, &made[i].held, &made[i].storage, &implementation,
                              &made[i].idle, &made[i].named)) {
            release_pieces(made, i);
            return NULL;
        }
        made[i].number = number;
        made[i].implementation = (const char *)(uintptr_t)implementation;
        Py_INCREF(made[i].held);
    }
    Piece *old = self->pieces;
    Py_ssize_t nold = self->count;
    self->pieces = made;
    self->count = count;
    release_pieces(old, nold);
    Py_RETURN_NONE;
}

static int
holders_traverse(Holders *self, visitproc visit, void *arg)
{
    for (Py_ssize_t i = 0; i < self->count; i++) {
        Py_VISIT(self->pieces[i].held);
    }
    return 0;
}

static int
holders_clear(Holders *self)
{
    Piece *old = self->pieces;
    Py_ssize_t count = self->count;
    self->pieces = NULL;
    self->count = 0;
    release_pieces(old, count);
    return 0;
}

static void
holders_dealloc(Holders *self)
{
    PyObject_GC_UnTrack(self);
    holders_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *
holders_touch(Holders *self, PyObject *ignored)
{
    self->used = ++clock_now;
    Py_RETURN_NONE;
}

static PyObject *
holders_used(Holders *self, void *closure)
{
    return PyLong_FromLongLong(self->used);
}

static PyMethodDef holders_methods[] = {
    {"fill", (PyCFunction)holders_fill, METH_O,
     "fill(((number, held, storage, address, idle, named), ...))\n--\n\nThe memory that there is from now on."},
    {"free_from", (PyCFunction)holders_free_from, METH_O,
     "free_from(number)\n--\n\nWhether nobody holds what a recording of at least that number writes."},
    {"touch", (PyCFunction)holders_touch, METH_NOARGS, "touch()\n--\n\nIt is used now."},
    {NULL},
};
static PyGetSetDef holders_properties[] = {{"used", (getter)holders_used, NULL, "When it was used last, counted in uses."}, {NULL}};

PyTypeObject Holders_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "braze.native._native.Holders",
    .tp_doc = "Who holds the memory that recordings of one pool write.",
    .tp_basicsize = sizeof(Holders),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_methods = holders_methods,
    .tp_getset = holders_properties,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = (destructor)holders_dealloc,
    .tp_traverse = (traverseproc)holders_traverse,
    .tp_clear = (inquiry)holders_clear,
};

/* -- Replay ------------------------------------------------------------------------------------------- */

typedef struct {
    Py_ssize_t place;
    uint64_t address, bytes;
} Input;

typedef struct {
    PyObject_HEAD
    Holders *holders;
    int64_t first; /* the number from which on nothing may be held */
    int64_t stream;
    int device; /* index of the GPU; -1: the processor */
    Py_ssize_t nfixed, ncopied, least;
    Input *inputs; /* those read where they lie, then those that are copied */
    PyObject *place, *replay, *outputs;
} Replay;

/* Whether what is read where it lies lies there. */
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
    return true;
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

/* One output: a pair of tensors whose memory it has (outside inference mode, inside), or a function of the inputs. */
static PyObject *
output(PyObject *made, PyObject *given)
{
    if (!PyTuple_CheckExact(made)) {
        return PyObject_CallOneArg(made, given);
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
        PyObject *item = output(PyTuple_GET_ITEM(self->outputs, i), given);
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
    if (Py_SIZE(given) < self->least || !fits(self, inputs) || !free_from(self->holders, self->first)) {
        return NULL;
    }
    self->holders->used = ++clock_now;
    if (copy_inputs(self, given, inputs) < 0) {
        return NULL;
    }
    PyObject *done = PyObject_CallNoArgs(self->replay);
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
    PyMem_Free(self->inputs);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* Fill `inputs` from ((place, address, bytes), ...); -1 with an exception set. */
static int
parse_inputs(Replay *self, PyObject *fixed, PyObject *copied)
{
    self->nfixed = PyTuple_GET_SIZE(fixed);
    self->ncopied = PyTuple_GET_SIZE(copied);
    self->inputs = PyMem_Calloc(self->nfixed + self->ncopied + 1, sizeof(Input));
    if (self->inputs == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < self->nfixed + self->ncopied; i++) {
        PyObject *row = i < self->nfixed ? PyTuple_GET_ITEM(fixed, i) : PyTuple_GET_ITEM(copied, i - self->nfixed);
        unsigned long long address, bytes;
        if (!PyArg_ParseTuple(row, "nKK", &self->inputs[i].place, &address, &bytes)) {
            return -1;
        }
        self->inputs[i].address = address;
        self->inputs[i].bytes = bytes;
        self->least = self->inputs[i].place + 1 > self->least ? self->inputs[i].place + 1 : self->least;
    }
    return 0;
}

static PyObject *
replay_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"holders", "first", "stream", "device", "fixed", "copied", "place", "replay", "outputs", NULL};
    PyObject *holders, *fixed, *copied, *place, *replay, *outputs;
    long long first, stream;
    int device;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!LLiO!O!OOO!:Replay", names, &Holders_Type, &holders, &first, &stream,
                                     &device, &PyTuple_Type, &fixed, &PyTuple_Type, &copied, &place, &replay,
                                     &PyTuple_Type, &outputs)) {
        return NULL;
    }
    Replay *self = (Replay *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->holders = (Holders *)Py_NewRef(holders);
    self->first = first;
    self->stream = stream;
    self->device = device;
    self->place = Py_NewRef(place);
    self->replay = Py_NewRef(replay);
    self->outputs = Py_NewRef(outputs);
    if (parse_inputs(self, fixed, copied) < 0) {
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

/* -- for calibration ------------------------------------------------------------------------------------ */

/* The four bytes at an offset into the StorageImpl at an address. */
static PyObject *
word_at(PyObject *module, PyObject *args)
{
    unsigned long long address;
    Py_ssize_t offset;
    if (!PyArg_ParseTuple(args, "Kn:_word_at", &address, &offset)) {
        return NULL;
    }
    uint32_t word;
    memcpy(&word, (const char *)(uintptr_t)address + offset, sizeof(word));
    return PyLong_FromUnsignedLong(word);
}

static PyObject *
configure_replay(PyObject *module, PyObject *offset)
{
    Py_ssize_t found = PyLong_AsSsize_t(offset);
    if (found == -1 && PyErr_Occurred()) {
        return NULL;
    }
    count_offset = found;
    Py_RETURN_NONE;
}

PyMethodDef replay_functions[] = {
    {"_word_at", word_at, METH_VARARGS, "(address, offset): four bytes of memory, as a number."},
    {"_configure_replay", configure_replay, METH_O, "Where a storage's reference count is; -1: not known."},
    {NULL},
};
