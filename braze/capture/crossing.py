"""The border to C code: what must be true of values that go out, and what comes back in."""

from __future__ import annotations

import collections
import contextlib
import types
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from braze import native
from braze.capture.breaks import graph_break
from braze.capture.frame import Frame
from braze.capture.shadows import DictShadow
from braze.capture.values import CONTAINERS, MISSING, NULL
from braze.graph.torch_compat import disable_functions

if TYPE_CHECKING:
    from braze.capture.tracer import Tracer

#: code of our own that C code starts, not to be interpreted
OURS: set[types.CodeType] = set()


def fill(t: Tracer, value: Any) -> None:
    """Read all of a lazily filled dict."""
    node = t.tree.known.get(id(value))
    if node is not None and node.value is value:
        if node.container is not None and not node.container.filled:
            node.container.fill(t)
        return
    shadow = t.dict_views.get(id(value))
    if shadow is not None and shadow.view is value:
        shadow.fill(t)


def fill_arguments(t: Tracer, values: Iterable[Any], depth: int = 0) -> None:
    """Read all of the lazily filled dicts among values that C code gets, however deep."""
    for value in values:
        if not isinstance(value, CONTAINERS):
            continue
        if isinstance(value, dict):
            fill(t, value)
            if depth < 4:
                fill_arguments(t, dict.values(value), depth + 1)
        elif depth < 4 and isinstance(value, list | tuple | collections.deque):
            fill_arguments(t, value, depth + 1)


def canonical(t: Tracer, value: Any) -> Any:
    """What stands for an outside object that C code has handed us."""
    found = t.tree.known.get(id(value))
    if found is not None and found.real is value:
        return found.value
    if isinstance(value, torch.Tensor) and id(value) not in t.recorder.nodes and found is None:
        graph_break("BZ1011", "a tensor that C code made where braze could not see it")
    return value


def called_from_c(t: Tracer, function: Any, localsplus: tuple[Any, ...]) -> Any:
    """A Python frame that C code starts while it runs for the program: interpret it."""
    code = function.__code__
    if code in OURS:
        return native.DEFAULT
    with t.entered_from_c():
        slots = [NULL] * len(t.decoded(code).slots)
        for index, value in enumerate(localsplus[: len(slots) - len(code.co_freevars)]):
            if value is not NULL:
                slots[index] = canonical(t, value)
        f: Frame = t.enter(function, slots, False)
        if code.co_flags & 0x2A0:
            return t.start_generator(f)
        return t.run(f)


@contextlib.contextmanager
def entered_from_c(t: Tracer) -> Iterator[None]:
    """Back in the interpreter: no function mode sees what it does itself."""
    with disable_functions() if t.modes_on else contextlib.nullcontext():
        modes, t.modes_on = t.modes_on, 0
        try:
            yield
        finally:
            t.modes_on = modes


@contextlib.contextmanager
def outside_applied(t: Tracer) -> Iterator[None]:
    """Around C code that may look at outside objects: pending attribute writes are there while it runs."""
    undo: list[tuple[dict[str, Any], str, Any]] = []
    for shadow in t.dirty.values():
        if shadow.filled:
            continue
        for key, value in shadow.view.items():
            if shadow.original.get(key, MISSING) is not value:
                undo.append((shadow.real, key, shadow.real.get(key, MISSING)))
                shadow.real[key] = value
    t.modes_on += 1
    try:
        yield
    finally:
        t.modes_on -= 1
        for real, key, value in reversed(undo):
            if value is MISSING:
                real.pop(key, None)
            else:
                real[key] = value


def is_generator(value: Any) -> bool:
    """Whether a value is a Python generator."""
    return type(value) is types.GeneratorType


def shadow_of(t: Tracer, value: Any) -> DictShadow | None:
    """The shadow whose view a dict is."""
    node = t.tree.node_of(value)
    return node.container if node is not None and isinstance(node.container, DictShadow) else None
