/* From the plain data of a guard program to the arrays that the walk goes along. */
#include "guards.h"

static const char *const step_names[] = {STEP_WORDS};
static const char *const check_names[] = {CHECK_WORDS};
static const int check_places[] = {CHECK_PLACES};

static int
index_of(PyObject *word, const char *const *names, int count)
{
    for (int i = 0; i < count; i++) {
        if (PyUnicode_CompareWithASCIIString(word, names[i]) == 0) {
            return i;
        }
    }
    return count;
}

static int
family_of(int step)
{
    switch (step) {
    case STEP_DICT:
    case STEP_ATTR:
        return FAMILY_INSTANCE;
    case STEP_ITEM:
    case STEP_KEY:
        return FAMILY_ITEMS;
    case STEP_CLASS_ATTR:
        return FAMILY_CLASS;
    case STEP_GLOBAL:
    case STEP_GLOBALS_OF:
        return FAMILY_GLOBALS;
    default:
        return FAMILY_FRESH;
    }
}

static void *
zeroed(Py_ssize_t count, size_t size)
{
    void *memory = PyMem_Calloc(count > 0 ? count : 1, size);
    if (memory == NULL) {
        PyErr_NoMemory();
    }
    return memory;
}

static int
as_index(PyObject *number, Py_ssize_t *result)
{
    *result = PyLong_AsSsize_t(number);
    return *result == -1 && PyErr_Occurred() ? -1 : 0;
}

/* The row of a node with parts. */
static int
build_parts(GuardProgram *p, Node *node)
{
    Computed *made = &p->computed[p->ncomputed];
    PyObject *nodes = PyTuple_GET_ITEM(node->key, 1);
    Py_ssize_t last = 0;
    made->count = (int)PyTuple_GET_SIZE(nodes);
    for (int i = 0; i < made->count; i++) {
        Py_ssize_t other;
        if (as_index(PyTuple_GET_ITEM(nodes, i), &other) < 0) {
            return -1;
        }
        made->nodes[i] = (int)other;
        last = other > last ? other : last;
    }
    if (node->step == STEP_COMPUTED) {
        relation_parse(&made->relation, PyTuple_GET_ITEM(node->key, 0), made->count);
        if (made->relation.step == NULL) {
            PyErr_SetString(PyExc_ValueError, "a computed node without a program");
            return -1;
        }
    }
    node->index = last | (Py_ssize_t)p->ncomputed++ << 32;
    return 0;
}

/* The hash of a constant key, which may be computed by Python code: not where references are borrowed. -1 where it has none. */
static int
build_hash(PyObject *key, Py_ssize_t *hash)
{
    *hash = PyObject_Hash(key);
    forget_error();
    return PyErr_Occurred() ? -1 : 0;
}

static int
build_node(GuardProgram *p, Node *node, PyObject *row)
{
    Py_ssize_t parent;
    if (as_index(PyTuple_GET_ITEM(row, 0), &parent) < 0) {
        return -1;
    }
    node->parent = (int)parent;
    node->step = index_of(PyTuple_GET_ITEM(row, 1), step_names, STEP_COUNT);
    node->key = PyTuple_GET_ITEM(row, 2);
    node->index = -1;
    if (has_parts(node)) {
        return build_parts(p, node);
    }
    if (node->step == STEP_ITEM && !PyLong_CheckExact(node->key)) {
        return build_hash(node->key, &node->index);
    }
    if (node->step == STEP_TENSOR_OF) {
        node->index = PyUnicode_CompareWithASCIIString(node->key, "writable") == 0;
    }
    else if (node->step == STEP_FUNC) {
        node->index = PyUnicode_CompareWithASCIIString(node->key, "func") == 0 ? 0 : 1;
    }
    else if (PyLong_CheckExact(node->key) && as_index(node->key, &node->index) < 0) {
        PyErr_Clear(); /* a dictionary's key, too large to be an index */
        node->index = -1;
    }
    return 0;
}

static int
build_distinct(Distinct *distinct, int node, PyObject *others)
{
    Py_ssize_t count = PyTuple_GET_SIZE(others);
    distinct->nodes = zeroed(count + 1, sizeof(int));
    distinct->last = zeroed(count + 1, sizeof(PyObject *));
    if (distinct->nodes == NULL || distinct->last == NULL) {
        return -1;
    }
    distinct->nodes[distinct->count++] = node;
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t other;
        if (as_index(PyTuple_GET_ITEM(others, i), &other) < 0) {
            return -1;
        }
        if (other != node) {
            distinct->nodes[distinct->count++] = (int)other;
        }
    }
    return 0;
}

static int
build_check(GuardProgram *p, int index, PyObject *row)
{
    Check *check = &p->check[index];
    Py_ssize_t node;
    if (as_index(PyTuple_GET_ITEM(row, 0), &node) < 0) {
        return -1;
    }
    PyObject *name = PyTuple_GET_ITEM(row, 1);
    check->node = (int)node;
    check->kind = index_of(name, check_names, CHECK_STATE);
    check->expected = PyTuple_GET_ITEM(row, 2);
    switch (check->kind) {
    case CHECK_LENGTH:
    case CHECK_ALIAS:
        return as_index(check->expected, &check->number);
    case CHECK_INT:
    case CHECK_FLOAT:
        return as_index(PyTuple_GET_ITEM(check->expected, 1), &check->number);
    case CHECK_HAS_KEY:
        return build_hash(PyTuple_GET_ITEM(check->expected, 0), &check->number);
    case CHECK_TENSOR:
        check->number = p->ntensor++;
        return tensor_spec_parse(&p->tensor[check->number], check->expected, p->symbols.count);
    case CHECK_DISTINCT:
        check->number = p->ndistinct++;
        return build_distinct(&p->distinct[check->number], check->node, check->expected);
    case CHECK_STATE:
        check->number = p->nstate;
        p->state[p->nstate++] = index;
        return state_spec_parse(&p->states[check->number], name, check->expected);
    case CHECK_RANGE:
        relation_parse(&p->relation[p->nrange], check->expected, p->symbols.count);
        p->range[p->nrange++] = index;
        return 0;
    default:
        return 0;
    }
}

/* The block of one family and owner; made if `create`. -1 if there is none. */
static int
block_of(GuardProgram *p, int family, int owner, bool create)
{
    for (int i = p->nblock - 1; i >= 0; i--) {
        if (p->block[i].family == family && p->block[i].owner == owner) {
            return i;
        }
    }
    if (!create) {
        return -1;
    }
    p->block[p->nblock] = (Block){.family = family, .owner = owner};
    return p->nblock++;
}

static bool
class_is_fixed(PyObject *type)
{ /* whether an instance can never be given another class */
    return PyType_Check(type) && !(((PyTypeObject *)type)->tp_flags & Py_TPFLAGS_HEAPTYPE)
           && !PyType_IsSubtype((PyTypeObject *)type, &PyModule_Type);
}

/* Where a check is made. An object whose class may change is asked for it when what it holds is read. */
static int
place_of(const Check *check, const int *has_instance)
{
    if (check->kind == CHECK_TYPE && !class_is_fixed(check->expected)) {
        return has_instance[check->node] >= 0 ? PLACE_INSTANCE : PLACE_ALWAYS;
    }
    return check_places[check->kind];
}

typedef struct {
    int *of_node;      /* node -> block it is read with */
    int *instance_of;  /* node -> block of its __dict__, or -1 */
    int *items_of;     /* node -> block of its items, or -1 */
    int *place;        /* check -> PLACE_... */
} Plan;

static void
plan_blocks(GuardProgram *p, Plan *plan)
{
    for (int i = 0; i < p->nnode; i++) {
        plan->instance_of[i] = plan->items_of[i] = -1;
    }
    for (int i = 0; i < p->nnode; i++) {
        int family = family_of(p->node[i].step), owner = read_after(&p->node[i]);
        int *known = owner < 0 ? NULL
                     : family == FAMILY_INSTANCE ? &plan->instance_of[owner]
                     : family == FAMILY_ITEMS    ? &plan->items_of[owner]
                                                 : NULL;
        int block = known != NULL && *known >= 0 ? *known : known != NULL ? -1 : block_of(p, family, owner, true);
        if (block < 0) {
            block = p->nblock++;
            p->block[block] = (Block){.family = family, .owner = owner};
            *known = block;
        }
        plan->of_node[i] = block;
        p->block[block].nmembers++;
        p->block[block].has_attr |= p->node[i].step == STEP_ATTR;
        p->block[block].ordered |= p->node[i].step == STEP_KEY;
    }
    for (int i = 0; i < p->nnode; i++) {
        int owner = p->node[i].parent;
        if (p->node[i].step == STEP_TYPE && plan->instance_of[owner] >= 0) {
            p->block[plan->instance_of[owner]].passing = true;
        }
        if (p->node[i].step == STEP_TYPE && plan->items_of[owner] >= 0) {
            p->block[plan->items_of[owner]].passing = true;
        }
    }
    for (int c = 0; c < p->ncheck; c++) { /* checks that ask for a block of their own */
        const Check *check = &p->check[c];
        int place = place_of(check, plan->instance_of);
        int *known = place == PLACE_INSTANCE ? plan->instance_of : place == PLACE_ITEMS ? plan->items_of : NULL;
        if (known != NULL && known[check->node] < 0) {
            known[check->node] = p->nblock;
            p->block[p->nblock++] = (Block){
                .family = place == PLACE_INSTANCE ? FAMILY_INSTANCE : FAMILY_ITEMS, .owner = check->node};
        }
        if (check->kind == CHECK_KEYS) {
            p->block[known[check->node]].ordered = true;
        }
    }
}

/* Stable counting sort of the blocks by owner, so that owners are read before what hangs on them. */
static int
sort_blocks(GuardProgram *p, Plan *plan)
{
    int *moved = zeroed(p->nblock, sizeof(int));
    int *start = zeroed(p->nnode + 2, sizeof(int));
    Block *sorted = zeroed(p->nblock, sizeof(Block));
    if (moved != NULL && start != NULL && sorted != NULL) {
        for (int b = 0; b < p->nblock; b++) {
            start[p->block[b].owner + 2]++;
        }
        for (int i = 1; i < p->nnode + 2; i++) {
            start[i] += start[i - 1];
        }
        for (int b = 0; b < p->nblock; b++) {
            moved[b] = start[p->block[b].owner + 1]++;
            sorted[moved[b]] = p->block[b];
        }
        memcpy(p->block, sorted, p->nblock * sizeof(Block));
        for (int i = 0; i < p->nnode; i++) {
            plan->of_node[i] = moved[plan->of_node[i]];
            plan->instance_of[i] = plan->instance_of[i] < 0 ? -1 : moved[plan->instance_of[i]];
            plan->items_of[i] = plan->items_of[i] < 0 ? -1 : moved[plan->items_of[i]];
        }
    }
    int failed = moved == NULL || start == NULL || sorted == NULL;
    PyMem_Free(moved);
    PyMem_Free(start);
    PyMem_Free(sorted);
    return failed ? -1 : 0;
}

static void
place_members(GuardProgram *p, Plan *plan, int *member_of)
{
    int next = 0;
    for (int b = 0; b < p->nblock; b++) {
        p->block[b].first_member = next;
        next += p->block[b].nmembers;
        p->block[b].nmembers = 0;
    }
    for (int i = 0; i < p->nnode; i++) {
        Block *block = &p->block[plan->of_node[i]];
        member_of[i] = block->first_member + block->nmembers++;
        p->members[member_of[i]] = (Member){.node = i};
    }
}

static void
place_checks(GuardProgram *p, Plan *plan, const int *member_of)
{
    for (int c = 0; c < p->ncheck; c++) { /* count */
        const Check *check = &p->check[c];
        switch (plan->place[c] = place_of(check, plan->instance_of)) {
        case PLACE_MEMBER:
            p->members[member_of[check->node]].ncheck++;
            break;
        case PLACE_INSTANCE:
            p->block[plan->instance_of[check->node]].ncheck++;
            break;
        case PLACE_ITEMS:
            p->block[plan->items_of[check->node]].ncheck++;
            break;
        case PLACE_ALWAYS:
            p->always[p->nalways++] = c;
            break;
        default:
            break;
        }
    }
    int next = 0;
    for (int m = 0; m < p->nnode; m++) {
        p->members[m].first_check = next;
        next += p->members[m].ncheck;
        p->members[m].ncheck = 0;
    }
    for (int b = 0; b < p->nblock; b++) {
        p->block[b].first_check = next;
        next += p->block[b].ncheck;
        p->block[b].ncheck = 0;
    }
    for (int c = 0; c < p->ncheck; c++) { /* fill */
        int node = p->check[c].node;
        if (plan->place[c] == PLACE_MEMBER) {
            Member *member = &p->members[member_of[node]];
            p->order[member->first_check + member->ncheck++] = c;
        }
        else if (plan->place[c] == PLACE_INSTANCE || plan->place[c] == PLACE_ITEMS) {
            Block *block = &p->block[(plan->place[c] == PLACE_ITEMS ? plan->items_of : plan->instance_of)[node]];
            p->order[block->first_check + block->ncheck++] = c;
        }
    }
}

static int
plan_walk(GuardProgram *p)
{
    Plan plan = {
        .of_node = zeroed(p->nnode, sizeof(int)),
        .instance_of = zeroed(p->nnode, sizeof(int)),
        .items_of = zeroed(p->nnode, sizeof(int)),
        .place = zeroed(p->ncheck, sizeof(int)),
    };
    int *member_of = zeroed(p->nnode, sizeof(int));
    int failed = !(plan.of_node && plan.instance_of && plan.items_of && plan.place && member_of);
    if (!failed) {
        plan_blocks(p, &plan);
        failed = sort_blocks(p, &plan);
    }
    if (!failed) {
        place_members(p, &plan, member_of);
        place_checks(p, &plan, member_of);
    }
    PyMem_Free(plan.of_node);
    PyMem_Free(plan.instance_of);
    PyMem_Free(plan.items_of);
    PyMem_Free(plan.place);
    PyMem_Free(member_of);
    return failed ? -1 : 0;
}

static int
allocate(GuardProgram *p)
{
    int n = p->nnode, c = p->ncheck;
    return (p->node = zeroed(n, sizeof(Node))) && (p->check = zeroed(c, sizeof(Check)))
                   && (p->input = zeroed(p->ninput, sizeof(int))) && (p->values = zeroed(n, sizeof(PyObject *)))
                   && (p->temps = zeroed(2 * n, sizeof(PyObject *))) && (p->block = zeroed(n + c, sizeof(Block)))
                   && (p->members = zeroed(n, sizeof(Member))) && (p->order = zeroed(c, sizeof(int)))
                   && (p->always = zeroed(c, sizeof(int))) && (p->state = zeroed(c, sizeof(int)))
                   && (p->range = zeroed(c, sizeof(int))) && (p->tensor = zeroed(c, sizeof(TensorSpec)))
                   && (p->relation = zeroed(c, sizeof(Relation))) && (p->states = zeroed(c, sizeof(StateSpec)))
                   && (p->distinct = zeroed(c, sizeof(Distinct))) && (p->restless = zeroed(c, 1))
                   && (p->symbols.values = zeroed(p->symbols.count, sizeof(int64_t)))
                   && (p->symbols.bound = zeroed(p->symbols.count, 1))
               ? 0
               : -1;
}

static int
count_computed(const GuardProgram *p)
{
    int count = 0;
    for (int i = 0; i < p->nnode; i++) {
        Node node = {.step = index_of(PyTuple_GET_ITEM(PyTuple_GET_ITEM(p->nodes, i), 1), step_names, STEP_COUNT)};
        count += has_parts(&node);
    }
    return count;
}

int
program_build(GuardProgram *p, Py_ssize_t nsymbols)
{
    p->nnode = (int)PyTuple_GET_SIZE(p->nodes);
    p->ncheck = (int)PyTuple_GET_SIZE(p->checks);
    p->ninput = (int)PyTuple_GET_SIZE(p->inputs);
    p->symbols.count = (int)nsymbols;
    p->seal.patience = 1;
    if (allocate(p) < 0 || (p->computed = zeroed(count_computed(p), sizeof(Computed))) == NULL) {
        return -1;
    }
    for (int i = 0; i < p->nnode; i++) {
        if (build_node(p, &p->node[i], PyTuple_GET_ITEM(p->nodes, i)) < 0) {
            return -1;
        }
    }
    for (int i = 0; i < p->ncheck; i++) {
        if (build_check(p, i, PyTuple_GET_ITEM(p->checks, i)) < 0) {
            return -1;
        }
    }
    for (int i = 0; i < p->ninput; i++) {
        Py_ssize_t node;
        if (as_index(PyTuple_GET_ITEM(p->inputs, i), &node) < 0) {
            return -1;
        }
        p->input[i] = (int)node;
    }
    return plan_walk(p);
}

void
program_free_parts(GuardProgram *p)
{
    for (int i = 0; i < p->nblock; i++) {
        Py_CLEAR(p->block[i].type);
    }
    for (int i = 0; i < p->ntensor; i++) {
        tensor_spec_clear(&p->tensor[i]);
    }
    for (int i = 0; i < p->nstate; i++) {
        state_spec_clear(&p->states[i]);
    }
    for (int i = 0; i < p->ndistinct; i++) {
        PyMem_Free(p->distinct[i].nodes);
        PyMem_Free(p->distinct[i].last);
    }
    for (int i = 0; i < p->nrange; i++) {
        PyMem_Free(p->relation[i].step);
    }
    for (int i = 0; i < p->ncomputed; i++) {
        PyMem_Free(p->computed[i].relation.step);
    }
    seal_free(p);
    void *parts[] = {p->restless, p->relation, p->node,   p->check,  p->input,    p->values,         p->temps,
                     p->block,    p->members,  p->order,  p->always, p->state,    p->range,          p->tensor,
                     p->states,   p->distinct, p->symbols.values,    p->symbols.bound, p->computed};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        PyMem_Free(parts[i]);
    }
}
