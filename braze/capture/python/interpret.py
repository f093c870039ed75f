"""The loop: one handler per instruction, exceptions sent to the frame's handlers."""

from __future__ import annotations

from typing import Any

from braze.capture.facts.breaks import BreakSignal, Stopped
from braze.capture.facts.frame import Frame
from braze.capture.python import looks, looks_at_texts
from braze.capture.python.generators import finish_left_over
from braze.capture.python.unwinding import catch, resumable_step, trail_of
from braze.capture.state.trace import Trace
from braze.support import interrupts


def run(t: Trace, f: Frame) -> Any:
    """Interpret until the frame returns or yields; its value is the result. User exceptions come out as such."""
    state = t.frames
    frames = state.stack
    frames.append(f)
    left_over = state.left_over
    waiting = interrupts.waiting
    handled = state.handled
    stop_at = state.stop_at
    unread, texts = t.outside.unread, t.outside.texts
    ops = f.decoded.ops
    try:
        while True:
            try:
                while True:
                    at = f.ip
                    handler, arg, f.ip, _ = ops[at]
                    f.at = at
                    state.steps = step = state.steps + 1
                    if step == stop_at:
                        state.live = False
                        raise Stopped
                    if unread:
                        looks.before(t, f)
                    if texts:
                        looks_at_texts.before(t, f)
                    if handler(t, f, arg) is not None:
                        return f.result
                    if left_over:
                        finish_left_over(t)
                    if waiting:
                        interrupts.point()
            except (Exception, GeneratorExit) as error:
                catch(t, f, error)
    except BreakSignal as signal:
        state.live = False
        if signal.position is None:
            signal.position = resumable_step(t.frames)
            signal.trail = trail_of(t.frames)
        raise
    finally:
        if state.steps != stop_at:  # the state of a stopped trace is its result
            state.handled = handled
            if frames[-1] is f:
                frames.pop()
