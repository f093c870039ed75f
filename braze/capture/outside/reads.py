"""What the interpreter sees of a value that it reads from outside, and the guard that makes it so."""

from __future__ import annotations

import collections
import decimal
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from braze.capture.facts.breaks import graph_break
from braze.capture.facts.records import Check, Step
from braze.capture.facts.values import BY_VALUE, CONSTANTS, is_bound_builtin, is_identity_type
from braze.capture.outside import given_texts, shadows
from braze.capture.outside.listeners import refuse_heard
from braze.capture.outside.symbols import is_symbolic, make_fake, symbolic_float, symbolic_int
from braze.capture.outside.unread import ADDING, may_wait, read_whole
from braze.capture.state.outside import Outside
from braze.capture.state.sources import Node
from braze.capture.state.trace import Trace
from braze.support.caches import remembered
from braze.support.errors import Unsupported

Wrap = Callable[[Trace, Node, Any], Any]
#: what may be a symbol
NUMBERS = frozenset({int, float})


def wrap(t: Trace, node: Node, real: Any) -> Any:
    """Guard what is at ``node``, and give what stands for it."""
    how = wrapper_of(type(real))
    if how is not constant and how is not identity and how is not by_value and how is not raw_bytes:
        known = t.outside.tree.known.get(id(real))
        if known is not None and known.real is real and known.step is not Step.CONSTANT:
            node.origin = t.frames.here()
            node.guard(Check.ALIAS, known)
            node.real = real
            node.value = known.value
            node.dict = known.dict
            t.outside.tree.order.append(node)
            if t.outside.unread and not may_wait(t, node, type(real)):
                read_whole(t.outside, known.value)
            return known.value
    if t.outside.heard:
        refuse_heard(t.outside, real)
    node.origin = t.frames.here()
    return how(t, node, real)


def constant(t: Trace, node: Node, real: Any) -> Any:
    """Compared by type and value. Not indexed by identity: small ints are everywhere."""
    if type(real) is str and t.outside.symbolic and given_texts.may_stand(t.outside, node):
        return given_texts.text(t.outside, node, real)
    if (
        t.outside.symbolic
        and type(real) in NUMBERS
        and abs(real) < 1 << 62
        and is_symbolic(t.outside, node, -1)
    ):
        if type(real) is int:
            return symbolic_int(t, node, real)
        made = symbolic_float(t, node, real)
        if made is not None:
            return made
    return by_value(t, node, real)


def by_value(t: Trace, node: Node, real: Any) -> Any:
    """A value that must be the same at each call."""
    node.guards.append((Check.EQUAL, real))
    t.outside.tree.meet(node, real)
    return real


def raw_bytes(t: Trace, node: Node, real: bytes) -> Any:
    """Must be equal at each call; what compares holds a copy, and what is handed on is the program's own."""
    node.guards.append((Check.EQUAL, b"".join((real[:1], real[1:]))))
    return t.outside.tree.bind(node, real, real)


def identity(t: Trace, node: Node, real: Any) -> Any:
    """Functions, classes, modules and the like: what is guarded is which one it is."""
    if is_bound_builtin(real):
        return bound_builtin(t.outside, node, real)
    if may_end(node, real):
        return mortal(t.outside, node, real)
    node.guards.append((Check.IS, real))
    t.outside.tree.meet(node, real)
    t.outside.tree.constant(real)
    return real


def mortal(outside: Outside, node: Node, real: Any) -> Any:
    """The same of what compiled code must not keep alive: all that is read of it is read from where it was found."""
    node.guards.append((Check.REFERENT, weakref.ref(real)))
    outside.passing_classes |= type(real) is not types.FunctionType
    if outside.tree.node_of(real) is None:
        return outside.tree.bind(node, real, real)
    outside.tree.meet(node, real)
    return real


#: steps that lead from a frame to what is its own: arguments and variables, alone or in what carries them on after a break, and their classes
_OWN = frozenset({Step.LOCAL, Step.CELL, Step.ITEM, Step.ITEM_AT, Step.TYPE})


def may_end(node: Node, real: Any) -> bool:
    """Whether this is a function or a class that a call has made and a frame holds: it may well end before the compiled code does."""
    if issubclass(type(real), type):
        name = type.__dict__["__qualname__"].__get__(real)
    elif type(real) is types.FunctionType:
        name = real.__code__.co_qualname
    else:
        return False
    at: Node | None = node
    while at is not None and at.step in _OWN:
        at = at.parent
    return at is None and "<locals>" in name


def bound_builtin(outside: Outside, node: Node, real: Any) -> Any:
    """A method in C of an outside object: that of what stands for the object."""
    node.guards.append((Check.TYPE, type(real)))
    owner = outside.read(node, Step.ATTR, "__self__", real.__self__)
    name = outside.read(node, Step.ATTR, "__name__", real.__name__)
    if outside.unread and name not in ADDING:
        read_whole(outside, owner)
    return outside.tree.bind(node, real, getattr(owner, name))


def tensor(t: Trace, node: Node, real: torch.Tensor) -> Any:
    """A graph input, should it be used; guarded by its metadata."""
    if t.outside.settings.dual_level >= 0:
        node.guards.append((Check.TYPE, type(real)))
        t.outside.unfaked[id(real)] = (
            real,
            "a tensor may have a forward-mode tangent, which graphs do not carry",
        )
        return t.outside.tree.bind(node, real, real)
    try:
        fake = make_fake(t, node, real)
    except Unsupported as error:
        node.guards.append((Check.TYPE, type(real)))
        t.outside.unfaked[id(real)] = (real, error.what)
        return t.outside.tree.bind(node, real, real)
    t.outside.tree.inputs.append(node)
    t.graph.recorder.note_birth(fake)
    return t.outside.tree.bind(node, real, fake)


def instance(t: Trace, node: Node, real: Any) -> Any:
    """Any other object: known by its type here; its attributes are guarded as they are read."""
    bound = t.outside.tree.bind(node, real, real)
    cls = type(real)
    if issubclass(cls, decimal.Decimal):
        t.outside.settings.note_decimals()
    # an item of what a variable holds, as all variables of a frame are that goes on after a break
    carried = node.step is Step.ITEM and node.parent is not None and node.parent.step is Step.LOCAL
    if carried and may_end(node, cls):
        t.outside.read(node, Step.TYPE, None, cls)
    else:
        node.guards.append((Check.TYPE, cls))
    return bound


def foreign(t: Trace, node: Node, real: Any) -> Any:
    """A suspended generator or the like, that cannot be looked into."""
    node.guards.append((Check.TYPE, type(real)))
    return t.outside.tree.bind(node, real, real)


def proxy(t: Trace, node: Node, real: Any) -> Any:
    """What it says of itself, even of its class, its object says, which may be gone."""
    graph_break("BZ1014", "a weak proxy from outside is used", "pass the object, or a weakref.ref")


@remembered(4096)
def wrapper_of(cls: type) -> Wrap:
    """How values of a type are wrapped."""
    if cls is bytes:
        return raw_bytes
    if cls in CONSTANTS or cls in BY_VALUE:
        return constant
    if issubclass(cls, np.number | np.bool_) and cls.__module__ == "numpy":
        return by_value
    if issubclass(cls, torch.Tensor):
        return tensor
    if is_identity_type(cls):
        return identity
    if issubclass(cls, dict):
        return shadows.shadow_dict
    if issubclass(cls, list | collections.deque):
        return shadows.shadow_list
    if issubclass(cls, tuple):
        return shadows.shadow_tuple
    if issubclass(cls, set | frozenset):
        return shadows.shadow_set
    if issubclass(cls, int | float | str | bytes) and cls.__module__ != "builtins":
        return instance
    if cls in weakref.ProxyTypes:
        return proxy
    if cls in (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType):
        return foreign
    return instance
