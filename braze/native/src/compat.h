/* All that differs between CPython 3.11, 3.12 and 3.13, and why it is sound on each. */
#ifndef BRAZE_COMPAT_H
#define BRAZE_COMPAT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030E0000
#error "braze's extension knows CPython 3.11, 3.12 and 3.13"
#endif
#ifdef Py_GIL_DISABLED
#error "braze's extension needs the GIL"
#endif

/* -- dictionaries -------------------------------------------------------------------------------
 * A stamp is a number that no other state of any dictionary ever had or will have: two equal stamps,
 * seen at two times, mean one dictionary that did not change in between (and so kept its values alive).
 * It is taken from one counter that only grows. CPython keeps such a number itself (3.14 no longer will). On 3.13 a store into an object whose
 * dictionary shares the object's inline values changes neither the number nor tells a watcher, so such a
 * dictionary is first given a table of its own (dict_observe).
 */
#if PY_VERSION_HEX < 0x030C0000
#define BRAZE_STAMP_SHIFT 0
#elif PY_VERSION_HEX < 0x030D0000
#define BRAZE_STAMP_SHIFT 8 /* low bits: watchers */
#else
#define BRAZE_STAMP_SHIFT 12 /* low bits: watchers and the tier-2 mutation counter */
#endif

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
static inline uint64_t
dict_stamp(PyObject *dict)
{
    return ((PyDictObject *)dict)->ma_version_tag >> BRAZE_STAMP_SHIFT;
}

/* Where the stamp stands, as part of a word. */
static inline uint64_t *
dict_stamp_word(PyObject *dict)
{
    return &((PyDictObject *)dict)->ma_version_tag;
}
#pragma GCC diagnostic pop

/* The largest word that a dictionary with this stamp can have there. */
static inline uint64_t
dict_stamp_above(uint64_t stamp)
{
    return ((stamp + 1) << BRAZE_STAMP_SHIFT) - 1;
}

/* From 3.12 on CPython tells a watcher before it changes a dictionary. dict_changes() counts the changes (the
 * end of a dictionary is one) of those that are watched; it is meaningless where dict_watch says false. A
 * dictionary that was changed is watched no longer from the next dict_forget_changed() on. */
bool dict_watch(PyObject *dict);
void dict_forget_changed(void);
extern uint64_t dict_change_count;

/* Make the stamp of a dictionary dependable from now on; false if it cannot be made so. */
bool dict_observe(PyObject *dict);

/* -- the collector, which may run finalizers, and with them Python code: before 3.12 where a tracked object is made. It waits between these two. */
static inline bool
collector_wait(void)
{
    return PY_VERSION_HEX < 0x030C0000 && PyGC_Disable();
}

static inline void
collector_go_on(bool waits)
{
    if (waits) {
        PyGC_Enable();
    }
}

/* Where an object of this type keeps the pointer to its __dict__, relative to the object; 0: nowhere fixed. */
static inline Py_ssize_t
dict_offset(PyTypeObject *type)
{
    if (type->tp_flags & Py_TPFLAGS_MANAGED_DICT) {
        return -3 * (Py_ssize_t)sizeof(PyObject *);
    }
    return type->tp_dictoffset > 0 ? type->tp_dictoffset : 0;
}

/* The __dict__ of an object or class, borrowed, made if it was virtual; NULL (no error set) if it has none. */
PyObject *instance_dict(PyObject *object);

/* Whether a look-up in a dictionary or set may run Python code, the program's or another's: a key's `__hash__`, where its hash is not known
 * (-1), or an `__eq__`. */
bool lookup_runs_code(PyObject *container, PyObject *key, Py_hash_t hash);

/* -- classes: a number of one state of one class; 0 while it has none ---------------------------- */
static inline unsigned int
type_stamp(PyTypeObject *type)
{
#if PY_VERSION_HEX < 0x030C0000
    if (!(type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG)) {
        return 0;
    }
#endif
    return type->tp_version_tag;
}

/* -- frames -------------------------------------------------------------------------------------- */
struct _PyInterpreterFrame;
typedef struct _PyInterpreterFrame Frame;
typedef PyObject *(*FrameEvaluator)(PyThreadState *, Frame *, int);

FrameEvaluator frame_evaluator_get(void);
void frame_evaluator_set(FrameEvaluator);
FrameEvaluator frame_evaluator_default(void);

/* The code of a frame that is about to run its first instruction; NULL for any other (resumed
 * generators, shims of the interpreter's own). Borrowed. */
PyCodeObject *frame_starting(Frame *frame);
PyFunctionObject *frame_function(Frame *frame);
PyObject *frame_code(Frame *frame); /* of any frame; borrowed */
PyObject **frame_slots(Frame *frame);

/* Give up a starting frame that is not going to run. On 3.11 the caller clears it; from 3.12 on the
 * evaluator does, so it gets to run `stub`, a code object of the same layout that returns None.
 * Keeps a pending exception. Returns -1 with an exception set if that failed. */
int frame_dispose(PyThreadState *state, Frame *frame, PyObject *stub);
bool frame_needs_stub(void);

/* Whether little is left of Python's limit of recursion, or of what CPython counts for calls that nest on the C stack (1500
 * on 3.12.1). Calls that are captured together count as one, and compiling needs frames itself: so near the end of a
 * recursion, and where a program leaves itself a few frames, nothing is compiled, and the limit is met where it is. */
static inline bool
recursion_is_short(PyThreadState *state)
{
    enum { FRAMES = 200 };
#if PY_VERSION_HEX >= 0x030D0000
    return state->py_recursion_remaining < FRAMES || state->c_recursion_remaining < Py_C_RECURSION_LIMIT / 3;
#elif PY_VERSION_HEX >= 0x030C0000
    return state->py_recursion_remaining < FRAMES || state->c_recursion_remaining < C_RECURSION_LIMIT / 3;
#else
    return state->recursion_remaining < FRAMES;
#endif
}

/* The exception that is set, which is no longer; new reference. */
static inline PyObject *
error_taken(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback != NULL) {
        PyException_SetTraceback(error, traceback);
    }
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return error;
#endif
}

/* -- data beside code objects --------------------------------------------------------------------- */
Py_ssize_t code_extra_index(freefunc destroy);
void *code_extra(PyCodeObject *code, Py_ssize_t index);
int code_set_extra(PyCodeObject *code, Py_ssize_t index, void *extra);

#endif
