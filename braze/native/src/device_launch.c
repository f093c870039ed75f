/* Launches on a GPU: what a kernel is given is packed here and handed to the driver, with no Python in between.
 *
 * braze/native/driver.py finds the driver's functions. Whatever is not as it was when a kernel was first launched (which
 * pointers 16 divides, sizes of another kind, a hook of Triton's, another current device) goes to Python.
 */
#include "device.h"

#include <stddef.h>

static struct {
    int (*current_device)(int *);
    int32_t (*current_stream)(int32_t, void **);
    int (*copy)(uint64_t, uint64_t, size_t, void *); /* may be NULL */
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
    int (*launch_with)(const void *, void *, void **, void **); /* cuLaunchKernelEx; may be NULL */
} driver;

/* CUlaunchAttribute and CUlaunchConfig: https://docs.nvidia.com/cuda/cuda-driver-api */
enum { PROGRAMMATIC_STREAM_SERIALIZATION = 6 };

typedef struct {
    int id;
    char padding[4];
    union {
        char bytes[64];
        int allowed;
    } value;
} Attribute;

typedef struct {
    unsigned grid[3], block[3], shared;
    void *stream;
    Attribute *attributes;
    unsigned count;
} Configuration;

/* The arguments of one launch, on the stack of the thread that makes it. */
typedef struct {
    void *buffers[MOST_BUFFERS];
    int64_t sizes[MOST_SIZES];
    uint64_t apart; /* bits of the buffers that 16 does not divide */
    void *parameters[MOST_PARAMETERS];
    void *nothing;
} Packed;

bool
device_current(int *device)
{
    return driver.launch != NULL && driver.current_device(device) == 0;
}

bool
device_is_current(int device)
{
    int current;
    return driver.current_device != NULL && driver.current_device(&current) == 0 && current == device;
}

bool
device_stream(int device, void **stream)
{
    return driver.current_stream != NULL && driver.current_stream(device, stream) == 0;
}

bool
device_copy(int device, void *to, const void *from, size_t bytes)
{
    void *stream = NULL;
    if (driver.copy == NULL || !device_is_current(device) || !device_stream(device, &stream)) {
        return false;
    }
    return bytes == 0 || driver.copy((uint64_t)(uintptr_t)to, (uint64_t)(uintptr_t)from, bytes, stream) == 0;
}

bool
device_unhooked(const DeviceLauncher *self)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->names); i++) {
        if (PyDict_GetItem(self->settings, PyTuple_GET_ITEM(self->names, i)) != NULL) {
            return false;
        }
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->hooks); i++) {
        if (PyList_GET_SIZE(PyTuple_GET_ITEM(self->hooks, i)) != 0) {
            return false;
        }
    }
    return true;
}

/* Read the arguments; false (no exception set) where they are for Python. */
static bool
pack(const DeviceLauncher *self, PyObject *const *args, Packed *packed)
{
    packed->apart = 0;
    for (Py_ssize_t i = 0; i < self->nbuffers; i++) {
        if (buffer_address(args[i], &packed->buffers[i]) < 0) {
            PyErr_Clear();
            return false;
        }
        if ((uintptr_t)packed->buffers[i] & ALIGNED) {
            if (i >= MOST_APART) {
                return false;
            }
            packed->apart |= (uint64_t)1 << i;
        }
    }
    for (Py_ssize_t i = 0; i < self->nsizes; i++) {
        packed->sizes[i] = PyLong_AsLongLong(args[self->nbuffers + i]);
        if (packed->sizes[i] == -1 && PyErr_Occurred()) {
            PyErr_Clear();
            return false;
        }
    }
    return true;
}

/* Ask Python what a kernel is for these sizes, and for buffers that 16 does not divide: 1, 0 where it does not know yet, -1 with an exception set. */
static int
find(const DeviceLauncher *self, int device, PyObject *const *sizes, uint64_t apart, DeviceForm *form)
{
    PyObject *row[MOST_SIZES + 2], *bits = apart ? PyLong_FromUnsignedLongLong(apart) : NULL;
    if ((apart && bits == NULL) || (row[0] = PyLong_FromLong(device)) == NULL) {
        Py_XDECREF(bits);
        return -1;
    }
    memcpy(row + 1, sizes, self->nsizes * sizeof(*row));
    row[self->nsizes + 1] = bits;
    PyObject *found = PyObject_Vectorcall(self->find, row, self->nsizes + 1 + (bits != NULL), NULL);
    Py_DECREF(row[0]);
    Py_XDECREF(bits);
    if (found == NULL || found == Py_None) {
        Py_XDECREF(found);
        return found == NULL ? -1 : 0;
    }
    unsigned long long function;
    const char *widths;
    Py_ssize_t nwidths;
    form->early = 0;
    int known = PyArg_ParseTuple(found, "KIIIy#i|p", &function, &form->programs, &form->threads, &form->shared, &widths,
                                 &nwidths, &form->scratch, &form->early)
                    ? 1
                    : -1;
    if (known == 1 && (nwidths != self->nsizes || form->scratch < 0 || form->scratch > MOST_SCRATCH)) {
        PyErr_SetString(PyExc_ValueError, "a kernel of another number of arguments");
        known = -1;
    }
    if (known == 1) {
        form->function = (void *)(uintptr_t)function;
        memcpy(form->widths, widths, nwidths);
    }
    Py_DECREF(found);
    return known;
}

int
device_learn(DeviceLauncher *self, int device, PyObject *const *args, const int64_t *sizes, uint64_t apart)
{
    if (self->known && device == self->device && apart == self->apart && memcmp(self->sizes, sizes, self->nsizes * sizeof(int64_t)) == 0) {
        return 1;
    }
    DeviceForm form;
    int known = find(self, device, args, apart, &form);
    if (known == 1) {
        self->known = true;
        self->form = form;
        memcpy(self->sizes, sizes, self->nsizes * sizeof(int64_t));
        self->device = device;
        self->apart = apart;
    }
    return known;
}

int
device_launch(const DeviceForm *form, void *stream, void **parameters)
{
    if (!form->early || driver.launch_with == NULL) {
        return driver.launch(form->function, form->programs, 1, 1, form->threads, 1, 1, form->shared, stream, parameters,
                             NULL);
    }
    Attribute attribute = {.id = PROGRAMMATIC_STREAM_SERIALIZATION, .value.allowed = 1};
    Configuration how = {{form->programs, 1, 1}, {form->threads, 1, 1}, form->shared, stream, &attribute, 1};
    return driver.launch_with(&how, form->function, parameters, NULL);
}

void
device_parameters(const DeviceStep *step, uint64_t *words, void **parameters)
{
    for (Py_ssize_t k = 0; k < step->nsources; k++) { /* little-endian: the low bytes of a word are the narrower number */
        parameters[k] = &words[step->sources[k]];
    }
}

/* The driver's launch; false where it refused. All that is read of `self` is read before the GIL goes. */
static bool
launch(const DeviceLauncher *self, Packed *packed)
{
    DeviceForm form = self->form;
    Py_ssize_t n = 0;
    for (Py_ssize_t i = 0; i < self->nbuffers; i++) {
        packed->parameters[n++] = &packed->buffers[i];
    }
    for (Py_ssize_t i = 0; i < self->nsizes; i++) {
        if (form.widths[i]) { /* little-endian: the low bytes of a word are the narrower number */
            packed->parameters[n++] = &packed->sizes[i];
        }
    }
    packed->nothing = NULL;
    for (int i = 0; i < form.scratch; i++) {
        packed->parameters[n++] = &packed->nothing;
    }
    void *stream = NULL;
    if (!device_stream(self->device, &stream)) {
        return false;
    }
    Py_ssize_t nbuffers = self->nbuffers;
    int failed;
    Py_BEGIN_ALLOW_THREADS /* a full queue waits for the device */
    failed = device_launch(&form, stream, packed->parameters);
    Py_END_ALLOW_THREADS
    if (!failed) {
        device_graph_note(&(DeviceLaunch){stream, form.function, form.programs, form.threads, form.shared, n, nbuffers,
                                          packed->parameters});
    }
    return !failed;
}

static PyObject *
device_launcher_call(DeviceLauncher *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
    if (nargs != self->nbuffers + self->nsizes || (kwnames != NULL && PyTuple_GET_SIZE(kwnames) > 0)) {
        return PyErr_Format(PyExc_TypeError, "launcher takes %zd buffers and %zd sizes, not %zd arguments",
                            self->nbuffers, self->nsizes, nargs);
    }
    Packed packed;
    int device, place;
    bool plain = device_current(&device) && tensor_place(args[0], &place)
                 && place == device && pack(self, args, &packed) && device_unhooked(self);
    if (plain) {
        int known = device_learn(self, device, args + self->nbuffers, packed.sizes, packed.apart);
        if (known < 0) {
            return NULL;
        }
        plain = known;
    }
    if (plain && (self->form.programs == 0 || launch(self, &packed))) {
        Py_RETURN_NONE;
    }
    device_graph_missed();
    return PyObject_Vectorcall(self->general, args, nargs, NULL);
}

static int
device_launcher_traverse(DeviceLauncher *self, visitproc visit, void *arg)
{
    Py_VISIT(self->find);
    Py_VISIT(self->general);
    Py_VISIT(self->settings);
    Py_VISIT(self->names);
    Py_VISIT(self->hooks);
    return 0;
}

static int
device_launcher_clear(DeviceLauncher *self)
{
    Py_CLEAR(self->find);
    Py_CLEAR(self->general);
    Py_CLEAR(self->settings);
    Py_CLEAR(self->names);
    Py_CLEAR(self->hooks);
    return 0;
}

static void
device_launcher_dealloc(DeviceLauncher *self)
{
    PyObject_GC_UnTrack(self);
    device_launcher_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *
device_launcher_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"nbuffers", "nsizes", "find", "general", "settings", "names", "hooks", NULL};
    Py_ssize_t nbuffers, nsizes;
    PyObject *find, *general, *settings, *hook_names, *hooks;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "nnOOO!O!O!:DeviceLauncher", names, &nbuffers, &nsizes, &find,
                                     &general, &PyDict_Type, &settings, &PyTuple_Type, &hook_names, &PyTuple_Type,
                                     &hooks)) {
        return NULL;
    }
    if (nbuffers < 1 || nbuffers > MOST_BUFFERS || nsizes < 0 || nsizes > MOST_SIZES) {
        return PyErr_Format(PyExc_ValueError, "DeviceLauncher: 1 to %d buffers and at most %d sizes", MOST_BUFFERS,
                            MOST_SIZES);
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(hooks); i++) {
        if (!PyList_CheckExact(PyTuple_GET_ITEM(hooks, i))) {
            PyErr_SetString(PyExc_TypeError, "DeviceLauncher: hooks are lists");
            return NULL;
        }
    }
    DeviceLauncher *self = (DeviceLauncher *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->vectorcall = (vectorcallfunc)device_launcher_call;
        self->nbuffers = nbuffers;
        self->nsizes = nsizes;
        self->find = Py_NewRef(find);
        self->general = Py_NewRef(general);
        self->settings = Py_NewRef(settings);
        self->names = Py_NewRef(hook_names);
        self->hooks = Py_NewRef(hooks);
    }
    return (PyObject *)self;
}

PyTypeObject DeviceLauncher_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "braze.native._native.DeviceLauncher",
    .tp_doc = "Launch a kernel of the driver on the current stream.",
    .tp_basicsize = sizeof(DeviceLauncher),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC,
    .tp_vectorcall_offset = offsetof(DeviceLauncher, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = device_launcher_new,
    .tp_dealloc = (destructor)device_launcher_dealloc,
    .tp_traverse = (traverseproc)device_launcher_traverse,
    .tp_clear = (inquiry)device_launcher_clear,
};

/* The addresses of cuCtxGetDevice, of a function (device, void **stream), of cuLaunchKernel, of cuMemcpyDtoDAsync,
 * and of cuLaunchKernelEx; zeros: none. */
static PyObject *
configure_driver(PyObject *module, PyObject *args)
{
    unsigned long long device, stream, launch_, copy, launch_with = 0;
    if (!PyArg_ParseTuple(args, "KKKK|K:_configure_driver", &device, &stream, &launch_, &copy, &launch_with)) {
        return NULL;
    }
    uintptr_t found[] = {(uintptr_t)device, (uintptr_t)stream, (uintptr_t)launch_, (uintptr_t)copy, (uintptr_t)launch_with};
    bool whole = found[0] && found[1] && found[2];
    memcpy(&driver.current_device, &found[0], sizeof(void *));
    memcpy(&driver.current_stream, &found[1], sizeof(void *));
    found[2] = whole ? found[2] : 0;
    memcpy(&driver.launch, &found[2], sizeof(void *));
    found[3] = whole ? found[3] : 0;
    memcpy(&driver.copy, &found[3], sizeof(void *));
    found[4] = whole ? found[4] : 0;
    memcpy(&driver.launch_with, &found[4], sizeof(void *));
    return PyBool_FromLong(whole);
}

PyMethodDef device_launch_functions[] = {
    {"_configure_driver", configure_driver, METH_VARARGS, "Where the driver's functions are; whether all are there."},
    {NULL},
};
