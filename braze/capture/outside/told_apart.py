"""Objects that C code may compare or hash by what they are: of two that differ in this call none may be the other in a later one.

Where they are one object now a guard says so; that they are two is guarded for all objects of a class, once C code has compared one of it.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from braze.capture.facts.breaks import graph_break
from braze.capture.facts.records import Step
from braze.capture.facts.values import BY_VALUE, CONSTANTS, UnknownText, is_identity_type, lookup_in_mro
from braze.capture.outside.looked_into import everything
from braze.capture.outside.shadows import iterate
from braze.capture.state.outside import Outside
from braze.capture.state.sources import Node
from braze.graph.private.torch_symbols import SYMBOLIC
from braze.support.caches import remembered

METHODS = (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)
CONTAINERS = (list, tuple, dict, set, frozenset)


@remembered(4096)
def is_looked_at(kind: type) -> bool:
    """Whether values of a class are objects that may be told apart, or hold such."""
    if kind in CONSTANTS or kind in BY_VALUE or kind in SYMBOLIC or kind is UnknownText:
        return False
    return issubclass(kind, METHODS) or not (is_identity_type(kind) or issubclass(kind, torch.Tensor))


@remembered(4096)
def is_its_identity(kind: type) -> bool:
    """Whether objects of a class are equal to themselves alone."""
    return lookup_in_mro(kind, "__eq__")[0] is object.__eq__


def compared(outside: Outside, values: Iterable[Any]) -> None:
    """C code compares or hashes these values, and what containers among them hold."""
    if not any(map(is_looked_at, map(type, values))):
        return
    for value in everything(values, parts):
        kind = type(value)
        if kind is weakref.ref:
            compared_weakly(outside, value)
        elif is_looked_at(kind) and is_its_identity(kind):
            node = outside.tree.node_of(value)
            if node is not None and node.step is not Step.CONSTANT:
                outside.tree.compared.add(kind)


def compared_weakly(outside: Outside, ref: weakref.ref[Any]) -> None:
    """A weak reference equals others to the same object."""
    if outside.tree.node_of(ref) is not None:
        graph_break("BZ1014", "a weak reference from outside is compared with another")


def parts(value: Any) -> Iterable[Any] | None:
    """What a value holds, if any of that may be told apart."""
    kind = type(value)
    if issubclass(kind, METHODS):
        return (value.__self__,)
    if not issubclass(kind, CONTAINERS):
        return None
    held = [*dict.keys(value), *dict.values(value)] if issubclass(kind, dict) else list(iterate(value))
    return held if any(map(is_looked_at, set(map(type, held)))) else None


def kept_apart(outside: Outside) -> list[Node]:
    """The places of which all objects are different: of the classes of which C code has compared one, and those that id() was asked of."""
    found = dict(outside.tree.asked)
    for node in outside.tree.order if outside.tree.compared else ():
        if type(node.real) in outside.tree.compared and node.step is not Step.CONSTANT:
            if outside.tree.known.get(id(node.real)) is node:
                found[node] = None
    return list(found)
