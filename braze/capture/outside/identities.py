"""``id()`` while tracing, and ``hash()`` where it is made of the address: a number that is compared and used as a key, and nothing else.

An address means nothing at the next call, so it may meet other such numbers only, in containers of the trace. That
the objects asked for are different ones is guarded.
"""

from __future__ import annotations

import operator
import re
import types
from collections.abc import Callable
from typing import Any

import torch

from braze.capture.facts.breaks import HINT_MOVE, graph_break
from braze.capture.facts.records import Step
from braze.capture.facts.values import CONTAINERS, Identity, is_identity_type, words
from braze.capture.state.outside import Outside
from braze.capture.state.trace import Trace

#: objects asked for in one trace, at most: each is compared with each
MOST = 256
EQUALITY = frozenset({operator.eq, operator.ne})
#: what takes a key and tells nothing else of it
KEYED = frozenset(
    {
        operator.contains,
        operator.getitem,
        operator.setitem,
        operator.delitem,
        isinstance,
        len,
        set,
        dict,
        list,
    }
)
METHODS = frozenset(
    words(
        """add append copy discard get pop remove setdefault update keys values items clear extend __contains__
    __getitem__ __setitem__ __delitem__ __len__ __iter__"""
    )
)


def identity(t: Trace, value: Any, number: Callable[[Any], int] = id) -> Identity:
    """``id(value)``, or ``hash(value)`` of what is hashed by its address."""
    node = t.outside.tree.node_of(value)
    if len(t.outside.identities) >= MOST:
        graph_break("BZ1004", "id() of many objects", HINT_MOVE)
    if node is not None and node.step is not Step.CONSTANT and not issubclass(type(value), torch.Tensor):
        if any(other.real is node.real and other is not node for other in t.outside.tree.asked):
            graph_break("BZ1004", "id() of a number that changes, which is another object that was asked for")
        t.outside.tree.asked[node] = None
    t.outside.identities[id(value)] = value
    return t.done.claim(Identity(number(value if node is None else node.real)))


def is_hashed_by_address(value: Any) -> bool:
    """Whether ``hash(value)`` tells of its address and of nothing else."""
    return getattr(type(value), "__hash__", None) in (object.__hash__, torch.Tensor.__hash__)


def hides_addresses(value: Any) -> bool:
    """Whether an address is mixed into ``hash(value)`` by code in C, where nobody can take it out."""
    kind = type(value)
    if kind in (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType):
        return True
    base: Any = tuple if issubclass(type(value), tuple) else frozenset
    if issubclass(type(value), base) and kind.__hash__ is base.__hash__:
        return any(is_hashed_by_address(v) or hides_addresses(v) for v in base.__iter__(value))
    return False


def refuse(what: str) -> None:
    """End the graph: somebody wants to see the number."""
    graph_break("BZ1004", f"id() of an object {what}", HINT_MOVE)


#: an address in text, as ``object.__repr__`` writes it
ADDRESS = re.compile("0x([0-9a-f]+)")


def refuse_written(outside: Outside, text: str) -> None:
    """Refuse text with the address of an object from outside: in a later call another object may stand there."""
    for found in ADDRESS.findall(text):
        node = outside.tree.known.get(int(found, 16))
        if node is not None and node.step is not Step.CONSTANT and not is_identity_type(type(node.real)):
            refuse("is written into text")


def check_call(outside: Outside, fn: Any, args: Any) -> None:
    """Refuse a C function that would tell more of an address than whether it equals another."""
    if not holds(args):
        return
    if fn in EQUALITY:
        if not all(type(a) is Identity for a in args):
            refuse("is compared with a number")
        return
    owner = getattr(fn, "__self__", None)
    if owner is None or not issubclass(type(owner), CONTAINERS):
        owner = args[0]
    if fn not in KEYED and getattr(fn, "__name__", "") not in METHODS:
        refuse(f"is given to {getattr(fn, '__name__', fn)}")
    if issubclass(type(owner), CONTAINERS) and outside.tree.node_of(owner) is not None:
        refuse("is a key of a container from outside")


def holds(value: Any, depth: int = 3) -> bool:
    """Whether an address is among values, or in containers among them."""
    if type(value) is Identity:
        return True
    if depth and issubclass(type(value), CONTAINERS):
        if issubclass(type(value), dict) and any(holds(v, depth - 1) for v in dict.values(value)):
            return True
        return any(holds(v, depth - 1) for v in tuple(value))
    return False
