/* The seal of a guard program: all that a whole walk rested on, as flat lists of addresses and what stood there.
 *
 * An ordinary walk goes from place to place and makes, for each, the decision whether it is clean. When it has
 * held twice, the words that those decisions looked at are written down (seal_make.c): the class and dictionary
 * of an object, the stamp of a dictionary, the words of a tensor (image.c). As long as they all are what they
 * were, an ordinary walk would hold and find the same values, so comparing them is the walk.
 *
 * Stamps only grow: a dictionary that has changed since has one above all those that were seen, so it is enough
 * to compare each with the newest of them.
 *
 * Soundness. A word is read only after the words that keep its memory alive were found unchanged: an object
 * hangs on an unchanged dictionary, a dictionary on an object with the same pointer to it. What the
 * seal hangs on, and what it cannot hold (arguments, cells, lists, descriptors), is read anew between
 * stretches of words, and compared with what was found then. A broken seal decides
 * nothing: the ordinary walk does, and a new seal is made. What breaks seals again and again is left out.
 */
#include "guards.h"

enum { MANY_HITS = 64, MOST_PATIENCE = 1024 };

void
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

/* The first stamp above the newest, or `end`, going there step by step. */
static inline __attribute__((always_inline)) const AnyWord *const *
newer_on_the_way(const AnyWord *const *stamp, const AnyWord *const *end, int step, uint64_t newest)
{
    for (; (end - stamp) * step >= 4; stamp += 4 * step) {
        if (*stamp[0] > newest || *stamp[step] > newest || *stamp[2 * step] > newest || *stamp[3 * step] > newest) {
            break;
        }
    }
    while (stamp != end && **stamp <= newest) {
        stamp += step;
    }
    return stamp;
}

/* The index of a stamp above the newest, or -1. */
static inline int
newer_stamp(const AnyWord *const *stamp, int count, uint64_t newest, bool back)
{
    const AnyWord *const *last = stamp + count - 1;
    const AnyWord *const *found =
        back ? newer_on_the_way(last, stamp - 1, -1, newest) : newer_on_the_way(stamp, last + 1, 1, newest);
    return found < stamp || found > last ? -1 : (int)(found - stamp);
}

static void
blame(GuardProgram *p, int block)
{
    if (block >= 0) {
        p->block[block].breaks++;
    }
}

static SealState
legs_hold(Walk *walk, bool brief)
{
    GuardProgram *p = walk->program;
    Seal *seal = &p->seal;
    const Word *word = seal->word;
    const AnyWord *const *stamp = (const AnyWord *const *)seal->stamp;
    int *rest = seal->rest;
    for (const Leg *leg = seal->leg, *last = leg + seal->nleg; leg < last; leg++) {
        const Word *end = word + leg->nword;
        word = first_other_word(word, end);
        if (word < end) {
            blame(p, seal->word_cause[word - seal->word]);
            return SEAL_BROKEN;
        }
        int newer = brief ? -1 : newer_stamp(stamp, leg->nstamp, seal->newest, seal->back);
        if (newer >= 0) {
            blame(p, seal->stamp_cause[stamp - (const AnyWord *const *)seal->stamp + newer]);
            return SEAL_BROKEN;
        }
        stamp += leg->nstamp;
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

/* With all dictionaries watched and none changed, the words will do. */
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
        if (sealed->others[distinct_slot(sealed, value)] != NULL) {
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
    Seal *seal = &p->seal;
    for (int i = 0; i < seal->nclass; i++) {
        if (seal->classes[i].type->tp_version_tag != seal->classes[i].stamp) { /* 0 once the class has changed */
            blame(p, seal->classes[i].cause);
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
    int changed = seen_change(&seal->tensors, walk->inputs, seal->back);
    if (changed >= 0) {
        for (int i = 0; i < seal->tensors.nseen; i++) {
            int place = seal->tensors.seen[i].place;
            if (place >= 0) { /* not the last reference: it was found where it is kept */
                Py_CLEAR(walk->inputs[place]);
            }
        }
        p->restless[seal->check_of[changed]]++;
        return SEAL_BROKEN;
    }
    for (int i = 0; i < seal->nother; i++) {
        int place = seal->others[i];
        walk->inputs[place] = Py_NewRef(p->values[p->input[place]]);
    }
    seal->back = !seal->back;
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
