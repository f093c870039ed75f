"""Signals that arrive while something is compiled: their handlers run at points where an exception does no harm.

A handler may raise (Ctrl-C does). While a function is traced that could be anywhere: between a mode's being set and the ``with``
that would put it back, or where PyTorch calls back into Python from functions of C++ that let no exception through, of
which the process dies.
"""

from __future__ import annotations

import _signal
import functools
import signal
import threading
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType, MethodType, TracebackType
from typing import Any

#: seconds that a handler waits for a point at most
PATIENCE = 0.5
#: the signals whose handlers a program may choose
_CHOOSABLE = sorted(
    int(s) for s in signal.valid_signals() - {getattr(signal, "SIGKILL", 0), getattr(signal, "SIGSTOP", 0)}
)

Meant = Callable[[int, FrameType | None], Any]
#: number -> the handler that is due; changed in place, so that a loop may look at it cheaply
waiting: dict[int, Meant] = {}


class _Handler:
    """Stands in for a handler of the program while something is compiled."""

    def __init__(self, meant: Meant) -> None:
        self.meant = meant

    def __call__(self, number: int, frame: FrameType | None) -> Any:
        if not deferring.depth:
            return self.meant(number, frame)
        if number in waiting:  # a second time: at once
            return point()
        waiting[number] = self.meant
        again = threading.Timer(PATIENCE, _again, (number,))
        again.daemon = True
        again.start()
        return None


def _again(number: int) -> None:
    """No point has come: what runs takes long, so it is probably not in the midst of anything."""
    main = threading.main_thread().ident
    if number in waiting and main is not None:
        signal.pthread_kill(main, number)


def point() -> None:
    """Run the handlers that are due. What ends a program is raised here; an error waits for the end of the compile."""
    while waiting and _in_main_thread():
        number, meant = waiting.popitem()
        try:
            meant(number, None)
        except Exception as error:  # the program's, not one of the traced frame's
            deferring.owed = error


def is_of_handler(error: BaseException) -> bool:
    """Whether an error comes from a handler of a signal: it is of no line of the program that ran, and of none that would run again."""
    codes = set(map(code_of, handlers()))
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def handlers() -> list[Any]:
    """The handlers of signals that are in force."""
    return [_signal.getsignal(number) for number in _CHOOSABLE]


def code_of(handler: Any) -> CodeType | None:
    """The Python code that a handler begins with; None for what is not Python."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not isinstance(handler, (FunctionType, MethodType)):
        handler = next(
            (c.__dict__["__call__"] for c in type(handler).__mro__ if "__call__" in c.__dict__), None
        )
    return getattr(handler, "__code__", None)


def _in_main_thread() -> bool:
    """Whether this is the thread in which handlers run."""
    try:
        return threading.get_ident() == threading.main_thread().ident
    except MemoryError:  # what is asked at the end of a compile must be known
        return threading.get_ident() == threading.main_thread().ident


class _Deferring:
    """A context around a compile, entered as often as one likes: handlers of the program wait for points within it."""

    def __init__(self) -> None:
        self.depth = 0
        self.owed: BaseException | None = None
        self._replaced: dict[int, _Handler] = {}

    def __enter__(self) -> None:
        if not _in_main_thread():
            return
        try:
            self.depth += 1
            if self.depth == 1:
                self._replace()
        except BaseException:  # of a handler that ran meanwhile
            self.__exit__(None, None, None)
            raise

    def _replace(self) -> None:
        for number in _CHOOSABLE:
            meant = _signal.getsignal(number)
            if callable(meant) and not isinstance(meant, _Handler):
                self._replaced[number] = _Handler(meant)
                _signal.signal(number, self._replaced[number])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not _in_main_thread():
            return
        if self.depth > 1:
            self.depth -= 1
            return
        try:
            self._put_back()
        except BaseException:  # no memory was left, for once
            self._put_back()
            raise
        finally:
            self.depth = 0
        point()
        if self.owed is not None:
            owed, self.owed = self.owed, None
            raise owed

    def _put_back(self) -> None:
        """Give the program its handlers. Those that cannot be put back pass on what they get, and go with the next compile."""
        for number, handler in self._replaced.items():
            if _signal.getsignal(number) is handler:  # else the program has put another since
                _signal.signal(number, handler.meant)
        self._replaced.clear()


deferring = _Deferring()
