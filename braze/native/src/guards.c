/* The walk over a guard program, and its Python type.
 *
 * Soundness. A block's values and checks are taken over from an earlier walk only if its dictionary has
 * the same stamp as then (compat.h): the same dictionary, unchanged ever since, so it has kept its values
 * alive and they are what was read. What hangs on a value is judged by its own stamp, or read anew; checks
 * on what can change in place (tensors, lists, cells, an object's class) are made at every walk.
 * No Python code runs, nor another thread, while references are borrowed: before a look-up that may run some (a
 * key's `__hash__` or `__eq__`) the walk stops, and begins again as one that holds all it reads.
 */
#include "guards.h"

#include <structmember.h>
#include <time.h>

static bool
checks_hold(Walk *walk, int first, int count)
{
    GuardProgram *p = walk->program;
    for (int i = first; i < first + count; i++) {
        if (!check_holds(walk, &p->check[p->order[i]])) {
            return false;
        }
    }
    return true;
}

/* The dictionary that backs a block, borrowed; NULL if it must be read at every walk. */
static PyObject *
backing(Walk *walk, const Block *block, PyObject *owner)
{
    switch (block->family) {
    case FAMILY_INSTANCE:
        return dict_offset(Py_TYPE(owner)) != 0 ? instance_dict(owner) : NULL;
    case FAMILY_ITEMS:
        if (!PyDict_Check(owner) || (block->ordered && PyDict_GET_SIZE(owner) > 1 && is_ordered_dict(owner))) {
            return NULL; /* move_to_end leaves no trace in the dictionary */
        }
        return owner;
    case FAMILY_CLASS:
        return PyType_Check(owner) ? owner : NULL;
    case FAMILY_GLOBALS: {
        PyFunctionObject *function = owner == NULL ? walk->function : (PyFunctionObject *)owner;
        return PyFunction_Check(function) && PyDict_Check(function->func_builtins) ? function->func_globals : NULL;
    }
    default:
        return NULL;
    }
}

static void
block_forget(Block *block)
{
    PyTypeObject *type = block->type;
    block->type = NULL;
    block->dict = NULL;
    Py_XDECREF(type);
}

/* Rest the block on its dictionary from now on. */
static void
block_remember(Walk *walk, Block *block, PyObject *owner, PyObject *dict, uint64_t stamp)
{
    PyFunctionObject *function = owner == NULL ? walk->function : (PyFunctionObject *)owner;
    block->second_stamp = 0;
    if (block->passing) {
        return;
    }
    if (block->family == FAMILY_CLASS) {
        if (stamp == 0 || type_stamp((PyTypeObject *)dict) != stamp) {
            return;
        }
    }
    else {
        if (!dict_observe(dict) || dict_stamp(dict) != stamp) {
            return;
        }
        if (block->family == FAMILY_GLOBALS) {
            if (!dict_observe(function->func_builtins)) {
                return;
            }
            block->builtins = function->func_builtins;
            block->second_stamp = dict_stamp(function->func_builtins);
        }
        else if (block->has_attr && (block->second_stamp = type_stamp(Py_TYPE(owner))) == 0) {
            return;
        }
    }
    PyTypeObject *type = owner == NULL ? &PyFunction_Type : Py_TYPE(owner);
    block->type = (PyTypeObject *)Py_NewRef(type);
    block->offset = dict_offset(type);
    block->dict = dict;
    block->stamp = stamp;
}

static bool
member_read(Walk *walk, Member *member)
{
    bool depends_only_on_dict = false;
    PyObject *value = hold(walk, node_read(walk, member->node, &depends_only_on_dict));
    if (value == NULL || walk->stopped) {
        return false;
    }
    walk->program->values[member->node] = value;
    member->fleeting = !depends_only_on_dict;
    return checks_hold(walk, member->first_check, member->ncheck);
}

/* Of a block that is clean: read the members that its dictionary does not vouch for. */
static bool
fleeting_hold(Walk *walk, const Block *block)
{
    Member *member = &walk->program->members[block->first_member];
    for (Member *end = member + block->nmembers; member < end; member++) {
        if (member->fleeting && !member_read(walk, member)) {
            return false;
        }
    }
    return true;
}

/* Read all members and make the checks that go with them. */
static bool
block_read(Walk *walk, Block *block)
{
    GuardProgram *p = walk->program;
    PyObject *owner = block->owner >= 0 ? p->values[block->owner] : NULL;
    block_forget(block);
    PyObject *dict = owner != NULL || block->family == FAMILY_GLOBALS ? backing(walk, block, owner) : NULL;
    if (dict != NULL && block->family != FAMILY_CLASS) {
        dict_observe(dict);
    }
    bool cacheable = hold(walk, dict) != NULL;
    if (cacheable && block->family == FAMILY_CLASS && block->nmembers > 0) {
        /* a look-up gives the class a stamp if it has none */
        _PyType_Lookup((PyTypeObject *)dict, p->node[p->members[block->first_member].node].key);
    }
    uint64_t stamp = !cacheable ? 0 : block->family == FAMILY_CLASS ? type_stamp((PyTypeObject *)dict) : dict_stamp(dict);
    block->has_fleeting = false;
    for (int i = block->first_member; i < block->first_member + block->nmembers; i++) {
        if (!member_read(walk, &p->members[i])) {
            return false;
        }
        block->has_fleeting |= p->members[i].fleeting;
    }
    if (!checks_hold(walk, block->first_check, block->ncheck)) {
        return false;
    }
    if (cacheable) {
        block_remember(walk, block, owner, dict, stamp);
    }
    return true;
}

/* Whether all that the block rests on is as it was. */
static inline bool
block_clean(const Walk *walk, const Block *block)
{
    if (block->family == FAMILY_FRESH) {
        return false;
    }
    PyObject *owner = block->owner >= 0 ? walk->program->values[block->owner] : (PyObject *)walk->function;
    if (Py_TYPE(owner) != block->type) {
        return false;
    }
    switch (block->family) {
    case FAMILY_INSTANCE:
        return *(PyObject **)((char *)owner + block->offset) == block->dict && dict_stamp(block->dict) == block->stamp
               && (!block->has_attr || type_stamp(block->type) == block->second_stamp);
    case FAMILY_ITEMS:
        return owner == block->dict && dict_stamp(owner) == block->stamp;
    case FAMILY_CLASS:
        return owner == block->dict && type_stamp((PyTypeObject *)owner) == block->stamp;
    default: {
        PyFunctionObject *function = (PyFunctionObject *)owner;
        return function->func_globals == block->dict && dict_stamp(block->dict) == block->stamp
               && function->func_builtins == block->builtins && dict_stamp(block->builtins) == block->second_stamp;
    }
    }
}

/* Hold what an unchanged dictionary vouches for. */
static void
hold_members(Walk *walk, const Block *block)
{
    const Member *member = &walk->program->members[block->first_member];
    for (const Member *end = member + block->nmembers; walk->holds && member < end; member++) {
        if (!member->fleeting) {
            hold(walk, walk->program->values[member->node]);
        }
    }
}

bool
block_holds(Walk *walk, Block *block)
{
    bool clean = block_clean(walk, block);
    if (clean) {
        hold_members(walk, block);
    }
    return clean ? !block->has_fleeting || fleeting_hold(walk, block) : block_read(walk, block);
}

static bool
walk_holds(Walk *walk)
{
    GuardProgram *p = walk->program;
    memset(p->symbols.bound, 0, p->symbols.count);
    for (int i = 0; i < p->nstate; i++) {
        if (!state_holds(&p->states[i])) {
            return false;
        }
    }
    SealState state = walk->holds ? SEAL_BROKEN : seal_state(walk);
    if (state != SEAL_BROKEN) {
        return state == SEAL_HOLDS;
    }
    if (walk->holds && p->seal.whole) {
        seal_break(p); /* classes that it looks at are kept by the blocks, which are read again */
    }
    memset(p->symbols.bound, 0, p->symbols.count);
    for (Block *block = p->block, *end = block + p->nblock; block < end; block++) {
        if (!block_holds(walk, block)) {
            return false;
        }
    }
    for (int i = 0; i < p->nalways; i++) {
        if (!check_holds(walk, &p->check[p->always[i]])) {
            return false;
        }
    }
    for (int i = 0; i < p->ninput; i++) {
        walk->inputs[i] = Py_NewRef(p->values[p->input[i]]);
    }
    if (!walk->holds) {
        seal_after_walk(p);
    }
    return true;
}

static void
temps_end(GuardProgram *p)
{
    while (p->ntemp > 0) {
        Py_DECREF(p->temps[--p->ntemp]);
    }
}

/* Begin again as a walk that holds what it reads. */
static bool
holding_walk_holds(Walk *walk)
{
    GuardProgram *p = walk->program;
    temps_end(p);
    if (!p->roomy) {
        /* by node: a value found, what a class has instead, made or an iterator, and as a member; by block and check: a dictionary */
        size_t room = 5 * (size_t)p->nnode + p->nblock + p->ncheck;
        PyObject **temps = PyMem_Realloc(p->temps, room * sizeof(PyObject *));
        if (temps == NULL) {
            return false;
        }
        p->temps = temps;
        p->roomy = true;
    }
    walk->holds = true;
    walk->stopped = false;
    return walk_holds(walk);
}

static PyObject *
symbol_values(const Symbols *symbols)
{
    PyObject *values = PyTuple_New(symbols->count);
    for (int i = 0; values != NULL && i < symbols->count; i++) {
        PyObject *value = symbols->bound[i] ? PyLong_FromLongLong(symbols->values[i]) : Py_NewRef(Py_None);
        if (value == NULL) {
            Py_CLEAR(values);
            break;
        }
        PyTuple_SET_ITEM(values, i, value);
    }
    return values;
}

static bool
ranges_hold(GuardProgram *p)
{
    PyObject *values = NULL;
    bool hold = true;
    for (int i = 0; hold && i < p->nrange; i++) {
        int known = p->relation[i].step != NULL ? relation_holds(&p->relation[i], &p->symbols) : -1;
        if (known >= 0) {
            hold = known;
            continue;
        }
        if (values == NULL && (values = symbol_values(&p->symbols)) == NULL) {
            return false;
        }
        PyObject *answer = PyObject_CallOneArg(p->check[p->range[i]].expected, values);
        hold = answer != NULL && PyObject_IsTrue(answer) == 1;
        Py_XDECREF(answer);
    }
    Py_XDECREF(values);
    return hold;
}

static void
clear_items(PyObject *tuple)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        Py_CLEAR(((PyTupleObject *)tuple)->ob_item[i]);
    }
}

/* A walk inside a walk of the same program (a C descriptor that runs Python code): by the plain rules. */
static PyObject *
match_plainly(GuardProgram *p, PyFunctionObject *function, PyObject *const *locals, Py_ssize_t nlocals)
{
    PyObject *match = package_function("braze.native.walk", "match"), *slots = PyTuple_New(nlocals), *found = NULL;
    if (match != NULL && slots != NULL) {
        for (Py_ssize_t i = 0; i < nlocals; i++) {
            PyTuple_SET_ITEM(slots, i, Py_NewRef(locals[i]));
        }
        found = PyObject_CallFunction(match, "OOOiOO", p->nodes, p->checks, p->inputs, p->symbols.count, function, slots);
    }
    Py_XDECREF(match);
    Py_XDECREF(slots);
    if (found == NULL) {
        forget_error();
    }
    else if (found == Py_None) {
        Py_CLEAR(found);
    }
    return found;
}

PyObject *
program_match(GuardProgram *p, PyFunctionObject *function, PyObject *const *locals, Py_ssize_t nlocals)
{
    if (p->busy) {
        return match_plainly(p, function, locals, nlocals);
    }
    PyObject *inputs = p->spare != NULL ? p->spare : PyTuple_New(p->ninput); /* before: it may run finalizers */
    p->spare = NULL;
    if (inputs == NULL) {
        PyErr_Clear();
        return NULL;
    }
    Walk walk = {p, function, locals, nlocals, &PyTuple_GET_ITEM(inputs, 0), false, false};
    p->busy = true;
    bool hold = walk_holds(&walk);
    if (walk.stopped) {
        hold = holding_walk_holds(&walk);
    }
    if (hold && p->nrange > 0 && !ranges_hold(p)) { /* still busy: what Python code it runs may walk here, over the same symbols */
        clear_items(inputs);
        hold = false;
    }
    if (!hold) {
        p->spare = inputs;
        inputs = NULL;
    }
    p->busy = false;
    temps_end(p); /* may run finalizers: nothing borrowed is looked at from here on */
    if (inputs == NULL) {
        forget_error();
    }
    else {
        p->hits++;
    }
    return inputs;
}

/* -- the type ------------------------------------------------------------------------------------ */

static int
program_init(GuardProgram *p, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"nodes", "checks", "inputs", "symbols", NULL};
    PyObject *nodes, *checks, *inputs;
    Py_ssize_t symbols = 0;
    if (p->nodes != NULL) {
        PyErr_SetString(PyExc_TypeError, "a GuardProgram does not change");
        return -1;
    }
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO|n:GuardProgram", names, &nodes, &checks, &inputs, &symbols)) {
        return -1;
    }
    PyObject *normalise = package_function("braze.native.encode", "normalise");
    if (normalise == NULL) {
        return -1;
    }
    PyObject *plain = PyObject_CallFunction(normalise, "OOOn", nodes, checks, inputs, symbols);
    Py_DECREF(normalise);
    if (plain == NULL) {
        return -1;
    }
    p->nodes = Py_NewRef(PyTuple_GET_ITEM(plain, 0));
    p->checks = Py_NewRef(PyTuple_GET_ITEM(plain, 1));
    p->inputs = Py_NewRef(PyTuple_GET_ITEM(plain, 2));
    Py_DECREF(plain);
    p->ready = program_build(p, symbols) == 0;
    return p->ready ? 0 : -1;
}

static int
program_traverse(GuardProgram *p, visitproc visit, void *arg)
{
    Py_VISIT(p->nodes);
    Py_VISIT(p->checks);
    Py_VISIT(p->inputs);
    for (int i = 0; i < p->nblock; i++) {
        Py_VISIT(p->block[i].type);
    }
    return 0;
}

static int
program_clear(GuardProgram *p)
{
    p->ready = false; /* the arrays borrow from these */
    Py_CLEAR(p->spare);
    Py_CLEAR(p->nodes);
    Py_CLEAR(p->checks);
    Py_CLEAR(p->inputs);
    return 0;
}

static void
program_dealloc(GuardProgram *p)
{
    PyObject_GC_UnTrack(p);
    program_clear(p);
    program_free_parts(p);
    Py_TYPE(p)->tp_free((PyObject *)p);
}

/* The slots of a tuple or list argument. */
static int
parse_call(GuardProgram *p, PyObject *const *args, PyFunctionObject **function, PyObject **locals)
{
    if (!p->ready) {
        PyErr_SetString(PyExc_TypeError, "GuardProgram.__init__ was not called");
        return -1;
    }
    if (!PyFunction_Check(args[0])) {
        PyErr_Format(PyExc_TypeError, "expected a Python function, not %.100s", Py_TYPE(args[0])->tp_name);
        return -1;
    }
    *function = (PyFunctionObject *)args[0];
    *locals = PySequence_Tuple(args[1]);
    return *locals == NULL ? -1 : 0;
}

static PyObject *
program_match_method(GuardProgram *p, PyObject *const *args, Py_ssize_t nargs)
{
    PyFunctionObject *function;
    PyObject *locals;
    if (nargs != 2) {
        PyErr_Format(PyExc_TypeError, "match takes 2 arguments, not %zd", nargs);
        return NULL;
    }
    if (parse_call(p, args, &function, &locals) < 0) {
        return NULL;
    }
    PyObject *inputs = program_match(p, function, &PyTuple_GET_ITEM(locals, 0), PyTuple_GET_SIZE(locals));
    Py_DECREF(locals);
    return inputs != NULL || PyErr_Occurred() ? inputs : Py_NewRef(Py_None);
}

static PyObject *
program_explain(GuardProgram *p, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || !p->ready) {
        PyErr_Format(PyExc_TypeError, "explain takes 2 arguments, not %zd", nargs);
        return NULL;
    }
    PyObject *explain = package_function("braze.native.walk", "explain");
    if (explain == NULL) {
        return NULL;
    }
    PyObject *answer =
        PyObject_CallFunction(explain, "OOOiOO", p->nodes, p->checks, p->inputs, p->symbols.count, args[0], args[1]);
    Py_DECREF(explain);
    return answer;
}

static double
nanoseconds_since(const struct timespec *start)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - start->tv_sec) * 1e9 + (double)(now.tv_nsec - start->tv_nsec);
}

enum { BATCHES = 10 };

static PyObject *
program_cost(GuardProgram *p, PyObject *const *args, Py_ssize_t nargs)
{
    PyFunctionObject *function;
    PyObject *locals;
    Py_ssize_t rounds = nargs > 2 ? PyLong_AsSsize_t(args[2]) : 1000;
    if (nargs < 2 || nargs > 3 || rounds < 1) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "cost takes a function, its locals and a positive count");
        }
        return NULL;
    }
    if (parse_call(p, args, &function, &locals) < 0) {
        return NULL;
    }
    Py_ssize_t batch = rounds < BATCHES ? 1 : rounds / BATCHES;
    double best = 0;
    for (Py_ssize_t done = 0; done < rounds; done += batch) {
        struct timespec start;
        clock_gettime(CLOCK_MONOTONIC, &start);
        for (Py_ssize_t i = 0; i < batch; i++) {
            Py_XDECREF(program_match(p, function, &PyTuple_GET_ITEM(locals, 0), PyTuple_GET_SIZE(locals)));
        }
        double spent = nanoseconds_since(&start) / (double)batch;
        best = done == 0 || spent < best ? spent : best;
    }
    Py_DECREF(locals);
    return PyFloat_FromDouble(best);
}

static PyObject *
program_blocks(GuardProgram *p, PyObject *unused)
{
    int clean = 0;
    for (int i = 0; i < p->nblock; i++) {
        clean += p->block[i].type != NULL;
    }
    return Py_BuildValue("iii", p->nblock, clean, p->nalways);
}

static PyObject *
program_sealed(GuardProgram *p, PyObject *unused)
{
    return Py_BuildValue("Oii", p->seal.whole ? Py_True : Py_False,
                         p->seal.nword + p->seal.nstamp, p->seal.tensors.nseen);
}

static PyMethodDef program_methods[] = {
    {"match", (PyCFunction)(void (*)(void))program_match_method, METH_FASTCALL,
     "match(function, locals)\n--\n\nThe graph inputs if every check holds, else None."},
    {"explain", (PyCFunction)(void (*)(void))program_explain, METH_FASTCALL,
     "explain(function, locals)\n--\n\nIndex of the first check that fails and the value it saw; None if all hold."},
    {"cost", (PyCFunction)(void (*)(void))program_cost, METH_FASTCALL,
     "cost(function, locals, n=1000)\n--\n\nNanoseconds per walk: the best mean of ten batches, n walks in all."},
    {"blocks", (PyCFunction)program_blocks, METH_NOARGS,
     "blocks()\n--\n\n(places read from, those vouched for by an unchanged dictionary or class, checks made at every walk)."},
    {"sealed", (PyCFunction)program_sealed, METH_NOARGS,
     "sealed()\n--\n\n(whether the next walk compares a flat list, words in it, tensors in it)."},
    {NULL},
};

static PyMemberDef program_members[] = {
    {"nodes", T_OBJECT, offsetof(GuardProgram, nodes), READONLY, NULL},
    {"checks", T_OBJECT, offsetof(GuardProgram, checks), READONLY, NULL},
    {"inputs", T_OBJECT, offsetof(GuardProgram, inputs), READONLY, NULL},
    {"hits", T_PYSSIZET, offsetof(GuardProgram, hits), 0, NULL},
    {"patience", T_INT, offsetof(GuardProgram, seal) + offsetof(Seal, patience), 0,
     "how many ordinary walks in a row have to hold before the next seal is made"},
    {"symbols", T_INT, offsetof(GuardProgram, symbols) + offsetof(Symbols, count), READONLY, NULL},
    {NULL},
};

PyTypeObject GuardProgram_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "braze.native._native.GuardProgram",
    .tp_doc = "Guards as plain data, walked natively.",
    .tp_basicsize = sizeof(GuardProgram),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)program_init,
    .tp_dealloc = (destructor)program_dealloc,
    .tp_traverse = (traverseproc)program_traverse,
    .tp_clear = (inquiry)program_clear,
    .tp_methods = program_methods,
    .tp_members = program_members,
};
