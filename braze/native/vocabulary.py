"""The words of guard programs: how an object is reached, and what is asked of it. One table for Python and for C.

``setup.py`` writes ``src/vocabulary.h`` of it. A kind of guard is one row of :class:`Check`: its rule in C and in Python, what it says
to the user, and what avoids that it fails.
"""

from __future__ import annotations

import enum
import types
import weakref
from typing import Any, NamedTuple


class Step(enum.Enum):
    """How to get from a parent object to a child. ``key`` is the type of the step's key, where only one makes sense."""

    key: type | None
    root: bool  # without a parent

    __hash__ = object.__hash__  # Enum's own is written in Python

    def __new__(cls, word: str, key: type | None = None, root: bool = False) -> Step:
        step = object.__new__(cls)
        step._value_, step.key, step.root = word, key, root
        return step

    LOCAL = "local", int, True  # index into the frame's localsplus
    GLOBAL = "global", str, True  # name, in the frame's globals, else in builtins
    CELL = "cell", int, True  # index into the function's closure; the cell's contents
    GLOBALS_OF = "globals_of", str  # name; the globals of a function parent
    ATTR = "attr", str  # name; plain getattr: only where no Python code runs
    DICT = "dict", str  # name; the instance __dict__ read directly: parent.__dict__[key]
    ITEM = "item"  # index (list, tuple) or constant key (dict)
    KEY = "key", int  # index; the i-th key of a dict, in order
    TYPE = "type"  # None; type(parent)
    CLASS_ATTR = "class_attr", str  # name; looked up along the MRO of a class parent, without descriptors
    DEFAULTS = "defaults", int  # index into parent.__defaults__
    KWDEFAULTS = "kwdefaults", str  # name in parent.__kwdefaults__
    CLOSURE = "closure", int  # index; contents of a function parent's cell
    FUNC = "func", str  # parent.__func__ ("func") or parent.__self__ ("self") of a bound method
    CONSTANT = "constant", None, True  # an object known by identity (a module such as torch, a class)
    # "writable" or "read-only", as the array is; torch.from_numpy(parent), a new tensor at each read
    TENSOR_OF = "tensor_of", str
    # name of a dtype, or "" for the one that PyTorch infers; torch.tensor(parent), of a list of numbers or of lists of such, a new tensor at each read
    TENSOR_OF_NUMBERS = "tensor_of_numbers", str
    PART = (
        "part",
        tuple,
    )  # two bounds, each an int or None; parent[slice(*key)], of a list, a new one at each read
    NEGATIVE = "negative"  # None; -parent, an int below zero: symbols are sizes, and above
    # the place of an int, or of a dict's key that is text or made by TUPLE (in programs its node), by which an item of the parent, a list, tuple or dict, is
    # taken as Python does
    ITEM_AT = "item_at"
    HAS_AT = "has_at"  # the same; whether the parent, a dict or set, holds that key
    CLASS_HAS_AT = "class_has_at"  # the place of text; whether the parent's class or a base of it has an attribute of that name
    FORMATTED = "formatted", str  # how; format(parent, key), of an int
    # texts around those at places, of which the first is the parent's, and the places of the others (in programs all their nodes); all of it as one
    JOINED = "joined"
    TUPLE = "tuple"  # the same of a tuple: what stands around ints, texts and such tuples at places
    LENGTH = "length"  # None; the number of elements of a list or dict parent
    SIZE = "size", int  # dimension; the size of a tensor parent along it
    # 0: the bytes of the memory that a tensor parent lies in, below zero where it does not begin it; else how many bytes a number of it takes: 1 if the tensor
    # is all of its memory, 0 if there is more
    MEMORY = "memory", int
    # what integers at places come to, the first of them the parent: text over n0, n1... and the places of the others (in programs a Relation and
    # all their nodes)
    COMPUTED = "computed"


class Place(enum.Enum):
    """Where a walk makes a check: what it is decided by, while that has not changed it is not made again."""

    MEMBER = "member"  # with the object's reading
    INSTANCE = "instance"  # by the object's own dict
    ITEMS = "items"  # by what the object holds
    ALWAYS = "always"
    LAST = "last"  # over symbols, which all other checks bind
    PROCESS = "process"  # of the process rather than of an object


_ONCE = "make the object behind {name} once, outside, rather than anew before each call"
_ALIKE = "keep {name} of one length and with the same keys, or stack what it holds into a tensor"


class Kind(NamedTuple):
    """One row of :class:`Check`. Rules and text are expressions, over what stands beside each."""

    word: str
    place: Place
    sure: tuple[type, ...] = ()  # types of `expected` that need no further look
    c: str = ""  # over walk, check, value: src/check.c
    python: str = ""  # over walk, node, value, expected: walk.py
    says: str = ""  # an f-string over at, expected, told: capture's guards/guard_text.py. "": the word, and what is expected
    advice: str = "each setting of torch has a variant of its own: call under the same modes"  # over name


class Check(enum.Enum):
    """What a guard asks of the object at its source; ``expected`` has the type given beside each."""

    place: Place
    sure: frozenset[type]
    c: str
    python: str
    says: str
    advice: str

    __hash__ = object.__hash__  # as of Step

    def __new__(cls, *row: Any) -> Check:
        check = object.__new__(cls)
        check._value_, check.place, surely, check.c, check.python, check.says, check.advice = row
        check.sure = frozenset(surely)
        return check

    # fmt: off
    # class: where an object may be given another class, that is decided by its dict
    TYPE = Kind("type", Place.MEMBER, (type,),
        c="(PyObject *)Py_TYPE(value) == check->expected", python="type(value) is expected",
        says="type({at}) is {named(expected)}", advice="pass values of one type as {name}")
    # any object
    IS = Kind("is", Place.MEMBER, (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType),
        c="value == check->expected", python="value is expected", says="{at} is {named(expected)}", advice=_ONCE)
    # a weak reference to the object. It lets go of it, and says None, before anything else can have the object's address
    REFERENT = Kind("referent", Place.MEMBER, (weakref.ReferenceType,),
        c="value == ((PyWeakReference *)check->expected)->wr_object && value != Py_None",
        python="value is not None and value is expected()", says="{at} is {referent_text(expected)}", advice=_ONCE)
    # number (floats bitwise), str, bytes, bool, None, ..., or tuple of such: type and value
    EQUAL = Kind("equal", Place.MEMBER, (int, float, complex, str, bytes, bool, type(None), type(...)),
        c="same_constant(value, check->expected)", python="same_constant(value, expected)",
        says="{at} {number_text(expected)}", advice="pass {name} as a tensor, torch.tensor(value), or keep it constant")
    # int
    LENGTH = Kind("length", Place.ITEMS, (int,), c="length_is(value, check->number)", python="length(value) == expected",
        says="len({at}) == {expected}", advice=_ALIKE)
    # tuple of constants: the keys in order
    KEYS = Kind("keys", Place.ITEMS, (tuple,),
        c="keys_are(walk, value, check->expected)", python="same_constant(keys(value), tuple(expected))",
        says="list({at}) == {list(expected)!r}", advice=_ALIKE)
    # (constant key, bool)
    HAS_KEY = Kind("has_key", Place.ITEMS, (tuple,),
        c="has_key_is(walk, value, check)", python="holds_key(value, expected[0]) == expected[1]",
        says="{expected[0]!r} {'in' if expected[1] else 'not in'} {at}", advice=_ALIKE)
    # tuple[str, ...]: names that x.__dict__ must not hold
    ABSENT = Kind("absent", Place.INSTANCE, (tuple,), c="absent(walk, value, check->expected)", python="absent(value, expected)",
        says="{at} has no attribute {', '.join(map(str, expected))}", advice="set the attributes of {name} before the first call")
    # TensorSpec (symbolic sizes as names); also exact Python type and dispatch keys
    TENSOR = Kind("tensor", Place.ALWAYS,
        c="tensor_is(walk, check, value)",
        python="tensor_agrees(value, expected, walk.symbols)",
        says="{at} is {spec_text(expected)}", advice="pass {name} as the same kind of tensor each time")
    # of programs: ("symbol", number): x is an int, which the symbol stands for
    INT = Kind("int", Place.ALWAYS, c="int_binds(value, check->number, &walk->program->symbols)",
        python="type(value) is int and bind_symbol(walk.symbols, expected[1], value)")
    # the same of a float, for which the symbol has the integer of the same 64 bits
    FLOAT = Kind("float", Place.ALWAYS, c="float_binds(value, check->number, &walk->program->symbols)",
        python="type(value) is float and bind_symbol(walk.symbols, expected[1], bits_of(value))")
    # Source: x is the object at that source
    ALIAS = Kind("alias", Place.ALWAYS, c="value == walk->program->values[check->number]",
        python="value is walk.value(expected)", says="{at} is {told(expected)}", advice=_ONCE)
    # tuple[Source, ...]: the tensors there and x are all different objects
    DISTINCT = Kind("distinct", Place.ALWAYS,
        c="distinct_holds(walk->program, &walk->program->distinct[check->number])",
        python="all_differ(value, [walk.value(other) for other in expected if other != node])",
        says="different objects: {', '.join(map(told, expected))}",
        advice="the same object given twice needs a variant of its own")
    # ShapeRelation on ints read from tensors' sizes and int inputs; source None
    RANGE = Kind("range", Place.LAST, says="{expected.expression}",
        advice="a condition on sizes or numbers has a variant for each side: both stay, no more will follow")
    GRAD_MODE = Kind("grad_mode", Place.PROCESS)  # bool; source None, as for the rest
    INFERENCE_MODE = Kind("inference_mode", Place.PROCESS)  # bool
    AUTOCAST = Kind("autocast", Place.PROCESS)  # tuple of (device type, enabled, dtype) for the devices in use, and cache flag
    DEFAULT_DTYPE = Kind("default_dtype", Place.PROCESS)  # torch.dtype
    DEFAULT_DEVICE = Kind("default_device", Place.PROCESS)  # torch.device or None
    FUNCTION_MODES = Kind("function_modes", Place.PROCESS)  # int: number of active torch function/dispatch modes (0)
    DETERMINISTIC = Kind("deterministic", Place.PROCESS)  # bool
    # (function of PyTorch, arguments, value): what it gives
    SETTING = Kind("setting", Place.PROCESS,
        says="{expected[0].__name__}({', '.join(map(repr, expected[1]))}) is {expected[2]!r}")
    # fmt: on


_OF_OBJECTS = tuple(check for check in Check if check.place is not Place.PROCESS)
_OF_PROCESS = tuple(check for check in Check if check.place is Place.PROCESS)
#: the words of checks of the process, which C calls states, with their numbers there
STATES = {check.value: number for number, check in enumerate(_OF_PROCESS)}


def _enumeration(prefix: str, members: tuple[enum.Enum, ...], *more: str) -> str:
    names = [f"    {prefix}_{name},\n" for name in (*(member.name for member in members), *more)]
    return f"enum {{\n{''.join(names)}}};\n"


def _listed(name: str, words: list[str]) -> str:
    return " \\\n    ".join([f"#define {name}", *words]) + "\n"


def c_header() -> str:
    """``src/vocabulary.h``."""
    held = [check for check in _OF_OBJECTS if check.place is not Place.LAST]
    parts = [
        "/* Written by setup.py of native/vocabulary.py, which tells what the words mean. */",
        "#ifndef BRAZE_VOCABULARY_H\n#define BRAZE_VOCABULARY_H\n",
        _enumeration("STEP", tuple(Step), "COUNT"),
        _listed("STEP_WORDS", [f'"{step.value}",' for step in Step]),
        _enumeration("PLACE", tuple(Place)),
        "/* CHECK_STATE: all checks of the process, each a state */",
        _enumeration("CHECK", _OF_OBJECTS, "STATE"),
        _listed("CHECK_WORDS", [f'"{check.value}",' for check in _OF_OBJECTS]),
        _listed("CHECK_PLACES", [*(f"PLACE_{check.place.name}," for check in _OF_OBJECTS), "PLACE_PROCESS,"]),
        "/* checks that hold or do not, when their object has been read */",
        _listed("CHECK_RULES(X)", [f"X({check.name}, {check.c})" for check in held]),
        _enumeration("STATE", _OF_PROCESS),
        "#endif\n",
    ]
    return "\n".join(parts)
