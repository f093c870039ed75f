"""Outside objects that keep something that no guard can see: C code may not look into them."""

from __future__ import annotations

import collections
import decimal
import fractions
import functools
import gc
import itertools
import operator
import types
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from braze.capture.facts.breaks import graph_break
from braze.capture.facts.policy import HANDING
from braze.capture.facts.records import Check, Step
from braze.capture.facts.values import (
    BY_VALUE,
    CONSTANTS,
    CONTAINERS,
    HEAP_TYPE,
    Identity,
    is_identity_type,
)
from braze.capture.outside.class_values import is_programs
from braze.capture.outside.looked_into import ITERATORS, contents, everything
from braze.capture.state.outside import Outside
from braze.support.caches import remembered


def refuse_opaque(outside: Outside, values: Iterable[Any]) -> None:
    """Break where C code would look into an outside object whose contents no guard can see, however deep it lies."""

    def held_by(value: Any) -> Iterable[Any] | None:
        if issubclass(type(value), CONTAINERS):
            return contents(value)
        made_here = type(value) in ITERATORS and outside.tree.node_of(value) is None
        return gc.get_referents(value) if made_here else None

    for value in everything(values, held_by):
        refuse_if_opaque(outside, value)


def refuse_opaque_in_walks(outside: Outside, values: Iterable[Any]) -> None:
    """The same where C code goes over values without looking into what it gets: functions of C that an iterator calls look into it."""
    for value in values:
        refuse_if_opaque(outside, value)
        if type(value) in ITERATORS and outside.tree.node_of(value) is None and reads(value):
            refuse_opaque(outside, (value,))


def reads(iterator: Any) -> bool:
    """Whether an iterator, or one that it goes over, calls a function of C for what it gives."""
    parts = gc.get_referents(iterator)
    if type(iterator) in CALLING and any(map(is_reader, parts)):
        return True
    return any(type(part) in ITERATORS and reads(part) for part in parts)


def is_reader(value: Any) -> bool:
    """Whether this is a function or class of C that may look into what it is given."""
    kind = type(value)
    if kind in _OF_C_CALLED or (kind is type and not value.__flags__ & HEAP_TYPE):
        return not any(value is known for known in HANDING)
    return False


def refuse_if_opaque(outside: Outside, value: Any) -> None:
    """The same of one object, whose parts nobody looks into."""
    kind = type(value)
    if kind in TRANSPARENT or not is_opaque(kind):
        return
    node = outside.tree.node_of(value)
    if node is None or node.step is Step.CONSTANT:
        return
    if issubclass(kind, IMMUTABLE):
        node.guard(Check.IS, value)
    else:
        graph_break("BZ1014", f"C code looks into a {kind.__name__} that comes from outside")


def refuse_asked(values: Iterable[Any]) -> None:
    """Break before PyTorch asks an object of the program's for a number or for its elements: that code would run at each try
    of the trace, and what it says would be taken for what it says in every call.
    """
    kind = asked_by_code(values)
    if kind is not None:
        graph_break("BZ1014", f"PyTorch asks a {kind.__name__} for a number or for elements, by Python code")


def asked_by_code(values: Iterable[Any]) -> type | None:
    """The class of an object among these that stands for a number or a sequence by Python code that may do anything."""
    for value in values:
        kind = type(value)
        if kind in _NOT_ASKED:
            continue
        parts = (value.start, value.stop, value.step) if kind is slice else value
        if kind is slice or kind is list or kind is tuple:
            found = asked_by_code(parts)
        else:
            found = kind if not issubclass(kind, torch.Tensor) and says_by_code(kind) else None
        if found is not None:
            return found
    return None


_NOT_ASKED = CONSTANTS | {torch.Tensor, FakeTensor, torch.SymInt, torch.dtype, torch.device, torch.Size}
_SAYS = (
    "__index__", "__getitem__", "__array__", "__int__", "__float__", "__complex__", "__floor__", "__ceil__", "__trunc__",
)  # fmt: skip


def says_by_code(cls: type) -> bool:
    """Whether instances are numbers or sequences by Python code that may do anything."""
    return any(is_programs(cls, name) for name in _SAYS)


#: those that call a function for what they give
CALLING = frozenset(
    {
        map, filter, itertools.accumulate, itertools.dropwhile, itertools.filterfalse, itertools.groupby, itertools.starmap,
        itertools.takewhile,
    }
)  # fmt: skip
_OF_C_CALLED = frozenset(
    {
        types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType,
        functools.partial, operator.itemgetter, operator.attrgetter, operator.methodcaller,
    }
)  # fmt: skip
TRANSPARENT = CONSTANTS | {
    Identity,  # see identities.check_call
    dict,
    weakref.ref,
    torch.SymInt,
    type,
    torch.dtype,
    torch.device,
    torch.Size,
    slice,
    range,
}
#: outside objects of these are guarded whole, or are copied with guards for what they hold
_SEEN_WHOLE = (
    torch.Tensor,
    dict,
    list,
    tuple,
    set,
    frozenset,
    collections.deque,
    torch.SymInt,
    functools.partial,
)


#: what instances of subclasses keep beside their attributes never changes
IMMUTABLE = (
    int, float, complex, str, bytes, decimal.Decimal, fractions.Fraction, torch.qscheme,
    operator.itemgetter, operator.attrgetter, operator.methodcaller,
)  # fmt: skip


@remembered(4096)
def is_opaque(cls: type) -> bool:
    """Whether instances keep something that is no attribute: subclasses of int, arrays, iterators."""
    if is_identity_type(cls) or issubclass(cls, _SEEN_WHOLE) or cls in BY_VALUE or cls in _FIXED:
        return False
    solid = next(b for b in cls.__mro__ if not b.__flags__ & HEAP_TYPE or is_made_in_c(b))
    return solid is not object


_OF_C = frozenset({types.MethodDescriptorType, types.WrapperDescriptorType})


def is_made_in_c(cls: type) -> bool:
    """Whether C code has made a class at run time, as the program's are made: matches, and from Python 3.12 on what itertools has.

    Such a class has methods in C of its own. Objects of PyTorch's that pybind11 wraps are known by what they are.
    """
    return cls.__module__ != "pybind11_builtins" and any(
        type(value) in _OF_C and value.__objclass__ is cls for value in vars(cls).values()
    )


_FIXED = frozenset({types.MethodType, torch.finfo, torch.iinfo})
