"""Stand-ins for frames of the program that do not exist: their code has its file, name, line and columns.

``warnings.warn`` and loggers look at the stack for who calls them. So a message that is given when the graph has run is given from under
stand-ins for the frames that the program would have had there. Whatever prints or inspects a traceback is shown by others what it
would have been shown, had Python run the frame. What that held in its variables is not there to see, but within a trace it is held, as
CPython's frames hold it: it ends when the traceback does.
"""

from __future__ import annotations

import functools
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from braze import native
from braze.capture.facts import bytecode
from braze.capture.facts.frame import Frame
from braze.capture.facts.replay import is_ours
from braze.support.caches import remembered
from braze.support.errors import Origin

#: of a frame: file, name, line, and the name of its module, or a function with its namespace
Place = tuple[str, str, int, Any]


def place_of(f: Frame) -> Place:
    """Where an interpreted frame stands."""
    origin, space = f.decoded.origin(f.at), f.function.__globals__
    home = space.get("__name__")
    module = sys.modules.get(home) if type(home) is str else None
    named = module is not None and vars(module) is space
    return origin.file, f.code.co_name, max(origin.line, 1), home if named else f.function


def tell(places: tuple[Place, ...], message: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Give a message from these places, the outermost first."""
    level = stack_level(message, args, kwargs)
    if type(level) is int and level > len(places):
        level += machinery(sys._getframe())
        if len(args) > 2 and message is warnings.warn:
            args = (*args[:2], level, *args[3:])
        else:
            kwargs["stacklevel"] = level
    call = functools.partial(message, *args, **kwargs)
    for place in reversed(places):
        call = functools.partial(caller(place), call)
    return call()


def warn_from(place: Place, text: str, category: type[Warning]) -> None:
    """Give a warning of C code that was called at this place: its module's filters and what it has been told decide as ever."""
    file, _, line, home = place
    space = home.__globals__ if isinstance(home, types.FunctionType) else vars(sys.modules[home])
    registry = space.setdefault("__warningregistry__", {})
    warnings.warn_explicit(text, category, file, line, space.get("__name__") or "<string>", registry)


def forget_warned() -> None:
    """Called where a warning is shown: the module whose line it names has not been told of it."""
    sys._getframe(2).f_globals.pop("__warningregistry__", None)


def stack_level(message: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """How many frames up a message says that it comes from; None where it does not say."""
    if message is warnings.warn and len(args) > 2:
        return args[2]
    return kwargs.get("stacklevel")


def machinery(frame: types.FrameType | None) -> int:
    """How many frames between the program's and this one, it included, the program does not have."""
    count = 0
    while frame is not None and is_ours(frame.f_code):
        count += 1
        frame = frame.f_back
    return count


def _calling(call: Callable[[], Any]) -> Any:
    return call()


@remembered(512)
def caller(place: Place) -> types.FunctionType:
    """A function that calls another, and whose frame is at a place of the program's."""
    file, name, line, home = place
    made = at(_calling.__code__, file, name, line, bytecode.Place(line, line, -1, -1))
    native.skip_code(made)
    space = home.__globals__ if isinstance(home, types.FunctionType) else vars(sys.modules[home])
    return types.FunctionType(made, space)


# -- entries of tracebacks


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


def at(code: types.CodeType, file: str, name: str, line: int, place: bytecode.Place | None) -> types.CodeType:
    """Code whose every instruction is at a place of the program's."""
    return code.replace(
        co_filename=file,
        co_name=name.rpartition(".")[2],
        co_qualname=name,
        co_firstlineno=line,
        co_linetable=bytecode.locations(len(code.co_code) // 2, place, line),
    )


def _unbegun() -> Iterator[None]:
    """A generator that never begins: its frame has no frame behind it, which would keep alive all that is being traced."""
    yield


def _unbegun_of_trace(left: Any) -> Iterator[None]:
    """The same, with something that its frame holds."""
    yield


@remembered(512)
def stand_in(origin: Origin) -> types.FrameType:
    """A frame that looks, to whoever prints a traceback, like one at this place."""
    return types.FunctionType(code_at(origin, False), {})().gi_frame  # type: ignore[no-any-return]


@remembered(1024)
def code_at(origin: Origin, in_trace: bool) -> types.CodeType:
    """Code that looks like the program's at this place; that of a trace's entries knows the place."""
    place = bytecode.Place(origin.line, origin.end_line, origin.column, origin.end_column)
    known_place = place if origin.line >= 0 else None
    code = (_unbegun_of_trace if in_trace else _unbegun).__code__
    made = at(code, origin.file, origin.function, max(origin.line, 1), known_place)
    return made.replace(co_consts=(*made.co_consts, origin)) if in_trace else made


def chain(rows: tuple[Origin, ...], error: BaseException | None = None) -> types.TracebackType | None:
    """The traceback with these places, innermost first, in front of what an exception has already."""
    found = error.__traceback__ if error is not None else None
    for origin in rows:
        found = entry(origin, found)
    return found
