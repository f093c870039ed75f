"""``str()``, ``format()``, ``str.join()`` and their like: text of numbers that are symbols is written when the graph has run."""

from __future__ import annotations

from typing import Any

import torch

from braze.capture.facts.breaks import graph_break
from braze.capture.facts.values import MISSING, UnknownText
from braze.capture.outside import texts
from braze.capture.python import calls, operations
from braze.capture.state.handlers import Feature
from braze.capture.state.ledger import Ledger
from braze.capture.state.trace import Trace

FEATURE = Feature()


@FEATURE.each(str, repr, ascii, format, hex, oct, bin)
def written_by(function: Any, t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """A function of C that writes text of a number, whichever it is."""
    if function is str and args and issubclass(type(args[0]), torch.Tensor):
        graph_break("BZ1007", "a tensor is formatted", "format outside the compiled function")
    if args and not kwargs and texts.is_told_later(args[0]):
        found = told_later(t.done, function, args)
        if found is not None:
            return found
    return calls.call_c(t, function, tuple(map(operations.number, args)), kwargs)


def told_later(done: Ledger, function: Any, args: Any) -> Any:
    """The text of one symbol, or of other such text; None where it must be known now."""
    if function is format:
        return texts.formatted(done, args[0], None, args[1] if len(args) == 2 else "")
    if function is str and type(args[0]) is UnknownText:
        return args[0] if len(args) == 1 else None
    return texts.later(done, function, *args) if len(args) == 1 else None


def format_(t: Trace, owner: str, args: Any, kwargs: Any, tail: bool) -> Any:
    """``"{}".format(n)``."""
    found = texts.fields(t.done, owner, tuple(args)) if not kwargs else None
    return MISSING if found is None else found


def join(t: Trace, owner: str, args: Any, kwargs: Any, tail: bool) -> Any:
    """``", ".join(parts)``."""
    if (
        len(args) != 1
        or kwargs
        or type(args[0]) not in (list, tuple)
        or UnknownText not in map(type, args[0])
    ):
        return MISSING
    found = texts.joined(t.done, args[0], owner)
    return MISSING if found is None else found


FEATURE.methods[str, "format"] = format_
FEATURE.methods[str, "join"] = join
