"""Whether something from outside is held still, as far as the trace has come: the trace itself holds all that it has met."""

from __future__ import annotations

import collections
import gc
import types
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from braze.capture.facts.breaks import HINT_MOVE, graph_break
from braze.capture.facts.frame import Frame
from braze.capture.facts.libraries import is_library_class
from braze.capture.facts.policy import is_found_by_c
from braze.capture.facts.records import Step
from braze.capture.facts.slots import Owner
from braze.capture.facts.values import HEAP_TYPE, MISSING, NULL, lookup_in_mro
from braze.capture.outside.shadows import iterate
from braze.capture.state.frames import Frames
from braze.capture.state.outside import Outside
from braze.capture.state.sources import Node
from braze.capture.state.trace import Trace
from braze.graph.private.torch_import import is_dynamos

#: types of Python's own whose objects may have code run when they end: a generator's ``finally``, what a method is bound to
CLOSED = (types.GeneratorType, types.MethodType)
#: the flag of exceptions' classes, whose tracebacks hold frames, and these what has not ended in them
EXCEPTION = 1 << 30
#: the flag of classes whose objects lead to others, and what else has a class whose objects may end with code
_HOLDS_OTHERS = 1 << 14
_MAY_END = HEAP_TYPE | EXCEPTION | _HOLDS_OTHERS


#: what is not looked into for things whose end runs code: each leads to all there is
SHUT = (
    types.ModuleType, types.FunctionType, types.CodeType, types.FrameType, type, torch.Tensor, torch.nn.Module,
)  # fmt: skip
#: how many objects are looked at for that
MOST_LOOKED_AT = 300


def ends_with_code(t: Trace, value: Any) -> bool:
    """Whether the end of an object runs code of the program's: asked of its class first, which is quick."""
    cls = type(value)
    asked = cls.__flags__ & (HEAP_TYPE | EXCEPTION) or cls in CLOSED
    return bool(asked) and value is not NULL and says_its_end(t, value)


def is_held(frames: Frames, node: Node) -> bool:
    """Whether a variable of a frame leads to what is at a place by the way that the trace came, or it stands where no frame can drop it."""
    at = node
    while not in_frames(frames, at.value):
        parent = at.parent
        if parent is None:
            return at.step is not Step.LOCAL
        for shadow in (parent.container, parent.dict):
            if shadow is not None and not holds(shadow.view, at.value):
                return False
        at = parent
    return True


def in_frames(frames: Frames, value: Any, but: Any = None) -> bool:
    """Whether a variable of a frame holds a value, or the stack of one; ``but`` for the variable of this cell."""
    for f in frames.stack:
        for held in (*f.locals, *f.stack):
            if held is value:
                return True
            if type(held) is types.CellType and held is not but:
                try:
                    if held.cell_contents is value:
                        return True
                except ValueError:
                    continue
    return False


def holds(view: Any, value: Any) -> bool:
    """Whether a container holds a value, as the program has left it."""
    values = dict.values(view) if issubclass(type(view), dict) else iterate(view)
    return any(held is value for held in values)


def let_go(t: Trace, f: Frame, index: int) -> None:
    """Before a variable of a frame gets another value: refuse where the end of what it holds would be met in the trace.

    With a tuple go its elements, as in ``for pair in d.items()``.
    """
    value = f.locals[index]
    for ending in value if type(value) is tuple else (value,):
        if may_end_with_code(t, ending):
            f.locals[index] = NULL
            held = is_reached(t, ending)
            f.locals[index] = value
            if not held:
                end_of(t, ending)


def replaced(t: Trace, value: Any, cell: Any = None) -> None:
    """Before a cell, or something that is no variable, gets another value: the same."""
    if may_end_with_code(t, value) and not in_frames(t.frames, value, cell):
        end_of(t, value)


def popped(t: Trace, f: Frame) -> None:
    """Before the top of a frame's stack goes, which no variable gets: the same."""
    value = f.stack[-1]
    if may_end_with_code(t, value):
        del f.stack[-1]
        held = is_reached(t, value)
        f.stack.append(value)
        if not held:
            end_of(t, value)


def may_end_with_code(t: Trace, value: Any) -> bool:
    """Whether the end of an object may run code of the program's: its own, or that of what it holds."""
    if ends_with_code(t, value):
        return True
    node = t.outside.tree.node_of(value)
    return node is not None and gc.is_tracked(node.real) and not issubclass(type(node.real), SHUT)


def end_of(t: Trace, value: Any) -> None:
    """Something from outside is let go of by the last that the trace knows to hold it: refuse where that runs code."""
    if ends_with_code(t, value):
        refuse_end(value)
    node = t.outside.tree.node_of(value)
    if node is not None and holds_unended([node.real]):
        refuse_end(value)


def is_reached(t: Trace, value: Any) -> bool:
    """Whether something from outside is held; what the trace has made itself is not."""
    node = t.outside.tree.node_of(value)
    return node is not None and is_held(t.frames, node)


def out_of_turn(t: Trace, f: Any) -> Any:
    """A generator of the trace, stopped midway, in a variable behind one with which something from outside may end; None if there is none.

    A frame that ends drops its variables in order; what the trace made is closed within it, what came from outside when the call is over.
    """
    ends = False
    for value in f.locals:
        if ends and type(value) is types.GeneratorType and value.gi_suspended and t.done.is_ours(value):
            return value
        ends = ends or ends_with_code(t, value)
    return None


def refuse_endings(t: Trace, f: Frame) -> None:
    """Before a resumed frame returns: leave that to Python where several of its variables may end with code of the program's.

    A frame drops its variables from the first on. Those of a resumed frame come in one tuple, and what else the residual code holds of
    them is dropped with that, in an order of its own.
    """
    if getattr(f.function, "__braze_resumed__", None) is None:
        return
    endings = []
    for value in f.locals:
        if type(value) is types.CellType:
            value = next(iter(gc.get_referents(value)), NULL)
        if value is NULL or value is f.stack[-1] or t.done.is_ours(value):
            continue
        node = t.outside.tree.node_of(value)
        if holds_unended([value if node is None else node.real]):
            endings.append(value)
    if len(endings) > 1:
        refuse_end(endings[0])


#: methods of containers that let go of elements without handing them out
DROPPING = frozenset(
    [
        "clear",
        "remove",
        "discard",
        "update",
        "__setitem__",
        "__delitem__",
        "__ior__",
        "__imul__",
        "__iand__",
        "__isub__",
        "__ixor__",
        "__init__",
        "difference_update",
        "intersection_update",
        "symmetric_difference_update",
    ]
)
#: methods of deques that let go of elements where the deque is full
FILLING = frozenset(("append", "appendleft", "extend", "extendleft", "__iadd__"))
CHANGING = (list, dict, set, collections.deque)


def dropped(t: Trace, container: Any, name: str, args: Any) -> None:
    """Before a method changes a container: refuse where an element would end that no variable holds."""
    if not issubclass(type(container), CHANGING) or name not in DROPPING:
        if not (name in FILLING and issubclass(type(container), collections.deque) and container.maxlen):
            return
        waiting = t.outside.unread.get(id(container))
        if waiting is not None and holds_unended(list(iterate(waiting.node.real))):
            waiting.fill(t.outside)
    for value in looked_at(t.outside, leaving(container, name, args)):
        if may_end_with_code(t, value) and not in_frames(t.frames, value):
            end_of(t, value)


def leaving(container: Any, name: str, args: Any) -> Iterable[Any]:
    """The elements that a method may let go of: those at its place, all of them where it names none that is known."""
    by_place = name in ("__setitem__", "__delitem__") and args and type(args[0]) in (int, str, slice)
    if issubclass(type(container), dict):
        if by_place and is_found_by_c(container, args[0]):
            return (container.get(args[0]),)
        values = dict.values(container)
        return values if name == "__setitem__" else (*values, *dict.keys(container))
    if by_place and issubclass(type(container), list):
        try:
            found = list.__getitem__(container, args[0])
        except (IndexError, TypeError, ValueError):
            return ()  # an error of the program's: nothing goes
        return found if type(args[0]) is slice else (found,)
    return list(iterate(container))


def looked_at(outside: Outside, values: Iterable[Any]) -> Iterable[Any]:
    """Those of an element or many whose end is to be asked for: by their classes first.

    A dict may be long, and be written to again and again by keys that only the program's code compares.
    """
    asked = {kind for kind in set(map(type, values)) if kind in CLOSED or kind.__flags__ & _MAY_END}
    if not asked:
        return ()
    ending = {k for k in asked if k in CLOSED or k.__flags__ & EXCEPTION or has_finalizer(k)}
    known, referred = outside.tree.known, weakref.getweakrefcount
    return [
        v for v in values if type(v) in asked and (id(v) in known or type(v) in ending or referred(v) > 0)
    ]


def refuse_end(value: Any) -> None:
    """End the graph: code would run within it, before what follows it."""
    graph_break(
        "BZ1010",
        f"an object of {type(value).__name__} may die, which runs code of the program's (__del__, a generator's finally, or a callback of a weak reference)",
        HINT_MOVE,
    )


def says_its_end(t: Trace, value: Any) -> bool:
    """Whether the program has code run when an object from outside dies."""
    cls = type(value)
    if issubclass(cls, torch.Tensor | type) or t.done.is_ours(value):
        return False
    node = t.outside.tree.node_of(value)
    if cls is types.GeneratorType or (
        cls.__flags__ & EXCEPTION and node is not None and holds_unended([value])
    ):
        return True
    if has_finalizer(cls):
        return True
    real = value if node is None else node.real
    # by an Owner variants are counted, and by references of Dynamo's modules: their callbacks are none of the program's
    callbacks = (ref.__callback__ for ref in weakref.getweakrefs(real) if type(ref) is not Owner)
    return any(callback is not None and not is_dynamos(callback) for callback in callbacks)


def has_finalizer(cls: type) -> bool:
    """Whether a class has a ``__del__`` of the program's."""
    found, owner = lookup_in_mro(cls, "__del__")
    return found is not MISSING and not is_library_class(owner)


def holds_unended(values: list[Any]) -> bool:
    """Whether these objects, or what they hold, are a generator that is stopped midway, or have a ``__del__``.

    An exception holds the frames that it, and those behind it, have come through.
    """
    seen: dict[int, Any] = {}
    todo = values
    while todo and len(seen) < MOST_LOOKED_AT:
        at = todo.pop()
        cls = type(at)
        if id(at) in seen or issubclass(cls, SHUT):
            continue
        seen[id(at)] = at
        if has_finalizer(cls) or (cls is types.GeneratorType and at.gi_suspended):
            return True
        if gc.is_tracked(at):
            todo += gc.get_referents(at)
        if cls is types.TracebackType:
            todo += gc.get_referents(at.tb_frame)  # ``f_locals`` would hold them from then on
    return False
