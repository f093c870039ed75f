/* A recording on a GPU that is launched here, and whose kernels can be pointed at other memory.
 *
 * While a recording is made, device_launch.c tells of each kernel that it launches: stream capture says which node that became. Kernels that
 * read watched memory are kept with all that they are given; `move` lets them read the same elsewhere, which the driver is told before
 * the next launch. A kernel that Triton launched by its own means is not seen, so that after one nothing can be moved.
 */
#include "device.h"

#include <stddef.h>

enum { ACTIVE = 1, KERNEL = 0 };
/* memory that the graph itself takes is given back at the next launch; priorities of streams hold */
enum { INSTANTIATE_FLAGS = 1 | 8 };

static struct {
    int (*capture_info)(void *, int *, uint64_t *, void **, void *const **, size_t *);
    int (*node_type)(void *, int *);
    int (*instantiate)(void **, void *, unsigned long long);
    int (*set_params)(void *, void *, const NodeParams *);
    int (*launch)(void *, void *);
    int (*destroy)(void *);
} driver;

/* A kernel in the recording: `values` has each parameter in 8 bytes. */
typedef struct {
    void *node, *function;
    unsigned programs, threads, shared;
    Py_ssize_t nvalues;
    uint64_t *values;
    bool stale; /* the driver does not know the values yet */
} Node;

/* Parameter `value` of kernel `node` is `within` bytes behind the start of memory `watched`. */
typedef struct {
    Py_ssize_t watched, node, value;
    uint64_t within;
} Reader;

typedef struct {
    uint64_t address, bytes, now;
} Watched;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    int device;
    void *exec;
    PyObject *elsewhere; /* what launches it where another device is current */
    bool missed, stale;
    Py_ssize_t nwatched, nnodes, nreaders;
    Watched *watched;
    Node *nodes;
    Reader *readers;
} DeviceGraph;

static _Thread_local DeviceGraph *watching;

/* -- while it is recorded ----------------------------------------------------------------------------- */

/* The node that the last launch on a stream became; NULL where that cannot be told. */
static void *
last_node(void *stream)
{
    int status = 0, type = -1;
    uint64_t number;
    void *graph;
    void *const *nodes = NULL;
    size_t count = 0;
    if (driver.capture_info(stream, &status, &number, &graph, &nodes, &count) != 0 || status != ACTIVE || count != 1
        || driver.node_type(nodes[0], &type) != 0 || type != KERNEL) {
        return NULL;
    }
    return nodes[0];
}

/* Room for one more item; false where there is no memory. */
static bool
room(void **items, Py_ssize_t count, size_t size)
{
    void *grown = PyMem_Realloc(*items, (count + 1) * size);
    *items = grown != NULL ? grown : *items;
    return grown != NULL;
}

static bool
add_node(DeviceGraph *self, void *node, const DeviceLaunch *launch)
{
    uint64_t *values = PyMem_Calloc(launch->nparameters, sizeof(uint64_t));
    if (values == NULL || !room((void **)&self->nodes, self->nnodes, sizeof(Node))) {
        PyMem_Free(values);
        return false;
    }
    for (Py_ssize_t i = 0; i < launch->nparameters; i++) { /* each stands in a word of its own */
        memcpy(&values[i], launch->parameters[i], sizeof(uint64_t));
    }
    self->nodes[self->nnodes++] = (Node){node, launch->function, launch->programs, launch->threads, launch->shared,
                                         launch->nparameters, values, false};
    return true;
}

/* Enter the watched memory that the last node reads. */
static bool
add_readers(DeviceGraph *self, const DeviceLaunch *launch)
{
    const Node *node = &self->nodes[self->nnodes - 1];
    for (Py_ssize_t i = 0; i < launch->nbuffers; i++) {
        for (Py_ssize_t k = 0; k < self->nwatched; k++) {
            uint64_t within = node->values[i] - self->watched[k].address;
            if (within >= self->watched[k].bytes) {
                continue;
            }
            if (!room((void **)&self->readers, self->nreaders, sizeof(Reader))) {
                return false;
            }
            self->readers[self->nreaders++] = (Reader){k, self->nnodes - 1, i, within};
        }
    }
    return true;
}

static bool
reads_watched(const DeviceGraph *self, const DeviceLaunch *launch)
{
    for (Py_ssize_t i = 0; i < launch->nbuffers; i++) {
        uint64_t address;
        memcpy(&address, launch->parameters[i], sizeof(address));
        for (Py_ssize_t k = 0; k < self->nwatched; k++) {
            if (address - self->watched[k].address < self->watched[k].bytes) {
                return true;
            }
        }
    }
    return false;
}

void
device_graph_note(const DeviceLaunch *launch)
{
    DeviceGraph *self = watching;
    if (self == NULL || self->missed || !reads_watched(self, launch)) {
        return;
    }
    void *node = launch->nparameters <= MOST_PARAMETERS ? last_node(launch->stream) : NULL;
    self->missed = node == NULL || !add_node(self, node, launch) || !add_readers(self, launch);
}

void
device_graph_missed(void)
{
    if (watching != NULL) {
        watching->missed = true;
    }
}

bool
device_graph_records(void)
{
    return watching != NULL;
}

static PyObject *
graph_watch(DeviceGraph *self, PyObject *ignored)
{
    if (watching != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "a recording is being made in this thread");
        return NULL;
    }
    watching = self;
    Py_RETURN_NONE;
}

static PyObject *
graph_unwatch(DeviceGraph *self, PyObject *ignored)
{
    watching = watching == self ? NULL : watching;
    Py_RETURN_NONE;
}

/* -- when it is made ---------------------------------------------------------------------------------- */

/* Tell the driver what a kernel is given from now on. */
static bool
tell_node(const DeviceGraph *self, Node *node)
{
    void *parameters[MOST_PARAMETERS];
    for (Py_ssize_t i = 0; i < node->nvalues; i++) {
        parameters[i] = &node->values[i];
    }
    NodeParams params = {.function = node->function, .grid = {node->programs, 1, 1}, .block = {node->threads, 1, 1},
                         .shared = node->shared, .parameters = parameters};
    node->stale = driver.set_params(self->exec, node->node, &params) != 0;
    return !node->stale;
}

/* instantiate(graph): make what can be launched of a recorded CUgraph, which must live as long; whether that went well. Each kernel
 * that may be told something later is told what it is given now: where the driver refuses, nothing is moved. */
static PyObject *
graph_instantiate(DeviceGraph *self, PyObject *number)
{
    unsigned long long graph = PyLong_AsUnsignedLongLong(number);
    if (graph == (unsigned long long)-1 && PyErr_Occurred()) {
        return NULL;
    }
    void *exec = NULL;
    if (self->exec != NULL || driver.launch == NULL
        || driver.instantiate(&exec, (void *)(uintptr_t)graph, INSTANTIATE_FLAGS) != 0) {
        Py_RETURN_FALSE;
    }
    self->exec = exec;
    for (Py_ssize_t i = 0; i < self->nnodes && !self->missed; i++) {
        self->missed = !tell_node(self, &self->nodes[i]);
    }
    Py_RETURN_TRUE;
}

/* How many kernels read each piece of watched memory; -1: not known. */
static PyObject *
graph_readers(DeviceGraph *self, void *closure)
{
    PyObject *found = PyTuple_New(self->nwatched);
    for (Py_ssize_t k = 0; found != NULL && k < self->nwatched; k++) {
        Py_ssize_t count = self->missed ? -1 : 0;
        for (Py_ssize_t i = 0; i < self->nreaders && !self->missed; i++) {
            count += self->readers[i].watched == k;
        }
        PyObject *item = PyLong_FromSsize_t(count);
        if (item == NULL) {
            Py_CLEAR(found);
        } else {
            PyTuple_SET_ITEM(found, k, item);
        }
    }
    return found;
}

/* move(k, address): from the next launch on what lay in watched memory k lies there. */
static PyObject *
graph_move(DeviceGraph *self, PyObject *const *args, Py_ssize_t nargs)
{
    Py_ssize_t k = nargs == 2 ? PyLong_AsSsize_t(args[0]) : -1;
    unsigned long long address = nargs == 2 ? PyLong_AsUnsignedLongLong(args[1]) : 0;
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (k < 0 || k >= self->nwatched || self->missed) {
        PyErr_SetString(PyExc_ValueError, "move(k, address): no such memory, or nothing can be moved");
        return NULL;
    }
    if (self->watched[k].now == address) {
        Py_RETURN_NONE;
    }
    self->watched[k].now = address;
    self->stale = true;
    for (Py_ssize_t i = 0; i < self->nreaders; i++) {
        const Reader *reader = &self->readers[i];
        if (reader->watched == k) {
            Node *node = &self->nodes[reader->node];
            node->values[reader->value] = address + reader->within;
            node->stale = true;
        }
    }
    Py_RETURN_NONE;
}

/* -- when it is launched ------------------------------------------------------------------------------ */

static bool
tell_stale(DeviceGraph *self)
{
    for (Py_ssize_t i = 0; self->stale && i < self->nnodes; i++) {
        if (self->nodes[i].stale && !tell_node(self, &self->nodes[i])) {
            return false;
        }
    }
    self->stale = false;
    return true;
}

static PyObject *
graph_call(DeviceGraph *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    void *stream;
    if (self->exec == NULL || driver.launch == NULL || PyVectorcall_NARGS(nargsf) != 0) {
        PyErr_SetString(PyExc_RuntimeError, "a recording that cannot be launched so");
        return NULL;
    }
    if (!device_is_current(self->device)) {
        return PyObject_CallOneArg(self->elsewhere, (PyObject *)self);
    }
    if (!tell_stale(self) || !device_stream(self->device, &stream)) {
        PyErr_SetString(PyExc_RuntimeError, "the GPU's driver refuses to change a recording");
        return NULL;
    }
    int (*launch)(void *, void *) = driver.launch;
    void *exec = self->exec;
    int failed;
    Py_BEGIN_ALLOW_THREADS /* a full queue waits for the device */
    failed = launch(exec, stream);
    Py_END_ALLOW_THREADS
    if (failed) {
        return PyErr_Format(PyExc_RuntimeError, "the GPU's driver cannot launch a recording (error %d)", failed);
    }
    Py_RETURN_NONE;
}

/* -- the type ----------------------------------------------------------------------------------------- */

static int
graph_traverse(DeviceGraph *self, visitproc visit, void *arg)
{
    Py_VISIT(self->elsewhere);
    return 0;
}

static int
graph_clear(DeviceGraph *self)
{
    Py_CLEAR(self->elsewhere);
    return 0;
}

static void
graph_dealloc(DeviceGraph *self)
{
    PyObject_GC_UnTrack(self);
    watching = watching == self ? NULL : watching;
    if (self->exec != NULL && driver.destroy != NULL) {
        driver.destroy(self->exec);
    }
    for (Py_ssize_t i = 0; i < self->nnodes; i++) {
        PyMem_Free(self->nodes[i].values);
    }
    PyMem_Free(self->nodes);
    PyMem_Free(self->readers);
    PyMem_Free(self->watched);
    graph_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *
graph_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"device", "watched", "elsewhere", NULL};
    PyObject *watched, *elsewhere;
    int device;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iO!O:DeviceGraph", names, &device, &PyTuple_Type, &watched, &elsewhere)) {
        return NULL;
    }
    DeviceGraph *self = (DeviceGraph *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = (vectorcallfunc)graph_call;
    self->device = device;
    self->elsewhere = Py_NewRef(elsewhere);
    self->nwatched = PyTuple_GET_SIZE(watched);
    self->watched = PyMem_Calloc(self->nwatched + 1, sizeof(Watched));
    if (self->watched == NULL) {
        self->nwatched = 0;
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t k = 0; k < self->nwatched; k++) {
        unsigned long long address, bytes;
        PyObject *row = PyTuple_GET_ITEM(watched, k);
        if (!PyTuple_Check(row) || !PyArg_ParseTuple(row, "KK", &address, &bytes)) {
            Py_DECREF(self);
            return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "watched memory is (address, bytes)");
        }
        self->watched[k] = (Watched){address, bytes, address};
    }
    return (PyObject *)self;
}

static PyMethodDef graph_methods[] = {
    {"watch", (PyCFunction)graph_watch, METH_NOARGS, "watch()\n--\n\nWhat this thread launches from here on is the recording."},
    {"unwatch", (PyCFunction)graph_unwatch, METH_NOARGS, "unwatch()\n--\n\nThe recording ends."},
    {"instantiate", (PyCFunction)graph_instantiate, METH_O,
     "instantiate(graph)\n--\n\nMake what can be launched of a recorded graph; whether that went well."},
    {"move", (PyCFunction)graph_move, METH_FASTCALL,
     "move(k, address)\n--\n\nFrom the next launch on what lay in watched memory k lies there."},
    {NULL},
};
static PyGetSetDef graph_properties[] = {
    {"readers", (getter)graph_readers, NULL, "How many kernels read each piece of watched memory; -1: not known."},
    {NULL},
};

PyTypeObject DeviceGraph_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "braze.native._native.DeviceGraph",
    .tp_doc = "A recording on a GPU, launched on the current stream; its kernels can be pointed at other memory.",
    .tp_basicsize = sizeof(DeviceGraph),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC,
    .tp_vectorcall_offset = offsetof(DeviceGraph, vectorcall),
    .tp_methods = graph_methods,
    .tp_getset = graph_properties,
    .tp_call = PyVectorcall_Call,
    .tp_new = graph_new,
    .tp_dealloc = (destructor)graph_dealloc,
    .tp_traverse = (traverseproc)graph_traverse,
    .tp_clear = (inquiry)graph_clear,
};

/* The addresses of cuStreamGetCaptureInfo, cuGraphNodeGetType, cuGraphInstantiateWithFlags, cuGraphExecKernelNodeSetParams, cuGraphLaunch
 * and cuGraphExecDestroy; zeros: none. */
static PyObject *
configure_graphs(PyObject *module, PyObject *args)
{
    unsigned long long given[6];
    if (!PyArg_ParseTuple(args, "KKKKKK:_configure_graphs", &given[0], &given[1], &given[2], &given[3], &given[4], &given[5])) {
        return NULL;
    }
    bool whole = true;
    uintptr_t found[6];
    for (int i = 0; i < 6; i++) {
        found[i] = (uintptr_t)given[i];
        whole = whole && found[i] != 0;
    }
    if (!whole) {
        memset(found, 0, sizeof(found));
    }
    memcpy(&driver, found, sizeof(driver));
    return PyBool_FromLong(whole);
}

PyMethodDef device_graph_functions[] = {
    {"_configure_graphs", configure_graphs, METH_VARARGS, "Where the driver's functions for graphs are; whether all are there."},
    {NULL},
};
