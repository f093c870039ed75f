"""The entries of one ``compile_callable``: backend, options, resume functions, frames met in broken calls."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import torch

from braze import native
from braze.capture.dispatch.closures import is_to_end
from braze.capture.dispatch.other_tracers import watch
from braze.capture.dispatch.recompiles import Recompile
from braze.capture.dispatch.shared import Backend, Shared, this_thread
from braze.capture.dispatch.skip import GENERATOR, is_skipped, other_library, why_skip
from braze.capture.dispatch.variants import Site, all_sites, copies, turn_to
from braze.capture.facts.markers import WITH_CALLEES
from braze.capture.facts.records import Capture
from braze.capture.facts.replay import WhereGiven, bring_up_history
from braze.capture.facts.resume import resume_code
from braze.capture.python.higher_order import of_other_compiler, run_whole
from braze.capture.residual.points import ResumePoint
from braze.capture.residual.residual import Place
from braze.graph.operators import untraced_formulas
from braze.options import Options
from braze.support import interrupts, trace
from braze.support.caches import Latest
from braze.support.collector import collector_paused
from braze.support.log import logger

watch()

TraceFrame = Callable[..., Capture]
#: code met in broken calls whose frames an entry takes over, and why others run as they are, as far as that was told -> the code
_answered: Latest[CodeType] = Latest(10_000, native.forget_code)


def compile_callable(
    function: FunctionType, backend: Backend, options: Options, name: str | None = None
) -> Any:
    """A native entry that captures and compiles ``function`` as it is called."""
    return Session(backend, options).entry(function, name or function.__name__)


def reset() -> None:
    """Forget every variant of every live entry, and every decision about code met in broken calls."""
    for site in all_sites():
        site.clear()
    _answered.cache_clear()
    copies.clear()
    untraced_formulas.forget()


class Session(Shared):
    """What the entries of one ``compile_callable`` share."""

    def __init__(self, backend: Backend, options: Options, tracer: TraceFrame | None = None) -> None:
        self.backend = backend
        self.options = options
        self.tracer = tracer
        self.points: dict[Any, ResumePoint] = {}
        #: code and place of the breaks that have been logged
        self.told: set[tuple[str, str]] = set()

    def trace(
        self,
        function: FunctionType,
        locals: tuple[Any, ...],
        symbolic: Any,
        named: Any = None,
        trusting: bool = True,
    ) -> Capture:
        """Interpret a frame. The interpreter is loaded at the first compile.

        Loading it makes enough objects to set off a full collection, which takes longer than all of the capture.
        """
        with collector_paused:
            if self.tracer is None:
                from braze.capture.trace.tracer import trace_frame

                self.tracer = trace_frame
            words = {"named": named} if named else {}
            if not trusting:
                words["trusting"] = False
            return self.tracer(function, locals, self.options, symbolic=symbolic, **words)

    def entry(
        self, function: FunctionType, name: str, *, point: ResumePoint | None = None, hooked: bool = False
    ) -> Any:
        """A new entry for a function; with a point, for a frame that goes on there."""
        site = Site(self, name, point=point, hooked=hooked)
        site.entry = native.Entry(function, site.on_miss)
        return site.entry

    # -- what residual code asks for (residual.Resumes)

    def point(self, place: Place, *, offset: int, pushes: int, raises: bool, captured: bool) -> ResumePoint:
        """The resume functions of one place, shared by all captures that stop there in the same shape."""
        shape = place.carries, place.stack, place.locals, place.done
        key = (id(place.code), offset, pushes, raises, captured, *shape)
        found = self.points.get(key)
        if found is None:
            code = functools.partial(
                resume_code,
                place.code,
                offset,
                place.stack,
                place.locals,
                done=place.done,
                pushes=pushes,
                raises=raises,
                carry_free=place.carries,
            )
            found = self.points[key] = ResumePoint(self, code, raises, captured)  # keeps the code's id taken
        return found

    def begin(self, target: Any) -> tuple[Any, Callable[..., Any]]:
        """Before the call that broke the graph: (the session so far, what runs the call)."""
        if run_whole(target):
            return getattr(this_thread, "session", None), native.unhooked
        if getattr(target, "__func__", target) is torch.Tensor.register_hook:
            return getattr(this_thread, "session", None), put_hook
        return self._take_over(), native.run_hooked

    def end(self, outer: Any) -> None:
        """After that call."""
        this_thread.session = outer

    def run_hooked(self, target: Any, /, *args: Any, **kwargs: Any) -> Any:
        """A call in which frames met by the hook belong to this session."""
        outer = self._take_over()
        try:
            return native.run_hooked(target, *args, **kwargs)
        finally:
            self.end(outer)

    def _take_over(self) -> Any:
        """From now on frames that the hook meets belong to this session; the session that they belonged to."""
        outer = getattr(this_thread, "session", None)
        this_thread.session = self
        native.set_frame_callback(answer_hook)
        return outer

    def run_uncaptured(self, function: FunctionType) -> Callable[..., Any]:
        """``function`` run as it is, with the frames it calls captured on their own."""
        native.skip_code(function.__code__)
        return functools.partial(self.run_hooked, function)


def put_hook(register: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """``register_hook`` of a broken call: a hook on what has no part in a loss would get None.

    The results of one graph are those of one operation, and so are all that a later graph makes of what it is given.
    """
    for value in (getattr(register, "__self__", None), *args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            bring_up_history(value)
    args = tuple([WhereGiven(value) if callable(value) else value for value in args])
    kwargs = {name: WhereGiven(value) if callable(value) else value for name, value in kwargs.items()}
    return native.unhooked(register, *args, **kwargs)


def answer_hook(code: CodeType, function: FunctionType) -> Any:
    """The entry that takes over frames of ``code`` met in broken calls, or None where they run as they are."""
    if code in WITH_CALLEES or of_other_compiler(code) or of_interpreter(code):
        native.untraced_code(code)
        return None
    session: Session | None = getattr(this_thread, "session", None)
    if session is None or getattr(this_thread, "busy", False):
        return None
    if is_skipped(code, function):
        tell_skipped(code, function)
        return None
    if is_to_end(function):
        return None
    entry = session.entry(function, code.co_qualname, hooked=True)
    _answered.enter(id(code), code)  # two that are alike are answered apart
    return entry


def of_interpreter(code: CodeType) -> bool:
    """Whether Python itself calls it between any two steps, so that it belongs to none: callbacks of the garbage collector, handlers of signals."""
    return any(code is interrupts.code_of(each) for each in (*gc.callbacks, *interrupts.handlers()))


def tell_skipped(code: CodeType, function: FunctionType) -> None:
    """Say once which frames of broken calls run uncompiled though tensors may be computed there: generators, and libraries."""
    library = other_library(code)
    why = why_skip(code, function)
    if library is not None:
        cause: Any = ("BZ1019", library)
        text = f"BZ1019: what broken calls run of the library {library} runs as it is ({code.co_qualname} was the first)"
        remedy = "compile a function that calls it: what it calls is captured there"
    elif why == GENERATOR:
        cause = ("BZ1009", code)
        text = f"BZ1009: {code.co_qualname} ({code.co_filename}:{code.co_firstlineno}) runs as it is in a broken call: it is {why}"
        remedy = "what it calls is captured; iterate in the compiled function itself"
    else:
        return
    if _answered.enter(cause, code):
        trace.emit("skipped", text)
        logger("graph_breaks").info("%s\n  do:  %s", text, remedy)


__all__ = ["Backend", "Recompile", "Session", "compile_callable", "reset", "turn_to"]
