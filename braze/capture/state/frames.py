"""The frames that are being interpreted, and where they stand."""

from __future__ import annotations

import types
from collections.abc import Callable

from braze.capture.facts.breaks import BreakSignal
from braze.capture.facts.frame import Decoded, Frame


class Frames:
    """The stack of interpreted frames. ``stop_at``: the step before which the trace ends; -1 for none."""

    #: whether frames are being interpreted: a generator that is dropped later, or by ``release``, runs nothing
    live = False

    def __init__(self, stop_at: int, decoded: Callable[[types.CodeType], Decoded], budget: int) -> None:
        self.stack: list[Frame] = []
        self.steps = 0
        self.stop_at = stop_at
        #: how code objects are decoded: with the handlers of this Python's instructions
        self.decoded = decoded
        self.live = True
        #: the exception that is being handled
        self.handled: BaseException | None = None
        #: what ended the graph
        self.break_at: BreakSignal | None = None
        #: what the instruction at hand leaves to be done when it has ended: frames of generators that the program has dropped, which
        #: are still to run to their end, and exceptions that have left a frame, whose tracebacks hold the tracer's
        self.left_over: list[Frame | BaseException] = []
        #: the last step that recorded an operation, and when to look next at how long ago that was
        self.recorded_at = 0
        self.budget_ends = budget

    def begun_at(self) -> int:
        """The step of what the innermost frame is at: of a call into C, its own, however often that has called back."""
        return (self.stack[-1].in_c if self.stack else 0) or self.steps

    def may_catch(self) -> bool:
        """Whether a ``try`` or a ``with`` of these frames surrounds where they stand."""
        return any(start <= f.at < end for f in self.stack for start, end, *_ in f.decoded.table)

    def here(self) -> tuple[Decoded, int] | None:
        """Where the program is: the innermost frame outside torch."""
        frames = self.stack
        if frames and not (decoded := (innermost := frames[-1]).decoded).library:
            return decoded, innermost.at
        for f in reversed(frames):
            if not f.decoded.library:
                return f.decoded, f.at
        return (frames[-1].decoded, frames[-1].at) if frames else None
