"""Calls that are made when the graph has run: prints, warnings."""

from __future__ import annotations

import logging
import sys
import types
import warnings
from typing import Any

import torch

from braze.capture.facts.breaks import HINT_MOVE, graph_break
from braze.capture.facts.libraries import is_installed, is_library_class
from braze.capture.facts.stand_ins import place_of, tell
from braze.capture.facts.values import MISSING, UnknownText, is_constant, is_plain, lookup_in_mro
from braze.capture.graph import unbacked
from braze.capture.state.ledger import Ledger


def may_raise(target: Any, args: Any) -> bool:
    """Whether a message raises as things are: a warning that is made an error, text for a stream written in Python, a handler of the program's."""
    if args and isinstance(args[0], logging.Logger):
        return not is_plain_logger(args[0])
    if target is warnings.warn:
        return any(action == "error" for action, *_ in warnings.filters)
    if target is print:
        write, _ = lookup_in_mro(type(sys.stdout), "write")
        return write is MISSING or isinstance(write, types.FunctionType)
    return False


def is_plain_logger(logger: logging.Logger) -> bool:
    """Whether what a logger is told meets the code of libraries alone, which keeps errors to itself."""
    at: logging.Logger | None = logger
    while at is not None:
        if at.filters or not is_library_class(type(at)):
            return False
        if any(handler.filters or not is_installed(type(handler)) for handler in at.handlers):
            return False
        at = at.parent if at.propagate else None
    return True


def replay(done: Ledger, target: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Call this when the graph has run; False where the arguments are not known now.

    What may raise into a handler of the program ends the graph: it has to be called where the handler is.
    """
    if done.frames.may_catch() and may_raise(target, args):
        graph_break("BZ1007", f"{target.__name__}() may raise what the program handles", HINT_MOVE)
    for value in (*args, *kwargs.values()):
        counted = type(value) is torch.SymInt and not unbacked.is_unbacked(value)
        told = type(value) is UnknownText and value.made is not None
        if not (
            is_plain(value) or counted or told or isinstance(value, logging.Logger) or is_constant(value)
        ):
            return False
    if target is not print:
        args, target = (tuple(map(place_of, done.frames.stack)), target, *args), tell
    done.replays.append((target, tuple(args), kwargs))
    return True
