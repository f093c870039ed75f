"""Where broken frames go on: one point per place and shape of state, one resume function per user function."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, Protocol

from braze.capture.resume import Resumed


class Entries(Protocol):
    """What makes callables of resume functions (a session)."""

    def entry(self, function: FunctionType, name: str, *, resumed: bool = False, hooked: bool = False) -> Any:
        """An entry that captures the function in turn."""

    def run_uncaptured(self, function: FunctionType) -> Callable[..., Any]:
        """The function as it is; what it calls is captured."""


class ResumePoint:
    """A place in a code object where frames go on after a break: one resume function per user function."""

    def __init__(
        self, session: Entries, original: CodeType, made: Resumed, raises: bool, captured: bool, fixed: bool
    ) -> None:
        self.session = session
        self.original = original  # its id is in the session's key
        self.code = made.code
        self.captured = captured and (made.covered or not raises)
        self.hooked = not captured
        self.fixed = fixed
        self.name = f"{original.co_name} from line {made.line}"
        self.__name__ = f"{'raise' if raises else 'resume'}_{original.co_name}"
        self._lock = threading.Lock()
        self._made: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._by_globals: dict[int, Any] = {}

    def of(self, function: FunctionType) -> Callable[[tuple[Any, ...]], Any]:
        """The resume function for frames of ``function``; one for all of its closures where cells travel in the state."""
        with self._lock:
            if self.fixed:
                found = self._made.get(function)
                if found is None:
                    found = self._made[function] = self._make(function)
                return found
            found = self._by_globals.get(id(function.__globals__))
            if found is None:
                found = self._by_globals[id(function.__globals__)] = self._make(function)
            return found

    def _make(self, function: FunctionType) -> Callable[[tuple[Any, ...]], Any]:
        made = FunctionType(self.code, function.__globals__, function.__name__, None, function.__closure__)
        made.__module__ = function.__module__
        made.__braze_resumed__ = True  # type: ignore[attr-defined]
        if self.captured:
            return self.session.entry(made, self.name, resumed=True)
        return self.session.run_uncaptured(made) if self.hooked else made
