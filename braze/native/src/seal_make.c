/* Making the seal of a guard program (seal.c): all that a whole walk rested on, as flat lists.
 *
 * The words that decide whether a place is clean are written down level by level: what hangs on nothing, what
 * hangs on that, and so on; in each level first the classes and dictionaries of objects, then the stamps of
 * dictionaries. The dictionaries from which nothing else is read, most by far, come last, and then the tensors:
 * their order is free.
 */
#include "guards.h"

enum { OFTEN = 2, WORDS_OF_BLOCK = 3, MOST_PATIENCE = 1024, FEW_FRESH = 16, IMAGES_TO_TRY = 64 };

void
seal_free(GuardProgram *p)
{
    Seal *seal = &p->seal;
    for (int i = 0; i < seal->ndistinct; i++) {
        PyMem_Free(seal->distinct[i].fresh);
        PyMem_Free(seal->distinct[i].others);
    }
    void *parts[] = {seal->word, seal->stamp, seal->word_cause, seal->stamp_cause, seal->leg, seal->classes, seal->rest,
                     seal->check_of, seal->tensors.seen, seal->tensors.chunk, seal->tensors.image, seal->distinct,
                     seal->others};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        PyMem_Free(parts[i]);
    }
    *seal = (Seal){.patience = seal->patience};
}

/* While a seal is made; by node, but for the last three. */
typedef struct {
    char *sealed;      /* the seal vouches for its value */
    char *leads_on;    /* something is read from it */
    int *leg;          /* that reads it, if it is not sealed */
    int *level;        /* of the block that it is read with */
    int *by_level;     /* the blocks; the last ones are those from which nothing else is read */
    int *level_start;  /* in by_level */
    int nlevel;
    int word, stamp; /* where the open leg begins */
} Plan;

static bool
plan_start(Plan *plan, const GuardProgram *p)
{
    *plan = (Plan){
        .sealed = PyMem_Calloc(p->nnode + 1, 1),
        .leads_on = PyMem_Calloc(p->nnode + 1, 1),
        .leg = PyMem_Calloc(p->nnode + 1, sizeof(int)),
        .level = PyMem_Calloc(p->nnode + 1, sizeof(int)),
        .by_level = PyMem_Calloc(p->nblock + 1, sizeof(int)),
        .level_start = PyMem_Calloc(p->nblock + 4, sizeof(int)),
    };
    return plan->sealed && plan->leads_on && plan->leg && plan->level && plan->by_level && plan->level_start;
}

static void
plan_end(Plan *plan)
{
    void *parts[] = {plan->sealed, plan->leads_on, plan->leg, plan->level, plan->by_level, plan->level_start};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        PyMem_Free(parts[i]);
    }
}

/* -- order ----------------------------------------------------------------------------------------- */

/* How far to go at each step so as to meet all of n things once, none soon after its neighbour. In the order in which
 * they were made they often stand in a row with gaps, and the processor fetches what is in the gaps. */
static int64_t
stride_over(int n)
{
    for (int stride = (int)(0.618 * n);; stride++) {
        int a = n, b = stride;
        while (b != 0) {
            int rest = a % b;
            a = b;
            b = rest;
        }
        if (a <= 1) {
            return stride;
        }
    }
}

static void
scatter(int *numbers, int n, int *room)
{
    int64_t stride = stride_over(n);
    memcpy(room, numbers, n * sizeof(int));
    for (int i = 0; i < n; i++) {
        numbers[i] = room[i * stride % n];
    }
}

/* -- places ---------------------------------------------------------------------------------------- */

static void
add_word(Seal *seal, const void *at, uint64_t word, int cause)
{
    seal->word_cause[seal->nword] = cause;
    seal->word[seal->nword++] = (Word){at, word};
}

static void
add_stamp(Seal *seal, PyObject *dict, int cause)
{
    uint64_t newest = dict_stamp_above(dict_stamp(dict));
    seal->watched = seal->watched && dict_watch(dict);
    seal->newest = newest > seal->newest ? newest : seal->newest;
    seal->stamp_cause[seal->nstamp] = cause;
    seal->stamp[seal->nstamp++] = dict_stamp_word(dict);
}

/* Once for all places that look at it: builtins are behind the globals of every function. */
static void
add_stamp_once(Seal *seal, PyObject *dict, int cause)
{
    for (int i = 0; i < seal->nstamp; i++) {
        if (seal->stamp[i] == dict_stamp_word(dict)) {
            return;
        }
    }
    add_stamp(seal, dict, cause);
}

static void
add_class(Seal *seal, PyTypeObject *type, unsigned int stamp, int cause)
{
    for (int i = 0; i < seal->nclass; i++) {
        if (seal->classes[i].type == type) {
            return;
        }
    }
    seal->classes[seal->nclass++] = (SealedClass){type, stamp, cause};
}

static void
close_leg(Seal *seal, Plan *plan, int block)
{
    seal->leg[seal->nleg++] = (Leg){seal->nword - plan->word, seal->nstamp - plan->stamp, block};
    plan->word = seal->nword;
    plan->stamp = seal->nstamp;
}

/* A dictionary of the caller's own from which nothing else hangs is likely to be another one at each call. */
static bool
can_be_sealed(const GuardProgram *p, const Block *block, const Plan *plan)
{
    if (block->type == NULL || block->has_fleeting || block->breaks >= OFTEN) {
        return false;
    }
    if (block->family == FAMILY_CLASS || block->family == FAMILY_GLOBALS) { /* of a class or function that the program holds */
        return block->owner >= 0 && p->node[block->owner].step == STEP_CONSTANT && block->stamp != 0;
    }
    if (block->family == FAMILY_FRESH) {
        return false;
    }
    bool worth_it = plan->sealed[block->owner] || block->family == FAMILY_INSTANCE;
    for (int m = block->first_member; !worth_it && m < block->first_member + block->nmembers; m++) {
        worth_it = plan->leads_on[p->members[m].node];
    }
    return worth_it;
}

/* Whether a place is what a class holds, for which the class' own stamp vouches: nothing else changes its dictionary. */
static inline bool
is_of_class(const GuardProgram *p, const Block *block)
{
    if (block->family == FAMILY_CLASS) {
        return true;
    }
    if (block->family != FAMILY_INSTANCE || block->has_attr || p->node[block->owner].step != STEP_CONSTANT) {
        return false;
    }
    PyObject *owner = p->values[block->owner];
    return PyType_Check(owner) && type_stamp((PyTypeObject *)owner) != 0;
}

static inline bool
is_of_module(const GuardProgram *p, const Block *block)
{
    return block->family == FAMILY_INSTANCE && !block->has_attr && p->node[block->owner].step == STEP_CONSTANT
           && PyModule_CheckExact(p->values[block->owner]);
}

/* The words that block_clean looks at; `anchored`: the owner itself may be another one next time. */
static void
seal_words(GuardProgram *p, int index, bool anchored)
{
    Seal *seal = &p->seal;
    const Block *block = &p->block[index];
    PyObject **owner = &p->values[block->owner];
    if (is_of_class(p, block)) {
        add_class(seal, (PyTypeObject *)*owner, type_stamp((PyTypeObject *)*owner), index);
        return;
    }
    if (block->family == FAMILY_GLOBALS || is_of_module(p, block)) { /* functions and modules keep their dictionaries */
        return;
    }
    if (anchored) {
        add_word(seal, owner, (uint64_t)(uintptr_t)*owner, index);
    }
    if (block->family == FAMILY_INSTANCE) {
        add_word(seal, &(*owner)->ob_type, (uint64_t)(uintptr_t)block->type, index);
        add_word(seal, (char *)*owner + block->offset, (uint64_t)(uintptr_t)block->dict, index);
        if (block->has_attr) {
            add_class(seal, block->type, (unsigned int)block->second_stamp, -1);
        }
    }
    else if (block->type->tp_flags & Py_TPFLAGS_HEAPTYPE) { /* else no other class can be given to it */
        add_word(seal, &(*owner)->ob_type, (uint64_t)(uintptr_t)block->type, index);
    }
}

/* One more than that of the block its owner is read with, and than that of any other node that it is read of. */
static int
level_of(const GuardProgram *p, const Block *block, const Plan *plan)
{
    int level = block->owner >= 0 ? plan->level[block->owner] + 1 : 0;
    if (block->family != FAMILY_FRESH) {
        return level;
    }
    for (int m = block->first_member; m < block->first_member + block->nmembers; m++) {
        int found[MOST_COMPUTED], count = nodes_read(p, &p->node[p->members[m].node], found);
        for (int i = 0; i < count; i++) {
            level = plan->level[found[i]] >= level ? plan->level[found[i]] + 1 : level;
        }
    }
    return level;
}

/* Which blocks are sealed, and all of them by level. */
static bool
plan_levels(const GuardProgram *p, Plan *plan)
{
    int *level = PyMem_Calloc(p->nblock + 1, sizeof(int));
    if (level == NULL) {
        return false;
    }
    for (int b = 0; b < p->nblock; b++) {
        if (p->block[b].owner >= 0) {
            plan->leads_on[p->block[b].owner] = 1;
        }
    }
    for (int i = 0; i < p->nnode; i++) { /* read of several nodes, one of which owns its block */
        int found[MOST_COMPUTED], count = nodes_read(p, &p->node[i], found);
        for (int n = 0; n < count; n++) {
            plan->leads_on[found[n]] = 1;
        }
    }
    for (int b = 0; b < p->nblock; b++) {
        const Block *block = &p->block[b];
        bool sealed = can_be_sealed(p, block, plan), leads_on = !sealed;
        level[b] = level_of(p, block, plan);
        for (int m = block->first_member; m < block->first_member + block->nmembers; m++) {
            int node = p->members[m].node;
            plan->sealed[node] = sealed || p->node[node].step == STEP_CONSTANT;
            plan->level[node] = level[b];
            leads_on |= plan->leads_on[node];
        }
        plan->nlevel = level[b] >= plan->nlevel ? level[b] + 1 : plan->nlevel;
        level[b] = leads_on ? level[b] : -1;
    }
    for (int b = 0; b < p->nblock; b++) {
        level[b] = level[b] < 0 ? plan->nlevel : level[b];
        plan->level_start[level[b] + 2]++;
    }
    for (int l = 1; l < plan->nlevel + 3; l++) {
        plan->level_start[l] += plan->level_start[l - 1];
    }
    for (int b = 0; b < p->nblock; b++) {
        plan->by_level[plan->level_start[level[b] + 1]++] = b;
    }
    for (int l = 0; l <= plan->nlevel; l++) {
        scatter(plan->by_level + plan->level_start[l], plan->level_start[l + 1] - plan->level_start[l], level);
    }
    PyMem_Free(level);
    return true;
}

/* One level. The blocks that the seal cannot hold are read first: they are likely to differ. */
static void
seal_level(GuardProgram *p, Plan *plan, const int *first, const int *end)
{
    Seal *seal = &p->seal;
    char *is_sealed = plan->sealed;
    for (const int *b = first; b < end; b++) {
        const Block *block = &p->block[*b];
        if (!can_be_sealed(p, block, plan)) {
            for (int m = block->first_member; m < block->first_member + block->nmembers; m++) {
                plan->leg[p->members[m].node] = seal->nleg;
            }
            close_leg(seal, plan, *b);
        }
    }
    if (seal->nstamp > plan->stamp) {
        close_leg(seal, plan, -1);
    }
    for (const int *b = first; b < end; b++) {
        if (can_be_sealed(p, &p->block[*b], plan)) {
            seal_words(p, *b, !is_sealed[p->block[*b].owner]);
        }
    }
    for (const int *b = first; b < end; b++) {
        const Block *block = &p->block[*b];
        if (!can_be_sealed(p, block, plan) || is_of_class(p, block)) {
            continue;
        }
        if (block->family == FAMILY_GLOBALS) {
            add_stamp_once(seal, block->builtins, *b);
        }
        add_stamp(seal, block->dict, *b);
    }
}

/* All places; the last leg is open for checks. */
static void
seal_places(GuardProgram *p, Plan *plan)
{
    for (int l = 0; l <= plan->nlevel; l++) {
        seal_level(p, plan, plan->by_level + plan->level_start[l], plan->by_level + plan->level_start[l + 1]);
    }
    close_leg(&p->seal, plan, -1);
    close_leg(&p->seal, plan, -1);
}

/* -- tensors --------------------------------------------------------------------------------------- */

static int
shared_image(SeenTensors *tensors, const Image *image)
{
    int oldest = tensors->nimage > IMAGES_TO_TRY ? tensors->nimage - IMAGES_TO_TRY : 0;
    for (int i = tensors->nimage - 1; i >= oldest; i--) {
        if (memcmp(&tensors->image[i], image, sizeof(*image)) == 0) {
            return i;
        }
    }
    tensors->image[tensors->nimage] = *image;
    return tensors->nimage++;
}

static bool
seal_tensor(GuardProgram *p, int check)
{
    SeenTensors *tensors = &p->seal.tensors;
    const TensorSpec *spec = &p->tensor[p->check[check].number];
    Image image;
    Seen seen;
    if (spec->type == NULL || !spec->exact || p->restless[check] >= OFTEN
        || !image_take(&image, &seen, p->values[p->check[check].node], spec->requires_grad)) {
        return false;
    }
    seen.image = shared_image(tensors, &image);
    seen.place = -1;
    p->seal.check_of[tensors->nseen] = check;
    tensors->seen[tensors->nseen++] = seen;
    return true;
}

static inline int
kind_of(const Seen *seen)
{
    return 2 * seen->image + (seen->kept != NULL);
}

/* Put tensors of one kind next to each other, and cut them into chunks. False for want of memory. */
static bool
seal_chunks(Seal *seal)
{
    SeenTensors *tensors = &seal->tensors;
    int nkind = 2 * tensors->nimage, n = tensors->nseen;
    int *start = PyMem_Calloc(nkind + 2, sizeof(int)), *order = PyMem_Calloc(n + 1, sizeof(int));
    int *check_of = PyMem_Calloc(n + 1, sizeof(int));
    Seen *seen = PyMem_Calloc(n + 1, sizeof(Seen));
    tensors->chunk = PyMem_Calloc(n / CHUNK + nkind + 1, sizeof(Chunk));
    bool done = start != NULL && order != NULL && check_of != NULL && seen != NULL && tensors->chunk != NULL;
    if (done) {
        for (int i = 0; i < n; i++) {
            start[kind_of(&tensors->seen[i]) + 2]++;
        }
        for (int k = 1; k <= nkind; k++) {
            start[k + 1] += start[k];
        }
        for (int i = 0; i < n; i++) {
            order[start[kind_of(&tensors->seen[i]) + 1]++] = i;
        }
        for (int k = 0; k < nkind; k++) {
            scatter(order + start[k], start[k + 1] - start[k], check_of);
            for (int first = start[k]; first < start[k + 1]; first += CHUNK) {
                int left = start[k + 1] - first;
                tensors->chunk[tensors->nchunk++] = (Chunk){first, left < CHUNK ? left : CHUNK, k / 2, k % 2 != 0};
            }
        }
        for (int i = 0; i < n; i++) {
            seen[i] = tensors->seen[order[i]];
            check_of[i] = seal->check_of[order[i]];
        }
        memcpy(tensors->seen, seen, n * sizeof(Seen));
        memcpy(seal->check_of, check_of, n * sizeof(int));
    }
    PyMem_Free(start);
    PyMem_Free(order);
    PyMem_Free(check_of);
    PyMem_Free(seen);
    return done;
}

/* -- checks ---------------------------------------------------------------------------------------- */

size_t
distinct_slot(const SealedDistinct *distinct, PyObject *value)
{
    uint64_t mixed = (uint64_t)(uintptr_t)value * 0x9e3779b97f4a7c15ul;
    size_t slot = (size_t)(mixed >> 20) & (distinct->size - 1);
    while (distinct->others[slot] != NULL && distinct->others[slot] != value) {
        slot = (slot + 1) & (distinct->size - 1);
    }
    return slot;
}

static bool
seal_distinct(GuardProgram *p, int check, const char *sealed)
{
    const Distinct *whole = &p->distinct[p->check[check].number];
    SealedDistinct made = {.number = (int)p->check[check].number, .size = 16};
    int fresh[FEW_FRESH];
    for (int i = 0; i < whole->count; i++) {
        if (!sealed[whole->nodes[i]]) {
            if (made.nfresh == FEW_FRESH) {
                return false;
            }
            fresh[made.nfresh++] = i;
        }
    }
    while (made.size < 2 * (size_t)whole->count) {
        made.size *= 2;
    }
    made.fresh = PyMem_Calloc(made.nfresh + 1, sizeof(int));
    made.others = PyMem_Calloc(made.size, sizeof(PyObject *));
    if (made.fresh == NULL || made.others == NULL) {
        PyMem_Free(made.fresh);
        PyMem_Free(made.others);
        return false;
    }
    memcpy(made.fresh, fresh, made.nfresh * sizeof(int));
    for (int i = 0; i < whole->count; i++) {
        if (sealed[whole->nodes[i]]) {
            PyObject *value = p->values[whole->nodes[i]];
            made.others[distinct_slot(&made, value)] = value;
        }
    }
    p->seal.distinct[p->seal.ndistinct++] = made;
    return true;
}

/* Whether the seal decides a check that is otherwise made at every walk. */
static bool
seal_check(GuardProgram *p, int index, const char *sealed)
{
    const Check *check = &p->check[index];
    if (check->kind == CHECK_DISTINCT) {
        return seal_distinct(p, index, sealed);
    }
    if (!sealed[check->node]) {
        return false;
    }
    switch (check->kind) {
    case CHECK_TENSOR:
        return seal_tensor(p, index);
    case CHECK_ALIAS:
        return sealed[check->number];
    case CHECK_TYPE: /* the last leg is still open */
        add_word(&p->seal, &p->values[check->node]->ob_type, (uint64_t)(uintptr_t)check->expected, -1);
        p->seal.leg[p->seal.nleg - 1].nword++;
        return true;
    default:
        return false;
    }
}

/* The checks that the seal does not decide, each with the leg that reads its node: what concerns arguments,
 * and so is likely to fail, comes before most of the words. False for want of memory. */
static bool
seal_checks(GuardProgram *p, const Plan *plan)
{
    Seal *seal = &p->seal;
    int last = seal->nleg - 1, *leg = PyMem_Calloc(p->nalways + 1, sizeof(int));
    if (leg == NULL) {
        return false;
    }
    for (int i = 0; i < p->nalways; i++) {
        const Check *check = &p->check[p->always[i]];
        bool one_value = check->kind == CHECK_TENSOR || check->kind == CHECK_INT || check->kind == CHECK_FLOAT
                         || check->kind == CHECK_TYPE;
        leg[i] = seal_check(p, p->always[i], plan->sealed) ? -1
                 : one_value && !plan->sealed[check->node] ? plan->leg[check->node]
                                                           : last;
        if (leg[i] >= 0) {
            seal->leg[leg[i]].nrest++;
        }
    }
    int next = 0;
    for (int l = 0; l < seal->nleg; l++) { /* where each leg's begin, in place of how many */
        next += seal->leg[l].nrest;
        seal->leg[l].nrest = next - seal->leg[l].nrest;
    }
    for (int i = 0; i < p->nalways; i++) {
        if (leg[i] >= 0) {
            seal->rest[seal->leg[leg[i]].nrest++] = p->always[i];
        }
    }
    for (int l = last; l > 0; l--) {
        seal->leg[l].nrest -= seal->leg[l - 1].nrest;
    }
    PyMem_Free(leg);
    return true;
}

/* Which inputs are taken over as their tensors are compared; `room` is by node. */
static void
seal_inputs(GuardProgram *p, int *room)
{
    Seal *seal = &p->seal;
    SeenTensors *tensors = &seal->tensors;
    for (int i = 0; i < p->nnode; i++) {
        room[i] = -1;
    }
    for (int i = 0; i < tensors->nseen; i++) {
        room[p->check[seal->check_of[i]].node] = i;
    }
    for (int i = 0; i < p->ninput; i++) {
        int seen = room[p->input[i]];
        if (seen >= 0 && tensors->seen[seen].place < 0) {
            tensors->seen[seen].place = i;
        }
        else {
            seal->others[seal->nother++] = i;
        }
    }
}

static bool
allocate(GuardProgram *p)
{
    Seal *seal = &p->seal;
    int words = WORDS_OF_BLOCK * p->nblock + p->nalways;
    seal->word = PyMem_Calloc(words + 1, sizeof(Word));
    seal->word_cause = PyMem_Calloc(words + 1, sizeof(int));
    seal->stamp = PyMem_Calloc(2 * p->nblock + 1, sizeof(AnyWord *));
    seal->stamp_cause = PyMem_Calloc(2 * p->nblock + 1, sizeof(int));
    seal->leg = PyMem_Calloc(2 * p->nblock + 4, sizeof(Leg));
    seal->classes = PyMem_Calloc(p->nblock + 1, sizeof(SealedClass));
    seal->tensors.seen = PyMem_Calloc(p->ntensor + 1, sizeof(Seen));
    seal->tensors.image = PyMem_Calloc(p->ntensor + 1, sizeof(Image));
    seal->check_of = PyMem_Calloc(p->ntensor + 1, sizeof(int));
    seal->rest = PyMem_Calloc(p->nalways + 1, sizeof(int));
    seal->others = PyMem_Calloc(p->ninput + 1, sizeof(int));
    seal->distinct = PyMem_Calloc(p->ndistinct + 1, sizeof(SealedDistinct));
    return seal->word && seal->word_cause && seal->stamp && seal->stamp_cause && seal->leg && seal->classes
           && seal->tensors.seen && seal->tensors.image && seal->check_of && seal->rest && seal->others && seal->distinct;
}

/* An ordinary walk has just held: make the seal, if it is time. Fails silently for want of memory. */
void
seal_after_walk(GuardProgram *p)
{
    Seal *seal = &p->seal;
    if (seal->waits++ < seal->patience) {
        return;
    }
    seal_free(p);
    if (seal->patience >= MOST_PATIENCE) { /* everything gets another chance */
        memset(p->restless, 0, p->ncheck);
        for (int b = 0; b < p->nblock; b++) {
            p->block[b].breaks = 0;
        }
    }
    Plan plan;
    if (plan_start(&plan, p) && plan_levels(p, &plan) && allocate(p)) {
        dict_forget_changed(); /* before this seal asks for them to be watched */
        seal->watched = true;
        seal_places(p, &plan);
        seal->changes = dict_change_count;
        if (seal_checks(p, &plan) && seal_chunks(seal)) {
            seal_inputs(p, plan.leg);
            seal->whole = true;
        }
    }
    plan_end(&plan);
}
