"""Iterating and truth, where Python code of the values' classes must be interpreted."""

from __future__ import annotations

import operator
import sys
import types
from typing import Any

import torch

from braze.capture.facts.breaks import DECIDED_BY_DATA, HINT_DATA, graph_break
from braze.capture.facts.records import Step
from braze.capture.facts.values import (
    BY_INDEX,
    DICT_WALKS,
    HEAP_TYPE,
    MISSING,
    SEQUENCE_WALKS,
    SET_WALK,
    Counted,
    UnknownText,
    lookup_in_mro,
)
from braze.capture.graph import constant_evaluation, floats, unbacked
from braze.capture.outside import texts
from braze.capture.outside.looked_into import fill
from braze.capture.outside.opaque import refuse_if_opaque
from braze.capture.outside.shadows import DictShadow
from braze.capture.outside.unread import counts, has_elements, number_of_elements
from braze.capture.python import data_errors
from braze.capture.python.calls import call_c
from braze.capture.python.operations import TRUTHS, binary, number, python_method, unfilled
from braze.capture.python.tensors import require_own
from braze.capture.state.handlers import HANDLERS
from braze.capture.state.trace import Interpreter, Trace

#: iterators that run nothing but their own C code over containers
QUIET = SEQUENCE_WALKS | {*DICT_WALKS, SET_WALK, types.GeneratorType}
#: what stands in a container that may change: at a break it goes on there, or is made behind it
WALKS = frozenset({*DICT_WALKS, SET_WALK})
#: whose own C code does not look into what they hold to go along them, or to count it
SEQUENCES = (list, tuple)
#: what tells its truth without Python code of a class; a symbolic value adds a guard by itself
PLAIN_TRUTH = frozenset({int, str, float, list, tuple, torch.SymInt, torch.SymBool, torch.SymFloat})


def iterate(t: Trace, value: Any) -> Any:
    """``iter(value)``."""
    if issubclass(type(value), torch.Tensor):
        require_own(t.outside, "__iter__")
        if value.dim() == 0:
            raise TypeError("iteration over a 0-d tensor")
        return iter(t.graph.recorder.call(torch.Tensor.unbind, (value, 0), {}))
    if type(value) is Counted:
        return value
    if type(value) is UnknownText:
        return iter(texts.written(value))
    method = python_method(t, value, "__iter__")
    if method is not MISSING:
        return t.call(method, (value,), None)
    if type(value) in QUIET:
        refuse_outside_iterator(t, value)
        return value
    if (
        lookup_in_mro(type(value), "__iter__")[0] is MISSING
        and python_method(t, value, "__getitem__") is not MISSING
    ):
        return iter(value)  # which asks for one item at a time, until IndexError
    fill(t.outside, value)
    if type(value) not in SEQUENCES:
        refuse_if_opaque(t.outside, value)
    made = iter(value)
    return t.done.claim(made) if type(made) in WALKS else made


def advance(t: Trace, iterator: Any, end: Any, raising: bool = False) -> Any:
    """``next(iterator, end)``; with ``raising`` StopIteration comes out."""
    kind = type(iterator)
    if kind is Counted:
        return counted_on(t, iterator, end)
    if kind in QUIET and t.outside.tree.node_of(iterator) is None:
        return next(iterator) if raising else next(iterator, end)
    refuse_outside_iterator(t, iterator)
    method = python_method(t, iterator, "__next__")
    try:
        if method is not MISSING:
            return t.call(method, (iterator,), None)
        return call_c(t, next, (iterator,), None)
    except StopIteration:
        if raising:
            raise
        return end


def counted_on(t: Interpreter, loop: Counted, end: Any) -> Any:
    """The next number of a loop; that there is a first is a guard, and that there is a second one on how many there are."""
    if loop.rest is None:
        if not loop.begun and t.truth(loop.start < loop.stop):
            loop.begun = True
            return loop.start
        loop.rest = iter(range(number(loop.start) + loop.begun, number(loop.stop)))
    return next(loop.rest, end)


def gathered(t: Trace, value: Any) -> Any:
    """All of an iterable, which is asked for its length as ``list`` and ``*`` ask for it: a list, or the tuple or list itself."""
    kind = type(value)
    asks = kind.__flags__ & HEAP_TYPE or kind is BY_INDEX
    if not asks or kind is UnknownText or issubclass(kind, torch.Tensor):
        return elements(t, value)
    refuse_outside_iterator(t, value)
    return call_c(t, list, (value,), None, True)


def refuse_outside_iterator(t: Trace, value: Any) -> None:
    """End the graph before an iterator from outside that is no object of the program's own class."""
    if hasattr(type(value), "__next__") and t.outside.tree.node_of(value) is not None:
        if python_method(t, value, "__next__") is MISSING:
            graph_break("BZ1018", "an iterator from outside is used", "pass the sequence itself")


def elements(t: Interpreter, value: Any) -> Any:
    """All of an iterable, drawn one by one: a list, or the tuple or list itself."""
    kind = type(value)
    if kind is tuple or kind is list:
        return value
    iterator = t.iterate(value)
    if type(iterator) in QUIET:
        return list(iterator)
    items = []
    end = object()
    while (item := t.advance(iterator, end)) is not end:
        items.append(item)
    return items


def truth(t: Trace, value: Any) -> bool:
    """``bool(value)``."""
    if value is None:
        return False
    if issubclass(type(value), torch.Tensor):
        require_own(t.outside, "__bool__")
        holds = constant_evaluation.read(t.graph.recorder, "__bool__", value)
        if holds is not MISSING:
            return bool(holds)
        graph_break(*DECIDED_BY_DATA, HINT_DATA)
    kind = type(value)
    if kind is UnknownText:
        return bool(texts.written(value))
    if kind is torch.SymFloat:
        decided = floats.decided(t.graph, bool, value)
        if decided is not MISSING:
            return bool(decided)
    if t.outside.unread and has_elements(t.outside, value):
        return True
    if kind in PLAIN_TRUTH:
        return (
            data_errors.of_sizes(t, value)
            if kind is torch.SymBool and unbacked.is_unbacked(value)
            else bool(value)
        )
    if issubclass(type(value), dict):
        fill(t.outside, value)
    method = python_method(t, value, "__bool__")
    if method is not MISSING:
        told = t.call(method, (value,), None)
        if type(told) not in TRUTHS:
            raise TypeError(f"__bool__ should return bool, returned {type(told).__name__}")
        return bool(told)
    if lookup_in_mro(kind, "__bool__")[0] is MISSING:
        method = python_method(t, value, "__len__")
        if method is not MISSING:
            return bool(counted(t, t.call(method, (value,), None)))
    refuse_if_opaque(t.outside, value)
    return bool(value)


def counted(t: Trace, told: Any) -> Any:
    """What a ``__len__`` in Python has given, as ``len`` gives it, or refuses it."""
    if type(told) is torch.SymInt and (unbacked.is_unbacked(told) or t.truth(told >= 0)):
        return told
    found = int(call_c(t, operator.index, (number(told),), None))
    if found < 0:
        raise ValueError("__len__() should return >= 0")
    if found > sys.maxsize:
        raise OverflowError("cannot fit 'int' into an index-sized integer")
    return found


def length(t: Trace, value: Any) -> int:
    """``len(value)``."""
    if issubclass(type(value), torch.Tensor):
        require_own(t.outside, "__len__")
        if value.dim() == 0:
            raise TypeError("len() of a 0-d tensor")
        return value.shape[0]
    value = texts.written(value)
    method = python_method(t, value, "__len__")
    if method is not MISSING:
        return counted(t, t.call(method, (value,), None))
    known = HANDLERS.lengths.get(type(value))
    if known is not None and (found := known(t, value)) is not MISSING:
        return found
    if counts(t.outside, value):  # which grows from call to call: a number that changes
        return binary(t, operator.add, number_of_elements(t.outside, value), list.__len__(value))  # type: ignore[no-any-return]
    shadow = unfilled(t.outside, value)
    if (
        shadow is not None
        and type(shadow) is DictShadow
        and shadow.step is Step.ITEM
        and not shadow.changed()
    ):
        return t.outside.read(shadow.node, Step.LENGTH, None, dict.__len__(shadow.real))  # type: ignore[no-any-return]
    fill(t.outside, value)
    if type(value) not in SEQUENCES:
        refuse_if_opaque(t.outside, value)
    return len(value)
