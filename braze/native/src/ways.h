/* The functions that libtorch exports for compiled graphs, by type of device: what products.c and shims.c call past the dispatcher. */
#ifndef BRAZE_WAYS_H
#define BRAZE_WAYS_H

#include "braze.h"

enum { KINDS = 2 }; /* of devices: processors, CUDA */

/* The function for one type of device. */
typedef struct {
    bool asked;
    void *function; /* NULL: PyTorch's own is called */
    uint64_t plain; /* the dispatch keys that plain tensors may have */
} Way;

/* Ask Python once, `find(type of device)` -> (address, keys) or None; -1 with an exception set. */
static inline int
way_learn(Way *way, PyObject *find, int kind)
{
    PyObject *found = PyObject_CallFunction(find, "i", kind);
    unsigned long long function = 0, plain = 0;
    if (found == NULL || (found != Py_None && !PyArg_ParseTuple(found, "KK", &function, &plain))) {
        Py_XDECREF(found);
        return -1;
    }
    Py_DECREF(found);
    way->function = (void *)(uintptr_t)function;
    way->plain = plain;
    way->asked = true;
    return 0;
}

/* The way for what lies where this tensor does; NULL where PyTorch's own is called, with an exception set only where Python failed.
 * Whatever may see operators (gradients, a mode, a profiler) is shown PyTorch's. */
static inline Way *
way_of(Way *ways, PyObject *find, PyObject *tensor)
{
    TensorFacts facts;
    if (!tensor_facts(tensor, &facts) || facts.device_type < 0 || facts.device_type >= KINDS) {
        return NULL;
    }
    Way *way = &ways[facts.device_type];
    if (!way->asked && way_learn(way, find, facts.device_type) < 0) {
        return NULL;
    }
    bool plain = way->function != NULL && !(facts.keys & ~way->plain);
    return plain && !operators_are_watched() && !ranges_wanted_within() ? way : NULL;
}

#endif
