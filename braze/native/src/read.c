/* How the nodes of a guard program are read. Python code runs only where all that is read is held. */
#include "guards.h"

static PyObject *
keep(Walk *walk, PyObject *fresh)
{
    if (fresh == NULL) {
        PyErr_Clear();
        return NULL;
    }
    walk->program->temps[walk->program->ntemp++] = fresh;
    return fresh;
}

/* The same of what was made while the collector waited. */
static PyObject *
keep_made(Walk *walk, bool waits, PyObject *fresh)
{
    collector_go_on(waits);
    return keep(walk, fresh);
}

/* By a key whose hash may be known already (or -1). */
static PyObject *
dict_get_hashed(Walk *walk, PyObject *dict, PyObject *key, Py_hash_t hash)
{
    if (dict == NULL || !PyDict_Check(dict) || !may_look_up(walk, dict, key, hash)) {
        return NULL;
    }
    Py_INCREF(dict); /* as in has_key_is */
    PyObject *value =
        hold(walk, hash == -1 ? PyDict_GetItemWithError(dict, key) : _PyDict_GetItem_KnownHash(dict, key, hash));
    if (value == NULL) {
        forget_error();
    }
    Py_DECREF(dict);
    return value;
}

static PyObject *
dict_get(Walk *walk, PyObject *dict, PyObject *key)
{
    return dict_get_hashed(walk, dict, key, -1);
}

static PyObject *
read_global(Walk *walk, PyFunctionObject *function, PyObject *name)
{
    PyObject *value = dict_get(walk, function->func_globals, name);
    return value != NULL ? value : dict_get(walk, function->func_builtins, name);
}

static PyObject *
read_cell(PyFunctionObject *function, Py_ssize_t index)
{
    PyObject *closure = function->func_closure;
    if (closure == NULL || index < 0 || index >= PyTuple_GET_SIZE(closure)) {
        return NULL;
    }
    PyObject *cell = PyTuple_GET_ITEM(closure, index);
    return PyCell_Check(cell) ? PyCell_GET(cell) : NULL;
}

static PyObject *
read_default(PyFunctionObject *function, Py_ssize_t index)
{
    PyObject *defaults = function->func_defaults;
    if (defaults == NULL || !PyTuple_Check(defaults)) {
        return NULL;
    }
    index += index < 0 ? PyTuple_GET_SIZE(defaults) : 0;
    return index >= 0 && index < PyTuple_GET_SIZE(defaults) ? PyTuple_GET_ITEM(defaults, index) : NULL;
}

static PyObject *
read_item(Walk *walk, PyObject *parent, const Node *node)
{
    if (PyDict_Check(parent)) {
        return dict_get_hashed(walk, parent, node->key, PyLong_CheckExact(node->key) ? -1 : node->index);
    }
    if (!PyLong_CheckExact(node->key) || node->index < 0) {
        return NULL;
    }
    if (PyTuple_Check(parent)) {
        return node->index < PyTuple_GET_SIZE(parent) ? PyTuple_GET_ITEM(parent, node->index) : NULL;
    }
    if (PyList_Check(parent)) {
        return node->index < PyList_GET_SIZE(parent) ? PyList_GET_ITEM(parent, node->index) : NULL;
    }
    for (PyTypeObject *base = Py_TYPE(parent); base != NULL; base = base->tp_base) {
        if (strcmp(base->tp_name, "collections.deque") == 0) {
            return keep(walk, base->tp_as_sequence->sq_item(parent, node->index));
        }
    }
    return NULL;
}

bool
is_ordered_dict(PyObject *value)
{
    return PyObject_TypeCheck(value, &PyODict_Type);
}

static PyObject *
read_key(Walk *walk, PyObject *parent, Py_ssize_t index)
{
    if (!PyDict_Check(parent) || index < 0 || index >= PyDict_GET_SIZE(parent)) {
        return NULL;
    }
    if (is_ordered_dict(parent)) { /* its order is kept beside the dictionary */
        bool waits = collector_wait();
        PyObject *keys = keep_made(walk, waits, may_look_up_all(walk, parent) ? PyODict_Type.tp_iter(parent) : NULL);
        PyObject *key = NULL;
        for (Py_ssize_t i = 0; keys != NULL && i <= index; i++) {
            Py_XDECREF(key);
            key = Py_TYPE(keys)->tp_iternext(keys);
        }
        Py_XDECREF(hold(walk, key)); /* the dictionary keeps it, if nothing runs */
        forget_error();
        return key;
    }
    PyObject *key = NULL, *value;
    Py_ssize_t position = 0;
    for (Py_ssize_t i = 0; i <= index; i++) {
        if (!PyDict_Next(parent, &position, &key, &value)) {
            return NULL;
        }
    }
    return key;
}

static bool
is_dict_name(PyObject *name)
{
    return PyUnicode_CompareWithASCIIString(name, "__dict__") == 0;
}

/* What a descriptor of an object's class gives. */
static PyObject *
read_described(Walk *walk, PyObject *descriptor, PyObject *object)
{
    bool waits = collector_wait();
    PyObject *found = Py_TYPE(descriptor)->tp_descr_get(descriptor, object, (PyObject *)Py_TYPE(object));
    return keep_made(walk, waits, found);
}

/* object.__getattribute__, short of descriptors written in Python. */
static PyObject *
read_attribute(Walk *walk, PyObject *object, PyObject *name, bool *cacheable)
{
    PyTypeObject *type = Py_TYPE(object);
    bool own_lookup = type->tp_getattro != PyObject_GenericGetAttr && !(type->tp_flags & Py_TPFLAGS_HEAPTYPE);
    if (PyType_Check(object) || (own_lookup && !PyModule_Check(object))) {
        bool waits = collector_wait();
        return keep_made(walk, waits, PyObject_GetAttr(object, name));
    }
    PyObject *found = hold(walk, _PyType_Lookup(type, name));
    descrgetfunc get = found != NULL ? Py_TYPE(found)->tp_descr_get : NULL;
    bool foreign = found != NULL && ((Py_TYPE(found)->tp_flags & Py_TPFLAGS_HEAPTYPE) || Py_IS_TYPE(found, &PyProperty_Type));
    if (get != NULL && Py_TYPE(found)->tp_descr_set != NULL) {
        if (Py_IS_TYPE(found, &PyGetSetDescr_Type) && is_dict_name(name)) {
            *cacheable = true; /* another dictionary is another place */
            return instance_dict(object);
        }
        return foreign ? NULL : read_described(walk, found, object);
    }
    PyObject *value = dict_get(walk, instance_dict(object), name);
    if (value != NULL || get == NULL) {
        *cacheable = true;
        return value != NULL ? value : found;
    }
    return foreign ? NULL : read_described(walk, found, object);
}

static PyObject *
read_of_function(Walk *walk, PyObject *parent, const Node *node)
{
    if (node->step == STEP_FUNC) {
        if (!PyMethod_Check(parent)) {
            return NULL;
        }
        return node->index == 0 ? PyMethod_GET_FUNCTION(parent) : PyMethod_GET_SELF(parent);
    }
    if (!PyFunction_Check(parent)) {
        return NULL;
    }
    PyFunctionObject *function = (PyFunctionObject *)parent;
    switch (node->step) {
    case STEP_GLOBALS_OF:
        return read_global(walk, function, node->key);
    case STEP_DEFAULTS:
        return read_default(function, node->index);
    case STEP_KWDEFAULTS:
        return dict_get(walk, function->func_kwdefaults, node->key);
    default:
        return read_cell(function, node->index);
    }
}

/* A tensor over the memory of an array of numpy's, as torch.from_numpy makes it; of one that may be written, or of one
 * that may not. All that is called is written in C, and the collector, which may run finalizers, waits. */
static PyObject *
read_tensor_of(Walk *walk, PyObject *array, bool writable)
{
    static PyObject *make = NULL;
    if (strcmp(Py_TYPE(array)->tp_name, "numpy.ndarray") != 0 || (Py_TYPE(array)->tp_flags & Py_TPFLAGS_HEAPTYPE)) {
        return NULL;
    }
    if (make == NULL) {
        if (!may_run_code(walk)) {
            return NULL;
        }
        PyObject *torch = PyImport_ImportModule("torch");
        make = torch != NULL ? PyObject_GetAttrString(torch, "from_numpy") : NULL;
        Py_XDECREF(torch);
    }
    bool waits = collector_wait();
    PyObject *flags = make != NULL ? PyObject_GetAttrString(array, "flags") : NULL;
    PyObject *answer = flags != NULL ? PyObject_GetAttrString(flags, "writeable") : NULL;
    PyObject *tensor = answer == (writable ? Py_True : Py_False) ? PyObject_CallOneArg(make, array) : NULL;
    Py_XDECREF(answer);
    Py_XDECREF(flags);
    return keep_made(walk, waits, tensor);
}

/* Minus an int: what a symbol stands for, where the number is below zero. */
static PyObject *
read_negative(Walk *walk, PyObject *number)
{
    return PyLong_CheckExact(number) ? keep(walk, PyNumber_Negative(number)) : NULL;
}

/* The number of elements of a list or dict, whatever a subclass's `__len__` says. */
static PyObject *
read_length(Walk *walk, PyObject *parent)
{
    if (PyDict_Check(parent)) {
        return keep(walk, PyLong_FromSsize_t(PyDict_GET_SIZE(parent)));
    }
    return PyList_Check(parent) ? keep(walk, PyLong_FromSsize_t(PyList_GET_SIZE(parent))) : NULL;
}

/* Whether what is at a node is a key by itself: an int, text, or a tuple that was made of such. */
static bool
is_key(const Walk *walk, Py_ssize_t node)
{
    PyObject *key = walk->program->values[node];
    return PyLong_CheckExact(key) || PyUnicode_CheckExact(key) || walk->program->node[node].step == STEP_TUPLE;
}

/* What Python takes from a list, tuple or dict by an int, or from a dict by another key, that is another one at each call. */
static PyObject *
read_item_at(Walk *walk, PyObject *parent, Py_ssize_t node)
{
    PyObject *key = walk->program->values[node];
    if (PyDict_Check(parent)) {
        return is_key(walk, node) ? dict_get(walk, parent, key) : NULL;
    }
    if (!PyLong_CheckExact(key) || (!PyList_Check(parent) && !PyTuple_Check(parent))) {
        return NULL;
    }
    int overflow;
    long long index = PyLong_AsLongLongAndOverflow(key, &overflow), size = Py_SIZE(parent);
    index += index < 0 ? size : 0;
    if (overflow || index < 0 || index >= size) {
        return NULL;
    }
    return PyList_Check(parent) ? PyList_GET_ITEM(parent, index) : PyTuple_GET_ITEM(parent, index);
}

/* Whether a dict or set holds such a key. */
static PyObject *
read_has_at(Walk *walk, PyObject *parent, Py_ssize_t node)
{
    PyObject *key = walk->program->values[node];
    bool holds_keys = PyDict_Check(parent) || PyAnySet_Check(parent);
    if (!is_key(walk, node) || !holds_keys || !may_look_up(walk, parent, key, -1)) {
        return NULL;
    }
    Py_INCREF(parent); /* an __eq__ of the program's may take it from where it was found */
    int found = PyDict_Check(parent) ? PyDict_Contains(parent, key) : PySet_Contains(parent, key);
    Py_DECREF(parent);
    if (found < 0) {
        forget_error();
        return NULL;
    }
    return found ? Py_True : Py_False;
}

static PyObject *
read_class_has_at(PyObject *parent, PyObject *name)
{
    if (!PyUnicode_CheckExact(name)) {
        return NULL;
    }
    return _PyType_Lookup(Py_TYPE(parent), name) != NULL ? Py_True : Py_False;
}

static PyObject *
read_formatted(Walk *walk, PyObject *number, PyObject *how)
{
    bool waits = collector_wait(); /* a method is made, to be called */
    return keep_made(walk, waits, PyLong_CheckExact(number) ? PyObject_Format(number, how) : NULL);
}

/* Texts at nodes, and what stands around them. */
static PyObject *
read_joined(Walk *walk, PyObject *pieces, const Computed *parts)
{
    PyObject *text = Py_NewRef(PyTuple_GET_ITEM(pieces, 0));
    for (int i = 0; i < parts->count && text != NULL; i++) {
        PyObject *part = walk->program->values[parts->nodes[i]];
        if (!PyUnicode_CheckExact(part)) {
            Py_DECREF(text);
            return NULL;
        }
        PyUnicode_Append(&text, part);
        if (text != NULL) {
            PyUnicode_Append(&text, PyTuple_GET_ITEM(pieces, i + 1));
        }
    }
    return keep(walk, text);
}

/* A tuple of what is at nodes, and of what stands around that. The collector, which may run finalizers, waits. */
static PyObject *
read_tuple(Walk *walk, PyObject *pieces, const Computed *parts)
{
    Py_ssize_t size = parts->count, at = 0;
    for (int i = 0; i <= parts->count; i++) {
        size += PyTuple_GET_SIZE(PyTuple_GET_ITEM(pieces, i));
        if (i < parts->count && !is_key(walk, parts->nodes[i])) {
            return NULL;
        }
    }
    bool waits = collector_wait();
    PyObject *tuple = PyTuple_New(size);
    collector_go_on(waits);
    for (int i = 0; tuple != NULL && i <= parts->count; i++) {
        PyObject *piece = PyTuple_GET_ITEM(pieces, i);
        for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(piece); n++) {
            PyTuple_SET_ITEM(tuple, at++, Py_NewRef(PyTuple_GET_ITEM(piece, n)));
        }
        if (i < parts->count) {
            PyTuple_SET_ITEM(tuple, at++, Py_NewRef(walk->program->values[parts->nodes[i]]));
        }
    }
    return keep(walk, tuple);
}

/* A bound of a slice; those beyond all lists are as good as the largest. */
static Py_ssize_t
as_bound(PyObject *number)
{
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
    return overflow > 0 ? PY_SSIZE_T_MAX : overflow < 0 ? -PY_SSIZE_T_MAX : (Py_ssize_t)value;
}

/* parent[first:end] of a list. The collector, which may run finalizers, waits. */
static PyObject *
read_part(Walk *walk, PyObject *list, PyObject *bounds)
{
    Py_ssize_t bound[2] = {0, PY_SSIZE_T_MAX};
    if (!PyList_CheckExact(list)) {
        return NULL;
    }
    for (int i = 0; i < 2; i++) {
        PyObject *given = PyTuple_GET_ITEM(bounds, i);
        bound[i] = given == Py_None ? bound[i] : as_bound(given);
    }
    PySlice_AdjustIndices(PyList_GET_SIZE(list), &bound[0], &bound[1], 1);
    bool waits = collector_wait();
    return keep_made(walk, waits, PyList_GetSlice(list, bound[0], bound[1]));
}

static PyObject *
read_size(Walk *walk, PyObject *tensor, Py_ssize_t dim)
{
    TensorLayout layout;
    if (!is_tensor(tensor) || !tensor_layout(tensor, &layout) || dim < 0 || dim >= layout.ndim) {
        return NULL;
    }
    return keep(walk, PyLong_FromLongLong(layout.sizes[dim]));
}

/* What ints come to; that which 64 bits do not hold is left to another program. */
static PyObject *
read_computed(Walk *walk, const Computed *computed)
{
    int64_t values[MOST_COMPUTED], result;
    char bound[MOST_COMPUTED];
    for (int i = 0; i < computed->count; i++) {
        PyObject *number = walk->program->values[computed->nodes[i]];
        int overflow = 0;
        if (!PyLong_CheckExact(number)) {
            return NULL;
        }
        values[i] = PyLong_AsLongLongAndOverflow(number, &overflow);
        bound[i] = 1;
        if (overflow) {
            return NULL;
        }
    }
    Symbols symbols = {values, bound, computed->count};
    return relation_value(&computed->relation, &symbols, &result) ? keep(walk, PyLong_FromLongLong(result)) : NULL;
}

int
nodes_read(const GuardProgram *p, const Node *node, int *found)
{
    if (is_by_key(node)) {
        found[0] = node->parent;
        found[1] = (int)node->index;
        return 2;
    }
    if (!has_parts(node)) {
        return 0;
    }
    const Computed *computed = &p->computed[node->index >> 32];
    memcpy(found, computed->nodes, computed->count * sizeof(int));
    return computed->count;
}

PyObject *
node_read(Walk *walk, int index, bool *cacheable)
{
    const Node *node = &walk->program->node[index];
    PyObject *parent = node->parent >= 0 ? walk->program->values[node->parent] : NULL;
    switch (node->step) {
    case STEP_LOCAL:
        return node->index >= 0 && node->index < walk->nlocals ? walk->locals[node->index] : NULL;
    case STEP_GLOBAL:
        *cacheable = true;
        return read_global(walk, walk->function, node->key);
    case STEP_CELL:
        return read_cell(walk->function, node->index);
    case STEP_CONSTANT:
        return node->key;
    case STEP_ATTR:
        return read_attribute(walk, parent, node->key, cacheable);
    case STEP_DICT:
        *cacheable = true;
        return dict_get(walk, instance_dict(parent), node->key);
    case STEP_ITEM:
        *cacheable = PyDict_Check(parent);
        return read_item(walk, parent, node);
    case STEP_KEY:
        *cacheable = PyDict_Check(parent) && (PyDict_GET_SIZE(parent) <= 1 || !is_ordered_dict(parent));
        return read_key(walk, parent, node->index);
    case STEP_TYPE:
        return (PyObject *)Py_TYPE(parent);
    case STEP_TENSOR_OF:
        return read_tensor_of(walk, parent, node->index == 1);
    case STEP_TENSOR_OF_NUMBERS:
        return keep(walk, tensor_of_numbers(parent, node->key));
    case STEP_PART:
        return read_part(walk, parent, node->key);
    case STEP_NEGATIVE:
        return read_negative(walk, parent);
    case STEP_ITEM_AT:
        return read_item_at(walk, parent, node->index);
    case STEP_HAS_AT:
        return read_has_at(walk, parent, node->index);
    case STEP_CLASS_HAS_AT:
        return read_class_has_at(parent, walk->program->values[node->index]);
    case STEP_FORMATTED:
        return read_formatted(walk, parent, node->key);
    case STEP_JOINED:
        return read_joined(walk, PyTuple_GET_ITEM(node->key, 0), &walk->program->computed[node->index >> 32]);
    case STEP_TUPLE:
        return read_tuple(walk, PyTuple_GET_ITEM(node->key, 0), &walk->program->computed[node->index >> 32]);
    case STEP_LENGTH:
        return read_length(walk, parent);
    case STEP_SIZE:
        return read_size(walk, parent, node->index);
    case STEP_MEMORY:
        return keep(walk, tensor_memory(parent, node->index));
    case STEP_COMPUTED:
        return read_computed(walk, &walk->program->computed[node->index >> 32]);
    case STEP_CLASS_ATTR:
        *cacheable = true;
        return PyType_Check(parent) ? _PyType_Lookup((PyTypeObject *)parent, node->key) : NULL;
    default:
        *cacheable = node->step == STEP_GLOBALS_OF;
        return read_of_function(walk, parent, node);
    }
}
