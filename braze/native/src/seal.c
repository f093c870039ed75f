/* The seal of a guard program: all that a whole walk rested on, as one flat list of (address, word).
 *
 * An ordinary walk goes from place to place and makes, for each, the decision whether it is clean. When it has
 * held twice, the words that those decisions looked at are written down in the walk's order: the class and
 * dictionary of an object, the stamp of a dictionary, the words of a tensor (image.c). As long as they all are
 * what they were, an ordinary walk would hold and find the same values, so comparing them is the walk.
 *
 * Soundness. A word is read only after the words that keep its memory alive were found unchanged: an object
 * hangs on a dictionary with the same stamp, a dictionary on an object with the same pointer to it. What the
 * seal hangs on, and what it cannot hold (arguments, cells, lists, descriptors), is read anew between
 * stretches of words, in its place, and compared with what was found then. A broken seal decides
 * nothing: the ordinary walk does, and a new seal is made. What breaks seals again and again is left out.
 */
#include "guards.h"

enum { OFTEN = 2, WORDS_OF_BLOCK = 4, MANY_HITS = 64, MOST_PATIENCE = 1024, FEW_FRESH = 16, IMAGES_TO_TRY = 64 };

void
seal_free(GuardProgram *p)
{
    Seal *seal = &p->seal;
    for (int i = 0; i < seal->ndistinct; i++) {
        PyMem_Free(seal->distinct[i].fresh);
        PyMem_Free(seal->distinct[i].others);
    }
    void *parts[] = {seal->word, seal->cause,    seal->leg,   seal->classes, seal->seen,
                     seal->rest, seal->check_of, seal->image, seal->distinct, seal->others,
                     seal->brief, seal->brief_cause};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        PyMem_Free(parts[i]);
    }
    *seal = (Seal){.patience = seal->patience};
}

/* -- making one ------------------------------------------------------------------------------------ */

static void
add_word(Seal *seal, const void *at, uint64_t word, int cause)
{
    seal->cause[seal->nword] = seal->brief_cause[seal->nbrief] = cause;
    seal->word[seal->nword++] = seal->brief[seal->nbrief++] = (Word){at, word};
}

static void
add_stamp(Seal *seal, PyObject *dict, int cause)
{
    seal->watched = seal->watched && dict_watch(dict);
    seal->cause[seal->nword] = cause;
    seal->word[seal->nword++] = (Word){dict_stamp_word(dict), *dict_stamp_word(dict)};
}

static void
add_class(Seal *seal, PyTypeObject *type, unsigned int stamp)
{
    for (int i = 0; i < seal->nclass; i++) {
        if (seal->classes[i].type == type) {
            return;
        }
    }
    seal->classes[seal->nclass++] = (SealedClass){type, stamp};
}

/* While a seal is made, by node. */
typedef struct {
    char *sealed;   /* the seal vouches for its value */
    char *leads_on; /* something is read from it */
    int *leg;       /* that reads it, if it is not sealed */
} Plan;

/* A dictionary of the caller's own from which nothing else hangs is likely to be another one at each call. */
static bool
can_be_sealed(const GuardProgram *p, const Block *block, const Plan *plan)
{
    if ((block->family != FAMILY_INSTANCE && block->family != FAMILY_ITEMS) || block->type == NULL
        || block->has_fleeting || block->breaks >= OFTEN) {
        return false;
    }
    bool worth_it = plan->sealed[block->owner] || block->family == FAMILY_INSTANCE;
    for (int m = block->first_member; !worth_it && m < block->first_member + block->nmembers; m++) {
        worth_it = plan->leads_on[p->members[m].node];
    }
    return worth_it;
}

/* The words that block_clean looks at; `anchored`: the owner itself may be another one next time. */
static void
seal_block(GuardProgram *p, int index, bool anchored)
{
    Seal *seal = &p->seal;
    const Block *block = &p->block[index];
    PyObject **owner = &p->values[block->owner];
    if (anchored) {
        add_word(seal, owner, (uint64_t)(uintptr_t)*owner, index);
    }
    if (block->family == FAMILY_INSTANCE) {
        add_word(seal, &(*owner)->ob_type, (uint64_t)(uintptr_t)block->type, index);
        add_word(seal, (char *)*owner + block->offset, (uint64_t)(uintptr_t)block->dict, index);
        if (block->has_attr) {
            add_class(seal, block->type, (unsigned int)block->second_stamp);
        }
    }
    else if (block->type->tp_flags & Py_TPFLAGS_HEAPTYPE) { /* else no other class can be given to it */
        add_word(seal, &(*owner)->ob_type, (uint64_t)(uintptr_t)block->type, index);
    }
    add_stamp(seal, block->dict, index);
}

/* Blocks in their order. */
static void
seal_blocks(GuardProgram *p, Plan *plan)
{
    Seal *seal = &p->seal;
    int first = 0, first_brief = 0;
    for (int b = 0; b < p->nblock; b++) {
        if (p->block[b].owner >= 0) {
            plan->leads_on[p->block[b].owner] = 1;
        }
    }
    for (int b = 0; b < p->nblock; b++) {
        const Block *block = &p->block[b];
        bool sealed = can_be_sealed(p, block, plan);
        for (int m = block->first_member; m < block->first_member + block->nmembers; m++) {
            int node = p->members[m].node;
            plan->sealed[node] = sealed || p->node[node].step == STEP_CONSTANT;
            plan->leg[node] = seal->nleg;
        }
        if (sealed) {
            seal_block(p, b, !plan->sealed[block->owner]);
        }
        else {
            seal->leg[seal->nleg++] = (Leg){seal->nword - first, seal->nbrief - first_brief, b};
            first = seal->nword;
            first_brief = seal->nbrief;
        }
    }
    seal->leg[seal->nleg++] = (Leg){seal->nword - first, seal->nbrief - first_brief, -1};
}

static unsigned int
shared_image(Seal *seal, const Image *image)
{
    int oldest = seal->nimage > IMAGES_TO_TRY ? seal->nimage - IMAGES_TO_TRY : 0;
    for (int i = seal->nimage - 1; i >= oldest; i--) {
        if (memcmp(&seal->image[i], image, sizeof(*image)) == 0) {
            return (unsigned int)i;
        }
    }
    seal->image[seal->nimage] = *image;
    return (unsigned int)seal->nimage++;
}

static bool
seal_tensor(GuardProgram *p, int check)
{
    Seal *seal = &p->seal;
    const TensorSpec *spec = &p->tensor[p->check[check].number];
    Image image;
    Seen seen;
    if (spec->type == NULL || !spec->exact || p->restless[check] >= OFTEN
        || !image_take(&image, &seen, p->values[p->check[check].node], spec->requires_grad)) {
        return false;
    }
    seen.image = shared_image(seal, &image);
    seen.place = -1;
    seal->check_of[seal->nseen] = check;
    seal->seen[seal->nseen++] = seen;
    return true;
}

static inline size_t
slot_of(const SealedDistinct *distinct, PyObject *value)
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
            made.others[slot_of(&made, value)] = value;
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
        p->seal.leg[p->seal.nleg - 1].nbrief++;
        return true;
    default:
        return false;
    }
}

static bool
allocate(GuardProgram *p)
{
    Seal *seal = &p->seal;
    int words = WORDS_OF_BLOCK * p->nblock + p->nalways;
    seal->word = PyMem_Calloc(words + 1, sizeof(Word));
    seal->brief = PyMem_Calloc(words + 1, sizeof(Word));
    seal->cause = PyMem_Calloc(words + 1 + p->nalways, sizeof(int));
    seal->brief_cause = PyMem_Calloc(words + 1, sizeof(int));
    seal->leg = PyMem_Calloc(p->nblock + 1, sizeof(Leg));
    seal->classes = PyMem_Calloc(p->nblock + 1, sizeof(SealedClass));
    seal->seen = PyMem_Calloc(p->ntensor + SEEN_BEHIND, sizeof(Seen));
    seal->check_of = PyMem_Calloc(p->ntensor + 1, sizeof(int));
    seal->image = PyMem_Calloc(p->ntensor + 1, sizeof(Image));
    seal->rest = PyMem_Calloc(p->nalways + 1, sizeof(int));
    seal->others = PyMem_Calloc(p->ninput + 1, sizeof(int));
    seal->distinct = PyMem_Calloc(p->ndistinct + 1, sizeof(SealedDistinct));
    return seal->word && seal->brief && seal->cause && seal->brief_cause && seal->leg && seal->classes && seal->seen
           && seal->check_of && seal->image && seal->rest && seal->distinct && seal->others;
}

/* The checks that the seal does not decide, each with the leg that reads its node: what concerns arguments,
 * and so is likely to fail, comes before most of the words. */
static void
seal_checks(GuardProgram *p, const Plan *plan)
{
    Seal *seal = &p->seal;
    int last = seal->nleg - 1;
    int *leg = seal->cause + WORDS_OF_BLOCK * p->nblock + p->nalways + 1; /* room behind the causes */
    for (int i = 0; i < p->nalways; i++) {
        const Check *check = &p->check[p->always[i]];
        bool one_value = check->kind == CHECK_TENSOR || check->kind == CHECK_INT || check->kind == CHECK_TYPE;
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
}

/* Which inputs are taken over as their tensors are compared; `room` is by node. */
static void
seal_inputs(GuardProgram *p, int *room)
{
    Seal *seal = &p->seal;
    for (int i = 0; i < p->nnode; i++) {
        room[i] = -1;
    }
    for (int i = 0; i < seal->nseen; i++) {
        room[p->check[seal->check_of[i]].node] = i;
    }
    for (int i = 0; i < p->ninput; i++) {
        int seen = room[p->input[i]];
        if (seen >= 0 && seal->seen[seen].place < 0) {
            seal->seen[seen].place = i;
        }
        else {
            seal->others[seal->nother++] = i;
        }
    }
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
    Plan plan = {PyMem_Calloc(p->nnode + 1, 1), PyMem_Calloc(p->nnode + 1, 1), PyMem_Calloc(p->nnode + 1, sizeof(int))};
    if (plan.sealed != NULL && plan.leads_on != NULL && plan.leg != NULL && allocate(p)) {
        dict_forget_changed(); /* before this seal asks for them to be watched */
        seal->watched = true;
        seal_blocks(p, &plan);
        seal->changes = dict_change_count;
        seal_checks(p, &plan);
        seal_inputs(p, plan.leg);
        seal->whole = true;
    }
    PyMem_Free(plan.sealed);
    PyMem_Free(plan.leads_on);
    PyMem_Free(plan.leg);
}

/* -- relying on it --------------------------------------------------------------------------------- */

static void
seal_break(GuardProgram *p)
{
    Seal *seal = &p->seal;
    bool soon = seal->hits < MANY_HITS;
    seal->patience = !soon ? 1 : seal->patience < MOST_PATIENCE ? 2 * seal->patience + 1 : MOST_PATIENCE;
    seal->whole = false;
    seal->waits = 0;
}

static inline const Word *
first_other_word(const Word *word, const Word *end)
{
    for (; end - word >= 4; word += 4) {
        if (word[0].at[0] != word[0].word) {
            return word;
        }
        if (word[1].at[0] != word[1].word) {
            return word + 1;
        }
        if (word[2].at[0] != word[2].word) {
            return word + 2;
        }
        if (word[3].at[0] != word[3].word) {
            return word + 3;
        }
    }
    while (word < end && *word->at == word->word) {
        word++;
    }
    return word;
}

static SealState
legs_hold(Walk *walk, bool brief)
{
    GuardProgram *p = walk->program;
    const Word *word = brief ? p->seal.brief : p->seal.word;
    int *rest = p->seal.rest;
    for (const Leg *leg = p->seal.leg, *last = leg + p->seal.nleg; leg < last; leg++) {
        const Word *end = word + (brief ? leg->nbrief : leg->nword);
        word = first_other_word(word, end);
        if (word < end) {
            int cause = brief ? p->seal.brief_cause[word - p->seal.brief] : p->seal.cause[word - p->seal.word];
            if (cause >= 0) {
                p->block[cause].breaks++;
            }
            return SEAL_BROKEN;
        }
        if (leg->block >= 0 && !block_holds(walk, &p->block[leg->block])) {
            return SEAL_FAILS;
        }
        int *first = rest;
        for (const int *stop = rest + leg->nrest; rest < stop; rest++) {
            if (!check_holds(walk, &p->check[*rest])) { /* is the first to be made next time */
                int failed = *rest;
                memmove(first + 1, first, (rest - first) * sizeof(int));
                *first = failed;
                return SEAL_FAILS;
            }
        }
    }
    return SEAL_HOLDS;
}

/* With all dictionaries watched and none changed, the rest of the words will do. */
static SealState
words_hold(Walk *walk)
{
    Seal *seal = &walk->program->seal;
    uint64_t changes = dict_change_count;
    bool brief = seal->watched && seal->changes == changes;
    if (!brief) {
        dict_forget_changed();
    }
    SealState state = legs_hold(walk, brief);
    if (state == SEAL_HOLDS) {
        seal->changes = changes;
    }
    return state;
}

static bool
fresh_are_distinct(GuardProgram *p, const SealedDistinct *sealed)
{
    Distinct *whole = &p->distinct[sealed->number];
    bool changed = false;
    for (int i = 0; i < sealed->nfresh; i++) {
        PyObject *value = p->values[whole->nodes[sealed->fresh[i]]];
        if (value != whole->last[sealed->fresh[i]]) {
            changed = true;
        }
    }
    for (int i = 0; changed && i < sealed->nfresh; i++) {
        PyObject *value = p->values[whole->nodes[sealed->fresh[i]]];
        if (sealed->others[slot_of(sealed, value)] != NULL) {
            return false;
        }
        for (int j = 0; j < i; j++) {
            if (p->values[whole->nodes[sealed->fresh[j]]] == value) {
                return false;
            }
        }
    }
    for (int i = 0; changed && i < sealed->nfresh; i++) {
        whole->last[sealed->fresh[i]] = p->values[whole->nodes[sealed->fresh[i]]];
    }
    return true;
}

static SealState
all_hold(Walk *walk)
{
    GuardProgram *p = walk->program;
    const Seal *seal = &p->seal;
    for (int i = 0; i < seal->nclass; i++) {
        if (type_stamp(seal->classes[i].type) != seal->classes[i].stamp) {
            return SEAL_BROKEN;
        }
    }
    SealState state = words_hold(walk);
    if (state != SEAL_HOLDS) {
        return state;
    }
    for (int i = 0; i < seal->ndistinct; i++) {
        if (!fresh_are_distinct(p, &seal->distinct[i])) {
            return SEAL_FAILS;
        }
    }
    const Seen *end = seal->seen + seal->nseen, *changed = seen_first_change(seal->seen, end, seal->image, walk->inputs);
    if (changed < end) {
        for (const Seen *seen = seal->seen; seen < changed; seen++) {
            if (seen->place >= 0) { /* not the last reference: it was found where it is kept */
                Py_CLEAR(walk->inputs[seen->place]);
            }
        }
        p->restless[seal->check_of[changed - seal->seen]]++;
        return SEAL_BROKEN;
    }
    for (int i = 0; i < seal->nother; i++) {
        int place = seal->others[i];
        walk->inputs[place] = Py_NewRef(p->values[p->input[place]]);
    }
    return SEAL_HOLDS;
}

SealState
seal_state(Walk *walk)
{
    Seal *seal = &walk->program->seal;
    SealState state = seal->whole ? all_hold(walk) : SEAL_BROKEN;
    if (state == SEAL_BROKEN && seal->whole) {
        seal_break(walk->program);
    }
    seal->hits += state == SEAL_HOLDS && seal->hits < MANY_HITS;
    return state;
}
