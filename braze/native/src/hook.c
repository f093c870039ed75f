/* The PEP 523 frame hook: which frames are taken over, by whom, and how a frame not run is given up.
 *
 * The evaluator is in place only while a call that wants it is on some stack (`users`), since its mere
 * presence makes every Python call of the process slower. What it does depends on the thread's mode.
 */
#include "braze.h"

_Thread_local int current_mode = MODE_OFF;
static _Thread_local PyObject *current_handler;           /* TRACE: borrowed from call_traced */
static _Thread_local PyFunctionObject *passing_function; /* RUN: its next frame is evaluated as it is */
static _Thread_local int depth;                          /* of evaluators on this thread's C stack */

/* With an evaluator in place Python calls nest on the C stack, where CPython without one nests none. Beyond
 * this depth (more than Python's default recursion limit) frames are no longer offered: see evaluate_deep. */
enum { DEEP = 1500 };

PyObject *default_marker;
static PyObject *frame_callback;
static Py_ssize_t extra_index = -1;
static int users;
static FrameEvaluator below, restore; /* what evaluates frames we do not take; what to put back */
static bool overlaid;                 /* somebody put an evaluator over ours and may still call us */
static _Thread_local Frame *passed_on; /* given to `below` and not yet evaluated */

/* What is known about a code object. */
typedef struct {
    bool skip, untraced;
    PyObject *entry;
    PyObject *stub;
} CodeFacts;

static void
facts_free(void *memory)
{
    CodeFacts *facts = memory;
    if (facts != NULL) {
        Py_XDECREF(facts->entry);
        Py_XDECREF(facts->stub);
        PyMem_Free(facts);
    }
}

static CodeFacts *
facts_of(PyCodeObject *code, bool create)
{
    CodeFacts *facts = code_extra(code, extra_index);
    if (facts != NULL || !create) {
        return facts;
    }
    facts = PyMem_Calloc(1, sizeof(CodeFacts));
    if (facts == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    if (code_set_extra(code, extra_index, facts) < 0) {
        PyMem_Free(facts);
        if (!PyErr_Occurred()) { /* CPython says nothing where it has no memory */
            PyErr_NoMemory();
        }
        return NULL;
    }
    return facts;
}

/* Have a frame evaluated that is not ours. Somebody else's evaluator may hand it back, if it was put on when ours
 * was there already: see `evaluate`. */
static PyObject *
pass_on(PyThreadState *state, Frame *frame, int throwing)
{
    if (below == frame_evaluator_default()) {
        return below(state, frame, throwing);
    }
    Frame *outer = passed_on;
    passed_on = frame;
    PyObject *result = below(state, frame, throwing);
    passed_on = outer;
    return result;
}

/* -- giving up a frame ------------------------------------------------------------------------------ */

/* A code object of the same layout whose body is `return None`. */
static PyObject *
make_stub(PyCodeObject *code)
{
    PyObject *opcode = PyImport_ImportModule("opcode");
    PyObject *map = opcode != NULL ? PyObject_GetAttrString(opcode, "opmap") : NULL;
    PyObject *load = map != NULL ? PyMapping_GetItemString(map, "LOAD_CONST") : NULL;
    PyObject *give = map != NULL ? PyMapping_GetItemString(map, "RETURN_VALUE") : NULL;
    PyObject *stub = NULL;
    if (load != NULL && give != NULL) {
        char body[4] = {(char)PyLong_AsLong(load), 0, (char)PyLong_AsLong(give), 0};
        PyObject *replace = PyObject_GetAttrString((PyObject *)code, "replace");
        PyObject *none = PyTuple_New(0);
        PyObject *changes = Py_BuildValue("{sy#s(O)sy#sy#}", "co_code", body, (Py_ssize_t)4, "co_consts", Py_None,
                                          "co_exceptiontable", "", (Py_ssize_t)0, "co_linetable", "", (Py_ssize_t)0);
        if (replace != NULL && none != NULL && changes != NULL) {
            stub = PyObject_Call(replace, none, changes);
        }
        Py_XDECREF(replace);
        Py_XDECREF(none);
        Py_XDECREF(changes);
    }
    Py_XDECREF(opcode);
    Py_XDECREF(map);
    Py_XDECREF(load);
    Py_XDECREF(give);
    return stub;
}

/* The stub of a code object, new reference; NULL with an exception. Always NULL without one if none is needed. */
static PyObject *
stub_of(PyCodeObject *code)
{
    if (!frame_needs_stub()) {
        return NULL;
    }
    CodeFacts *facts = facts_of(code, true);
    if (facts == NULL) {
        return NULL;
    }
    if (facts->stub == NULL) {
        int mode = current_mode;
        current_mode = MODE_OFF; /* making code is audited, and an audit hook may be Python code */
        PyObject *stub = make_stub(code);
        current_mode = mode;
        if (stub == NULL) {
            return NULL;
        }
        Py_XSETREF(facts->stub, stub);
    }
    return Py_NewRef(facts->stub);
}

static PyObject *
give_up(PyThreadState *state, Frame *frame, PyObject *stub, PyObject *result)
{
    int mode = current_mode;
    current_mode = MODE_OFF; /* clearing locals may run finalizers, which are nobody's frames */
    if (frame_dispose(state, frame, stub) < 0) {
        Py_CLEAR(result);
    }
    current_mode = mode;
    Py_XDECREF(stub);
    return result;
}

/* -- RUN -------------------------------------------------------------------------------------------- */

/* Ask the callback about new code. 0: facts are filled in; -1: exception. */
static int
ask_callback(PyCodeObject *code, PyFunctionObject *function)
{
    PyObject *callback = Py_NewRef(frame_callback);
    current_mode = MODE_OFF;
    PyObject *answer = PyObject_CallFunctionObjArgs(callback, code, function, NULL);
    current_mode = MODE_RUN;
    Py_DECREF(callback);
    CodeFacts *facts = answer != NULL ? facts_of(code, true) : NULL;
    if (facts == NULL) {
        Py_XDECREF(answer);
        return -1;
    }
    if (answer == Py_None) {
        facts->skip = true;
    }
    else if (Py_IS_TYPE(answer, &Entry_Type)) {
        Py_XSETREF(facts->entry, Py_NewRef(answer));
    }
    else {
        PyErr_Format(PyExc_TypeError, "the frame callback must return an Entry or None, not %.100s",
                     Py_TYPE(answer)->tp_name);
        Py_DECREF(answer);
        return -1;
    }
    Py_DECREF(answer);
    return 0;
}

/* Evaluate a frame normally, and all that it calls with the mode OFF. */
static PyObject *
pass_on_untraced(PyThreadState *state, Frame *frame)
{
    int mode = current_mode;
    current_mode = MODE_OFF;
    PyObject *result = pass_on(state, frame, 0);
    current_mode = mode;
    return result;
}

static PyObject *
run_frame(PyThreadState *state, Frame *frame, PyCodeObject *code, PyFunctionObject *function)
{
    if (passing_function == function) {
        passing_function = NULL;
        return pass_on(state, frame, 0);
    }
    CodeFacts *facts = facts_of(code, false);
    if ((facts == NULL || (!facts->skip && facts->entry == NULL)) && frame_callback == NULL) {
        return pass_on(state, frame, 0);
    }
    if ((facts != NULL && facts->skip) || ((facts == NULL || facts->entry == NULL) && builtins_replaced())) {
        return pass_on(state, frame, 0);
    }
    PyObject *stub = stub_of(code);
    if (stub == NULL && PyErr_Occurred()) {
        PyErr_Clear(); /* cannot take frames over: evaluate this one */
        return pass_on(state, frame, 0);
    }
    if (facts == NULL || facts->entry == NULL) {
        if (ask_callback(code, function) < 0) {
            return give_up(state, frame, stub, NULL);
        }
        facts = facts_of(code, false);
        if (facts != NULL && facts->untraced) { /* the callback has just said so */
            Py_XDECREF(stub);
            return pass_on_untraced(state, frame);
        }
    }
    PyObject *entry = facts != NULL && !facts->skip ? Py_XNewRef(facts->entry) : NULL, *result = NULL;
    if (entry != NULL && !traced_by_another()) {
        result = entry_run(entry, function, frame_slots(frame), code_slot_count(code));
    }
    Py_XDECREF(entry);
    if (result == NULL && !PyErr_Occurred()) {
        Py_XDECREF(stub);
        return pass_on(state, frame, 0);
    }
    return give_up(state, frame, stub, result);
}

/* -- TRACE ------------------------------------------------------------------------------------------ */

static PyObject *
trace_frame(PyThreadState *state, Frame *frame, PyCodeObject *code, PyFunctionObject *function)
{
    Py_ssize_t count = code_slot_count(code);
    PyObject *stub = stub_of(code);
    PyObject *locals = stub != NULL || !PyErr_Occurred() ? PyTuple_New(count) : NULL;
    if (locals == NULL) {
        PyErr_Clear();
        Py_XDECREF(stub);
        return pass_on(state, frame, 0);
    }
    PyObject **slots = frame_slots(frame);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyTuple_SET_ITEM(locals, i, Py_NewRef(slots[i]));
    }
    PyObject *handler = Py_NewRef(current_handler);
    PyObject *args[] = {NULL, (PyObject *)function, locals};
    current_mode = MODE_OFF;
    PyObject *result = PyObject_Vectorcall(handler, args + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    current_mode = MODE_TRACE;
    current_handler = handler; /* whatever ran within may have traced on its own */
    Py_DECREF(handler);        /* call_traced keeps it */
    Py_DECREF(locals);
    if (result == default_marker) {
        Py_DECREF(result);
        Py_XDECREF(stub);
        return pass_on(state, frame, 0);
    }
    return give_up(state, frame, stub, result);
}

/* -- the evaluator ---------------------------------------------------------------------------------- */

static const int generator_flags = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE;

static PyObject *
evaluate_frame(PyThreadState *state, Frame *frame)
{
    int mode = current_mode;
    PyCodeObject *code = frame_starting(frame);
    PyFunctionObject *function = code != NULL ? frame_function(frame) : NULL;
    if (function == NULL || !(code->co_flags & CO_OPTIMIZED)) {
        return pass_on(state, frame, 0);
    }
    CodeFacts *facts = facts_of(code, false);
    if (facts != NULL && facts->untraced) {
        return pass_on_untraced(state, frame);
    }
    if (mode == MODE_TRACE) {
        return trace_frame(state, frame, code, function);
    }
    if (code->co_flags & generator_flags) { /* runs as it is; the callback is to say so, once */
        if (frame_callback != NULL && (facts == NULL || !facts->skip) && !builtins_replaced()
            && ask_callback(code, function) < 0) {
            PyErr_Clear();
        }
        facts = facts_of(code, false);
        return facts != NULL && facts->untraced ? pass_on_untraced(state, frame) : pass_on(state, frame, 0);
    }
    return run_frame(state, frame, code, function);
}

static PyObject *evaluate(PyThreadState *state, Frame *frame, int throwing);

/* Deep recursion: go on without the evaluator, so that Python's own limit is the one that counts. A tracer
 * must not miss frames, so it gets the RecursionError that its own recursion would end in. */
static PyObject *
evaluate_deep(PyThreadState *state, Frame *frame, int throwing)
{
    if (current_mode == MODE_TRACE && !throwing) {
        PyCodeObject *code = frame_starting(frame);
        PyObject *stub = code != NULL ? stub_of(code) : NULL;
        if (code != NULL && (stub != NULL || !frame_needs_stub())) {
            PyErr_SetString(PyExc_RecursionError, "maximum recursion depth exceeded while tracing");
            return give_up(state, frame, stub, NULL);
        }
    }
    frame_evaluator_set(below);
    PyObject *result = pass_on(state, frame, throwing);
    if (users > 0) {
        frame_evaluator_set(evaluate);
    }
    return result;
}

/* A frame ends with a result or with an exception: what broke that is told where it happened, by name. */
static PyObject *
checked_end(PyObject *result, PyObject *code)
{
    if (result == NULL && !PyErr_Occurred()) {
        PyErr_Format(PyExc_SystemError, "BZ9015: %R ended without a result and without an exception", code);
    }
    Py_DECREF(code);
    return result;
}

static PyObject *
evaluate(PyThreadState *state, Frame *frame, int throwing)
{
    PyObject *result;
    if (frame == passed_on) {
        passed_on = NULL;
        return frame_evaluator_default()(state, frame, throwing);
    }
    PyObject *code = Py_NewRef(frame_code(frame)); /* from 3.12 on the frame is gone when it has ended */
    if (++depth > DEEP || (current_mode != MODE_TRACE && recursion_is_short(state))) {
        result = evaluate_deep(state, frame, throwing);
    }
    else if (current_mode == MODE_OFF || throwing) {
        result = pass_on(state, frame, throwing);
    }
    else {
        result = evaluate_frame(state, frame);
    }
    depth--;
    return checked_end(result, code);
}

bool
hook_is_overlaid(void)
{
    FrameEvaluator now = frame_evaluator_get(), usual = frame_evaluator_default();
    return now == evaluate ? below != usual : now != usual;
}

static void
enter(void)
{
    if (users++ == 0) {
        restore = frame_evaluator_get();
        if (restore == evaluate) { /* left in place when it was overlaid */
            return;
        }
        below = overlaid ? frame_evaluator_default() : restore;
        frame_evaluator_set(evaluate);
    }
    else if (frame_evaluator_get() == below) { /* a deep recursion put it aside */
        frame_evaluator_set(evaluate);
    }
}

static void
leave(void)
{
    if (--users > 0) {
        return;
    }
    if (frame_evaluator_get() == evaluate) {
        frame_evaluator_set(restore == evaluate ? below : restore);
    }
    else {
        overlaid = true;
    }
}

typedef struct {
    int mode, depth;
    PyObject *handler;
} Saved;

static PyObject *
call_in_mode(int mode, PyObject *handler, PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Saved saved = {current_mode, depth, current_handler};
    if (mode != MODE_OFF) {
        enter();
    }
    current_mode = mode;
    current_handler = handler;
    PyObject *result = PyObject_Vectorcall(callable, args, nargsf, kwnames);
    current_mode = saved.mode;
    depth = saved.depth;
    current_handler = saved.handler;
    if (mode != MODE_OFF) {
        leave();
    }
    return result;
}

PyObject *
hook_call_function(PyObject *callable, PyFunctionObject *function, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    if (frame_callback == NULL) {
        return PyObject_Vectorcall(callable, args, nargsf, kwnames);
    }
    PyFunctionObject *saved = passing_function;
    passing_function = function;
    PyObject *result = call_in_mode(MODE_RUN, NULL, callable, args, nargsf, kwnames);
    passing_function = saved;
    return result;
}

/* -- Python's side ---------------------------------------------------------------------------------- */

static PyObject *
call_first(int mode, const char *name, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    if (nargs < 1) {
        PyErr_Format(PyExc_TypeError, "%s takes a callable and its arguments", name);
        return NULL;
    }
    return call_in_mode(mode, NULL, args[0], args + 1, nargs - 1, kwnames);
}

static PyObject *
run_hooked(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    return call_first(MODE_RUN, "run_hooked", args, nargs, kwnames);
}

static PyObject *
unhooked(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    return call_first(MODE_OFF, "unhooked", args, nargs, kwnames);
}

static PyObject *
call_traced(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs < 2 || nargs > 4) {
        PyErr_SetString(PyExc_TypeError, "call_traced takes a handler, a callable, its arguments and its keywords");
        return NULL;
    }
    PyObject *positional = nargs > 2 ? PySequence_Tuple(args[2]) : PyTuple_New(0);
    if (positional == NULL) {
        return NULL;
    }
    PyObject *keywords = nargs > 3 && args[3] != Py_None ? args[3] : NULL;
    if (keywords != NULL && !PyDict_Check(keywords)) {
        Py_DECREF(positional);
        PyErr_SetString(PyExc_TypeError, "call_traced: keywords must be a dict or None");
        return NULL;
    }
    Saved saved = {current_mode, depth, current_handler};
    enter();
    current_mode = MODE_TRACE;
    depth = 0; /* a trace deep down still gets its frames */
    current_handler = Py_NewRef(args[0]);
    PyObject *result = PyObject_Call(args[1], positional, keywords);
    current_mode = saved.mode;
    depth = saved.depth;
    current_handler = saved.handler;
    leave();
    Py_DECREF(args[0]);
    Py_DECREF(positional);
    return result;
}

static PyObject *
set_frame_callback(PyObject *module, PyObject *callback)
{
    Py_XSETREF(frame_callback, callback == Py_None ? NULL : Py_NewRef(callback));
    Py_RETURN_NONE;
}

static CodeFacts *
facts_of_argument(PyObject *code, bool create)
{
    if (!PyCode_Check(code)) {
        PyErr_Format(PyExc_TypeError, "expected a code object, not %.100s", Py_TYPE(code)->tp_name);
        return NULL;
    }
    return facts_of((PyCodeObject *)code, create);
}

static PyObject *
skip_code(PyObject *module, PyObject *code)
{
    CodeFacts *facts = facts_of_argument(code, true);
    if (facts == NULL) {
        return NULL;
    }
    facts->skip = true;
    Py_CLEAR(facts->entry);
    Py_RETURN_NONE;
}

static PyObject *
untraced_code(PyObject *module, PyObject *code)
{
    CodeFacts *facts = facts_of_argument(code, true);
    if (facts == NULL) {
        return NULL;
    }
    facts->untraced = true;
    Py_RETURN_NONE;
}

static PyObject *
forget_code(PyObject *module, PyObject *code)
{
    CodeFacts *facts = facts_of_argument(code, false);
    if (facts != NULL) {
        facts->skip = facts->untraced = false;
        Py_CLEAR(facts->entry);
    }
    else if (PyErr_Occurred()) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
mode(PyObject *module, PyObject *unused)
{
    return PyLong_FromLong(current_mode);
}

static PyObject *
hook_available(PyObject *module, PyObject *unused)
{
    Py_RETURN_TRUE;
}

static PyObject *
uninstall(PyObject *module, PyObject *unused)
{
    Py_CLEAR(frame_callback);
    current_mode = MODE_OFF;
    Py_RETURN_NONE;
}

PyMethodDef hook_methods[] = {
    {"set_frame_callback", set_frame_callback, METH_O,
     "set_frame_callback(callback)\n--\n\nWho answers for new code in RUN mode: callback(code, function) -> Entry or None."},
    {"run_hooked", (PyCFunction)(void (*)(void))run_hooked, METH_FASTCALL | METH_KEYWORDS,
     "run_hooked(callable, *args, **kwargs)\n--\n\nCall in RUN mode."},
    {"unhooked", (PyCFunction)(void (*)(void))unhooked, METH_FASTCALL | METH_KEYWORDS,
     "unhooked(callable, *args, **kwargs)\n--\n\nCall with the mode OFF."},
    {"call_traced", (PyCFunction)(void (*)(void))call_traced, METH_FASTCALL,
     "call_traced(handler, callable, args=(), kwargs=None)\n--\n\nCall in TRACE mode: each Python frame goes to "
     "handler(function, locals)."},
    {"skip_code", skip_code, METH_O, "skip_code(code)\n--\n\nEvaluate frames of this code normally in RUN mode."},
    {"untraced_code", untraced_code, METH_O,
     "untraced_code(code)\n--\n\nEvaluate frames of this code normally, with the mode OFF beneath."},
    {"forget_code", forget_code, METH_O, "forget_code(code)\n--\n\nForget what was stored about this code."},
    {"mode", mode, METH_NOARGS, "mode()\n--\n\nOFF, RUN or TRACE: the thread's mode."},
    {"hook_available", hook_available, METH_NOARGS, "hook_available()\n--\n\nWhether frames can be taken over."},
    {"uninstall", uninstall, METH_NOARGS,
     "uninstall()\n--\n\nForget the callback; the evaluator itself goes when the last call that uses it ends."},
    {NULL},
};

int
hook_init(void)
{
    if (extra_index >= 0) { /* loaded under another name before */
        return 0;
    }
    extra_index = code_extra_index(facts_free);
    if (extra_index < 0) {
        PyErr_SetString(PyExc_ImportError, "no room left for data beside code objects");
        return -1;
    }
    return 0;
}
