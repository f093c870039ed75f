/* Version differences that need CPython's internal headers. */
#ifndef Py_BUILD_CORE
#define Py_BUILD_CORE 1
#endif
#include "compat.h"
#include "internal/pycore_dict.h"
#include "internal/pycore_frame.h"

#if PY_VERSION_HEX >= 0x030D0000

/* popitem gives a dictionary a table of its own; the item goes back to its place, the last. */
static bool
detach_from_object(PyObject *dict)
{
    PyObject *none = NULL;
    if (PyDict_GET_SIZE(dict) == 0) {
        none = PyUnicode_InternFromString("braze");
        if (none == NULL || PyDict_SetItem(dict, none, Py_None) < 0) {
            Py_XDECREF(none);
            return false;
        }
    }
    PyObject *item = PyObject_CallMethod(dict, "popitem", NULL);
    bool done = item != NULL;
    if (done && none == NULL) {
        done = PyDict_SetItem(dict, PyTuple_GET_ITEM(item, 0), PyTuple_GET_ITEM(item, 1)) == 0;
    }
    Py_XDECREF(none);
    Py_XDECREF(item);
    return done;
}

bool
dict_observe(PyObject *dict)
{
    PyDictValues *values = ((PyDictObject *)dict)->ma_values;
    if (values == NULL || !values->embedded) {
        return true;
    }
    bool done = detach_from_object(dict) && ((PyDictObject *)dict)->ma_values == NULL;
    PyErr_Clear();
    return done;
}

#else

bool
dict_observe(PyObject *dict)
{
    return true;
}

#endif

uint64_t dict_change_count;

#if PY_VERSION_HEX >= 0x030C0000

enum { CHANGED = 64 };
static PyObject *changed[CHANGED]; /* still watched, since 3.12 undoes what a watcher does about that; alive */
static int nchanged;
static int watcher = -1;

static int
note_change(PyDict_WatchEvent event, PyObject *dict, PyObject *key, PyObject *value)
{
    dict_change_count++;
    for (int i = 0; i < nchanged; i++) {
        if (changed[i] == dict) {
            if (event == PyDict_EVENT_DEALLOCATED) {
                changed[i] = changed[--nchanged];
            }
            return 0;
        }
    }
    if (event != PyDict_EVENT_DEALLOCATED && nchanged < CHANGED) {
        changed[nchanged++] = dict;
    }
    return 0;
}

bool
dict_watch(PyObject *dict)
{
    static bool asked = false;
    if (!asked) {
        asked = true;
        watcher = PyDict_AddWatcher(note_change);
    }
    bool done = watcher >= 0 && PyDict_Watch(watcher, dict) == 0;
    PyErr_Clear();
    return done;
}

void
dict_forget_changed(void)
{
    while (nchanged > 0) {
        if (PyDict_Unwatch(watcher, changed[--nchanged]) < 0) {
            PyErr_Clear();
        }
    }
}

#else

bool
dict_watch(PyObject *dict)
{
    return false;
}

void
dict_forget_changed(void)
{
}

#endif

PyObject *
instance_dict(PyObject *object)
{
    if (PyType_Check(object)) {
#if PY_VERSION_HEX >= 0x030C0000
        PyObject *dict = PyType_GetDict((PyTypeObject *)object);
        Py_XDECREF(dict); /* the class keeps it */
        return dict;
#else
        return ((PyTypeObject *)object)->tp_dict;
#endif
    }
    bool waits = collector_wait(); /* a dictionary may be made */
    PyObject **slot = _PyObject_GetDictPtr(object);
    collector_go_on(waits);
    if (slot == NULL || *slot == NULL) {
        PyErr_Clear();
        return NULL;
    }
    return *slot;
}

/* Whether a key is hashed and compared by C alone: as what is written in C and holds no objects is, which it might ask (weak references ask theirs), and
 * instances of classes that change neither. */
static bool
is_plain_key(PyObject *key)
{
    PyTypeObject *type = Py_TYPE(key), *const own[] = {&PyBaseObject_Type, &PyUnicode_Type, &PyLong_Type, &PyFloat_Type};
    if (PyTuple_CheckExact(key)) {
        Py_ssize_t i = 0;
        while (i < PyTuple_GET_SIZE(key) && is_plain_key(PyTuple_GET_ITEM(key, i))) {
            i++;
        }
        return i == PyTuple_GET_SIZE(key);
    }
    if (!(type->tp_flags & (Py_TPFLAGS_HEAPTYPE | Py_TPFLAGS_HAVE_GC))) {
        return true;
    }
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
        if (type->tp_hash == own[i]->tp_hash && type->tp_richcompare == own[i]->tp_richcompare) {
            return true;
        }
    }
    return false;
}

enum { PERTURB = 5 }; /* CPython's PERTURB_SHIFT, of dictionaries and sets */

/* A place in a dictionary's table of indices. */
static Py_ssize_t
index_at(const PyDictKeysObject *keys, size_t place)
{
    const void *indices = keys->dk_indices;
    return keys->dk_log2_size < 8    ? ((const int8_t *)indices)[place]
           : keys->dk_log2_size < 16 ? ((const int16_t *)indices)[place]
           : keys->dk_log2_size < 32 ? ((const int32_t *)indices)[place]
                                     : (Py_ssize_t)((const int64_t *)indices)[place];
}

/* Whether a dictionary's look-up meets no other key of this hash, or plain ones with a plain key: the way of its own look-up. */
static bool
meets_plain_keys(PyDictKeysObject *keys, PyObject *key, bool plain, Py_hash_t hash)
{
    size_t mask = ((size_t)1 << keys->dk_log2_size) - 1, perturb = (size_t)hash, place = (size_t)hash & mask;
    for (Py_ssize_t index; (index = index_at(keys, place)) != DKIX_EMPTY;) {
        const PyDictKeyEntry *entry = index >= 0 ? &DK_ENTRIES(keys)[index] : NULL;
        if (entry != NULL && entry->me_key == key) {
            return true;
        }
        if (entry != NULL && entry->me_hash == hash && !(plain && is_plain_key(entry->me_key))) {
            return false;
        }
        perturb >>= PERTURB;
        place = (place * 5 + perturb + 1) & mask;
    }
    return true;
}

/* The same of a set, which looks at some neighbours first. */
static bool
meets_plain_members(const PySetObject *set, PyObject *key, Py_hash_t hash)
{
    enum { NEIGHBOURS = 9 }; /* CPython's LINEAR_PROBES */
    size_t mask = (size_t)set->mask, perturb = (size_t)hash, place = (size_t)hash & mask;
    for (;;) {
        const setentry *entry = &set->table[place], *end = entry + (place + NEIGHBOURS <= mask ? NEIGHBOURS : 0);
        for (; entry <= end; entry++) {
            if (entry->key == key || (entry->key == NULL && entry->hash == 0)) {
                return true;
            }
            if (entry->hash == hash && !is_plain_key(entry->key)) { /* what was taken out leaves another hash */
                return false;
            }
        }
        perturb >>= PERTURB;
        place = (place * 5 + perturb + 1) & mask;
    }
}

bool
lookup_runs_code(PyObject *container, PyObject *key, Py_hash_t hash)
{
    bool plain = is_plain_key(key);
    PyDictKeysObject *keys = PyDict_Check(container) ? ((PyDictObject *)container)->ma_keys : NULL;
    if (!plain && (keys == NULL || hash == -1)) {
        return true;
    }
    if (keys != NULL && DK_IS_UNICODE(keys)) {
        return !plain;
    }
    if (hash == -1 && (hash = PyObject_Hash(key)) == -1) {
        PyErr_Clear(); /* nothing is looked for */
        return false;
    }
    return keys != NULL ? !meets_plain_keys(keys, key, plain, hash) : !meets_plain_members((PySetObject *)container, key, hash);
}

FrameEvaluator
frame_evaluator_get(void)
{
    return _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get());
}

void
frame_evaluator_set(FrameEvaluator evaluate)
{
    _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), evaluate);
}

FrameEvaluator
frame_evaluator_default(void)
{
    return _PyEval_EvalFrameDefault;
}

PyCodeObject *
frame_starting(Frame *frame)
{
    if (frame->owner != FRAME_OWNED_BY_THREAD) {
        return NULL;
    }
#if PY_VERSION_HEX >= 0x030D0000
    if (!PyCode_Check(frame->f_executable)) {
        return NULL;
    }
    PyCodeObject *code = (PyCodeObject *)frame->f_executable;
    return frame->instr_ptr == _PyCode_CODE(code) ? code : NULL;
#else
    PyCodeObject *code = frame->f_code;
    return frame->prev_instr == _PyCode_CODE(code) - 1 ? code : NULL;
#endif
}

PyObject *
frame_code(Frame *frame)
{
#if PY_VERSION_HEX >= 0x030D0000
    return frame->f_executable;
#else
    return (PyObject *)frame->f_code;
#endif
}

PyFunctionObject *
frame_function(Frame *frame)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyObject *function = frame->f_funcobj;
#else
    PyObject *function = (PyObject *)frame->f_func;
#endif
    return function != NULL && PyFunction_Check(function) ? (PyFunctionObject *)function : NULL;
}

PyObject **
frame_slots(Frame *frame)
{
    return frame->localsplus;
}

bool
frame_needs_stub(void)
{
    return PY_VERSION_HEX >= 0x030C0000;
}

#if PY_VERSION_HEX >= 0x030C0000

int
frame_dispose(PyThreadState *state, Frame *frame, PyObject *stub)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyCodeObject *code = (PyCodeObject *)Py_NewRef(stub);
#if PY_VERSION_HEX >= 0x030D0000
    Py_SETREF(frame->f_executable, (PyObject *)code);
    frame->instr_ptr = _PyCode_CODE(code);
#else
    Py_SETREF(frame->f_code, code);
    frame->prev_instr = _PyCode_CODE(code) - 1;
#endif
    PyObject *none = _PyEval_EvalFrameDefault(state, frame, 0);
    if (none == NULL) {
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
        return -1;
    }
    Py_DECREF(none);
    PyErr_Restore(type, value, traceback);
    return 0;
}

#else

int
frame_dispose(PyThreadState *state, Frame *frame, PyObject *stub)
{
    return 0;
}

#endif

#if PY_VERSION_HEX >= 0x030C0000
#define REQUEST_INDEX PyUnstable_Eval_RequestCodeExtraIndex
#define GET_EXTRA PyUnstable_Code_GetExtra
#define SET_EXTRA PyUnstable_Code_SetExtra
#else
#define REQUEST_INDEX _PyEval_RequestCodeExtraIndex
#define GET_EXTRA _PyCode_GetExtra
#define SET_EXTRA _PyCode_SetExtra
#endif

Py_ssize_t
code_extra_index(freefunc destroy)
{
    return REQUEST_INDEX(destroy);
}

void *
code_extra(PyCodeObject *code, Py_ssize_t index)
{
    void *extra = NULL;
    if (GET_EXTRA((PyObject *)code, index, &extra) < 0) {
        PyErr_Clear();
        return NULL;
    }
    return extra;
}

int
code_set_extra(PyCodeObject *code, Py_ssize_t index, void *extra)
{
    return SET_EXTRA((PyObject *)code, index, extra);
}
