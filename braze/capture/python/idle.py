"""Python that goes on and on without an operation on tensors: interpreting it costs a hundred times what running it costs.

Every so many instructions the trace looks at whether anything was recorded since. If not, the call that went on so long is
left to Python, or the whole frame where the loop is its own.
"""

from __future__ import annotations

from typing import NoReturn

from braze.capture.facts.breaks import HINT_MOVE, BreakSignal
from braze.capture.python.unwinding import resumable_step, trail_of
from braze.capture.state.trace import Trace

#: instructions without an operation on tensors, about a quarter of a second
BUDGET = 100_000


def look(t: Trace) -> None:
    """The budget is spent: give another where something was recorded meanwhile, else leave the call to Python."""
    if t.frames.steps - t.frames.recorded_at >= BUDGET:
        give_up(t, t.frames.recorded_at)
    t.frames.budget_ends = t.frames.recorded_at + BUDGET


def give_up(t: Trace, since: int) -> NoReturn:
    """Break before the outermost call that began when nothing was recorded any more, or leave the frame."""
    reason = f"more than {BUDGET} instructions of Python ran without an operation on tensors"
    began = next(
        (f.entered_at for f in t.frames.stack[1:] if f.entered_at >= since and f.entered_at > 1), None
    )
    signal = BreakSignal("BZ1016", reason, (HINT_MOVE,), skip=began is None)
    signal.position = 1 if began is None else min(began, resumable_step(t))
    signal.trail = trail_of(t)
    raise signal
