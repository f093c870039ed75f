/* The parts of a guard program, shared by the walk, its construction, and the readers. */
#ifndef BRAZE_GUARDS_H
#define BRAZE_GUARDS_H

#include "braze.h"

/* References are borrowed from the program's tuples, which never change. */
typedef struct {
    int parent, step;
    PyObject *key;
    /* The key as a number, where it is one. ITEM of any other key: its hash, or -1. Of steps by a key that is read: the node of the key. Of those
     * with parts: the last of their nodes and, above 32 bits, the row in `computed`. */
    Py_ssize_t index;
} Node;

static inline bool
is_by_key(const Node *node)
{
    return node->step == STEP_ITEM_AT || node->step == STEP_HAS_AT || node->step == STEP_CLASS_HAS_AT;
}

static inline bool
has_parts(const Node *node)
{
    return node->step == STEP_COMPUTED || node->step == STEP_JOINED || node->step == STEP_TUPLE;
}

/* The node after which a node can be read, with all before that: its parent; of two, the later one. */
static inline int
read_after(const Node *node)
{
    return (is_by_key(node) || has_parts(node)) && (int)node->index > node->parent ? (int)node->index : node->parent;
}

typedef struct {
    int kind, node;
    PyObject *expected;
    Py_ssize_t number; /* LENGTH: elements; INT: symbol; ALIAS: node; HAS_KEY: its hash, or -1; TENSOR, STATE, DISTINCT: index of the spec */
} Check;

typedef struct {
    int count;
    int *nodes;
    PyObject **last; /* the pointers at the last walk that found them all different */
} Distinct;

typedef struct {
    int op;
    int64_t number;
} RelationStep;

typedef struct {
    int count;
    RelationStep *step; /* NULL: only Python can say */
} Relation;

/* What a node with parts is made of: these nodes; of a COMPUTED one its program over the ints there, of others what their key says. */
enum { MOST_COMPUTED = 8 };
typedef struct {
    Relation relation;
    int count, nodes[MOST_COMPUTED];
} Computed;

/* Nodes that are read from one place, so that one look at that place can vouch for all of them.
 * The families that dictionaries back remember the dictionary's stamp: while it is the same, neither the
 * members' values nor the checks that depend on nothing else are looked at again. */
enum { FAMILY_INSTANCE, FAMILY_ITEMS, FAMILY_CLASS, FAMILY_GLOBALS, FAMILY_FRESH, FAMILY_COUNT };

typedef struct {
    int family, owner;
    int first_member, nmembers; /* in program->members */
    int first_check, ncheck;    /* in program->order: checks of the owner that this place decides */
    bool has_attr;              /* a member is read with the class in view */
    bool ordered;               /* depends on the order of keys */
    bool has_fleeting;          /* members to be read at every walk */
    bool passing;               /* the owner's class may end before the program does: it is not kept, and nothing remembered */
    /* what the last reading rested on; type == NULL: nothing */
    PyTypeObject *type; /* strong */
    Py_ssize_t offset;
    PyObject *dict, *builtins; /* borrowed, only ever compared before use */
    uint64_t stamp;
    uint64_t second_stamp; /* of the builtins, or of the class where has_attr */
    int breaks;            /* how often it was what broke the seal */
} Block;

typedef struct {
    int node;
    int first_check, ncheck; /* in program->order */
    bool fleeting;           /* when last read, it did not depend on the dictionary alone */
} Member;

/* -- image.c --------------------------------------------------------------------------------------- */
/* One tensor as it was seen; addresses, borrowed. */
typedef struct {
    PyObject *object;
    const char *impl, *kept; /* its implementation; what autograd keeps of it, or NULL */
    int image;
    int place; /* among the inputs; -1: none */
} Seen;

/* Tensors of one image, next to each other, that are compared in one go; autograd keeps something of all or of none. */
typedef struct {
    int first, count, image;
    bool kept;
} Chunk;
enum { CHUNK = 16 };

typedef struct {
    int nseen, nchunk, nimage;
    Seen *seen;
    Chunk *chunk;
    Image *image;
} SeenTensors;

/* Remember a tensor for which the ordinary check has just held; false if words alone cannot tell. */
bool image_take(Image *image, Seen *seen, PyObject *tensor, int requires_grad);
/* A tensor that is not as it was seen, or -1. Those that are are put into their places, held: all of them, if none is
 * not. `back`: from the last to the first. */
int seen_change(const SeenTensors *tensors, PyObject **places, bool back);
extern PyMethodDef image_methods[];

/* -- seal.c, seal_make.c: what a whole walk rested on, as flat lists --------------------------------- */
typedef uint64_t __attribute__((may_alias)) AnyWord;
typedef struct {
    const AnyWord *at;
    uint64_t word;
} Word;

/* A stretch of words, then one of stamps, then a block that is read in the ordinary way (-1: none), then checks.
 * Nothing that the stamps of one leg keep alive is read in that leg's words, nor by another of its stamps. */
typedef struct {
    int nword, nstamp, block, nrest;
} Leg;

typedef struct {
    PyTypeObject *type; /* kept by the block that rests on it */
    unsigned int stamp;
    int cause; /* the block to blame, or -1 */
} SealedClass;

/* A `distinct` check of which all but a few values are sealed. */
typedef struct {
    int number, nfresh;
    int *fresh;        /* places in the check's nodes */
    PyObject **others; /* a hash table of the sealed ones */
    size_t size;       /* of the table: a power of two */
} SealedDistinct;

typedef struct {
    bool whole;                /* may be relied on */
    bool back;                 /* the last walk went from the front to the back: what it read last is near */
    int hits, patience, waits; /* walks since it was made; ordinary walks to see before it is made again */
    bool watched;     /* so are all dictionaries of it */
    uint64_t changes; /* of watched dictionaries when it was last found whole */
    uint64_t newest;  /* no stamp, as a word, is above this one as long as its dictionary has not changed */
    int nword, nstamp, nleg, nclass, ndistinct;
    Word *word;
    const AnyWord **stamp; /* where those of its dictionaries stand */
    int *word_cause, *stamp_cause; /* by word and stamp: the block it belongs to, or -1 */
    Leg *leg;
    SealedClass *classes;
    SeenTensors tensors;
    int *check_of; /* by tensor: the check */
    int *rest; /* checks that it does not decide, by leg */
    int *others, nother; /* inputs that are no tensors it has seen */
    SealedDistinct *distinct;
} Seal;

struct GuardProgram {
    PyObject_HEAD
    PyObject *nodes, *checks, *inputs; /* the normalised tuples */
    int nnode, ncheck, ninput, nblock, nalways, nstate, nrange, ntensor, ndistinct;
    bool busy, ready;
    Py_ssize_t hits; /* walks that matched */
    Node *node;
    Check *check;
    int *input;
    PyObject **values; /* by node; borrowed */
    PyObject **temps;  /* new references that live until the end of the walk */
    int ntemp;
    bool roomy; /* there is room for all that a walk may hold */
    Block *block;
    Member *members;
    int *order;  /* indices of checks, grouped by member and block */
    int *always; /* indices of checks made at every walk */
    int *state, *range;
    TensorSpec *tensor;
    StateSpec *states;
    Distinct *distinct;
    Relation *relation; /* by place in range */
    Symbols symbols;
    PyObject *spare; /* a tuple for the inputs of the next walk, or NULL */
    char *restless; /* by check: a tensor that broke the seal more than once */
    Seal seal;
    int ncomputed;
    Computed *computed;
};

typedef struct {
    GuardProgram *program;
    PyFunctionObject *function;
    PyObject *const *locals;
    Py_ssize_t nlocals;
    PyObject **inputs; /* places for what the walk finds; held, where they are filled */
    bool holds;        /* what is read is held until the end of the walk, so that Python code may run */
    bool stopped;      /* before Python code: the walk begins again, and holds what it reads */
} Walk;

/* Whether Python code may run now; if not, the walk is stopped. */
static inline bool
may_run_code(Walk *walk)
{
    walk->stopped |= !walk->holds;
    return walk->holds;
}

static inline bool
may_look_up(Walk *walk, PyObject *container, PyObject *key, Py_hash_t hash)
{
    return !lookup_runs_code(container, key, hash) || may_run_code(walk);
}

/* The same of a look-up of each key, as going through an OrderedDict makes it. */
static inline bool
may_look_up_all(Walk *walk, PyObject *dict)
{
    PyObject *key, *value;
    Py_ssize_t position = 0;
    while (!walk->holds && PyDict_Next(dict, &position, &key, &value)) {
        if (!may_look_up(walk, dict, key, -1)) {
            return false;
        }
    }
    return true;
}

/* Hold what was read (may be NULL), if this walk does. */
static inline PyObject *
hold(Walk *walk, PyObject *borrowed)
{
    if (walk->holds && borrowed != NULL) {
        walk->program->temps[walk->program->ntemp++] = Py_NewRef(borrowed);
    }
    return borrowed;
}

/* The nodes that a node is read of, where that is more than its parent: how many. */
int nodes_read(const GuardProgram *p, const Node *node, int *found);
/* Read a node; NULL (no exception set) if that cannot be done. `cacheable`: the value depends only on
 * the dictionary of the parent (and on the parent's class, for ATTR). */
PyObject *node_read(Walk *walk, int node, bool *cacheable);
bool check_holds(Walk *walk, const Check *check);
/* Read a block that is not clean, with its checks; in any case, as the ordinary walk does. */
bool block_holds(Walk *walk, Block *block);
/* HOLDS: so would an ordinary walk; FAILS: so would it; BROKEN: that is for it to say. */
typedef enum { SEAL_HOLDS, SEAL_FAILS, SEAL_BROKEN } SealState;
SealState seal_state(Walk *walk);
void seal_after_walk(GuardProgram *program);
void seal_break(GuardProgram *program);
/* The slot of a value, or the empty one where it would go. */
size_t distinct_slot(const SealedDistinct *distinct, PyObject *value);
void seal_free(GuardProgram *program);
void relation_parse(Relation *relation, PyObject *expected, int nsymbols);
bool relation_value(const Relation *relation, const Symbols *symbols, int64_t *value);
int relation_holds(const Relation *relation, const Symbols *symbols);
bool same_constant(PyObject *value, PyObject *expected);
bool is_ordered_dict(PyObject *value);
int program_build(GuardProgram *program, Py_ssize_t nsymbols);
void program_free_parts(GuardProgram *program);

#endif
