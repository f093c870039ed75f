"""The table of instruction handlers: ``@opcode("NAME", since=, until=, outside=)`` adds a row for some CPython versions.

A handler takes (tracer, frame, argument) and changes the frame; jump arguments are absolute indexes in code units.
It returns None to go on, or anything else to leave the frame (the value stands in ``frame.result``). ``outside`` tells how residual
code does an instruction that breaks the graph; where one has none, the call around it runs whole.
"""

from __future__ import annotations

import opcode as cpython
import sys
from collections.abc import Callable
from typing import Any

from braze.capture.facts.breaks import graph_break
from braze.capture.facts.frame import Frame
from braze.capture.facts.records import BreakKind
from braze.capture.state.trace import Trace

Handler = Callable[[Trace, Frame, int], Any]
#: kind, operands as values, detail, size of the stack that is left, whether a result is pushed
Pending = tuple[BreakKind, list[Any], Any, int, int]
#: (frame, argument, index of the next instruction); None where residual code has no words for it
DoneOutside = Callable[[Frame, int, int], Pending | None]

VERSION = sys.version_info[:2]
BY_NAME: dict[str, Handler] = {}
OUTSIDE: dict[str, DoneOutside] = {}
LEAVE = object()
YIELD = object()


def opcode(
    *names: str,
    since: tuple[int, int] = (3, 11),
    until: tuple[int, int] = (3, 99),
    outside: DoneOutside | None = None,
) -> Callable[[Handler], Handler]:
    """Enter a handler for instructions of these names, from version ``since`` up to and with ``until``."""

    def enter(handler: Handler) -> Handler:
        if since <= VERSION <= until:
            for name in names:
                if name in BY_NAME:
                    raise KeyError(f"two handlers for {name}: {BY_NAME[name]} and {handler}")
                BY_NAME[name] = handler
                if outside is not None:
                    OUTSIDE[name] = outside
        return handler

    return enter


def rows(meanings: dict[str, Handler]) -> None:
    """Instructions of which a line says it all."""
    for name, meaning in meanings.items():
        opcode(name)(meaning)


def applied(what: str | Callable[[int], str | None], *places: int, pushes: int = 1) -> DoneOutside:
    """A function of values on the stack, by its name or how an argument names it."""
    kind = BreakKind.OPERATOR if pushes else BreakKind.STATEMENT

    def outside(f: Frame, arg: int, following: int) -> Pending | None:
        name, stack = what if isinstance(what, str) else what(arg), f.stack
        left = len(stack) - len(places)
        return (kind, [stack[at] for at in places], name, left, pushes) if name else None

    return outside


def handlers() -> list[Handler]:
    """The dispatch list, indexed by opcode."""
    return [BY_NAME.get(name) or _unknown(name) for name in cpython.opname]


def _unknown(name: str) -> Handler:
    def unknown(t: Trace, f: Frame, arg: int) -> Any:
        graph_break("BZ1006", f"the instruction {name} is not carried")

    return unknown
