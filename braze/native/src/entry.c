/* Entry: the callable in place of a compiled function. Finds a variant and runs it. */
#include "braze.h"

#include <structmember.h>

enum { SLOTS_ON_STACK = 24, HITS_TO_FRONT = 32 };

static bool forced_eager; /* the stance "force_eager": entries run their functions as they are */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *dict, *weakrefs;
    PyObject *wrapped;          /* what was given: a function or a bound method */
    PyFunctionObject *function; /* the function itself */
    PyObject *self;             /* of the bound method, or NULL */
    PyObject *plain;            /* what is called in its place while another tracer is at work; NULL: `wrapped` */
    PyObject *on_miss;
    PyObject *variants; /* tuple of (program, residual); replaced, never changed */
    Py_ssize_t hits, misses;
    Py_ssize_t favourite, streak; /* the variant behind the first that was hit last, how often in a row */
} Entry;

/* -- looking up ------------------------------------------------------------------------------------ */

static PyObject *
match_variant(PyObject *program, PyFunctionObject *function, PyObject *const *slots, Py_ssize_t count)
{
    if (Py_IS_TYPE(program, &GuardProgram_Type)) {
        return program_match((GuardProgram *)program, function, slots, count);
    }
    PyObject *locals = PyTuple_New(count), *found = NULL; /* a program written in Python */
    for (Py_ssize_t i = 0; locals != NULL && i < count; i++) {
        PyTuple_SET_ITEM(locals, i, Py_NewRef(slots[i]));
    }
    if (locals != NULL) {
        found = PyObject_CallMethod(program, "match", "OO", function, locals);
        Py_DECREF(locals);
    }
    if (found == Py_None) {
        Py_CLEAR(found);
    }
    return found;
}

/* Bring a variant that is hit again and again to the front. */
static void
note_hit(Entry *entry, PyObject *variants, Py_ssize_t index)
{
    entry->hits++;
    if (index == 0) {
        entry->streak = 0;
        return;
    }
    entry->streak = entry->favourite == index ? entry->streak + 1 : 1;
    entry->favourite = index;
    if (entry->streak < HITS_TO_FRONT || entry->variants != variants) {
        return;
    }
    entry->streak = 0;
    Py_ssize_t count = PyTuple_GET_SIZE(variants);
    PyObject *reordered = PyTuple_New(count);
    if (reordered == NULL) {
        PyErr_Clear();
        return;
    }
    PyTuple_SET_ITEM(reordered, 0, Py_NewRef(PyTuple_GET_ITEM(variants, index)));
    for (Py_ssize_t i = 0, next = 1; i < count; i++) {
        if (i != index) {
            PyTuple_SET_ITEM(reordered, next++, Py_NewRef(PyTuple_GET_ITEM(variants, i)));
        }
    }
    Py_SETREF(entry->variants, reordered);
}

static int
ask_on_miss(Entry *entry, PyFunctionObject *function, PyObject *const *slots, Py_ssize_t count, PyObject **residual,
            PyObject **inputs)
{
    if (builtins_replaced() || recursion_is_short(PyThreadState_Get())) {
        return 0;
    }
    PyObject *locals = PyTuple_New(count);
    if (locals == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyTuple_SET_ITEM(locals, i, Py_NewRef(slots[i]));
    }
    entry->misses++;
    PyObject *args[] = {NULL, (PyObject *)entry, (PyObject *)function, locals};
    PyObject *answer = PyObject_Vectorcall(entry->on_miss, args + 1, 3 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    Py_DECREF(locals);
    if (answer == NULL) {
        return -1;
    }
    if (answer == Py_None) {
        Py_DECREF(answer);
        return 0;
    }
    if (!PyTuple_Check(answer) || PyTuple_GET_SIZE(answer) != 2) {
        PyErr_Format(PyExc_TypeError, "on_miss must return (residual, inputs) or None, not %.100s", Py_TYPE(answer)->tp_name);
        Py_DECREF(answer);
        return -1;
    }
    *residual = Py_NewRef(PyTuple_GET_ITEM(answer, 0));
    *inputs = Py_NewRef(PyTuple_GET_ITEM(answer, 1));
    Py_DECREF(answer);
    return 1;
}

/* 1: `residual` and `inputs` are new references; 0: there is nothing to run; -1: exception. */
static int
look_up(Entry *entry, PyFunctionObject *function, PyObject *const *slots, Py_ssize_t count, PyObject **residual,
        PyObject **inputs)
{
    PyObject *variants = Py_NewRef(entry->variants);
    Py_ssize_t n = PyTuple_GET_SIZE(variants);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *row = PyTuple_GET_ITEM(variants, i);
        *inputs = match_variant(PyTuple_GET_ITEM(row, 0), function, slots, count);
        if (*inputs != NULL) {
            *residual = Py_NewRef(PyTuple_GET_ITEM(row, 1));
            note_hit(entry, variants, i);
            Py_DECREF(variants);
            return 1;
        }
        if (PyErr_Occurred()) {
            Py_DECREF(variants);
            return -1;
        }
    }
    Py_DECREF(variants);
    return ask_on_miss(entry, function, slots, count, residual, inputs);
}

static PyObject *
call_residual(PyObject *residual, PyObject *inputs, PyObject *const *slots, Py_ssize_t count)
{
    PyObject *here[SLOTS_ON_STACK + 2], **args = here;
    if (count > SLOTS_ON_STACK && (args = PyMem_Malloc((count + 2) * sizeof(PyObject *))) == NULL) {
        return PyErr_NoMemory();
    }
    args[1] = inputs;
    memcpy(args + 2, slots, count * sizeof(PyObject *));
    PyObject *range = PyFunction_Check(residual) ? range_begun(((PyFunctionObject *)residual)->func_qualname) : NULL;
    PyObject *result = PyObject_Vectorcall(residual, args + 1, (count + 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    range_ended(range);
    if (args != here) {
        PyMem_Free(args);
    }
    return result;
}

PyObject *
entry_run(PyObject *self, PyFunctionObject *function, PyObject *const *slots, Py_ssize_t count)
{
    PyObject *residual, *inputs, *result = NULL;
    if (__builtin_expect(forced_eager, 0)) {
        return NULL;
    }
    int mode = current_mode;
    current_mode = MODE_OFF;
    if (look_up((Entry *)self, function, slots, count, &residual, &inputs) > 0) {
        result = call_residual(residual, inputs, slots, count);
        Py_DECREF(residual);
        Py_DECREF(inputs);
    }
    current_mode = mode;
    return result;
}

/* -- calls ----------------------------------------------------------------------------------------- */

static PyObject *
call_plainly(Entry *entry, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    if (forced_eager) {
        return PyObject_Vectorcall(entry->wrapped, args, nargsf, kwnames);
    }
    return hook_call_function(entry->wrapped, entry->function, args, nargsf, kwnames);
}

static PyObject *
call_bound(Entry *entry, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    PyObject *here[SLOTS_ON_STACK], *result = NULL;
    PyFunctionObject *function = entry->function;
    Py_ssize_t count = code_slot_count((PyCodeObject *)function->func_code);
    Bound bound = {.slots = here};
    if (count > SLOTS_ON_STACK && (bound.slots = PyMem_Malloc(count * sizeof(PyObject *))) == NULL) {
        return PyErr_NoMemory();
    }
    Py_INCREF(function);
    bool fits = bind_arguments(function, entry->self, &bound, args, PyVectorcall_NARGS(nargsf), kwnames);
    if (fits) {
        result = entry_run((PyObject *)entry, function, bound.slots, count);
    }
    else {
        PyErr_Clear(); /* Python makes the proper one */
    }
    if (result == NULL && !PyErr_Occurred()) {
        result = call_plainly(entry, args, nargsf, kwnames);
    }
    Py_DECREF(function);
    Py_XDECREF(bound.rest);
    Py_XDECREF(bound.keywords);
    if (bound.slots != here) {
        PyMem_Free(bound.slots);
    }
    return result;
}

/* As if nothing had been compiled. */
static PyObject *
call_uncompiled(Entry *entry, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    PyObject *callable = Py_NewRef(entry->plain != NULL ? entry->plain : entry->wrapped);
    int mode = current_mode;
    current_mode = MODE_OFF;
    PyObject *result = PyObject_Vectorcall(callable, args, nargsf, kwnames);
    current_mode = mode;
    Py_DECREF(callable);
    return result;
}

static PyObject *
entry_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Entry *entry = (Entry *)self;
    if (current_mode == MODE_TRACE) { /* the tracer takes the function's frame as any other */
        return PyObject_Vectorcall(entry->wrapped, args, nargsf, kwnames);
    }
    if (__builtin_expect(traced_by_another(), 0)) {
        return call_uncompiled(entry, args, nargsf, kwnames);
    }
    PyCodeObject *code = (PyCodeObject *)entry->function->func_code;
    if (kwnames != NULL || entry->self != NULL || PyVectorcall_NARGS(nargsf) != code->co_argcount
        || code->co_kwonlyargcount != 0 || (code->co_flags & (CO_VARARGS | CO_VARKEYWORDS))) {
        return call_bound(entry, args, nargsf, kwnames);
    }
    PyFunctionObject *function = (PyFunctionObject *)Py_NewRef(entry->function);
    PyObject *result = entry_run(self, function, args, PyVectorcall_NARGS(nargsf));
    if (result == NULL && !PyErr_Occurred()) {
        result = call_plainly(entry, args, nargsf, kwnames);
    }
    Py_DECREF(function);
    return result;
}

/* -- methods --------------------------------------------------------------------------------------- */

static PyObject *
entry_call_with(Entry *entry, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || !PyFunction_Check(args[0]) || !PyTuple_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "call_with takes a Python function and the tuple of its argument slots");
        return NULL;
    }
    PyFunctionObject *function = (PyFunctionObject *)args[0];
    Py_ssize_t count = PyTuple_GET_SIZE(args[1]), wanted = code_slot_count((PyCodeObject *)function->func_code);
    if (count != wanted) {
        PyErr_Format(PyExc_ValueError, "%U has %zd argument slots, not %zd", function->func_name, wanted, count);
        return NULL;
    }
    PyObject *result = NULL;
    if (!traced_by_another()) {
        result = entry_run((PyObject *)entry, function, &PyTuple_GET_ITEM(args[1], 0), count);
    }
    return result == NULL && !PyErr_Occurred() ? Py_NewRef(default_marker) : result;
}

static PyObject *
entry_add(Entry *entry, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || !PyCallable_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "add takes a guard program and a residual callable");
        return NULL;
    }
    PyObject *row = PyTuple_Pack(2, args[0], args[1]);
    PyObject *more = row != NULL ? PyTuple_Pack(1, row) : NULL;
    PyObject *variants = more != NULL ? PySequence_Concat(entry->variants, more) : NULL;
    Py_XDECREF(row);
    Py_XDECREF(more);
    if (variants == NULL) {
        return NULL;
    }
    Py_SETREF(entry->variants, variants);
    Py_RETURN_NONE;
}

static PyObject *
entry_remove(Entry *entry, PyObject *program)
{
    PyObject *kept = PyList_New(0);
    for (Py_ssize_t i = 0; kept != NULL && i < PyTuple_GET_SIZE(entry->variants); i++) {
        PyObject *row = PyTuple_GET_ITEM(entry->variants, i);
        if (PyTuple_GET_ITEM(row, 0) != program && PyList_Append(kept, row) < 0) {
            Py_CLEAR(kept);
        }
    }
    PyObject *variants = kept != NULL ? PyList_AsTuple(kept) : NULL;
    Py_XDECREF(kept);
    if (variants == NULL) {
        return NULL;
    }
    Py_SETREF(entry->variants, variants);
    Py_RETURN_NONE;
}

static PyObject *
entry_clear_variants(Entry *entry, PyObject *unused)
{
    PyObject *none = PyTuple_New(0);
    if (none == NULL) {
        return NULL;
    }
    Py_SETREF(entry->variants, none);
    Py_RETURN_NONE;
}

static PyObject *
entry_itself(PyObject *self, PyObject *unused)
{
    return Py_NewRef(self);
}

/* As the function under this name in its dict says; else as functions are copied. */
static PyObject *
entry_deepcopy(Entry *entry, PyObject *memo)
{
    PyObject *copied = entry->dict != NULL ? PyDict_GetItemString(entry->dict, "__braze_deepcopy__") : NULL; /* borrowed */
    if (copied == NULL) {
        return Py_NewRef((PyObject *)entry);
    }
    Py_INCREF(copied);
    PyObject *made = PyObject_CallFunctionObjArgs(copied, (PyObject *)entry, memo, NULL);
    Py_DECREF(copied);
    return made;
}

static PyObject *
entry_get(PyObject *self, PyObject *instance, PyObject *owner)
{
    return instance == NULL || instance == Py_None ? Py_NewRef(self) : PyMethod_New(self, instance);
}

static PyObject *
entry_repr(Entry *entry)
{
    return PyUnicode_FromFormat("<braze entry %U with %zd variants>", entry->function->func_qualname,
                                PyTuple_GET_SIZE(entry->variants));
}

static PyObject *
entry_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"function", "on_miss", NULL};
    PyObject *wrapped, *on_miss;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:Entry", names, &wrapped, &on_miss)) {
        return NULL;
    }
    PyObject *function = PyMethod_Check(wrapped) ? PyMethod_GET_FUNCTION(wrapped) : wrapped;
    if (!PyFunction_Check(function)) {
        PyErr_Format(PyExc_TypeError, "Entry needs a Python function or method, not %.100s", Py_TYPE(wrapped)->tp_name);
        return NULL;
    }
    Entry *entry = (Entry *)type->tp_alloc(type, 0);
    if (entry == NULL) {
        return NULL;
    }
    PyFunctionObject *f = (PyFunctionObject *)function;
    entry->vectorcall = entry_vectorcall;
    entry->wrapped = Py_NewRef(wrapped);
    entry->function = (PyFunctionObject *)Py_NewRef(function);
    entry->self = PyMethod_Check(wrapped) ? Py_NewRef(PyMethod_GET_SELF(wrapped)) : NULL;
    entry->on_miss = Py_NewRef(on_miss);
    entry->variants = PyTuple_New(0);
    entry->dict = Py_BuildValue("{sOsOsOsO}", "__name__", f->func_name, "__qualname__", f->func_qualname, "__doc__",
                                f->func_doc != NULL ? f->func_doc : Py_None, "__module__",
                                f->func_module != NULL ? f->func_module : Py_None);
    if (entry->variants == NULL || entry->dict == NULL) {
        Py_CLEAR(entry);
    }
    return (PyObject *)entry;
}

static int
entry_traverse(Entry *entry, visitproc visit, void *arg)
{
    Py_VISIT(entry->dict);
    Py_VISIT(entry->wrapped);
    Py_VISIT(entry->function);
    Py_VISIT(entry->self);
    Py_VISIT(entry->plain);
    Py_VISIT(entry->on_miss);
    Py_VISIT(entry->variants);
    return 0;
}

static int
entry_tp_clear(Entry *entry)
{ /* what a call needs stays until the end: cycles are cut at the rest */
    Py_CLEAR(entry->dict);
    Py_CLEAR(entry->plain);
    PyObject *none = PyTuple_New(0);
    if (none != NULL) {
        Py_XSETREF(entry->variants, none);
    }
    Py_XSETREF(entry->on_miss, Py_NewRef(Py_None));
    return 0;
}

static void
entry_dealloc(Entry *entry)
{
    PyObject_GC_UnTrack(entry);
    if (entry->weakrefs != NULL) {
        PyObject_ClearWeakRefs((PyObject *)entry);
    }
    Py_CLEAR(entry->dict);
    Py_CLEAR(entry->wrapped);
    Py_CLEAR(entry->function);
    Py_CLEAR(entry->self);
    Py_CLEAR(entry->plain);
    Py_CLEAR(entry->on_miss);
    Py_CLEAR(entry->variants);
    Py_TYPE(entry)->tp_free((PyObject *)entry);
}

static PyObject *
entry_original(Entry *entry, PyObject *unused)
{
    return Py_NewRef(entry->wrapped);
}

static PyMethodDef entry_methods[] = {
    {"call_with", (PyCFunction)(void (*)(void))entry_call_with, METH_FASTCALL,
     "call_with(function, locals)\n--\n\nAs a call, with the argument slots given, for a function of the same code."},
    {"add", (PyCFunction)(void (*)(void))entry_add, METH_FASTCALL, "add(program, residual)\n--\n\nAppend a variant."},
    {"remove", (PyCFunction)entry_remove, METH_O, "remove(program)\n--\n\nDrop the variant of a program, if there."},
    {"clear", (PyCFunction)entry_clear_variants, METH_NOARGS, "clear()\n--\n\nDrop all variants."},
    {"__copy__", entry_itself, METH_NOARGS, NULL},
    {"__deepcopy__", (PyCFunction)entry_deepcopy, METH_O, NULL},
    {"__prepare_scriptable__", (PyCFunction)entry_original, METH_NOARGS, NULL}, /* what torch.jit.script compiles */
    {NULL},
};

static PyMemberDef entry_members[] = {
    {"__wrapped__", T_OBJECT, offsetof(Entry, wrapped), READONLY, NULL},
    {"function", T_OBJECT, offsetof(Entry, function), READONLY, NULL},
    {"on_miss", T_OBJECT, offsetof(Entry, on_miss), READONLY, NULL},
    {"plain", T_OBJECT, offsetof(Entry, plain), 0, NULL},
    {"variants", T_OBJECT, offsetof(Entry, variants), READONLY, NULL},
    {"hits", T_PYSSIZET, offsetof(Entry, hits), 0, NULL},
    {"misses", T_PYSSIZET, offsetof(Entry, misses), 0, NULL},
    {NULL},
};

static PyObject *
entry_id(PyObject *entry, void *unused)
{
    return PyLong_FromVoidPtr(entry);
}

/* To another tracer that asks what it has got, an entry is of its original's class. */
static PyObject *
entry_class(Entry *entry, void *unused)
{
    return Py_NewRef(surely_traced_by_another() ? Py_TYPE(entry->wrapped) : Py_TYPE(entry));
}

/* What an entry does not have itself is the original's: __code__, __annotations__, attributes of the user's. */
static PyObject *
entry_getattr(PyObject *self, PyObject *name)
{
    PyObject *found = PyObject_GenericGetAttr(self, name);
    if (found == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        found = PyObject_GetAttr(((Entry *)self)->wrapped, name);
    }
    return found;
}

static PyGetSetDef entry_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {"__class__", (getter)entry_class, NULL, NULL, NULL},
    /* what torch.compile looks for on what it is given: it compiles the original */
    {"_torchdynamo_orig_callable", (getter)(void (*)(void))entry_original, NULL, NULL, NULL},
    {"_torchdynamo_wrapper_id", (getter)entry_id, NULL, NULL, NULL},
    {NULL},
};

PyTypeObject Entry_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "braze.native._native.Entry",
    .tp_doc = "A callable that looks up the variants of one function (or bound method) by their guards.",
    .tp_basicsize = sizeof(Entry),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_vectorcall_offset = offsetof(Entry, vectorcall),
    .tp_dictoffset = offsetof(Entry, dict),
    .tp_weaklistoffset = offsetof(Entry, weakrefs),
    .tp_call = PyVectorcall_Call,
    .tp_new = entry_new,
    .tp_dealloc = (destructor)entry_dealloc,
    .tp_traverse = (traverseproc)entry_traverse,
    .tp_clear = (inquiry)entry_tp_clear,
    .tp_descr_get = entry_get,
    .tp_getattro = entry_getattr,
    .tp_repr = (reprfunc)entry_repr,
    .tp_methods = entry_methods,
    .tp_members = entry_members,
    .tp_getset = entry_getset,
};

/* -- for all entries ------------------------------------------------------------------------------- */

static PyObject *
force_eager(PyObject *module, PyObject *wanted)
{
    int truth = PyObject_IsTrue(wanted);
    if (truth < 0) {
        return NULL;
    }
    forced_eager = truth;
    Py_RETURN_NONE;
}

static PyObject *
eager_forced(PyObject *module, PyObject *nothing)
{
    return PyBool_FromLong(forced_eager);
}

static PyObject *
shown_call(PyObject *module, PyObject *function)
{
    if (PyDict_SetItemString(Entry_Type.tp_dict, "__call__", function) < 0) {
        return NULL;
    }
    PyType_Modified(&Entry_Type);
    Py_RETURN_NONE;
}

PyMethodDef entry_functions[] = {
    {"shown_call", shown_call, METH_O,
     "shown_call(function)\n--\n\nThe function that Entry.__call__ is to who looks it up; calls of entries do not."},
    {"eager_forced", eager_forced, METH_NOARGS, "eager_forced()\n--\n\nWhat force_eager was last given."},
    {"force_eager", force_eager, METH_O,
     "force_eager(wanted)\n--\n\nWhether every entry of the process runs its function as it is."},
    {NULL},
};
