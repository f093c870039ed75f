"""How the interpreter gives up at an instruction: signals, and the codes of graph breaks."""

from __future__ import annotations

from typing import Any, NoReturn

from braze.support.errors import Origin


class BreakSignal(BaseException):
    """The instruction at hand cannot be carried. Not an Exception: no handler of the user's may see it."""

    def __init__(self, code: str, reason: str, hints: tuple[str, ...] = (), skip: bool = False) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason
        self.hints = hints
        #: give the whole frame up, rather than go on after this instruction
        self.skip = skip
        self.position: Any = None
        #: the user's lines that led here, outermost first, where the trace may stop elsewhere
        self.trail: tuple[Origin, ...] = ()
        #: guards of what broke the graph: calls of which they do not hold may be captured farther
        self.guards: tuple[Any, ...] = ()


class Retry(BaseException):
    """State at the stop cannot be rebuilt: trace again, to an earlier instruction."""

    def __init__(self, stop_at: int) -> None:
        super().__init__(stop_at)
        self.stop_at = stop_at


class Stopped(BaseException):
    """The trace has reached the instruction it was to stop at; the state of the frames is the result."""


class Unrebuildable(Exception):
    """A value that residual code cannot make again."""

    def __init__(self, value: Any) -> None:
        super().__init__(f"braze cannot rebuild a {type(value).__name__}")
        self.value = value


#: the code of a break behind which what the graph computes is differentiated with ``create_graph=True``
DIFFERENTIATED_TWICE = "BZ1025"
#: an assignment to ``.data``
GIVES_MEMORY = "Tensor.data is assigned"
#: what the residual code's frames would be in the way of
LOOKS_AT_THE_STACK = "the call stack is looked at"
HINT_MOVE = "move the call out of the compiled function, or leave the break"
HINT_DATA = "compute with torch.where or other tensor operations instead of Python control flow"
#: code and cause where the program decides by what a tensor holds
DECIDED_BY_DATA = "BZ1003", "control flow depends on what a tensor holds"
#: the same where text is made of that
FORMATTED = "BZ1007", "a tensor is formatted"
#: and of numbers that change, where the text cannot be written when the graph has run
FORMATTED_NUMBER = "BZ1007", "text of a number that changes goes where it is looked at"
HINT_FORMAT = "format outside the compiled function"
HINT_OP = "register the function as a torch.library operator"


def graph_break(code: str, reason: str, *hints: str) -> NoReturn:
    """End the graph before the instruction at hand."""
    raise BreakSignal(code, reason, hints)


def skip_frame(code: str, reason: str, *hints: str) -> NoReturn:
    """Leave the whole frame to eager."""
    raise BreakSignal(code, reason, hints, skip=True)
