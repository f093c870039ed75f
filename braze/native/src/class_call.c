/* CallOfClass: what a compiled module's class has for __call__. */
#include "braze.h"

/* The call of a compiled module's class: its instance's entry; to who asks the class, the original's function, which
 * takes the instance. */
typedef struct {
    PyObject_HEAD
    PyObject *entry, *function;
} CallOfClass;

static PyObject *
call_get(CallOfClass *call, PyObject *instance, PyObject *owner)
{
    return Py_NewRef(instance == NULL || instance == Py_None ? call->function : call->entry);
}

static PyObject *
call_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"entry", "function", NULL};
    PyObject *entry, *function;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:CallOfClass", names, &entry, &function)) {
        return NULL;
    }
    CallOfClass *call = (CallOfClass *)type->tp_alloc(type, 0);
    if (call != NULL) {
        call->entry = Py_NewRef(entry);
        call->function = Py_NewRef(function);
    }
    return (PyObject *)call;
}

static int
call_traverse(CallOfClass *call, visitproc visit, void *arg)
{
    Py_VISIT(call->entry);
    Py_VISIT(call->function);
    return 0;
}

static void
call_dealloc(CallOfClass *call)
{
    PyObject_GC_UnTrack(call);
    Py_CLEAR(call->entry);
    Py_CLEAR(call->function);
    Py_TYPE(call)->tp_free((PyObject *)call);
}

PyTypeObject CallOfClass_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "braze.native._native.CallOfClass",
    .tp_doc = "The __call__ of a compiled module's class: the entry to instances, a function to the class.",
    .tp_basicsize = sizeof(CallOfClass),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = call_new,
    .tp_dealloc = (destructor)call_dealloc,
    .tp_traverse = (traverseproc)call_traverse,
    .tp_descr_get = (descrgetfunc)call_get,
};
