/* Launches that come again and again, as one graph of the driver's, which takes the host as long as a few launches.
 *
 * Unlike a recording (device_graph.c) it has launches of our kernels alone, takes no memory from PyTorch's allocator, and is told of each
 * address that has changed; where too many have since the call before, launches are made one by one.
 */
#include "device.h"

enum {
    FEWEST = 8,   /* launches for which a graph is made */
    SETTLED = 3,  /* calls after which it is made, and is launched on another stream than before */
    TELLING = 2,  /* one of so many may be told something else than at the call before */
};

enum { RELAXED = 2 }; /* CU_STREAM_CAPTURE_MODE_RELAXED */

/* CUgraphEdgeData: that which is behind begins when all of what is ahead lets it, as by programmatic stream serialization. */
typedef struct {
    unsigned char from_port, to_port, type, reserved[5];
} Edge;

static const Edge EARLY = {.from_port = 1, .type = 1};

static struct {
    int (*is_capturing)(void *, int *);
    int (*create)(void **, unsigned);
    int (*add_kernel)(void **, void *, void *const *, size_t, const NodeParams *);
    int (*instantiate)(void **, void *, unsigned long long);
    int (*set_params)(void *, void *, const NodeParams *);
    int (*launch)(void *, void *);
    int (*destroy_exec)(void *);
    int (*destroy)(void *);
    int (*exchange_mode)(int *);
    int (*connect)(void *, void *const *, void *const *, const Edge *, size_t); /* cuGraphAddDependencies_v2; may be NULL */
} driver;

/* What may take memory, or give it back, must not end another thread's stream capture: between two exchanges it does not. */
static void
exchange(int *mode)
{
    driver.exchange_mode(mode);
}

void
device_row_clear(DeviceRow *row)
{
    if (row->graph != NULL && driver.destroy != NULL) {
        int mode = RELAXED;
        exchange(&mode);
        if (row->exec != NULL) {
            driver.destroy_exec(row->exec);
        }
        driver.destroy(row->graph);
        exchange(&mode);
    }
    PyMem_Free(row->nodes);
    PyMem_Free(row->told);
    PyMem_Free(row->seen);
    *row = (DeviceRow){.refused = row->refused};
}

static NodeParams
params_of(const DeviceStep *step, uint64_t *words, void **parameters)
{
    device_parameters(step, words, parameters);
    const DeviceForm *form = &step->form;
    return (NodeParams){.function = form->function, .grid = {form->programs, 1, 1}, .block = {form->threads, 1, 1},
                        .shared = form->shared, .parameters = parameters};
}

/* Each launch behind the one before it, or as soon as that lets it; false where the driver refuses. */
static bool
add_nodes(DeviceRow *row, const DeviceStep *steps, Py_ssize_t count, uint64_t *words)
{
    void *parameters[MOST_PARAMETERS], *last = NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (steps[i].form.programs == 0) {
            continue;
        }
        NodeParams params = params_of(&steps[i], words, parameters);
        void **node = &row->nodes[i];
        bool early = steps[i].form.early && last != NULL && driver.connect != NULL;
        if (driver.add_kernel(node, row->graph, &last, last != NULL && !early, &params) != 0
            || (early && driver.connect(row->graph, &last, node, &EARLY, 1) != 0)) {
            return false;
        }
        last = *node;
    }
    return last != NULL;
}

static bool
make(DeviceRow *row, const DeviceStep *steps, Py_ssize_t count, uint64_t *words, Py_ssize_t nwords)
{
    row->nodes = PyMem_Calloc(count, sizeof(void *));
    row->told = PyMem_Malloc(nwords * sizeof(uint64_t));
    row->seen = PyMem_Malloc(nwords * sizeof(uint64_t));
    if (row->nodes == NULL || row->told == NULL || row->seen == NULL) {
        return false;
    }
    memcpy(row->told, words, nwords * sizeof(uint64_t));
    memcpy(row->seen, words, nwords * sizeof(uint64_t));
    int mode = RELAXED;
    exchange(&mode);
    bool made = driver.create(&row->graph, 0) == 0 && add_nodes(row, steps, count, words)
                && driver.instantiate(&row->exec, row->graph, 0) == 0;
    exchange(&mode);
    return made;
}

/* Whether a launch takes the same of other words. */
static bool
takes_same(const DeviceStep *step, const uint64_t *before, const uint64_t *words)
{
    for (Py_ssize_t k = 0; k < step->nsources; k++) {
        if (before[step->sources[k]] != words[step->sources[k]]) {
            return false;
        }
    }
    return true;
}

/* Whether it pays to tell the driver of these words: few launches take something else than at the call before. */
static bool
is_steady(DeviceRow *row, const DeviceStep *steps, Py_ssize_t count, const uint64_t *words, Py_ssize_t nwords)
{
    Py_ssize_t changed = 0;
    if (memcmp(row->seen, words, nwords * sizeof(uint64_t)) == 0) {
        return true;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        changed += !takes_same(&steps[i], row->seen, words);
    }
    memcpy(row->seen, words, nwords * sizeof(uint64_t));
    return changed * TELLING <= count;
}

/* Tell the driver what it does not know; false where it refuses. */
static bool
tell(DeviceRow *row, const DeviceStep *steps, Py_ssize_t count, uint64_t *words, Py_ssize_t nwords)
{
    if (memcmp(row->told, words, nwords * sizeof(uint64_t)) == 0) {
        return true;
    }
    void *parameters[MOST_PARAMETERS];
    for (Py_ssize_t i = 0; i < count; i++) {
        if (row->nodes[i] == NULL || takes_same(&steps[i], row->told, words)) {
            continue;
        }
        NodeParams params = params_of(&steps[i], words, parameters);
        if (driver.set_params(row->exec, row->nodes[i], &params) != 0) {
            return false;
        }
    }
    memcpy(row->told, words, nwords * sizeof(uint64_t));
    return true;
}

bool
device_row_launch(DeviceRow *row, const DeviceStep *steps, Py_ssize_t count, uint64_t *words, Py_ssize_t nwords, void *stream)
{
    int capturing = 0;
    if (driver.launch == NULL || count < FEWEST || row->refused || row->busy) {
        return false;
    }
    row->calls = row->calls > 0 && stream == row->stream ? row->calls + (row->calls <= SETTLED) : 1;
    row->stream = stream;
    if (row->calls <= SETTLED || driver.is_capturing(stream, &capturing) != 0 || capturing) {
        return false;
    }
    if (row->exec != NULL && !is_steady(row, steps, count, words, nwords)) {
        return false;
    }
    if (row->exec == NULL ? !make(row, steps, count, words, nwords) : !tell(row, steps, count, words, nwords)) {
        row->refused = true; /* what it knows may be of two calls */
        return false;
    }
    int (*launch)(void *, void *) = driver.launch;
    void *exec = row->exec;
    int failed;
    row->busy = true; /* a launch reads what it was told: no other thread tells it something else meanwhile */
    Py_BEGIN_ALLOW_THREADS
    failed = launch(exec, stream);
    Py_END_ALLOW_THREADS
    row->busy = false;
    row->refused = failed != 0;
    return !failed;
}

/* The addresses of cuStreamIsCapturing, cuGraphCreate, cuGraphAddKernelNode, cuGraphInstantiate, cuGraphExecKernelNodeSetParams,
 * cuGraphLaunch, cuGraphExecDestroy, cuGraphDestroy, cuThreadExchangeStreamCaptureMode, and cuGraphAddDependencies; zeros: none. */
static PyObject *
configure_rows(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    uintptr_t found[sizeof(driver) / sizeof(void *)];
    const Py_ssize_t count = sizeof(found) / sizeof(found[0]);
    if (nargs != count) {
        return PyErr_Format(PyExc_TypeError, "_configure_rows takes %zd addresses", count);
    }
    bool whole = true;
    for (Py_ssize_t i = 0; i < count; i++) {
        found[i] = (uintptr_t)PyLong_AsUnsignedLongLong(args[i]);
        if (PyErr_Occurred()) {
            return NULL;
        }
        whole = whole && (found[i] != 0 || i == count - 1);
    }
    if (!whole) {
        memset(found, 0, sizeof(found));
    }
    memcpy(&driver, found, sizeof(driver));
    return PyBool_FromLong(whole);
}

PyMethodDef device_row_functions[] = {
    {"_configure_rows", (PyCFunction)(void (*)(void))configure_rows, METH_FASTCALL,
     "Where the driver's functions are that make one graph of several launches; whether all are there."},
    {NULL},
};
