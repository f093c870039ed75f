"""Messages while tracing: prints, warnings and what loggers are told are given when the graph has run."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from braze.capture.facts.breaks import HINT_MOVE, graph_break
from braze.capture.facts.stand_ins import forget_warned, place_of, warn_from
from braze.capture.facts.values import UnknownText, lookup_in_mro
from braze.capture.graph import unbacked
from braze.capture.graph.replays import replay
from braze.capture.outside.listeners import heard
from braze.capture.python import calls
from braze.capture.state.handlers import Feature
from braze.capture.state.ledger import Ledger
from braze.capture.state.trace import Interpreter, Trace

FEATURE = Feature()
rule = FEATURE.call

#: methods of loggers, and the level of what they are told; None: their first argument says
LOG_METHODS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "exception": logging.ERROR,
    "log": None,
}


@rule(print)
def print_(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """Text that is known now is printed when the graph has run; any other breaks the graph."""
    if not all(type(v) in (str, bool, type(None)) for v in kwargs.values()):
        graph_break("BZ1007", "print() writes to a stream", HINT_MOVE)
    texts = []
    for value in args:
        if issubclass(type(value), torch.Tensor) or (type(value) is UnknownText and value.made is None):
            graph_break("BZ1007", "print() of what a tensor holds", HINT_MOVE)
        counted = type(value) is torch.SymInt and not unbacked.is_unbacked(value)
        texts.append(value if counted else t.call(str, (value,), None))  # written when it is printed
    heard(t.outside, print, ())
    if not replay(t.done, print, texts, kwargs):
        graph_break("BZ1007", "print() of text that only the graph tells", HINT_MOVE)


@rule(warnings.warn)
def warn(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """A warning whose text is known now is given when the graph has run; any other breaks the graph."""
    return give(t, warnings.warn, args, kwargs)


def give(t: Trace, message: Any, args: Any, kwargs: Any) -> None:
    """Give a message when the graph has run."""
    heard(t.outside, message, args)
    if not replay(t.done, message, args, kwargs):
        graph_break("BZ1007", "a message is logged whose text is known only when the graph runs")


#: the folder of braze, and that from which PyTorch's operators run on fakes
OURS = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "")
GRAPH = os.path.join(OURS, "graph", "")


@contextlib.contextmanager
def warnings_named(done: Ledger) -> Iterator[None]:
    """Meanwhile a warning of C code, which names a line of ours, is the program's: it is given at each call.

    One of PyTorch's is given now, once: where the operator runs it is given by what runs it.
    """
    shown, me = warnings._showwarnmsg, threading.get_ident()  # type: ignore[attr-defined]

    def show(message: Any) -> None:
        text = str(message.message)
        if threading.get_ident() != me or not message.filename.startswith(OURS) or not done.frames.stack:
            return shown(message)
        forget_warned()  # the next line's is another
        place = place_of(done.frames.stack[-1])
        if message.filename.startswith(GRAPH):
            return warn_from(place, text, message.category)
        done.replays.append((warn_from, (place, text, message.category), {}))

    warnings._showwarnmsg = show  # type: ignore[attr-defined]
    try:
        yield
    finally:
        warnings._showwarnmsg = shown  # type: ignore[attr-defined]


def is_enabled(t: Interpreter, logger: Any, level: int) -> bool:
    """Whether a logger gives messages of a level: what decides it is read as the program would read it, and guarded."""
    says = bool(t.attribute(t.attribute(logger, "manager"), "_disable") < level)
    says = says and not t.attribute(logger, "disabled")
    at = logger
    while says and at is not None:
        own = t.attribute(at, "level")
        if own:
            says = bool(level >= own)
            break
        at = t.attribute(at, "parent")
    if says != logger.isEnabledFor(level):
        graph_break("BZ1007", "the level of a logger is written, or remembered from before it was", HINT_MOVE)
    return says


@rule(logging.Logger.isEnabledFor)
def is_enabled_for(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """Answered, where it is the plain question, without the table in which loggers keep their answers."""
    if len(args) != 2 or kwargs or type(args[1]) is not int:
        return calls.interpret(t, vars(logging.Logger)["isEnabledFor"], args, kwargs, tail)
    return is_enabled(t, *args)


@rule(logging.Manager._clear_cache)  # type: ignore[attr-defined]
def clear_cache(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """Loggers forget their answers when the graph has run: no answer in the trace is theirs."""
    t.done.replays.append((logging.Manager._clear_cache, args, kwargs))  # type: ignore[attr-defined]


@FEATURE.each(*(getattr(logging.Logger, name) for name in LOG_METHODS))
def tell_logger(method: Any, t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """A message with known arguments is given when the graph has run; any other that a handler would see breaks the graph."""
    level = LOG_METHODS[method.__name__]
    if level is None:
        level = args[1] if len(args) > 1 and type(args[1]) is int else None
    logger = args[0] if args else None
    if level is not None and issubclass(type(logger), logging.Logger):
        plain = lookup_in_mro(type(logger), "isEnabledFor")[0] is logging.Logger.isEnabledFor
        if plain and not is_enabled(t, logger, level):
            return None
    return give(t, method, args, kwargs)
