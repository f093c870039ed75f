"""The loop: one handler per instruction, exceptions sent to the frame's handlers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from braze.capture.facts.breaks import BreakSignal, Stopped, graph_break, skip_frame
from braze.capture.facts.frame import Frame
from braze.capture.graph import unbacked
from braze.capture.python import raised
from braze.support import interrupts
from braze.support.errors import Origin

if TYPE_CHECKING:
    from braze.capture.trace.tracer import Tracer

MAX_STEPS = 20_000_000
#: what Python raises where a value is of the wrong kind, naming the kind; no program is to read of symbols
OF_KINDS = frozenset({TypeError, AttributeError, ValueError})
_SYMBOL = re.compile("Sym(Int|Float|Bool)")


def run(t: Tracer, f: Frame) -> Any:
    """Interpret until the frame returns or yields; its value is the result. User exceptions come out as such."""
    frames = t.frames
    frames.append(f)
    dropped = t.dropped
    waiting = interrupts.waiting
    handled = t.handled
    stop_at = t.stop_at
    ops = f.decoded.ops
    try:
        while True:
            try:
                while True:
                    at = f.ip
                    handler, arg, f.ip, _ = ops[at]
                    f.at = at
                    t.steps = step = t.steps + 1
                    if step == stop_at:
                        t.live = False
                        raise Stopped
                    if handler(t, f, arg) is not None:
                        return f.result
                    if dropped:
                        t.close_dropped()
                    if waiting:
                        interrupts.point()
            except (Exception, GeneratorExit) as error:
                catch(t, f, error)
    except BreakSignal as signal:
        t.live = False
        if signal.position is None:
            signal.position = resumable_step(t)
            signal.trail = trail_of(t)
        raise
    finally:
        if not _stopping(t):  # the state of a stopped trace is its result
            t.handled = handled
            if frames[-1] is f:
                frames.pop()


def _stopping(t: Tracer) -> bool:
    return t.steps == t.stop_at


def catch(t: Tracer, f: Frame, error: Exception | BaseException) -> None:
    """Go on at the handler that covers the instruction; else the exception leaves the frame."""
    if t.steps > MAX_STEPS:
        skip_frame("BZ1016", "too many instructions in one trace")
    if t.fake_error is not None and error is t.fake_error:
        raise error
    signal = unbacked.undecided(t, error) if isinstance(error, RuntimeError) else None
    if signal is not None:
        raise signal
    if type(error) in OF_KINDS and _SYMBOL.search(str(error)) and raised.known(t, error) is None:
        graph_break("BZ1012", f"an error tells of a symbol: {error}")
    raised.passing(t, f, error)
    at = f.at
    for start, end, target, depth, lasti in f.decoded.table:
        if start <= at < end:
            del f.stack[depth:]
            if lasti:
                f.stack.append(at)
            f.stack.append(error)
            f.ip = target
            return
    if t.fault[0] is not error:
        t.fault = error, trail_of(t)
    raise error


def trail_of(t: Tracer) -> tuple[Origin, ...]:
    """The lines at which the frames stand, outermost first: the user's, or PyTorch's where there are no others."""
    shown = [f for f in t.frames if not f.decoded.library] or t.frames
    return tuple(f.decoded.origin(f.at) for f in shown)


def resumable_step(t: Tracer) -> int:
    """The instruction before which all frames can be suspended: the innermost, or an outer call into C."""
    for f in t.frames[1:]:
        if not f.tail:
            return f.entered_at
    return t.steps
