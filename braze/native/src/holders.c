/* Who holds the memory that recordings of one pool write and callers see: a replay may write it only while nobody does.
 *
 * That is told by the reference count of PyTorch's StorageImpl, read where calibration has found it (braze/native/allocation.py), and by
 * that of the Python storage. Where a StorageImpl has other memory than when it was recorded, or has let others see it (``resize_``,
 * a lazy clone, another process), replays must never write there again.
 */
#include "braze.h"

#include <stddef.h>

static Py_ssize_t count_offset = -1; /* of the reference count in a StorageImpl; -1: not known */
static Py_ssize_t data_offset = -1;  /* of its DataPtr: where the memory is, and who lets go of it */
#define DATA_SIZE 24
static int64_t clock_now;            /* counts replays: which pool was used last */

typedef struct {
    int64_t number; /* of the recording that writes it */
    PyObject *held;    /* strong: what keeps the storage */
    PyObject *storage; /* borrowed: a reference of ours would count as somebody's */
    const char *implementation;
    uint32_t idle;    /* references of PyTorch's while nobody else holds it */
    Py_ssize_t named; /* the same of Python's */
    int apart;        /* no other recording writes it */
    char data[DATA_SIZE];
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

static bool
moved(const Piece *piece)
{
    return memcmp(piece->data, piece->implementation + data_offset, DATA_SIZE) != 0;
}

/* Whether nobody holds what a recording of at least this number writes, and all of it is where it was; so is what the recording before it
 * writes, which stands for a recording's own outputs where these may be held. What lies apart is its own recording's alone. */
static bool
free_from(const Holders *self, int64_t number)
{
    for (Py_ssize_t i = 0; i < self->count; i++) {
        const Piece *piece = &self->pieces[i];
        if (piece->apart && piece->number > number) {
            continue;
        }
        if ((piece->number >= number && held_by_others(piece)) || (piece->number >= number - 1 && moved(piece))) {
            return false;
        }
    }
    return true;
}

bool
holders_free(PyObject *holders, int64_t number)
{
    return free_from((const Holders *)holders, number);
}

void
holders_use(PyObject *holders)
{
    ((Holders *)holders)->used = ++clock_now;
}

static PyObject *
holders_free_from(Holders *self, PyObject *number)
{
    long long from = PyLong_AsLongLong(number);
    return from == -1 && PyErr_Occurred() ? NULL : PyBool_FromLong(free_from(self, from));
}

/* ((number, held, storage, its implementation's address, idle, named, where its memory was, whether it is apart), ...): what there is now. */
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
        const char *data;
        Py_ssize_t size;
        bool read = PyArg_ParseTuple(PyTuple_GET_ITEM(rows, i), "LOOKIny#p", &number, &made[i].held, &made[i].storage, &implementation,
                                     &made[i].idle, &made[i].named, &data, &size, &made[i].apart);
        if (read && size != DATA_SIZE) {
            PyErr_SetString(PyExc_ValueError, "where memory was is what storage_place tells");
        }
        if (!read || size != DATA_SIZE) {
            release_pieces(made, i);
            return NULL;
        }
        memcpy(made[i].data, data, DATA_SIZE);
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
     "fill(((number, held, storage, address, idle, named, place, apart), ...))\n--\n\nThe memory that there is from now on."},
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
storage_place(PyObject *module, PyObject *address)
{
    unsigned long long implementation = PyLong_AsUnsignedLongLong(address);
    if (implementation == (unsigned long long)-1 && PyErr_Occurred()) {
        return NULL;
    }
    if (data_offset < 0) {
        PyErr_SetString(PyExc_RuntimeError, "not calibrated");
        return NULL;
    }
    return PyBytes_FromStringAndSize((const char *)(uintptr_t)implementation + data_offset, DATA_SIZE);
}

static PyObject *
configure_replay(PyObject *module, PyObject *args)
{
    Py_ssize_t count, data;
    if (!PyArg_ParseTuple(args, "nn:_configure_replay", &count, &data)) {
        return NULL;
    }
    count_offset = count;
    data_offset = data;
    Py_RETURN_NONE;
}

PyMethodDef holders_functions[] = {
    {"_word_at", word_at, METH_VARARGS, "(address, offset): four bytes of memory, as a number."},
    {"storage_place", storage_place, METH_O, "storage_place(address)\n--\n\nWhere the memory of the StorageImpl at an address is, and who lets go of it."},
    {"_configure_replay", configure_replay, METH_VARARGS, "(count, data): where a storage's reference count and its memory's address are; -1: not known."},
    {NULL},
};
