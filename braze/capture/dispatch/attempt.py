"""One try to capture a frame: the capture, or a word on why the frame runs uncompiled."""

from __future__ import annotations

import traceback
from collections.abc import Hashable
from types import CodeType, FunctionType
from typing import Any

from braze.capture.dispatch.shared import Shared
from braze.capture.dispatch.untested import refusal_here
from braze.capture.facts import bytecode
from braze.capture.facts.breaks import HINT_MOVE, BreakSignal, Retry, Stopped
from braze.capture.facts.marks import Named, named_shapes
from braze.capture.facts.records import Capture
from braze.capture.facts.resume import cannot_resume
from braze.capture.facts.slots import arguments
from braze.capture.python.higher_order import FLEX, MODULES
from braze.graph.private.torch_compat import is_shortage
from braze.support import trace
from braze.support.errors import BrazeError, CaptureError, InternalError, Unsupported
from braze.support.log import warn_once
from braze.support.record import record


def attempt(
    session: Shared,
    name: str,
    function: FunctionType,
    locals: tuple[Any, ...],
    symbolic: Any,
    *,
    inner: bool,
    trusting: bool,
) -> Capture | None:
    """Trace the frame; None where it cannot be captured at all. ``inner``: it is not what the user compiled, but met in its run."""
    options = session.options
    strict = options.fullgraph and not inner
    refusal = _refusal(name, function, inner=inner)
    if refusal is not None:
        if strict:
            try:
                raise refusal.error
            finally:  # its traceback has this frame, which would keep those of its callers, and what they hold
                del refusal
        if refusal.key is not None:
            warn_once(refusal.key, refusal.text)
        return None
    try:
        named = {} if inner else _named(function, locals, options.shapes)
        return session.trace(function, locals, symbolic, named, trusting)
    except Unsupported as error:
        if strict:
            raise CaptureError(
                error.code,
                error.what,
                why=error.why,
                hints=error.hints,
                origin=error.origin,
                trail=error.trail,
            ) from error
        warn_once((error.code, function.__code__), f"{name} runs uncompiled.\n{error}")
    except BrazeError:
        raise
    except (Exception, BreakSignal, Retry, Stopped) as error:
        if is_shortage(error):
            raise
        # a fault of the interpreter must not become one of the user's program
        if strict or options.verify:
            raise InternalError("BZ9014", f"the capture of {name} failed: {error!r}") from error
        shown = "".join(traceback.format_exception(error)[-8:])
        warn_once(
            ("BZ9014", function.__code__),
            f"BZ9014: the capture of {name} failed; it runs uncompiled.\n{shown}",
        )
        trace.count("captures_failed")
    return None


def _named(function: FunctionType, locals: tuple[Any, ...], shapes: Any) -> Named:
    """The tensors whose sizes ``shapes=`` names; an error where the call breaks its rules."""
    if not shapes:
        return {}
    args, kwargs = arguments(function.__code__, locals)
    return named_shapes(function, args, kwargs, shapes)


@record
class Refusal:
    """Why a frame is not even traced. ``error``: what says so under ``fullgraph``; ``text``: else, once for each ``key``; no key: not at all."""

    error: CaptureError
    key: Hashable
    text: str


def _refusal(name: str, function: FunctionType, *, inner: bool) -> Refusal | None:
    """Why a frame cannot be traced, whatever it does; None where it can."""
    if bytecode.VERSION not in bytecode.VERSIONS:
        return _of_unknown_python()
    unknown = refusal_here()
    if unknown is not None:
        return _of_unknown_torch(unknown)
    if cannot_resume(function.__code__):
        return _of_generator(name, function.__code__, inner=inner)
    if not inner and function.__module__ in MODULES and function.__module__ != FLEX:
        return _of_whole(name, function)
    return None


def _of_unknown_python() -> Refusal:
    """Nothing is captured by a Python whose instructions may mean something else."""
    what = f"Python {'.'.join(map(str, bytecode.VERSION))} is newer than this braze"
    hint = "use Python 3.11 to 3.13, or a newer braze"
    text = f"BZ6003: {what}: compiled functions run as they are\n  do:  {hint}"
    return Refusal(CaptureError("BZ6003", what, hints=[hint]), "BZ6003", text)


def _of_unknown_torch(fault: Unsupported) -> Refusal:
    """Nothing is captured with a PyTorch that is otherwise than braze takes for granted."""
    error = CaptureError(fault.code, fault.what, why=fault.why, hints=fault.hints)
    error.__cause__ = fault
    text = f"{fault.code}: {fault.what}: compiled functions run as they are\n  why: {fault.why}"
    return Refusal(error, fault.code, text + "".join(f"\n  do:  {hint}" for hint in fault.hints))


def _of_generator(name: str, code: CodeType, *, inner: bool) -> Refusal:
    """The frame of a generator or coroutine lives on between its runs."""
    error = CaptureError("BZ1009", f"{name} is a generator or coroutine", hints=["compile what it calls"])
    text = (
        f"BZ1009: {name} ({code.co_filename}:{code.co_firstlineno}) runs uncompiled: it is a "
        "generator or coroutine, whose frame cannot be captured\n  do:  compile the functions that it calls"
    )
    return Refusal(error, None if inner else ("BZ1009", code), text)


def _of_whole(name: str, function: FunctionType) -> Refusal:
    """Such a function asks whether it is compiled, and by Dynamo would take another way than it can here."""
    does = MODULES[function.__module__]
    text = f"BZ1019: {name} runs uncompiled: {does}\n  do:  compile what calls it"
    error = CaptureError("BZ1019", f"{name}: {does}", hints=[HINT_MOVE])
    return Refusal(error, ("BZ1019", function.__code__), text)
