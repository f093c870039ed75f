/* What an operation of autograd's holds (operation.c does its work, operation_type.c makes it and ends it). */
#ifndef BRAZE_OPERATION_H
#define BRAZE_OPERATION_H

#include "braze.h"

enum { DIMS = 16 };

/* A value that is kept: one of the inputs, or of the results. */
typedef struct {
    Py_ssize_t index;
    int input, foreign, early, given; /* whether an input; of another operation; its memory, whatever it is given later; a result that the caller gets */
} Kept;

/* A tensor that the backward is given, as it was compiled for: what was saved, which hooks or ``x.data = y`` may have changed, or a gradient. */
typedef struct {
    Py_ssize_t place, ndim;
    unsigned long long keys;
    int dtype;
    Py_ssize_t bytes; /* of a gradient so large that it matters when it is let go of; or 0 */
    int64_t sizes[DIMS], strides[DIMS];
} Read;

typedef struct {
    Py_ssize_t input;
    unsigned long long keys;
} Argument;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *apply, *transforms;       /* of the class; whether a transform is at work */
    PyObject *general, *forward, *save; /* all other calls; the graph's; what keeps more than C can, or NULL */
    PyObject *find, *late;              /* the backward for plain gradients; any others */
    EngineHolds holds;                  /* how a gradient is held that the engine alone holds */
    PyObject *backward;                 /* NULL: not asked for yet; None: there is none */
    PyObject *name;                     /* of the range that the backward is in, where anybody listens */
    Py_ssize_t nresults, nkept, nsaved, ntangents, narguments;
    Kept *kept;
    Read *saved, *tangents;
    Argument *arguments;
    int some_given;
    char boxed;
} Operation;

int operation_intern_names(void);
PyObject *operation_forward(Operation *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *operation_backward(Operation *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *operation_call(Operation *self, PyObject *const *args, size_t nargsf, PyObject *kwnames);

#endif
