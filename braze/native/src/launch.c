/* Calls of generated code by address: void f(void **buffers, const int64_t *sizes). */
#include "braze.h"

#include <structmember.h>

enum { ON_STACK = 128 };

typedef void (*Kernel)(void **, const int64_t *);
typedef int64_t (*SegmentCode)(void **, const int64_t *);

/* Room for the arguments of one call: on the stack for most, on the heap for many. */
typedef struct {
    void *buffers_here[ON_STACK];
    int64_t sizes_here[ON_STACK];
    void **buffers;
    int64_t *sizes;
} Room;

static int
room_make(Room *room, Py_ssize_t nbuffers, Py_ssize_t nsizes)
{
    room->buffers = nbuffers <= ON_STACK ? room->buffers_here : PyMem_Malloc(nbuffers * sizeof(void *));
    room->sizes = nsizes <= ON_STACK ? room->sizes_here : PyMem_Malloc(nsizes * sizeof(int64_t));
    if (room->buffers == NULL || room->sizes == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

static void
room_free(Room *room)
{
    if (room->buffers != room->buffers_here) {
        PyMem_Free(room->buffers);
    }
    if (room->sizes != room->sizes_here) {
        PyMem_Free(room->sizes);
    }
}

static int
fill(Room *room, PyObject *const *buffers, Py_ssize_t nbuffers, PyObject *const *sizes, Py_ssize_t nsizes)
{
    for (Py_ssize_t i = 0; i < nbuffers; i++) {
        if (buffer_address(buffers[i], &room->buffers[i]) < 0) {
            return -1;
        }
    }
    for (Py_ssize_t i = 0; i < nsizes; i++) {
        room->sizes[i] = PyLong_AsLongLong(sizes[i]);
        if (room->sizes[i] == -1 && PyErr_Occurred()) {
            return -1;
        }
    }
    return 0;
}

/* -- Launcher -------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Kernel kernel;
    Py_ssize_t nbuffers, nsizes;
    unsigned long long address;
    char release;
} Launcher;

static PyObject *
launcher_call(Launcher *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
    if (nargs != self->nbuffers + self->nsizes || (kwnames != NULL && PyTuple_GET_SIZE(kwnames) > 0)) {
        PyErr_Format(PyExc_TypeError, "launcher takes %zd buffers and %zd sizes, not %zd arguments", self->nbuffers,
                     self->nsizes, nargs);
        return NULL;
    }
    Room room;
    if (room_make(&room, self->nbuffers, self->nsizes) < 0
        || fill(&room, args, self->nbuffers, args + self->nbuffers, self->nsizes) < 0) {
        room_free(&room);
        return NULL;
    }
    if (self->release) {
        Py_BEGIN_ALLOW_THREADS
        self->kernel(room.buffers, room.sizes);
        Py_END_ALLOW_THREADS
    }
    else {
        self->kernel(room.buffers, room.sizes);
    }
    room_free(&room);
    Py_RETURN_NONE;
}

static PyObject *
launcher_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"address", "nbuffers", "nsizes", "release", NULL};
    unsigned long long address;
    Py_ssize_t nbuffers, nsizes = 0;
    int release = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Kn|np:Launcher", names, &address, &nbuffers, &nsizes, &release)) {
        return NULL;
    }
    if (address == 0 || nbuffers < 0 || nsizes < 0) {
        PyErr_SetString(PyExc_ValueError, "Launcher: needs an address and counts that are not negative");
        return NULL;
    }
    Launcher *self = (Launcher *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->vectorcall = (vectorcallfunc)launcher_call;
        self->kernel = (Kernel)(uintptr_t)address;
        self->address = address;
        self->nbuffers = nbuffers;
        self->nsizes = nsizes;
        self->release = (char)release;
    }
    return (PyObject *)self;
}

static PyMemberDef launcher_members[] = {
    {"address", T_ULONGLONG, offsetof(Launcher, address), READONLY, NULL},
    {"nbuffers", T_PYSSIZET, offsetof(Launcher, nbuffers), READONLY, NULL},
    {"nsizes", T_PYSSIZET, offsetof(Launcher, nsizes), READONLY, NULL},
    {"release", T_BOOL, offsetof(Launcher, release), READONLY, NULL},
    {NULL},
};

PyTypeObject Launcher_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "braze.native._native.Launcher",
    .tp_doc = "Call void f(void **buffers, const int64_t *sizes) at an address.",
    .tp_basicsize = sizeof(Launcher),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Launcher, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = launcher_new,
    .tp_members = launcher_members,
};

/* -- Segment --------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    SegmentCode code;
    unsigned long long address;
    PyObject *name; /* of its range, where anybody listens */
} Segment;

static PyObject *
segment_run(Segment *self, PyObject *tensors, PyObject *arena, PyObject *sizes)
{
    Py_ssize_t nbuffers = PyTuple_GET_SIZE(tensors), nsizes = sizes != NULL ? PyTuple_GET_SIZE(sizes) : 0;
    Room room;
    PyObject *result = NULL;
    if (room_make(&room, nbuffers + 1, nsizes) == 0
        && fill(&room, &PyTuple_GET_ITEM(tensors, 0), nbuffers, sizes != NULL ? &PyTuple_GET_ITEM(sizes, 0) : NULL, nsizes)
               == 0
        && (arena == NULL || buffer_address(arena, &room.buffers[nbuffers]) == 0)) {
        int64_t status;
        if (arena == NULL) {
            room.buffers[nbuffers] = NULL;
        }
        Py_BEGIN_ALLOW_THREADS
        status = self->code(room.buffers, room.sizes);
        Py_END_ALLOW_THREADS
        result = PyLong_FromLongLong(status);
    }
    room_free(&room);
    return result;
}

static PyObject *
segment_call(Segment *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
    if (nargs < 1 || nargs > 3 || (kwnames != NULL && PyTuple_GET_SIZE(kwnames) > 0)) {
        PyErr_SetString(PyExc_TypeError, "a segment takes tensors, an arena's address, and sizes");
        return NULL;
    }
    PyObject *tensors = PySequence_Tuple(args[0]); /* the same object if it is a tuple */
    PyObject *sizes = nargs > 2 ? PySequence_Tuple(args[2]) : NULL, *result = NULL;
    if (tensors != NULL && (nargs < 3 || sizes != NULL)) {
        PyObject *range = ranges_wanted_within() ? range_begun(self->name) : NULL;
        result = segment_run(self, tensors, nargs > 1 ? args[1] : NULL, sizes);
        range_ended(range);
    }
    Py_XDECREF(tensors);
    Py_XDECREF(sizes);
    return result;
}

static PyObject *
segment_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"address", "name", NULL};
    unsigned long long address;
    PyObject *name;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KU:Segment", names, &address, &name)) {
        return NULL;
    }
    if (address == 0) {
        PyErr_SetString(PyExc_ValueError, "Segment: needs an address");
        return NULL;
    }
    Segment *self = (Segment *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->vectorcall = (vectorcallfunc)segment_call;
        self->code = (SegmentCode)(uintptr_t)address;
        self->address = address;
        self->name = Py_NewRef(name);
    }
    return (PyObject *)self;
}

static void
segment_dealloc(Segment *self)
{
    Py_XDECREF(self->name);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef segment_members[] = {
    {"address", T_ULONGLONG, offsetof(Segment, address), READONLY, NULL},
    {"name", T_OBJECT, offsetof(Segment, name), READONLY, NULL},
    {NULL},
};

PyTypeObject Segment_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "braze.native._native.Segment",
    .tp_doc = "Call int64_t f(void **buffers, const int64_t *sizes) at an address, with the GIL released.",
    .tp_basicsize = sizeof(Segment),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Segment, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = segment_new,
    .tp_dealloc = (destructor)segment_dealloc,
    .tp_members = segment_members,
};
