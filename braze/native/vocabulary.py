"""The words of guard programs: how an object is reached, and what is asked of it. One table for Python and for C.

``setup.py`` writes ``src/vocabulary.h`` of it. A kind of guard is a member of :class:`Check` here, and its rule: a function of that
name in ``src/check.c``, a case in ``walk.py``.
"""

from __future__ import annotations

import enum
import types
import weakref


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
    TENSOR_OF = (
        "tensor_of",
        str,
    )  # "writable" or "read-only", as the array is; torch.from_numpy(parent), a new tensor at each read
    NEGATIVE = "negative"  # None; -parent, an int below zero: symbols are sizes, and above


class Place(enum.Enum):
    """Where a walk makes a check: what it is decided by, while that has not changed it is not made again."""

    MEMBER = "member"  # with the object's reading
    INSTANCE = "instance"  # by the object's own dict
    ITEMS = "items"  # by what the object holds
    ALWAYS = "always"
    LAST = "last"  # over symbols, which all other checks bind
    PROCESS = "process"  # of the process rather than of an object


class Check(enum.Enum):
    """What a guard asks of the object at its source; ``expected`` has the type given beside each.

    ``sure``: types of ``expected`` that need no further look.
    """

    place: Place
    sure: frozenset[type]

    __hash__ = object.__hash__  # as of Step

    def __new__(cls, word: str, place: Place, *sure: type) -> Check:
        check = object.__new__(cls)
        check._value_, check.place, check.sure = word, place, frozenset(sure)
        return check

    TYPE = (
        "type",
        Place.MEMBER,
        type,
    )  # class: type(x) is expected; where x may be given another class, decided by its dict
    # any object: x is expected
    IS = "is", Place.MEMBER, type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType
    # a weak reference: x is what it refers to. What has died is nobody, whoever has its address now
    REFERENT = "referent", Place.MEMBER, weakref.ReferenceType
    # number (floats bitwise), str, bytes, bool, None, ..., or tuple of such: type and value
    EQUAL = "equal", Place.MEMBER, int, float, complex, str, bytes, bool, type(None), type(...)
    LENGTH = "length", Place.ITEMS, int  # int
    KEYS = "keys", Place.ITEMS, tuple  # tuple of constants: list(x.keys()), in order
    HAS_KEY = "has_key", Place.ITEMS, tuple  # (constant key, bool)
    ABSENT = "absent", Place.INSTANCE, tuple  # tuple[str, ...]: names that x.__dict__ must not hold
    TENSOR = (
        "tensor",
        Place.ALWAYS,
    )  # TensorSpec (symbolic sizes as names) ; also exact Python type and dispatch keys
    INT = "int", Place.ALWAYS  # of programs: ("symbol", number): x is an int, which the symbol stands for
    ALIAS = "alias", Place.ALWAYS  # Source: x is the object at that source
    DISTINCT = (
        "distinct",
        Place.ALWAYS,
    )  # tuple[Source, ...]: the tensors there and x are all different objects
    RANGE = "range", Place.LAST  # ShapeRelation on ints read from tensors' sizes and int inputs; source None
    GRAD_MODE = "grad_mode", Place.PROCESS  # bool; source None, as for the rest
    INFERENCE_MODE = "inference_mode", Place.PROCESS  # bool
    AUTOCAST = (
        "autocast",
        Place.PROCESS,
    )  # tuple of (device type, enabled, dtype) for the devices in use, and cache flag
    DEFAULT_DTYPE = "default_dtype", Place.PROCESS  # torch.dtype
    DEFAULT_DEVICE = "default_device", Place.PROCESS  # torch.device or None
    FUNCTION_MODES = (
        "function_modes",
        Place.PROCESS,
    )  # int: number of active torch function/dispatch modes (0)
    DETERMINISTIC = "deterministic", Place.PROCESS  # bool
    SETTING = "setting", Place.PROCESS  # (function of PyTorch, arguments, value): what it gives


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
        _listed("CHECK_RULES(X)", [f"X({check.name}, {check.value})" for check in held]),
        _enumeration("STATE", _OF_PROCESS),
        "#endif\n",
    ]
    return "\n".join(parts)
