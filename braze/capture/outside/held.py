"""Whether something from outside is held still, as far as the trace has come: the trace itself holds all that it has met."""

from __future__ import annotations

import types
from typing import Any

from braze.capture.facts.records import Step
from braze.capture.outside.shadows import iterate
from braze.capture.state.sources import Node
from braze.capture.state.trace import Trace


def is_held(t: Trace, node: Node) -> bool:
    """Whether a variable of a frame leads to what is at a place by the way that the trace came, or it stands where no frame can drop it."""
    at = node
    while not in_frames(t, at.value):
        parent = at.parent
        if parent is None:
            return at.step is not Step.LOCAL
        for shadow in (parent.container, parent.dict):
            if shadow is not None and not holds(shadow.view, at.value):
                return False
        at = parent
    return True


def in_frames(t: Trace, value: Any) -> bool:
    """Whether a variable of a frame holds a value, or the stack of one."""
    for f in t.frames.stack:
        for held in (*f.locals, *f.stack):
            if held is value:
                return True
            if type(held) is types.CellType:
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
