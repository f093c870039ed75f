"""Python that goes on and on without an operation on tensors: interpreting it costs a hundred times what running it costs.

Every so many instructions the trace looks at whether anything was recorded since. If not, the call that went on so long is
left to Python, or the whole frame where the loop is its own.
"""

from __future__ import annotations

from typing import NoReturn

from braze.capture.facts.breaks import HINT_MOVE, BreakSignal
from braze.capture.python.unwinding import resumable_step, trail_of
from braze.capture.state.frames import Frames

#: instructions without an operation on tensors, about a quarter of a second
BUDGET = 100_000


def look(frames: Frames) -> None:
    """The budget is spent: give another where something was recorded meanwhile, else leave the call to Python."""
    if frames.steps - frames.recorded_at >= BUDGET:
        give_up(frames, frames.recorded_at)
    frames.budget_ends = frames.recorded_at + BUDGET


def give_up(frames: Frames, since: int) -> NoReturn:
    """Break before the outermost call that began when nothing was recorded any more, or leave the frame."""
    reason = f"more than {BUDGET} instructions of Python ran without an operation on tensors"
    began = next((f.entered_at for f in frames.stack[1:] if f.entered_at >= since and f.entered_at > 1), None)
    signal = BreakSignal("BZ1016", reason, (HINT_MOVE,), skip=began is None)
    signal.position = 1 if began is None else min(began, resumable_step(frames))
    signal.trail = trail_of(frames)
    raise signal
