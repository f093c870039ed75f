"""What kinds of Python values there are, for the interpreter: constants, identities, containers, objects."""

from __future__ import annotations

import collections
import functools
import re
import sys
import types
import typing
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final

import numpy as np
import torch

from braze.graph.private.torch_settings import FACTS_OF_GPUS
from braze.support.caches import remembered


class _Null:
    """The NULL of CPython's stack, and "unbound" in locals."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NULL"

    def __bool__(self) -> bool:
        return False


class Identity(int):
    """What ``id()`` gives while tracing: a key, to be compared with others of its kind. It may not leave the trace."""

    __slots__ = ()
    lives_in_trace = True


class UnknownText(str):
    """Text that only a call tells: an f-string's of a tensor, or of a number that is a symbol. It may be passed on, and dropped.

    ``made`` (a function and its arguments, symbols and such text among them) writes it when the graph has run. Whoever
    looks at it before has it written for the numbers that the symbols stand for, which are guarded from then on.
    """

    __slots__ = ("made",)

    def __init__(self) -> None:
        self.made: tuple[Any, tuple[Any, ...]] | None = None


class Counted:
    """Stands for the iterator of a loop over ``range(start, stop)``, of which one is a symbol: first it is asked whether there is a first time, then how many there are."""

    __slots__ = ("begun", "rest", "start", "stop")

    def __init__(self, start: Any, stop: Any) -> None:
        self.start = start
        self.stop = stop
        self.begun = False
        #: from the second time on
        self.rest: Iterator[int] | None = None


class Carried:
    """Stands for a number or text that a variable holds from before a break, and that no instruction reads: it is handed on, whatever it is."""

    __slots__ = ()


NULL: Final = _Null()
MISSING: Final = object()

#: compared by type and value; they can be written into code
CONSTANTS = frozenset({int, float, complex, str, bytes, bool, type(None), type(...), type(NotImplemented)})
#: compared by value, though not singletons
BY_VALUE = frozenset({torch.device, range, slice})

#: methods in C that are told which class defines them have a type of their own
DEFINED_METHOD = type(re.compile("").match)
LRU_CACHE = type(functools.lru_cache(lambda: None))

#: known by identity: what they are does not change behind our back, or is trusted not to
IDENTITIES = frozenset(
    {
        types.FunctionType,
        types.BuiltinFunctionType,
        DEFINED_METHOD,
        types.ModuleType,
        types.CodeType,
        types.MethodDescriptorType,
        types.WrapperDescriptorType,
        types.MethodWrapperType,
        types.GetSetDescriptorType,
        types.MemberDescriptorType,
        types.ClassMethodDescriptorType,
        types.GenericAlias,
        property,
        staticmethod,
        classmethod,
        functools.cached_property,
        LRU_CACHE,
        type,
        torch.dtype,
        torch.layout,
        torch.memory_format,
        torch._ops.OpOverload,
        torch._ops.OpOverloadPacket,
        re.Pattern,
        types.UnionType,
        typing.TypeVar,
        *FACTS_OF_GPUS,
    }
)
BUILTIN_METHODS = frozenset({types.BuiltinFunctionType, DEFINED_METHOD, types.MethodWrapperType})
CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
#: set in the flags of classes that are made at run time, and of those that others may be derived from
HEAP_TYPE, BASE_TYPE = 1 << 9, 1 << 10
#: iterators over dicts, with the method that makes each, and over sets
DICT_WALKS: dict[type, str] = {
    type(iter({})): "keys",
    type(iter({}.values())): "values",
    type(iter({}.items())): "items",
}
SET_WALK: type = type(iter(set()))
#: iterators along sequences, which know their place by its number; CPython has two for texts, and two for ranges
_SEQUENCES: tuple[Any, ...] = ([], (), b"", "", "\u0100", range(0), range(1 << 64))
SEQUENCE_WALKS: frozenset[type] = frozenset({*(type(iter(s)) for s in _SEQUENCES), type(reversed([]))})
#: iterators over what has only ``__getitem__``, and ``iter(function, sentinel)``
BY_INDEX, UNTIL = type(iter(type("Items", (), {"__getitem__": None})())), type(iter(int, 1))
#: symbols are numbers to the program
NUMBER_OF: dict[type, type] = {
    torch.SymInt: int,
    torch.SymFloat: float,
    torch.SymBool: bool,
    UnknownText: str,
}


@remembered(4096)
def is_identity_type(cls: type) -> bool:
    """Whether instances of ``cls`` are known by identity."""
    if cls in IDENTITIES or issubclass(cls, type | types.ModuleType | Enum | np.dtype):
        return True
    return cls.__module__ in ("typing", "torch.torch_version")


#: functions that pybind11 makes are bound to a record of its own, which nobody may copy
PYBIND = "pybind11_builtins"


def is_bound_builtin(value: Any) -> bool:
    """Whether this is a method in C bound to an instance, as ``[].append`` is: a new object at each look-up."""
    if type(value) not in BUILTIN_METHODS:
        return False
    owner = value.__self__
    return (
        not isinstance(owner, types.ModuleType | type | types.NoneType) and type(owner).__module__ != PYBIND
    )


def words(text: str) -> list[str]:
    """A table of names, written as text."""
    return text.split()


def is_constant(value: Any) -> bool:
    """Whether the value can be compared by type and value: a literal, or a tuple of such."""
    kind = type(value)
    if kind is slice:
        return is_constant(value.start) and is_constant(value.stop) and is_constant(value.step)
    if kind in CONSTANTS or (kind in BY_VALUE and kind is not torch.Size):
        return True
    if kind is tuple or kind is torch.Size or kind is frozenset:
        return all(is_constant(v) for v in value)
    return False


#: set in the flags of classes that nobody can change: those of C that are not made at run time
IMMUTABLE_TYPE = 1 << 8


def is_immutable(cls: Any) -> bool:
    """Whether nothing in a class can be replaced."""
    return bool(cls.__flags__ & IMMUTABLE_TYPE)


def lookup_in_mro(cls: type, name: str) -> tuple[Any, Any]:
    """(value, owner) of a class attribute along the MRO, without descriptors; (MISSING, None)."""
    known = Lookups.known
    if known is None:
        return _look_up(cls, name)
    of_class = known.get(id(cls))
    if of_class is None:
        of_class = known[id(cls)] = {cls: (cls, None)}  # keeps the class, and with it the number, alive
    found = of_class.get(name)
    if found is None:
        found = of_class[name] = _look_up(cls, name)
    return found


def is_data_descriptor(held: Any) -> bool:
    """Whether what a class holds says what is done to an attribute, and comes before an instance's dict."""
    kind = type(held)
    return hasattr(kind, "__set__") or hasattr(kind, "__delete__")


def has_data_descriptor(cls: type, name: str) -> bool:
    """Whether a class says what is done to an attribute: what an instance's dict holds under that name was put there past it."""
    return is_data_descriptor(lookup_in_mro(cls, name)[0])


def held(value: Any, name: str, default: Any = None) -> Any:
    """An attribute by Python's own lookup, past a ``__getattribute__`` or ``__getattr__`` of the program's."""
    look = type.__getattribute__ if issubclass(type(value), type) else object.__getattribute__
    try:
        return look(value, name)
    except AttributeError:
        return default


def _look_up(cls: type, name: str) -> tuple[Any, Any]:
    written = Lookups.written
    for owner in type.__getattribute__(cls, "__mro__"):
        found = held_by_class(owner, name) if written else _class_dict(owner).get(name, MISSING)
        if found is not MISSING:
            return found, owner
    return MISSING, None


def held_by_class(cls: Any, name: str) -> Any:
    """What a class itself holds under a name, as the program has left it; MISSING where there is nothing."""
    if Lookups.written:
        found = Lookups.written.get(id(cls))
        if found is not None and name in found[1]:
            return found[1][name]
    return _class_dict(cls).get(name, MISSING)


class Lookups:
    """What :func:`lookup_in_mro` remembers for the length of a trace, and what the program has written in classes from outside."""

    known: dict[int, dict[Any, tuple[Any, Any]]] | None = None
    #: the class, and its new values by name; by identity of the class
    written: dict[int, tuple[Any, dict[str, Any]]] = {}

    @classmethod
    def begin(cls) -> None:
        """Remember from now on."""
        cls.known = {}
        cls.written = {}

    @classmethod
    def write(cls, owner: Any, name: str, value: Any) -> None:
        """Note a write; no class is changed before the graph has run."""
        cls.written.setdefault(id(owner), (owner, {}))[1][name] = value
        if cls.known is not None:
            cls.known = {}

    @classmethod
    def forget(cls) -> None:
        """The trace is over."""
        cls.end()
        cls.written = {}

    @classmethod
    def end(cls) -> None:
        """Remember nothing: the trace makes classes itself."""
        cls.known = None


_class_dict = type.__dict__["__dict__"].__get__  # past metaclasses that redefine __dict__


def is_plain(value: Any) -> bool:
    """Whether a value needs no guard when its function is known by identity."""
    return type(value) in CONSTANTS or is_identity_type(type(value))


def missing(obj: Any, name: str) -> AttributeError:
    """Python's error about an attribute that an object has not. It is asked about one that no object has: this one may yet be there."""
    try:
        object.__getattribute__(obj, "?")
    except AttributeError as error:
        return AttributeError(str(error).replace("'?'", f"'{name}'"))
    return AttributeError(name)  # somebody has it after all: what CPython 3.11 says at times


#: a class whose objects have their attributes beside them, rather than in a dict (``Py_TPFLAGS_INLINE_VALUES``, from 3.13 on)
_INLINE_VALUES = 1 << 2


def missing_for_deletion(real: Any, obj: Any, name: str) -> AttributeError:
    """Python's error where an attribute is to be deleted that an object with a namespace has not; ``obj``: what the program has for it."""
    error = missing(real, name)
    if sys.version_info >= (3, 13) and not type(obj).__flags__ & _INLINE_VALUES:
        error.name, error.obj = name, obj
    return error
