/* Launches that follow one another on a GPU, in one call: each tensor is read once, the stream is asked for once, and the GIL is let go of
 * once for all of them.
 *
 * The arguments are the tensors and the sizes of all launches, each once; a launch knows its own by their places. What is not as it was
 * (see device_launch.c), and what a recording has to see, is launched by each kernel's own launcher, in the same order.
 */
#include "device.h"

#include <stddef.h>

enum { ON_STACK = 512 };

/* All launches for some sizes on one device. Only the row is ever changed, so that the steps are read without the GIL. */
typedef struct {
    Py_ssize_t holders;
    int device;
    int64_t *sizes;
    DeviceStep *steps;
    Py_ssize_t *sources;
    DeviceRow row;
} Plan;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Py_ssize_t nbuffers, nsizes, nlaunches;
    PyObject *launchers; /* a tuple of DeviceLaunchers */
    Py_ssize_t *places;  /* of each launch's arguments among the call's, launch after launch */
    bool alike;          /* all ask for the same hooks */
    bool graphs;         /* they may become a graph of the driver's */
    Plan *plan;          /* the last one */
} DeviceRun;

static DeviceLauncher *
launcher_at(const DeviceRun *self, Py_ssize_t i)
{
    return (DeviceLauncher *)PyTuple_GET_ITEM(self->launchers, i);
}

static Py_ssize_t
arguments_of(const DeviceLauncher *launcher)
{
    return launcher->nbuffers + launcher->nsizes;
}

/* -- plans ------------------------------------------------------------------------------------------ */

static void
plan_drop(Plan *plan)
{
    if (plan != NULL && --plan->holders == 0) {
        device_row_clear(&plan->row);
        PyMem_Free(plan->sizes);
        PyMem_Free(plan->steps);
        PyMem_Free(plan->sources);
        PyMem_Free(plan);
    }
}

/* An empty plan; NULL with an exception set. */
static Plan *
plan_new(const DeviceRun *self, int device, const uint64_t *words)
{
    Py_ssize_t count = 0;
    for (Py_ssize_t i = 0; i < self->nlaunches; i++) {
        count += arguments_of(launcher_at(self, i)) + MOST_SCRATCH;
    }
    Plan *plan = PyMem_Calloc(1, sizeof(Plan));
    if (plan != NULL) {
        plan->holders = 1;
        plan->device = device;
        plan->sizes = PyMem_Malloc((self->nsizes + 1) * sizeof(int64_t));
        plan->steps = PyMem_Calloc(self->nlaunches, sizeof(DeviceStep));
        plan->sources = PyMem_Malloc(count * sizeof(Py_ssize_t));
    }
    if (plan == NULL || plan->sizes == NULL || plan->steps == NULL || plan->sources == NULL) {
        plan_drop(plan);
        PyErr_NoMemory();
        return NULL;
    }
    memcpy(plan->sizes, words + self->nbuffers, self->nsizes * sizeof(int64_t));
    return plan;
}

/* Enter where a launch finds what its kernel takes; the place behind that. */
static Py_ssize_t *
fill_step(const DeviceRun *self, const DeviceLauncher *launcher, const Py_ssize_t *places, DeviceStep *step, Py_ssize_t *sources)
{
    step->sources = sources;
    for (Py_ssize_t i = 0; i < arguments_of(launcher); i++) {
        if (i < launcher->nbuffers || step->form.widths[i - launcher->nbuffers]) {
            *sources++ = places[i];
        }
    }
    for (int i = 0; i < step->form.scratch; i++) {
        *sources++ = self->nbuffers + self->nsizes; /* the word behind all others, which is zero */
    }
    step->nsources = sources - step->sources;
    return sources;
}

/* Ask for each kernel: 1 with a new plan, 0 where one is for Triton to launch, -1 with an exception set. */
static int
learn(DeviceRun *self, int device, PyObject *const *args, const uint64_t *words, Plan **made)
{
    Plan *plan = plan_new(self, device, words);
    if (plan == NULL) {
        return -1;
    }
    const Py_ssize_t *places = self->places;
    Py_ssize_t *sources = plan->sources;
    int known = 1;
    for (Py_ssize_t i = 0; known == 1 && i < self->nlaunches; i++) {
        DeviceLauncher *launcher = launcher_at(self, i);
        PyObject *given[MOST_SIZES];
        int64_t sizes[MOST_SIZES];
        for (Py_ssize_t k = 0; k < launcher->nsizes; k++) {
            Py_ssize_t place = places[launcher->nbuffers + k];
            given[k] = args[place];
            sizes[k] = (int64_t)words[place];
        }
        known = device_learn(launcher, device, given, sizes, 0);
        plan->steps[i].form = launcher->form;
        if (known == 1) {
            sources = fill_step(self, launcher, places, &plan->steps[i], sources);
        }
        places += arguments_of(launcher);
    }
    if (known != 1) {
        plan_drop(plan);
        return known;
    }
    *made = plan;
    return 1;
}

/* -- calls ------------------------------------------------------------------------------------------ */

/* Read the arguments into words; false (no exception set) where they are for Python. */
static bool
read_words(const DeviceRun *self, PyObject *const *args, int device, uint64_t *words)
{
    for (Py_ssize_t i = 0; i < self->nbuffers; i++) {
        void *address;
        int place;
        if (!tensor_place(args[i], &place) || place != device || buffer_address(args[i], &address) < 0) {
            PyErr_Clear();
            return false;
        }
        words[i] = (uint64_t)(uintptr_t)address;
        if (words[i] & ALIGNED) {
            return false;
        }
    }
    for (Py_ssize_t i = self->nbuffers; i < self->nbuffers + self->nsizes; i++) {
        long long number = PyLong_AsLongLong(args[i]);
        if (number == -1 && PyErr_Occurred()) {
            PyErr_Clear();
            return false;
        }
        words[i] = (uint64_t)number;
    }
    words[self->nbuffers + self->nsizes] = 0;
    return true;
}

/* How many of the launches the driver has taken. Without the GIL. */
static Py_ssize_t
launch_singly(const Plan *plan, Py_ssize_t count, uint64_t *words, void *stream)
{
    void *parameters[MOST_PARAMETERS];
    for (Py_ssize_t i = 0; i < count; i++) {
        const DeviceStep *step = &plan->steps[i];
        device_parameters(step, words, parameters);
        if (step->form.programs > 0 && device_launch(&step->form, stream, parameters) != 0) {
            return i;
        }
    }
    return count;
}

/* The same, all at once where that is known to go. */
static Py_ssize_t
launch_all(const DeviceRun *self, Plan *plan, uint64_t *words)
{
    void *stream;
    Py_ssize_t count = self->nlaunches;
    if (!device_stream(plan->device, &stream)) {
        return 0;
    }
    Py_ssize_t nwords = self->nbuffers + self->nsizes + 1;
    if (self->graphs && device_row_launch(&plan->row, plan->steps, count, words, nwords, stream)) {
        return count;
    }
    Py_ssize_t done;
    Py_BEGIN_ALLOW_THREADS /* a full queue waits for the device */
    done = launch_singly(plan, count, words, stream);
    Py_END_ALLOW_THREADS
    return done;
}

/* Launches from the first on by each kernel's own launcher. */
static PyObject *
launch_each(const DeviceRun *self, PyObject *const *args, Py_ssize_t first)
{
    const Py_ssize_t *places = self->places;
    for (Py_ssize_t i = 0; i < self->nlaunches; i++) {
        DeviceLauncher *launcher = launcher_at(self, i);
        PyObject *row[MOST_BUFFERS + MOST_SIZES];
        Py_ssize_t count = arguments_of(launcher);
        for (Py_ssize_t k = 0; k < count; k++) {
            row[k] = args[places[k]];
        }
        PyObject *done = i < first ? Py_NewRef(Py_None) : PyObject_Vectorcall((PyObject *)launcher, row, count, NULL);
        if (done == NULL) {
            return NULL;
        }
        Py_DECREF(done);
        places += count;
    }
    Py_RETURN_NONE;
}

/* The plan for these arguments, to be dropped: 1, 0 where each is launched by itself, -1 with an exception set. */
static int
plan_for(DeviceRun *self, PyObject *const *args, uint64_t *words, Plan **found)
{
    int device;
    if (!self->alike || device_graph_records() || !device_current(&device) || !read_words(self, args, device, words)
        || !device_unhooked(launcher_at(self, 0))) {
        return 0;
    }
    Plan *plan = self->plan;
    if (plan == NULL || plan->device != device
        || memcmp(plan->sizes, words + self->nbuffers, self->nsizes * sizeof(int64_t)) != 0) {
        int known = learn(self, device, args, words, &plan);
        if (known != 1) {
            return known;
        }
        Plan *before = self->plan; /* which another thread may be launching */
        self->plan = plan;
        plan_drop(before);
    }
    plan->holders++;
    *found = plan;
    return 1;
}

static PyObject *
run_call(DeviceRun *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
    if (nargs != self->nbuffers + self->nsizes || (kwnames != NULL && PyTuple_GET_SIZE(kwnames) > 0)) {
        return PyErr_Format(PyExc_TypeError, "a run takes %zd buffers and %zd sizes, not %zd arguments", self->nbuffers,
                            self->nsizes, nargs);
    }
    uint64_t here[ON_STACK], *words = nargs < ON_STACK ? here : PyMem_Malloc((nargs + 1) * sizeof(uint64_t));
    if (words == NULL) {
        return PyErr_NoMemory();
    }
    Plan *plan;
    int known = plan_for(self, args, words, &plan);
    Py_ssize_t done = 0;
    if (known == 1) {
        done = launch_all(self, plan, words);
        plan_drop(plan);
    }
    if (words != here) {
        PyMem_Free(words);
    }
    if (done == self->nlaunches) {
        Py_RETURN_NONE;
    }
    return known < 0 ? NULL : launch_each(self, args, done);
}

/* -- the type --------------------------------------------------------------------------------------- */

/* Whether two launches are hooked by the same. */
static bool
hooked_alike(const DeviceLauncher *one, const DeviceLauncher *other)
{
    Py_ssize_t count = PyTuple_GET_SIZE(one->hooks);
    bool alike = one->settings == other->settings && one->names == other->names && count == PyTuple_GET_SIZE(other->hooks);
    for (Py_ssize_t k = 0; alike && k < count; k++) {
        alike = PyTuple_GET_ITEM(one->hooks, k) == PyTuple_GET_ITEM(other->hooks, k);
    }
    return alike;
}

/* Enter the launchers of rows (launcher, places of its buffers and sizes); the count of all places, or -1 with an exception set. */
static Py_ssize_t
fill_launchers(DeviceRun *self, PyObject *rows)
{
    Py_ssize_t count = 0;
    for (Py_ssize_t i = 0; i < self->nlaunches; i++) {
        PyObject *row = PyTuple_GET_ITEM(rows, i), *launcher, *places;
        if (!PyTuple_Check(row)) {
            PyErr_SetString(PyExc_TypeError, "DeviceRun: launches are tuples");
            return -1;
        }
        if (!PyArg_ParseTuple(row, "O!O!:DeviceRun", &DeviceLauncher_Type, &launcher, &PyTuple_Type, &places)) {
            return -1;
        }
        PyTuple_SET_ITEM(self->launchers, i, Py_NewRef(launcher));
        if (PyTuple_GET_SIZE(places) != arguments_of(launcher_at(self, i))) {
            PyErr_SetString(PyExc_ValueError, "DeviceRun: a kernel of another number of arguments");
            return -1;
        }
        self->alike = self->alike && hooked_alike(launcher_at(self, 0), launcher_at(self, i));
        count += PyTuple_GET_SIZE(places);
    }
    return count;
}

/* Enter the launches; false with an exception set. */
static bool
fill_run(DeviceRun *self, PyObject *rows)
{
    Py_ssize_t count = fill_launchers(self, rows), *next;
    if (count < 0) {
        return false;
    }
    if ((next = self->places = PyMem_Malloc(count * sizeof(Py_ssize_t))) == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t i = 0; i < self->nlaunches; i++) {
        PyObject *places = PyTuple_GET_ITEM(PyTuple_GET_ITEM(rows, i), 1);
        for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(places); k++) {
            Py_ssize_t place = PyLong_AsSsize_t(PyTuple_GET_ITEM(places, k));
            bool is_size = k >= launcher_at(self, i)->nbuffers;
            Py_ssize_t first = is_size ? self->nbuffers : 0;
            if (place < first || place >= self->nbuffers + (is_size ? self->nsizes : 0)) {
                if (!PyErr_Occurred()) {
                    PyErr_SetString(PyExc_ValueError, "DeviceRun: a place that no such argument has");
                }
                return false;
            }
            *next++ = place;
        }
    }
    return true;
}

static int
run_traverse(DeviceRun *self, visitproc visit, void *arg)
{
    Py_VISIT(self->launchers);
    return 0;
}

static int
run_clear(DeviceRun *self)
{
    Py_CLEAR(self->launchers);
    return 0;
}

static void
run_dealloc(DeviceRun *self)
{
    PyObject_GC_UnTrack(self);
    run_clear(self);
    plan_drop(self->plan);
    PyMem_Free(self->places);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *
run_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"launches", "nbuffers", "nsizes", "graphs", NULL};
    PyObject *rows;
    Py_ssize_t nbuffers, nsizes;
    int graphs = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!nn|p:DeviceRun", names, &PyTuple_Type, &rows, &nbuffers, &nsizes,
                                     &graphs)) {
        return NULL;
    }
    if (PyTuple_GET_SIZE(rows) < 1 || nbuffers < 1 || nsizes < 0) {
        PyErr_SetString(PyExc_ValueError, "DeviceRun: launches, and what they are given");
        return NULL;
    }
    DeviceRun *self = (DeviceRun *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = (vectorcallfunc)run_call;
    self->nbuffers = nbuffers;
    self->nsizes = nsizes;
    self->alike = true;
    self->graphs = graphs;
    self->nlaunches = PyTuple_GET_SIZE(rows);
    self->launchers = PyTuple_New(self->nlaunches);
    if (self->launchers == NULL || !fill_run(self, rows)) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

PyTypeObject DeviceRun_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "braze.native._native.DeviceRun",
    .tp_doc = "Launch kernels one after another on the current stream.",
    .tp_basicsize = sizeof(DeviceRun),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC,
    .tp_vectorcall_offset = offsetof(DeviceRun, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = run_new,
    .tp_dealloc = (destructor)run_dealloc,
    .tp_traverse = (traverseproc)run_traverse,
    .tp_clear = (inquiry)run_clear,
};
