"""Frames for calls that are inlined."""

from __future__ import annotations

import types
from typing import Any

from braze.capture.facts.breaks import graph_break
from braze.capture.facts.frame import Frame
from braze.capture.facts.libraries import is_library_function
from braze.capture.facts.records import Check, Step
from braze.capture.facts.values import MISSING, is_constant, is_plain
from braze.capture.outside.definitions import written
from braze.capture.python import unwinding
from braze.capture.state.outside import Outside
from braze.capture.state.trace import Trace

#: frames inlined into each other at most
MAX_DEPTH = 160


def enter(t: Trace, function: types.FunctionType, localsplus: list[Any], tail: bool) -> Frame:
    """A frame for an inlined call."""
    frames = t.frames
    if len(frames.stack) > MAX_DEPTH:
        graph_break("BZ1016", "calls nested too deeply to be inlined")
    if frames.steps > frames.budget_ends:
        unwinding.check_budget(t.frames)
    code = function.__code__
    if not t.done.is_ours(function):
        if not is_library_function(function):
            t.outside.read(t.outside.tree.constant(function), Step.ATTR, "__code__", code)
        t.outside.inlined[function] = None
    f = Frame(function, frames.decoded(code), localsplus)
    f.tail = tail
    f.entered_at = frames.begun_at()
    return f


def defaults_of(t: Trace, fn: types.FunctionType) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A function's defaults: constants as they are, others read with guards."""
    positional = fn.__defaults__ or ()
    if t.done.is_ours(fn):
        return positional, fn.__kwdefaults__ or {}
    tree = t.outside.tree
    node, fixed = tree.constant(fn), is_library_function(fn)
    if not fixed and positional:
        own = node.child(Step.ATTR, "__defaults__")
        if own.real is MISSING:
            tree.meet(own, positional)
            own.guard(Check.EQUAL if is_constant(positional) else Check.IS, positional)
    return (
        tuple(
            [
                v if is_plain(v) else t.outside.read(node, Step.DEFAULTS, i, v)
                for i, v in enumerate(positional)
            ]
        ),
        _named_defaults(t.outside, fn),
    )


def _named_defaults(outside: Outside, fn: types.FunctionType) -> dict[str, Any]:
    """Those of keywords, which the program may have written (``f.__kwdefaults__["k"] = 2``)."""
    if (shadow := written(outside, fn.__kwdefaults__)) is not None:
        shadow.fill(outside)
        return shadow.view
    node, fixed = outside.tree.constant(fn), is_library_function(fn)
    return {
        k: v if fixed and is_plain(v) else outside.read(node, Step.KWDEFAULTS, k, v)
        for k, v in (fn.__kwdefaults__ or {}).items()
    }
