"""Messages that are given when the graph has run, as if from the place in the program where they belong.

``warnings.warn`` and loggers look at the stack for who calls them. So a message is given from under stand-ins for the
frames that the program would have had there: with their file, name, line and namespace.
"""

from __future__ import annotations

import functools
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

from braze import native
from braze.capture.facts import bytecode
from braze.capture.facts.frame import Frame
from braze.capture.facts.replay import is_ours
from braze.support.caches import remembered

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
        call = functools.partial(stand_in(place), call)
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


def _stand_in(call: Callable[[], Any]) -> Any:
    return call()


@remembered(512)
def stand_in(place: Place) -> types.FunctionType:
    """A function that calls another, and whose frame is at a place of the program's."""
    file, name, line, home = place
    code = _stand_in.__code__
    made = code.replace(
        co_filename=file,
        co_name=name,
        co_qualname=name,
        co_firstlineno=line,
        co_linetable=bytecode.locations(len(code.co_code) // 2, bytecode.Place(line, line, -1, -1), line),
    )
    native.skip_code(made)
    space = home.__globals__ if isinstance(home, types.FunctionType) else vars(sys.modules[home])
    return types.FunctionType(made, space)
