"""Where broken frames go on: one point per place and shape of state, one resume function per user function."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any

from braze import native
from braze.capture.facts.replay import caught
from braze.capture.facts.resume import CannotResume, Resumed
from braze.capture.residual.residual import Resumes
from braze.support.interrupts import is_of_handler


class ResumePoint:
    """A place in a code object where frames go on after a break."""

    def __init__(self, session: Resumes, code: Callable[..., Resumed], raises: bool, captured: bool) -> None:
        self.session = session
        self.code = code
        self.made = made = code()
        self.raises = raises
        self.captured = captured and (made.covered or not raises)
        self.hooked = not captured
        self.name = f"{made.original.co_name} from line {made.line}"
        self.__name__ = f"{'raise' if raises else 'resume'}_{made.original.co_name}"
        self._lock = threading.Lock()
        self._functions: dict[tuple[int, ...], Callable[[tuple[Any, ...]], Any]] = {}

    def of(self, function: FunctionType) -> Callable[[tuple[Any, ...]], Any]:
        """The resume function for frames of ``function``; one for all of its closures where cells travel in the state.

        ``function`` may itself be a resume function of the same code: it has the same globals and closure.
        """
        cells = () if self.made.cells is not None else function.__closure__ or ()
        # the resume function keeps what these ids are of alive
        key = (id(function.__globals__), *(id(cell) for cell in cells))
        with self._lock:
            found = self._functions.get(key)
            if found is None:
                found = self._functions[key] = self._make(function)
            return found

    def _make(self, function: FunctionType) -> Callable[[tuple[Any, ...]], Any]:
        made = _of_code(self.made, function)
        if self.captured:
            return self.session.entry(made, self.name, point=self)
        return self.session.run_uncaptured(made) if self.hooked else made

    def failing(
        self, function: FunctionType, state: tuple[Any, ...], error: BaseException
    ) -> Callable[..., Any] | None:
        """What a frame comes to that was to go on, and met an error before: handlers of its own see it, and what it has entered is left.

        None where there are none. An error of the compile goes on to the caller, whoever handles it; one of a signal's handler
        (Ctrl-C, a time limit) is as if it had come in the frame.
        """
        try:
            code = self.code(fails=True)
        except CannotResume:
            return None
        if not code.covered:
            return None
        run = self.session.run_uncaptured(_of_code(code, function))
        states = [(*(state[:-1] if self.raises else state), caught(error))]
        native.emptied(state)  # what the frame lets go of is held by nobody
        # no name for it where it is raised: the traceback has that frame, which would keep those of its callers, and what they hold
        errors = [error]
        callers = isinstance(error, Exception) and not is_of_handler(error)

        def failed(inputs: tuple[Any, ...], *locals: Any) -> Any:
            try:
                result = run(states.pop())
            except BaseException:
                errors.clear()
                raise
            if callers:
                raise errors.pop()
            return result

        return failed


def _of_code(resumed: Resumed, function: FunctionType) -> FunctionType:
    """A resume function for the frames of ``function``, or of a resume function of the same code."""
    closure = function.__closure__
    if resumed.cells is not None:  # they come with each state: those of the first frame are not to be kept
        closure = tuple(CellType() for _ in closure or ())
    made = FunctionType(resumed.code, function.__globals__, function.__name__, None, closure)
    made.__module__ = function.__module__
    made.__braze_resumed__ = resumed  # type: ignore[attr-defined]
    return made
