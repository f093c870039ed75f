/* Written by setup.py of native/vocabulary.py, which tells what the words mean. */
#ifndef BRAZE_VOCABULARY_H
#define BRAZE_VOCABULARY_H

enum {
    STEP_LOCAL,
    STEP_GLOBAL,
    STEP_CELL,
    STEP_GLOBALS_OF,
    STEP_ATTR,
    STEP_DICT,
    STEP_ITEM,
    STEP_KEY,
    STEP_TYPE,
    STEP_CLASS_ATTR,
    STEP_DEFAULTS,
    STEP_KWDEFAULTS,
    STEP_CLOSURE,
    STEP_FUNC,
    STEP_CONSTANT,
    STEP_TENSOR_OF,
    STEP_TENSOR_OF_NUMBERS,
    STEP_PART,
    STEP_NEGATIVE,
    STEP_ITEM_AT,
    STEP_HAS_AT,
    STEP_CLASS_HAS_AT,
    STEP_FORMATTED,
    STEP_JOINED,
    STEP_TUPLE,
    STEP_LENGTH,
    STEP_SIZE,
    STEP_MEMORY,
    STEP_COMPUTED,
    STEP_COUNT,
};

#define STEP_WORDS \
    "local", \
    "global", \
    "cell", \
    "globals_of", \
    "attr", \
    "dict", \
    "item", \
    "key", \
    "type", \
    "class_attr", \
    "defaults", \
    "kwdefaults", \
    "closure", \
    "func", \
    "constant", \
    "tensor_of", \
    "tensor_of_numbers", \
    "part", \
    "negative", \
    "item_at", \
    "has_at", \
    "class_has_at", \
    "formatted", \
    "joined", \
    "tuple", \
    "length", \
    "size", \
    "memory", \
    "computed",

enum {
    PLACE_MEMBER,
    PLACE_INSTANCE,
    PLACE_ITEMS,
    PLACE_ALWAYS,
    PLACE_LAST,
    PLACE_PROCESS,
};

/* CHECK_STATE: all checks of the process, each a state */
enum {
    CHECK_TYPE,
    CHECK_IS,
    CHECK_REFERENT,
    CHECK_EQUAL,
    CHECK_LENGTH,
    CHECK_KEYS,
    CHECK_HAS_KEY,
    CHECK_ABSENT,
    CHECK_TENSOR,
    CHECK_INT,
    CHECK_FLOAT,
    CHECK_ALIAS,
    CHECK_DISTINCT,
    CHECK_RANGE,
    CHECK_STATE,
};

#define CHECK_WORDS \
    "type", \
    "is", \
    "referent", \
    "equal", \
    "length", \
    "keys", \
    "has_key", \
    "absent", \
    "tensor", \
    "int", \
    "float", \
    "alias", \
    "distinct", \
    "range",

#define CHECK_PLACES \
    PLACE_MEMBER, \
    PLACE_MEMBER, \
    PLACE_MEMBER, \
    PLACE_MEMBER, \
    PLACE_ITEMS, \
    PLACE_ITEMS, \
    PLACE_ITEMS, \
    PLACE_INSTANCE, \
    PLACE_ALWAYS, \
    PLACE_ALWAYS, \
    PLACE_ALWAYS, \
    PLACE_ALWAYS, \
    PLACE_ALWAYS, \
    PLACE_LAST, \
    PLACE_PROCESS,

/* checks that hold or do not, when their object has been read */
#define CHECK_RULES(X) \
    X(TYPE, (PyObject *)Py_TYPE(value) == check->expected) \
    X(IS, value == check->expected) \
    X(REFERENT, value == ((PyWeakReference *)check->expected)->wr_object && value != Py_None) \
    X(EQUAL, same_constant(value, check->expected)) \
    X(LENGTH, length_is(value, check->number)) \
    X(KEYS, keys_are(walk, value, check->expected)) \
    X(HAS_KEY, has_key_is(walk, value, check)) \
    X(ABSENT, absent(walk, value, check->expected)) \
    X(TENSOR, tensor_is(walk, check, value)) \
    X(INT, int_binds(value, check->number, &walk->program->symbols)) \
    X(FLOAT, float_binds(value, check->number, &walk->program->symbols)) \
    X(ALIAS, value == walk->program->values[check->number]) \
    X(DISTINCT, distinct_holds(walk->program, &walk->program->distinct[check->number]))

enum {
    STATE_GRAD_MODE,
    STATE_INFERENCE_MODE,
    STATE_AUTOCAST,
    STATE_DEFAULT_DTYPE,
    STATE_DEFAULT_DEVICE,
    STATE_FUNCTION_MODES,
    STATE_DETERMINISTIC,
    STATE_SETTING,
};

#endif
