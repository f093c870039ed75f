"""Exceptions on their way through frames, and the instructions at which frames can be suspended."""

from __future__ import annotations

import re
from typing import NoReturn

from braze.capture.facts.breaks import HINT_MOVE, BreakSignal, graph_break, skip_frame
from braze.capture.facts.frame import Frame
from braze.capture.graph import unbacked
from braze.capture.python import raised
from braze.capture.state.frames import Frames
from braze.capture.state.trace import Trace
from braze.support.errors import Origin

MAX_STEPS = 20_000_000
#: what Python raises where a value is of the wrong kind, naming the kind; no program is to read of symbols
OF_KINDS = frozenset({TypeError, AttributeError, ValueError})
#: names by which code asks for frames above its own
LOOKS_AT_CALLERS = frozenset({"_getframe", "_getframemodulename", "currentframe"})
_SYMBOL = re.compile("Sym(Int|Float|Bool)")


def catch(t: Trace, f: Frame, error: Exception | BaseException) -> None:
    """Go on at the handler that covers the instruction; else the exception leaves the frame."""
    if t.frames.steps > MAX_STEPS:
        skip_frame("BZ1016", "too many instructions in one trace")
    signal = unbacked.undecided(t.graph, error) if isinstance(error, RuntimeError) else None
    if signal is not None:
        raise signal
    if type(error) in OF_KINDS and _SYMBOL.search(str(error)) and raised.known(t.done, error) is None:
        graph_break("BZ1012", f"an error tells of a symbol: {error}")
    passed = raised.passing(t, f, error)
    at = f.at
    for start, end, target, depth, lasti in f.decoded.table:
        if start <= at < end:
            del f.stack[depth:]
            if lasti:
                f.stack.append(at)
            f.stack.append(error)
            f.ip = target
            return
    passed.trail = passed.trail or trail_of(t.frames)
    f.stack.clear()
    f.locals.reverse()  # in this order a list drops them as CPython does
    t.frames.left_over.append(error)
    raise error


def trail_of(frames: Frames) -> tuple[Origin, ...]:
    """The lines at which the frames stand, outermost first: the user's, or PyTorch's where there are no others."""
    shown = [f for f in frames.stack if not f.decoded.library] or frames.stack
    return tuple(f.decoded.origin(f.at) for f in shown)


def resumable_step(frames: Frames) -> int:
    """The instruction before which all frames can be suspended: the innermost, or an outer call into C.

    A frame that looks at its caller's, as those do that name classes after the caller's module, has none when it is resumed:
    its call is made whole.
    """
    for f in frames.stack[1:]:
        if not f.tail or not LOOKS_AT_CALLERS.isdisjoint(f.code.co_names):
            return f.entered_at
    return frames.steps


# -- Python that goes on and on without an operation on tensors: interpreting it costs a hundred times what running it costs


#: instructions without an operation on tensors, about a quarter of a second
BUDGET = 100_000


def check_budget(frames: Frames) -> None:
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
