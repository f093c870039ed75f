"""What a program's own hooks see: a capture asks objects what the program asks them, and nothing else."""

from __future__ import annotations

import copyreg
import functools
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch

import braze

ASKED: list[Any] = []


class Asked:
    """An object that writes down each attribute that is looked up."""

    def __init__(self) -> None:
        self.x = 1
        self.t = torch.ones(2)

    def __getattribute__(self, name: str) -> Any:
        ASKED.append(name)
        return object.__getattribute__(self, name)

    def __call__(self, *args: Any) -> Any:
        return args

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Any:
        return iter((1, 2))

    def __getitem__(self, i: int) -> int:
        return i

    def __contains__(self, x: Any) -> bool:
        return True

    def __add__(self, other: Any) -> int:
        return 5

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return 7

    def __repr__(self) -> str:
        return "Asked()"


class Kind:
    """An object that says of itself that it is an int."""

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        ASKED.append("class")
        return int


class Module(types.ModuleType):
    """A module that writes down what is looked up in it."""

    def __getattribute__(self, name: str) -> Any:
        ASKED.append(name)
        return super().__getattribute__(name)


def attributes(o: Any) -> Any:
    o.y = o.x
    del o.y
    return o.x, getattr(o, "none", 3), hasattr(o, "y")


def tensors(o: Any) -> Any:
    return o.t * 2 + o.x


def containers(o: Any) -> Any:
    return [o, o], {o: 1}, (o,), {1: o}, {o}, o in [o]


def operators(o: Any) -> Any:
    return len(o), list(o), o[3], o(1), 3 in o, o == o, o != 3, o + 1, bool(o), repr(o), f"{o}", [*o]


def statements(o: Any) -> Any:
    with o as p:
        pass
    for _ in o:
        pass
    match o:
        case 3:
            return 1
        case {"a": 1}:
            return 2
        case _ if o:
            return p is o
    return 3


def breaks(o: Any) -> Any:
    held = [o, lambda: o]
    braze.graph_break()
    return held[0] is o, held[1]() is o


def errors(o: Any) -> Any:
    try:
        raise ValueError(o)
    except ValueError as e:
        return e.args[0] is o


def made(o: Any) -> Any:
    o = Asked()
    o.z = 1
    braze.graph_break()
    o.z += 1
    return o.z


@pytest.mark.parametrize(
    "function",
    [attributes, tensors, containers, operators, statements, breaks, errors, made],
    ids=lambda f: f.__name__,
)
def test_nothing_is_looked_up_but_by_the_program(function: Callable[[Any], Any]) -> None:
    compiled = braze.compile(function, backend="eager")
    seen = []
    for f in (function, compiled, compiled):
        o = Asked()
        ASKED.clear()
        seen.append((str(f(o)), list(ASKED)))
    assert seen[0] == seen[1] == seen[2]


def kinds(o: Any) -> Any:
    ASKED.clear()
    return isinstance(o, int), isinstance(o, (str, Kind)), isinstance(o, Kind), list(ASKED)


def module(o: Any) -> Any:
    ASKED.clear()
    inside = Module("inside")
    inside.foo = 12
    return inside.foo, list(ASKED)


def bases_are_not_replaced_by_type(o: Any) -> Any:
    class Stands:
        def __mro_entries__(self, bases: Any) -> Any:
            return ()

    try:
        type("Bad", (Stands(),), {})
    except TypeError as e:
        return str(e)
    return None


def tuples_in_tuples(o: Any) -> Any:
    wanted: Any = (str,)
    for _ in range(sys.getrecursionlimit() + 5):
        wanted = (wanted,)
    found = []
    for test, what in ((isinstance, ""), (issubclass, str)):
        try:
            found.append(test(what, wanted))  # type: ignore[operator]
        except RecursionError:
            found.append("too deep")
    return found


class Slotted:
    __slotnames__ = ["spam"]

    def __getattr__(self, name: str) -> int:
        if name != "spam":
            raise AttributeError
        return 42


def names_of_slots(o: Any) -> Any:
    return Slotted().__reduce_ex__(2) == (copyreg.__newobj__, (Slotted,), (None, {"spam": 42}), None, None)  # type: ignore[attr-defined]


def a_cached_function_called_by_c(o: Any) -> Any:
    @functools.lru_cache
    def square(x: int) -> int:
        return x * x

    first = list(map(square, [10, 20, 10]))
    return first, tuple(square.cache_info())


@functools.lru_cache
def negated(x: int) -> int:
    return -x


def a_cached_key(o: Any) -> Any:
    negated.cache_clear()
    return sorted([1, 3, 2, 3], key=negated), tuple(negated.cache_info())


class Noted(dict[Any, Any]):
    """A cache that writes down what is put into it."""

    def __setitem__(self, key: Any, value: Any) -> None:
        ASKED.append(key)
        super().__setitem__(key, value)


def a_cache_of_single_dispatch(o: Any) -> Any:
    ASKED.clear()
    found = [list(ASKED), o(1), list(ASKED), o(2), list(ASKED)]
    return found


@pytest.mark.parametrize(
    "function",
    [
        kinds,
        module,
        bases_are_not_replaced_by_type,
        tuples_in_tuples,
        names_of_slots,
        a_cached_function_called_by_c,
        a_cached_key,
    ],
    ids=lambda f: f.__name__,
)
def test_the_program_sees_what_it_sees_uncompiled(function: Callable[[Any], Any]) -> None:
    expected = function(Kind())
    compiled = braze.compile(function, backend="eager")
    assert compiled(Kind()) == expected
    assert compiled(Kind()) == expected


def test_the_programs_own_cache_of_a_generic_function_is_asked_by_calls_alone() -> None:
    def generic() -> Any:
        with mock.patch.object(weakref, "WeakKeyDictionary", Noted):

            @functools.singledispatch
            def g(x: Any) -> str:
                return "base"

        return g

    expected = a_cache_of_single_dispatch(generic())
    assert braze.compile(a_cache_of_single_dispatch, backend="eager")(generic()) == expected
