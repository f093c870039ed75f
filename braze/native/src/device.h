/* What launches on a GPU share: the driver's functions, how a built kernel is launched, and its launcher. */
#ifndef BRAZE_DEVICE_H
#define BRAZE_DEVICE_H

#include "braze.h"

enum { MOST_BUFFERS = 400, MOST_SIZES = 60, MOST_SCRATCH = 4, MOST_APART = 60, ALIGNED = 15 };
enum { MOST_PARAMETERS = MOST_BUFFERS + MOST_SIZES + MOST_SCRATCH };

/* What find gives: a built kernel, and how it is launched. */
typedef struct {
    void *function;
    unsigned programs, threads, shared;
    int scratch;             /* pointers after those that we know of, to memory that the kernel does not use */
    int early;               /* it waits by itself for what ran before it, and may begin sooner */
    char widths[MOST_SIZES]; /* bytes of each size as the kernel takes it; 0: not at all */
} DeviceForm;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Py_ssize_t nbuffers, nsizes;
    PyObject *find;     /* (device, *sizes, and bits of the buffers that 16 does not divide, if any) -> what to launch, or None */
    PyObject *general;  /* the launch by Triton's own means */
    PyObject *settings; /* the dict in which Triton's hooks would be replaced */
    PyObject *names;    /* of the hooks in it */
    PyObject *hooks;    /* a tuple of lists, empty while nobody hooks launches */
    /* what find gave last, and for what */
    bool known;
    int device;
    uint64_t apart;
    int64_t sizes[MOST_SIZES];
    DeviceForm form;
} DeviceLauncher;

/* How one of several launches is made: `sources` are the words that the kernel takes, by their places among the words of all. */
typedef struct {
    DeviceForm form;
    Py_ssize_t nsources;
    const Py_ssize_t *sources;
} DeviceStep;

/* CUDA_KERNEL_NODE_PARAMS, as the driver has it. */
typedef struct {
    void *function;
    unsigned grid[3], block[3], shared;
    void **parameters, **extra;
    void *kernel, *context;
} NodeParams;

/* -- device_row.c: launches that come again and again with the same words, as one graph of the driver's. Zeros are an empty one. */
typedef struct {
    void *graph, *exec, *stream;
    void **nodes;   /* of each launch; none of one of no programs */
    uint64_t *told; /* the words that the driver knows */
    uint64_t *seen; /* those of the call before */
    int calls;      /* on this stream, one after another */
    bool refused, busy;
} DeviceRow;

/* Whether the driver has taken all launches at once. Called, and gives the GIL away, as all others. */
bool device_row_launch(DeviceRow *row, const DeviceStep *steps, Py_ssize_t count, uint64_t *words, Py_ssize_t nwords, void *stream);
void device_row_clear(DeviceRow *row);

/* -- device_launch.c: whether the driver's functions are there, and the device that is current. */
bool device_current(int *device);
/* Whether nobody has hooked Triton's launches. */
bool device_unhooked(const DeviceLauncher *launcher);
/* Have a launcher's `form` be that for these sizes, and these bits of buffers that 16 does not divide, of Python if it is not: 1, 0 where Python
 * does not know yet, -1 with an exception set. */
int device_learn(DeviceLauncher *launcher, int device, PyObject *const *args, const int64_t *sizes, uint64_t apart);
/* The driver's launch; its error, or 0. Needs no GIL. */
int device_launch(const DeviceForm *form, void *stream, void **parameters);
/* Let `parameters` point to what a launch takes. */
void device_parameters(const DeviceStep *step, uint64_t *words, void **parameters);

#endif
