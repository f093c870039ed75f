"""Traceback entries for places of the user's program whose frames do not exist: stand-in frames.

A stand-in's code has the user's file, name, line and columns, so that whatever prints or inspects a traceback
shows what it would have shown, had Python run the frame. What it held in its variables is not there.
"""

from __future__ import annotations

import types
from collections.abc import Iterator

from braze.capture.facts import bytecode
from braze.support.caches import remembered
from braze.support.errors import Origin


def entry(origin: Origin, following: types.TracebackType | None) -> types.TracebackType:
    """A traceback entry at a place of the user's program."""
    return types.TracebackType(following, stand_in(origin), 0, max(origin.line, 0))


def _stand_in() -> Iterator[None]:
    """A generator that never begins: its frame has no frame behind it, which would keep alive all that is being traced."""
    yield


@remembered(512)
def stand_in(origin: Origin) -> types.FrameType:
    """A frame that looks, to whoever prints a traceback, like one at this place."""
    code = _stand_in.__code__
    place = bytecode.Place(origin.line, origin.end_line, origin.column, origin.end_column)
    known_place = place if origin.line >= 0 else None
    made = code.replace(
        co_filename=origin.file,
        co_name=origin.function.rpartition(".")[2],
        co_qualname=origin.function,
        co_firstlineno=max(origin.line, 1),
        co_linetable=bytecode.locations(len(code.co_code) // 2, known_place, max(origin.line, 1)),
    )
    return types.FunctionType(made, {})().gi_frame  # type: ignore[no-any-return]


def chain(rows: tuple[Origin, ...], error: BaseException | None = None) -> types.TracebackType | None:
    """The traceback with these places, innermost first, in front of what an exception has already."""
    found = error.__traceback__ if error is not None else None
    for origin in rows:
        found = entry(origin, found)
    return found
