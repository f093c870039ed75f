"""Who hears the messages of a call, and what they may write: messages are given when the graph has run, and what listeners write may not be read before.

A handler of the program's that keeps records, warnings that are recorded, a stream in place of ``sys.stdout``: what these lead to is
looked through, and a graph ends before such a thing is read behind a message, or before a message behind such a reading.
"""

from __future__ import annotations

import collections
import logging
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

from braze.capture.facts.breaks import HINT_MOVE, graph_break
from braze.capture.facts.libraries import is_installed, is_library_function
from braze.capture.facts.values import HEAP_TYPE, MISSING, lookup_in_mro
from braze.capture.state.outside import Outside

CONTAINERS = (list, dict, set, collections.deque)
#: methods by which listeners hear
METHODS = ("emit", "handle", "filter", "format", "write", "flush", "__call__")
#: objects that are looked through: listeners that lead to more lead to everything
MOST = 500


def heard(outside: Outside, target: Any, args: Any) -> None:
    """Note what hears a message that is given later; break where the program has read of that before."""
    for value in reachable(list(listeners(target, args))):
        known = outside.tree.known.get(id(value))
        if known is not None and known.real is value:
            graph_break("BZ1007", "what hears a message has been read before it", HINT_MOVE)
        outside.heard[id(value)] = value


def refuse_heard(outside: Outside, real: Any) -> None:
    """Break where what hears a message is read before the message is given."""
    if outside.heard.get(id(real)) is real:
        graph_break("BZ1007", "what hears a message is read behind it", HINT_MOVE)


def listeners(target: Any, args: Any) -> Iterator[Any]:
    """Objects that are called with a message."""
    if target is print:
        yield sys.stdout
    elif target is warnings.warn:
        yield warnings.showwarning
        yield vars(warnings).get("_showwarnmsg_impl")
    logger = args[0] if args else None
    while isinstance(logger, logging.Logger):
        yield from logger.filters
        for handler in logger.handlers:
            yield handler
            yield from handler.filters
        logger = logger.parent if logger.propagate else None


def reachable(pending: list[Any]) -> list[Any]:
    """What listeners may write: containers and objects of the program's classes that they lead to."""
    seen: dict[int, Any] = {}
    found = []
    while pending and len(seen) < MOST:
        value = pending.pop()
        kind = type(value)
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if kind in CONTAINERS:
            found.append(value)
            pending += [v for v in (value.values() if kind is dict else value) if type(v) in CONTAINERS]
        elif kind is types.FunctionType:
            pending += of_function(value)
        elif kind in (types.MethodType, types.BuiltinMethodType):
            pending += [value.__self__, getattr(value, "__func__", None)]
        elif isinstance(value, logging.Handler | logging.Filter) or is_of_program(kind):
            found.append(value)
            pending += vars(value).values() if hasattr(value, "__dict__") else ()
            methods = (lookup_in_mro(kind, name)[0] for name in METHODS)
            pending += [m for m in methods if m is not MISSING and type(m) is types.FunctionType]
    return found


def of_function(function: types.FunctionType) -> list[Any]:
    """What a function of the program's can get at: its closure, and the globals that it names."""
    if is_library_function(function):
        return []
    cells = [c.cell_contents for c in function.__closure__ or () if c != types.CellType()]
    space = function.__globals__
    return cells + [space[name] for name in function.__code__.co_names if name in space]


def is_of_program(cls: type) -> bool:
    """Whether a class is the program's, and its instances are no classes or modules."""
    return (
        bool(cls.__flags__ & HEAP_TYPE)
        and not issubclass(cls, type | types.ModuleType)
        and not is_installed(cls)
    )
