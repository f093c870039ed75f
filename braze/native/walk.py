"""The meaning of a guard program, in plain Python: how a node is read and when a check holds.

The C walker follows these rules; it calls :func:`explain` to name the check that failed. Reading
never runs the user's Python code, except ``range`` callables; whatever goes wrong is a mismatch.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from braze.native import torch_state
from braze.native.vocabulary import STATES, Check
from braze.support.errors import InternalError

#: steps of which the key is the row of one, and those that are made of what stands at several rows
BY_KEY = frozenset({"item_at", "has_at", "class_has_at"})
OF_SEVERAL = frozenset({"computed", "joined", "tuple"})
#: marks a size or stride of the ``tensor`` check that may be anything
ANY = None


class Mismatch(Exception):
    """A node cannot be read, or a check does not hold."""


#: what a walk may meet where an object is not what it was: it lacks what is read, or is of another type, a formula of sizes
#: divides by zero, or a tensor has no such thing as strides
#: ints from here on are left to another program
LARGEST = 1 << 63
FAULTS = (Mismatch, AttributeError, LookupError, TypeError, ValueError, ArithmeticError, RuntimeError)


class Missing:
    """Stands for the value of a node that cannot be read, in :func:`explain`."""

    def __repr__(self) -> str:
        return "<missing>"


MISSING = Missing()


def plain(word: Any) -> str:
    """The text of a step or check given as text or as a member of its enumeration."""
    return word if type(word) is str else word.value


def instance_dict(value: Any) -> dict[str, Any]:
    """The ``__dict__`` of an object (or class, or module), around any ``__getattribute__``."""
    if issubclass(type(value), type):  # isinstance would ask a Python __class__
        return type.__dict__["__dict__"].__get__(value)
    return object.__getattribute__(value, "__dict__")


def class_attribute(cls: Any, name: str) -> Any:
    """``name`` along the MRO of a class, without descriptors."""
    for base in type.__dict__["__mro__"].__get__(cls):
        space = type.__dict__["__dict__"].__get__(base)
        if name in space:
            return space[name]
    raise Mismatch


def attribute(value: Any, name: str) -> Any:
    """``value.name`` as ``object.__getattribute__`` finds it, where that runs no Python code."""
    if issubclass(type(value), type):
        return getattr(value, name)
    cls = type(value)
    found: Any = MISSING
    for base in cls.__mro__:
        if name in base.__dict__:
            found = base.__dict__[name]
            break
    kind = type(found)
    if found is not MISSING and (hasattr(kind, "__set__") or hasattr(kind, "__delete__")):
        if kind is property or isinstance(getattr(kind, "__get__", None), FunctionType):
            raise Mismatch
        return kind.__get__(found, value, cls) if hasattr(kind, "__get__") else found
    try:
        space = instance_dict(value)
    except AttributeError:
        space = {}
    if dict.__contains__(space, name):
        return entry(space, name)
    if found is MISSING or isinstance(getattr(kind, "__get__", None), FunctionType):
        raise Mismatch
    return kind.__get__(found, value, cls) if hasattr(kind, "__get__") else found


def entry(space: Any, key: Any) -> Any:
    """What a dict holds under a key. Its class is not asked for what is missing: a defaultdict would make and keep it."""
    found = dict.get(space, key, MISSING)
    if found is MISSING:
        raise Mismatch
    return found


def global_named(function: FunctionType, name: str) -> Any:
    """A name as LOAD_GLOBAL finds it for ``function``."""
    if dict.__contains__(function.__globals__, name):
        return entry(function.__globals__, name)
    return entry(function.__builtins__, name)  # type: ignore[attr-defined]  # missing in typeshed


def item(value: Any, key: Any) -> Any:
    """``value[key]`` of a dict, list, tuple or deque, read as the builtin would."""
    cls = type(value)
    if issubclass(cls, dict):
        return entry(value, key)
    if issubclass(cls, (list, tuple)) and type(key) is int and key >= 0:
        return (list if issubclass(cls, list) else tuple).__getitem__(value, key)
    if issubclass(cls, deque) and type(key) is int and key >= 0:
        return deque.__getitem__(value, key)
    raise Mismatch


class Made(tuple[Any, ...]):
    """A tuple of what is at places, each of which is a key, and of what a program says."""

    __slots__ = ()


#: what an item is taken by that is another one at each call: its look-up runs no code of the program's
KEYS = frozenset({int, str, Made})


def has_at(value: Any, key: Any) -> bool:
    """Whether a dict or set holds such a key."""
    if type(key) not in KEYS:
        raise Mismatch
    return holds_key(value, key)


def class_has(value: Any, name: Any) -> bool:
    """Whether an object's class has an attribute."""
    if type(name) is not str:
        raise Mismatch
    try:
        class_attribute(type(value), name)
    except Mismatch:
        return False
    return True


def item_at(value: Any, key: Any) -> Any:
    """``value[key]`` of a list, tuple or dict by an int, below zero too, or of a dict by text or a tuple, read as the builtin would."""
    cls = type(value)
    if issubclass(cls, dict) and type(key) in KEYS:
        return entry(value, key)
    if issubclass(cls, (list, tuple)) and type(key) is int:
        return (list if issubclass(cls, list) else tuple).__getitem__(value, key)
    raise Mismatch


def computed(relation: Any, numbers: Sequence[Any]) -> int:
    """What ints come to, where 64 bits hold it and them."""
    if not all(type(n) is int and -LARGEST <= n < LARGEST for n in numbers):
        raise Mismatch
    try:
        found = relation(numbers)
    except ArithmeticError as error:
        raise Mismatch from error
    if not -LARGEST <= found < LARGEST:
        raise Mismatch
    return int(found)


def joined(pieces: Sequence[Any], parts: Sequence[Any]) -> Any:
    """Texts, or tuples, between which what is at places stands."""
    if type(pieces[0]) is str:
        if not all(type(part) is str for part in parts):
            raise Mismatch
        return "".join(part for pair in zip(pieces, (*parts, ""), strict=True) for part in pair)
    if not KEYS.issuperset(map(type, parts)):
        raise Mismatch
    around = [(part,) for part in parts]
    return Made(part for pair in zip(pieces, (*around, ()), strict=True) for each in pair for part in each)


def of_function(step: str, key: Any, parent: Any) -> Any:
    """The steps that look into a function object."""
    if step == "func":
        return parent.__func__ if key == "func" else parent.__self__
    if not isinstance(parent, FunctionType):
        raise Mismatch
    if step == "defaults":
        return (parent.__defaults__ or ())[key]
    if step == "kwdefaults":
        return entry(parent.__kwdefaults__ or {}, key)
    if step == "globals_of":
        return global_named(parent, key)
    return (parent.__closure__ or ())[key].cell_contents


def read(step: str, key: Any, parent: Any, function: FunctionType, locals: Sequence[Any]) -> Any:
    """The object at one node, given its parent's; ``key`` of steps by a key is that, of those with several parts what is made of these, and they."""
    match step:
        case "local":
            return locals[key]
        case "global":
            return global_named(function, key)
        case "cell":
            return (function.__closure__ or ())[key].cell_contents
        case "constant":
            return key
        case "attr":
            return attribute(parent, key)
        case "dict":
            space = instance_dict(parent)  # of a class a view, whose dict is a plain one
            return entry(space, key) if issubclass(type(space), dict) else space[key]
        case "item":
            return item(parent, key)
        case "item_at":
            return item_at(parent, key)
        case "has_at":
            return has_at(parent, key)
        case "part" if type(parent) is list:
            return parent[slice(*key)]
        case "class_has_at":
            return class_has(parent, key)
        case "formatted" if type(parent) is int:
            return format(parent, key)
        case "joined" | "tuple":
            return joined(*key)
        case "size" if key >= 0:
            return torch_state.metadata(parent)[3][key]
        case "memory" if key >= 0:
            return torch_state.memory(parent, key)
        case "computed":
            return computed(*key)
        case "key":
            return keys(parent)[key]
        case "type":
            return type(parent)
        case "class_attr":
            return class_attribute(parent, key)
        case "tensor_of":
            return torch_state.tensor_of(parent, key == "writable")
        case "tensor_of_numbers":
            return torch_state.tensor_of_numbers(parent, key)
        case "negative" if type(parent) is int:
            return -parent
        case "length" if issubclass(type(parent), (list, dict)):
            return length(parent)
        case "negative" | "size" | "memory" | "length" | "formatted" | "part":
            raise Mismatch
        case _:
            return of_function(step, key, parent)


def is_numpy_number(value: Any) -> bool:
    """Whether this is a number or truth value of numpy's; the walker does not import numpy."""
    bases = type(value).__mro__
    return any(b.__module__ == "numpy" and b.__name__ in ("number", "bool", "bool_") for b in bases)


def same_constant(value: Any, expected: Any) -> bool:
    """Equal in type and value; floats bit by bit."""
    if type(value) is not type(expected):
        return False
    if isinstance(expected, float):
        return struct.pack("d", value) == struct.pack("d", expected)
    if isinstance(expected, complex):
        return struct.pack("dd", value.real, value.imag) == struct.pack("dd", expected.real, expected.imag)
    if is_numpy_number(value):
        return bytes(value.data) == bytes(expected.data)
    if isinstance(expected, tuple):
        return len(value) == len(expected) and all(map(same_constant, value, expected))
    return value is expected or value == expected


def bind_symbol(symbols: list[int | None], index: int, value: int) -> bool:
    """Give a symbol its value at its first sight; later sights must agree."""
    if symbols[index] is None:
        symbols[index] = value
    return symbols[index] == value


def bits_of(value: float) -> int:
    """The integer of the 64 bits that a float has, which is what a symbol stands for."""
    return int(struct.unpack("q", struct.pack("d", value))[0])


def float_of(bits: int) -> float:
    """The float whose bits these are."""
    return float(struct.unpack("d", struct.pack("q", bits))[0])


def sizes_agree(actual: Sequence[int], expected: Sequence[Any], symbols: list[int | None]) -> bool:
    """Whether sizes (or strides) are as expected, binding symbols on the way."""
    if len(actual) != len(expected):
        return False
    for value, wanted in zip(actual, expected, strict=True):
        if wanted is ANY:
            continue
        if isinstance(wanted, tuple):
            if not bind_symbol(symbols, wanted[1], value):
                return False
        elif value != wanted:
            return False
    return True


def tensor_agrees(value: Any, expected: tuple[Any, ...], symbols: list[int | None]) -> bool:
    """Whether a tensor has the expected Python type, dtype, device, sizes, strides, requires_grad and keys."""
    python_type, dtype, device, sizes, strides, requires_grad, extra = expected
    if type(value) is not python_type:
        return False
    _, found_dtype, found_device, found_sizes, found_strides, found_grad, keys = torch_state.metadata(value)
    return (
        found_dtype == dtype
        and torch_state.same_device(found_device, device)
        and sizes_agree(found_sizes, sizes, symbols)
        and (strides is None or sizes_agree(found_strides, strides, symbols))
        and (requires_grad is None or found_grad == requires_grad)
        and (extra is None or keys == extra)
    )


def holds_key(value: Any, key: Any) -> bool:
    """Whether a dict or set holds a key, whatever a subclass's ``__contains__`` says."""
    for kind in (dict, set, frozenset):
        if issubclass(type(value), kind):
            return kind.__contains__(value, key)
    raise Mismatch


def length(value: Any) -> int:
    """The number of elements of a builtin container, whatever a subclass's ``__len__`` says."""
    for kind in (list, tuple, dict, set, frozenset, str, bytes, bytearray):
        if issubclass(type(value), kind):
            return kind.__len__(value)
    if isinstance(type(value).__len__, FunctionType):
        raise Mismatch
    return len(value)


def keys(value: Any) -> tuple[Any, ...]:
    """The keys of a dict, in order."""
    return tuple(value.keys() if type(value).__name__ == "OrderedDict" else dict.keys(value))


def absent(value: Any, names: Sequence[str]) -> bool:
    """Whether an object's dict, where it has one, holds none of these."""
    try:
        space = instance_dict(value)
    except AttributeError:
        return True
    if issubclass(type(space), dict):  # whose class is not asked
        return not any(dict.__contains__(space, name) for name in names)
    return not any(name in space for name in names)


def all_differ(value: Any, others: Sequence[Any]) -> bool:
    """Whether these are all different objects."""
    return len({id(value), *map(id, others)}) == 1 + len(others)


#: the rules of the table
RULES: dict[str, Callable[[Walk, int, Any, Any], bool]] = {
    check.value: eval(f"lambda walk, node, value, expected: {check.python}")
    for check in Check
    if check.python
}


class Walk:
    """One walk: node values (read when first needed) and symbol values."""

    def __init__(
        self, nodes: Sequence[Any], symbols: int, function: FunctionType, locals: Sequence[Any]
    ) -> None:
        self.nodes = nodes
        self.function = function
        self.locals = locals
        self.values: dict[int, Any] = {}
        self.symbols: list[int | None] = [None] * symbols

    def value(self, index: int) -> Any:
        """The object at node ``index``; :class:`Mismatch` where it cannot be read."""
        if index not in self.values:
            parent, step, key = self.nodes[index]
            above = self.value(parent) if parent >= 0 else None
            if plain(step) in BY_KEY:
                key = self.value(key)
            elif plain(step) in OF_SEVERAL:
                key = key[0], [self.value(node) for node in key[1]]
            try:
                self.values[index] = read(plain(step), key, above, self.function, self.locals)
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                raise Mismatch from error
        return self.values[index]

    def read_all(self) -> None:
        """Read every node; a program matches only if all of them can be read."""
        for index in range(len(self.nodes)):
            self.value(index)

    def holds(self, node: int, check: str, expected: Any) -> bool:
        """Whether one check holds."""
        if check == "range":
            return bool(expected(tuple(self.symbols)))
        if check in STATES:
            return torch_state.holds(check, expected)
        rule = RULES.get(check)
        if rule is None:
            raise InternalError("BZ9001", f"no rule for the check {check!r}")
        return rule(self, node, self.value(node), expected)


def match(
    nodes: Sequence[Any],
    checks: Sequence[Any],
    inputs: Sequence[int],
    symbols: int,
    function: FunctionType,
    locals: Sequence[Any],
) -> tuple[Any, ...] | None:
    """The graph inputs if every check of a normalised program holds, else None."""
    walk = Walk(nodes, symbols, function, locals)
    try:
        for node, check, expected in checks:
            if check != "range" and not walk.holds(node, check, expected):
                return None
        walk.read_all()
        found = tuple(walk.value(node) for node in inputs)
        for node, check, expected in checks:
            if check == "range" and not walk.holds(node, check, expected):
                return None
    except FAULTS:  # the next variant is tried
        return None
    return found


def tensor_symbols(value: Any, expected: tuple[Any, ...], symbols: int) -> list[int | None] | None:
    """The symbols that a ``tensor`` check binds (None: not bound); None if it does not hold."""
    bound: list[int | None] = [None] * symbols
    return bound if tensor_agrees(value, expected, bound) else None


def explain(
    nodes: Sequence[Any],
    checks: Sequence[Any],
    inputs: Sequence[int],
    symbols: int,
    function: FunctionType,
    locals: Sequence[Any],
) -> tuple[int, Any] | None:
    """The first check that does not hold and the value it saw; None if all hold.

    ``(len(checks), MISSING)`` stands for a node without checks that cannot be read. ``range`` checks come last.
    """
    walk = Walk(nodes, symbols, function, locals)
    order = sorted(range(len(checks)), key=lambda i: plain(checks[i][1]) == "range")
    for index in order:
        node, check, expected = checks[index]
        check = plain(check)
        try:
            if not walk.holds(node, check, expected):
                return index, seen(walk, node, check, expected)
        except FAULTS:
            return index, walk.values.get(node, MISSING)
    try:
        walk.read_all()
    except Mismatch:
        return len(checks), MISSING
    return None


def seen(walk: Walk, node: int, check: str, expected: Any) -> Any:
    """What to show as the value a failed check saw."""
    if check == "range":
        return tuple(walk.symbols)
    if check in STATES:
        return torch_state.setting(expected)[-1] if check == "setting" else torch_state.current(check)
    value = walk.value(node)
    if check == "type":
        return type(value)
    return value
