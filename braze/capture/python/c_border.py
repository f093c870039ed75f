"""The border to C code: what must be true of values that go out, and what comes back in."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from braze.capture.facts.breaks import graph_break
from braze.capture.facts.values import MISSING
from braze.capture.outside import identities
from braze.capture.outside.definitions import new_values
from braze.capture.state.trace import GraphState, Trace
from braze.graph.private.torch_compat import without_innermost_mode


def canonical(t: Trace, value: Any) -> Any:
    """What stands for an outside object that C code has handed us."""
    found = t.outside.tree.known.get(id(value))
    if found is not None and found.real is value:
        return found.value
    if issubclass(type(value), torch.Tensor) and not t.graph.recorder.knows(value) and found is None:
        graph_break("BZ1011", "a tensor that C code made where braze could not see it")
    if type(value) is str and "0x" in value:
        identities.refuse_written(t.outside, value)
    return value


@contextlib.contextmanager
def entered_from_c(graph: GraphState) -> Iterator[None]:
    """Back in the interpreter: the mode of the C code around it does not see what it does itself. That of C code within it does."""
    with without_innermost_mode() if graph.modes_on else contextlib.nullcontext():
        modes, graph.modes_on = graph.modes_on, 0
        try:
            yield
        finally:
            graph.modes_on = modes


@contextlib.contextmanager
def outside_applied(t: Trace) -> Iterator[None]:
    """Around C code that may look at outside objects: pending attribute writes are there while it runs.

    What it calls back began with its own instruction: there a trace can end, not between two of them.
    """
    undo: list[tuple[dict[str, Any], str, Any]] = []
    for shadow in t.done.dirty.values():
        if shadow.filled:
            continue
        for key, value in shadow.view.items():
            if shadow.original.get(key, MISSING) is not value:
                undo.append((shadow.real, key, shadow.real.get(key, MISSING)))
                shadow.real[key] = value
    pending = [
        (owner, name, value, vars(owner).get(name, MISSING)) for owner, name, value in new_values(t.done)
    ]
    for owner, name, value, _ in pending:
        setattr(owner, name, value)
    t.graph.modes_on += 1
    frame = t.frames.stack[-1]
    step, frame.in_c = frame.in_c, t.frames.begun_at()
    try:
        yield
    finally:
        t.graph.modes_on -= 1
        frame.in_c = step
        for owner, name, _, before in reversed(pending):
            if before is MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        for real, key, value in reversed(undo):
            if value is MISSING:
                real.pop(key, None)
            else:
                real[key] = value
