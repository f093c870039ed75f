"""Where broken frames go on: one point per place and shape of state, one resume function per user function."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any, Protocol

from braze.capture.facts.resume import Resumed


class Entries(Protocol):
    """What makes callables of resume functions (a session)."""

    def entry(self, function: FunctionType, name: str, *, resumed: bool = False, hooked: bool = False) -> Any:
        """An entry that captures the function in turn."""

    def run_uncaptured(self, function: FunctionType) -> Callable[..., Any]:
        """The function as it is; what it calls is captured."""


class ResumePoint:
    """A place in a code object where frames go on after a break."""

    def __init__(self, session: Entries, made: Resumed, raises: bool, captured: bool) -> None:
        self.session = session
        self.made = made
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
        code = self.made.code
        made = FunctionType(code, function.__globals__, function.__name__, None, function.__closure__)
        made.__module__ = function.__module__
        made.__braze_resumed__ = self.made  # type: ignore[attr-defined]
        if self.captured:
            return self.session.entry(made, self.name, resumed=True)
        return self.session.run_uncaptured(made) if self.hooked else made
