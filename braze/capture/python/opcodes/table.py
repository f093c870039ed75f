"""The table of instruction handlers: ``@opcode("NAME", since=, until=)`` adds a row for some CPython versions.

A handler takes (tracer, frame, argument) and changes the frame; jump arguments are absolute indexes in code units.
It returns None to go on, or anything else to leave the frame (the value stands in ``frame.result``).
"""

from __future__ import annotations

import opcode as cpython
import sys
from collections.abc import Callable
from typing import Any

from braze.capture.facts.breaks import graph_break

Handler = Callable[[Any, Any, int], Any]

VERSION = sys.version_info[:2]
BY_NAME: dict[str, Handler] = {}
LEAVE = object()
YIELD = object()


def opcode(
    *names: str, since: tuple[int, int] = (3, 11), until: tuple[int, int] = (3, 99)
) -> Callable[[Handler], Handler]:
    """Enter a handler for instructions of these names, from version ``since`` up to and with ``until``."""

    def enter(handler: Handler) -> Handler:
        if since <= VERSION <= until:
            for name in names:
                if name in BY_NAME:
                    raise KeyError(f"two handlers for {name}: {BY_NAME[name]} and {handler}")
                BY_NAME[name] = handler
        return handler

    return enter


def handlers() -> list[Handler]:
    """The dispatch list, indexed by opcode."""
    return [BY_NAME.get(name) or _unknown(name) for name in cpython.opname]


def _unknown(name: str) -> Handler:
    def unknown(t: Any, f: Any, arg: int) -> Any:
        graph_break("BZ1006", f"the instruction {name} is not carried")

    return unknown
