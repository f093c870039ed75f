"""Traceback entries for places of the user's program whose frames do not exist: stand-in frames.

A stand-in's code has the user's file, name, line and columns, so that whatever prints or inspects a traceback
shows what it would have shown, had Python run the frame. What it held in its variables is not there to see, but
within a trace it is held, as CPython's frames hold it: it ends when the traceback does.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

from braze.capture.facts import bytecode
from braze.support.caches import remembered
from braze.support.errors import Origin


def entry(origin: Origin, following: types.TracebackType | None) -> types.TracebackType:
    """A traceback entry at a place of the user's program."""
    return types.TracebackType(following, stand_in(origin), 0, max(origin.line, 0))


def entry_of_trace(origin: Origin, following: types.TracebackType | None, left: Any) -> types.TracebackType:
    """The same within a trace, for as long as which ``left`` is held."""
    frame = types.FunctionType(code_at(origin, True), {})(left).gi_frame
    return types.TracebackType(following, frame, 0, max(origin.line, 0))


def origin_of(found: types.TracebackType) -> Origin | None:
    """The place of an entry that a trace made; None for any other."""
    last = found.tb_frame.f_code.co_consts[-1:]
    return last[0] if last and type(last[0]) is Origin else None


def _stand_in() -> Iterator[None]:
    """A generator that never begins: its frame has no frame behind it, which would keep alive all that is being traced."""
    yield


def _stand_in_of_trace(left: Any) -> Iterator[None]:
    """The same, with something that its frame holds."""
    yield


@remembered(512)
def stand_in(origin: Origin) -> types.FrameType:
    """A frame that looks, to whoever prints a traceback, like one at this place."""
    return types.FunctionType(code_at(origin, False), {})().gi_frame  # type: ignore[no-any-return]


@remembered(1024)
def code_at(origin: Origin, in_trace: bool) -> types.CodeType:
    """Code that looks like the program's at this place; that of a trace's entries knows the place."""
    code = (_stand_in_of_trace if in_trace else _stand_in).__code__
    place = bytecode.Place(origin.line, origin.end_line, origin.column, origin.end_column)
    known_place = place if origin.line >= 0 else None
    return code.replace(
        co_filename=origin.file,
        co_name=origin.function.rpartition(".")[2],
        co_qualname=origin.function,
        co_firstlineno=max(origin.line, 1),
        co_linetable=bytecode.locations(len(code.co_code) // 2, known_place, max(origin.line, 1)),
        co_consts=(*code.co_consts, origin) if in_trace else code.co_consts,
    )


def chain(rows: tuple[Origin, ...], error: BaseException | None = None) -> types.TracebackType | None:
    """The traceback with these places, innermost first, in front of what an exception has already."""
    found = error.__traceback__ if error is not None else None
    for origin in rows:
        found = entry(origin, found)
    return found
