"""One try to capture a frame: the capture, or a word on why the frame runs uncompiled."""

from __future__ import annotations

import traceback
from types import FunctionType
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
from braze.graph.torch_compat import is_out_of_memory
from braze.support import trace
from braze.support.errors import BrazeError, CaptureError, InternalError, Unsupported
from braze.support.log import warn_once


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
    if bytecode.VERSION not in bytecode.VERSIONS:
        _refuse_unknown_python(strict)
        return None
    unknown = refusal_here()
    if unknown is not None:
        _refuse_unknown_torch(unknown, strict)
        return None
    if cannot_resume(function.__code__):
        _refuse_generator(name, function, strict=strict, tell=not inner)
        return None
    if not inner and function.__module__ in MODULES and function.__module__ != FLEX:
        _refuse_whole(name, function, strict=strict)
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
        if is_out_of_memory(error):
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


def _refuse_unknown_python(strict: bool) -> None:
    """Nothing is captured by a Python whose instructions may mean something else."""
    what = f"Python {'.'.join(map(str, bytecode.VERSION))} is newer than this braze"
    hint = "use Python 3.11 to 3.13, or a newer braze"
    if strict:
        raise CaptureError("BZ6003", what, hints=[hint])
    warn_once("BZ6003", f"BZ6003: {what}: compiled functions run as they are\n  do:  {hint}")


def _refuse_unknown_torch(error: Unsupported, strict: bool) -> None:
    """Nothing is captured with a PyTorch that is otherwise than braze takes for granted."""
    if strict:
        raise CaptureError(error.code, error.what, why=error.why, hints=error.hints) from error
    warn_once(
        error.code,
        f"{error.code}: {error.what}: compiled functions run as they are\n  why: {error.why}"
        + "".join(f"\n  do:  {hint}" for hint in error.hints),
    )


def _refuse_whole(name: str, function: FunctionType, *, strict: bool) -> None:
    """Such a function asks whether it is compiled, and by Dynamo would take another way than it can here."""
    if strict:
        raise CaptureError("BZ1019", f"{name}: {MODULES[function.__module__]}", hints=[HINT_MOVE])
    warn_once(
        ("BZ1019", function.__code__),
        f"BZ1019: {name} runs uncompiled: {MODULES[function.__module__]}\n  do:  compile what calls it",
    )


def _refuse_generator(name: str, function: FunctionType, *, strict: bool, tell: bool) -> None:
    """The frame of a generator or coroutine lives on between its runs."""
    if strict:
        raise CaptureError("BZ1009", f"{name} is a generator or coroutine", hints=["compile what it calls"])
    if tell:
        code = function.__code__
        warn_once(
            ("BZ1009", code),
            f"BZ1009: {name} ({code.co_filename}:{code.co_firstlineno}) runs uncompiled: it is a "
            "generator or coroutine, whose frame cannot be captured\n  do:  compile the functions that it calls",
        )
