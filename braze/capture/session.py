"""From a miss to a variant: trace the frame, compile its graph, generate its residual code, guard it.

``compile_callable`` makes the entry that the user calls. Each entry has a :class:`Site`, which owns its
variants; the sites of one ``compile_callable`` share a :class:`Session` (backend, options, resume functions).
"""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

import torch

from braze import native
from braze.capture.dynamic import changed_extents, is_about_extents
from braze.capture.guards import GuardTable, Miss, build_table, explain_miss, guards_text, read_source
from braze.capture.markers import DISABLED
from braze.capture.records import Capture, FrameState, GraphBreak
from braze.capture.residual import build_residual
from braze.capture.resume import Resumed, cannot_resume, resume_code
from braze.capture.skip import is_skipped
from braze.options import Options
from braze.support import trace
from braze.support.errors import BrazeError, CaptureError, InternalError, Unsupported
from braze.support.log import logger, warn_once
from braze.support.record import record

Backend = Callable[[Any, Any], Callable[..., Any]]
Tracer = Callable[..., Capture]
Answer = tuple[Callable[..., Any], tuple[Any, ...]]

_state = threading.local()
#: tracing and compiling patch process-wide state: one at a time
_compiling = threading.RLock()
_sites: weakref.WeakSet[Site] = weakref.WeakSet()
_hooked_codes: dict[CodeType, Any] = {}


@record
class Recompile:
    """The event of a second or later compile of the same code: which guards failed, variant by variant."""

    name: str
    variants: int
    misses: tuple[Miss, ...]
    generic: bool


class Variant:
    """One capture with its guards, compiled."""

    __slots__ = ("capture", "generic", "hits", "owner", "program", "residual", "seconds", "table", "used")

    def __init__(
        self, capture: Capture, table: GuardTable, program: Any, residual: Any, owner: int | None
    ) -> None:
        self.capture = capture
        self.table = table
        self.program = program
        self.residual = residual
        self.owner = owner
        self.generic = False
        self.seconds = 0.0
        self.hits = 0  # the program's own count when it was last looked at
        self.used = 0  # the number of the miss before which it was last seen to be used


def compile_callable(
    function: FunctionType, backend: Backend, options: Options, name: str | None = None
) -> Any:
    """A native entry that captures and compiles ``function`` as it is called."""
    return Session(backend, options).entry(function, name or function.__name__)


def reset() -> None:
    """Forget every variant of every live entry, and every decision about code met in broken calls."""
    for site in tuple(_sites):
        site.clear()
    for code in tuple(_hooked_codes):
        native.forget_code(code)
    _hooked_codes.clear()


class Session:
    """What the entries of one ``compile_callable`` share."""

    def __init__(self, backend: Backend, options: Options, tracer: Tracer | None = None) -> None:
        self.backend = backend
        self.options = options
        self.tracer = tracer
        self.points: dict[Any, ResumePoint] = {}

    def trace(self, function: FunctionType, locals: tuple[Any, ...], symbolic: Any) -> Capture:
        """Interpret a frame. The interpreter is loaded at the first compile."""
        if self.tracer is None:
            from braze.capture.tracer import trace_frame

            self.tracer = trace_frame
        with trace.stage("capture"):
            return self.tracer(function, locals, self.options, symbolic=symbolic)

    def entry(self, function: FunctionType, name: str, *, resumed: bool = False, hooked: bool = False) -> Any:
        """A new entry for a function."""
        site = Site(self, name, resumed=resumed, hooked=hooked)
        site.entry = native.Entry(function, site.on_miss)
        return site.entry

    # -- what residual code asks for (residual.Resumes)

    def point(
        self, frame: FrameState, *, offset: int, pushes: int, raises: bool, captured: bool, fixed: bool
    ) -> ResumePoint:
        """The resume functions of one place, shared by all captures that stop there in the same shape."""
        shape = (tuple(i >= 0 for i in frame.stack), tuple(i >= 0 for i in frame.locals))
        key = (id(frame.code), offset, pushes, raises, captured, fixed, shape)
        found = self.points.get(key)
        if found is None:
            made = resume_code(frame.code, offset, *shape, pushes=pushes, raises=raises, carry_free=not fixed)
            found = self.points[key] = ResumePoint(self, frame.code, made, raises, captured, fixed)
        return found

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the call that broke the graph; Python frames under it are captured on their own."""
        if getattr(target, DISABLED, False):
            return native.unhooked(target, *args, **kwargs)
        with self.hooking():
            return native.run_hooked(target, *args, **kwargs)

    @contextlib.contextmanager
    def hooking(self) -> Iterator[None]:
        """Frames met by the hook in this block belong to this session."""
        outer = getattr(_state, "session", None)
        _state.session = self
        native.set_frame_callback(answer_hook)
        try:
            yield
        finally:
            _state.session = outer

    def run_uncaptured(self, function: FunctionType) -> Callable[..., Any]:
        """``function`` run as it is, with the frames it calls captured on their own."""
        native.skip_code(function.__code__)

        def uncaptured(*args: Any, **kwargs: Any) -> Any:
            with self.hooking():
                return native.run_hooked(function, *args, **kwargs)

        return uncaptured


def answer_hook(code: CodeType, function: FunctionType) -> Any:
    """The entry that takes over frames of ``code`` met in broken calls, or None where they run as they are."""
    session: Session | None = getattr(_state, "session", None)
    if session is None or getattr(_state, "busy", False) or is_skipped(code, function):
        return None
    entry = session.entry(function, code.co_qualname, hooked=True)
    _hooked_codes[code] = entry
    return entry


class ResumePoint:
    """A place in a code object where frames go on after a break: one resume function per user function."""

    def __init__(
        self, session: Session, original: CodeType, made: Resumed, raises: bool, captured: bool, fixed: bool
    ) -> None:
        self.session = session
        self.original = original  # its id is in the session's key
        self.code = made.code
        self.captured = captured and (made.covered or not raises)
        self.hooked = not captured
        self.fixed = fixed
        self.name = f"{original.co_name} from line {made.line}"
        self.__name__ = f"{'raise' if raises else 'resume'}_{original.co_name}"
        self._lock = threading.Lock()
        self._made: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._by_globals: dict[int, Any] = {}

    def of(self, function: FunctionType) -> Callable[[tuple[Any, ...]], Any]:
        """The resume function for frames of ``function``; one for all of its closures where cells travel in the state."""
        with self._lock:
            if self.fixed:
                found = self._made.get(function)
                if found is None:
                    found = self._made[function] = self._make(function)
                return found
            found = self._by_globals.get(id(function.__globals__))
            if found is None:
                found = self._by_globals[id(function.__globals__)] = self._make(function)
            return found

    def _make(self, function: FunctionType) -> Callable[[tuple[Any, ...]], Any]:
        made = FunctionType(self.code, function.__globals__, function.__name__, None, function.__closure__)
        made.__module__ = function.__module__
        made.__braze_resumed__ = True  # type: ignore[attr-defined]
        if self.captured:
            return self.session.entry(made, self.name, resumed=True)
        return self.session.run_uncaptured(made) if self.hooked else made


class Site:
    """The variants of one entry, and the rules by which more are made."""

    def __init__(self, session: Session, name: str, *, resumed: bool, hooked: bool) -> None:
        self.session = session
        self.name = name
        self.resumed = resumed
        self.hooked = hooked
        self.entry: Any = None
        self.lock = threading.RLock()
        self.closures: dict[tuple[int, ...], Any] = {}
        self.clear()
        _sites.add(self)

    def clear(self) -> None:
        """Forget everything learnt."""
        with self.lock:
            self.variants: list[Variant] = []
            self.symbolic: frozenset[Any] = frozenset()
            self.failures: Counter[str] = Counter()
            self.misses = 0
            self.seconds = 0.0
            self.empty = 0
            self.unfit = 0
            self.closures.clear()
            if self.entry is not None:
                self.entry.clear()

    def on_miss(self, entry: Any, function: FunctionType, locals: tuple[Any, ...]) -> Answer | None:
        """Called by the entry: make a variant for these values, and say how to run it now."""
        if getattr(_state, "busy", False):
            return None  # a call made while tracing or compiling runs as it is
        if self.hooked and function is not entry.__wrapped__:
            return self._other_closure(entry.__wrapped__, function, locals)
        with self.lock:
            for variant in self.variants:
                inputs = variant.program.match(function, locals)
                if inputs is not None:  # another thread made it while this one waited
                    return variant.residual, inputs
            with _compiling:
                _state.busy = True
                try:
                    return self._compile(function, locals)
                finally:
                    _state.busy = False

    def _other_closure(self, first: Any, function: FunctionType, locals: tuple[Any, ...]) -> Answer | None:
        """Frames of one code met in broken calls may belong to several closures: each has its own site."""
        cells = function.__closure__ or ()
        same = function.__globals__ is first.__globals__ and all(
            a is b for a, b in zip(cells, first.__closure__ or (), strict=True)
        )
        if same:
            return self.on_miss(_As(function), function, locals)
        key = (id(function.__globals__), *(id(cell) for cell in cells))
        with self.lock:
            found = self.closures.get(key)
            if found is None:
                if len(self.closures) >= 64:
                    self.closures.clear()
                site = Site(self.session, self.name, resumed=False, hooked=True)
                site.entry = native.Entry(function, site.on_miss)
                found = self.closures[key] = (site, site.entry, function)
        return found[0].on_miss(_As(function), function, locals)

    # -- one compile

    def _compile(self, function: FunctionType, locals: tuple[Any, ...]) -> Answer | None:
        started = time.perf_counter()
        options = self.session.options
        owner = id(locals[0]) if locals and isinstance(locals[0], torch.nn.Module) else None
        mine = [v for v in self.variants if v.owner == owner]
        self._note_uses()
        misses = self._explain(mine, function, locals)
        generic = len(mine) >= options.recompile_limit
        if generic:
            self._at_limit(mine, misses)
        symbolic = self._choose_symbolic(generic, mine, misses, function, locals)
        capture = self._trace(function, locals, symbolic)
        if capture is None:
            return self._uncapturable(function)
        self._report(capture)
        graph = self._compile_graph(capture)
        residual = build_residual(capture, graph, function, len(locals), self.session)
        table = build_table(capture, function, locals)
        program = table.program()
        variant = Variant(capture, table, program, residual, owner)
        variant.generic = generic
        variant.seconds = time.perf_counter() - started
        variant.used = self.misses
        self.seconds += variant.seconds
        trace.count("captures")
        return self._install(variant, function, locals)

    def _install(self, variant: Variant, function: FunctionType, locals: tuple[Any, ...]) -> Answer:
        inputs = variant.program.match(function, locals)
        if inputs is not None:
            self.variants.append(variant)
            if self.entry is not None:
                self.entry.add(variant.program, variant.residual)
            return variant.residual, inputs
        # the capture is right for this call all the same; it only cannot be found again
        self.unfit += 1
        miss = explain_miss(variant.capture, variant.table, variant.program, function, locals)
        why = miss.text if miss is not None else "unknown"
        if self.session.options.verify:
            raise InternalError(
                "BZ9013", f"the guards of {self.name} do not hold of the values they came from", why=why
            )
        warn_once(
            ("BZ9013", variant.capture.code),
            f"BZ9013: the guards of {self.name} do not hold of the values they were made from, so that it is "
            f"compiled again at each call: {why}. Please report it.",
        )
        return variant.residual, tuple(read_source(s, function, locals) for s in variant.capture.inputs)

    def _trace(self, function: FunctionType, locals: tuple[Any, ...], symbolic: Any) -> Capture | None:
        """Trace the frame; None where it cannot be captured at all."""
        options = self.session.options
        strict = options.fullgraph and not self.hooked and not self.resumed
        if cannot_resume(function.__code__):
            if strict:
                raise CaptureError(
                    "BZ1009", f"{self.name} is a generator or coroutine", hints=["compile what it calls"]
                )
            return None
        try:
            return self.session.trace(function, locals, symbolic)
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
            warn_once((error.code, function.__code__), f"{self.name} runs uncompiled.\n{error}")
        except BrazeError:
            raise
        except Exception as error:
            # a fault of the interpreter must not become one of the user's program
            if strict or options.verify:
                raise InternalError("BZ9014", f"the capture of {self.name} failed: {error!r}") from error
            shown = "".join(traceback.format_exception(error)[-8:])
            warn_once(
                ("BZ9014", function.__code__),
                f"BZ9014: the capture of {self.name} failed; it runs uncompiled.\n{shown}",
            )
            trace.count("captures_failed")
        return None

    def _uncapturable(self, function: FunctionType) -> Answer | None:
        """Run the frame as it is; what it calls is still captured."""
        trace.count("frames_uncaptured")
        if self.hooked:
            native.skip_code(function.__code__)
            return None
        run, code = self.session.run_uncaptured(function), function.__code__

        def uncaptured(inputs: tuple[Any, ...], *locals: Any) -> Any:
            args, kwargs = arguments(code, locals)
            return run(*args, **kwargs)

        return uncaptured, ()

    def _compile_graph(self, capture: Capture) -> Callable[..., Any] | None:
        """Hand the graph to the backend."""
        graph = capture.graph
        if graph is None:
            return None
        if not any(node.op.startswith("call_") for node in graph.graph.nodes):
            return graph.forward
        try:
            compiled = self.session.backend(graph, list(capture.examples))
        except BrazeError as error:
            error.add_note(
                f"while compiling a graph of {self.name} ({capture.code.co_filename}:{capture.code.co_firstlineno})"
            )
            raise
        if not callable(compiled):
            raise CaptureError(
                "BZ0009",
                f"the backend gave {type(compiled).__name__} for {self.name}",
                why="it must give a callable",
            )
        trace.count("graphs")
        return compiled

    def _report(self, capture: Capture) -> None:
        trace.emit("capture", capture)
        log = logger("capture")
        log.info(
            "captured %s: %d instructions, %d guards", capture.name, capture.instructions, len(capture.guards)
        )
        if logger("guards").isEnabledFor(20):
            logger("guards").info("guards of %s\n%s", capture.name, guards_text(capture))
        if capture.graph is not None:
            logger("graph").info("graph of %s\n%s", capture.name, _LazyGraph(capture.graph))
        if trace.dumping():
            trace.dump(f"guards_{capture.name}", "txt", guards_text(capture))
        at = capture.graph_break
        if at is None:
            return
        if self.session.options.fullgraph and not self.hooked:
            raise CaptureError(
                at.code, f"graph break: {at.reason}", hints=at.hints, origin=at.origin, trail=at.trail
            )
        trace.count("graph_breaks")
        trace.emit("break", at)
        logger("graph_breaks").info("%s", break_text(at))

    # -- recompiles

    def _note_uses(self) -> None:
        """See which variants have been hit since the last miss."""
        self.misses += 1
        for variant in self.variants:
            hits = getattr(variant.program, "hits", 0)
            if hits != variant.hits:
                variant.hits, variant.used = hits, self.misses

    def _explain(
        self, mine: list[Variant], function: FunctionType, locals: tuple[Any, ...]
    ) -> tuple[Miss, ...]:
        """Why none of the variants fits, newest first."""
        if not mine:
            return ()
        found = [explain_miss(v.capture, v.table, v.program, function, locals) for v in reversed(mine)]
        misses = tuple(m for m in found if m is not None)
        if misses:
            self.failures[misses[0].text.partition("; now ")[0]] += 1
        trace.count("recompiles")
        trace.emit(
            "recompile",
            Recompile(self.name, len(mine), misses, len(mine) >= self.session.options.recompile_limit),
        )
        for miss in misses:
            logger("recompiles").info("%s is compiled again: %s", self.name, miss.text)
        return misses

    def _choose_symbolic(
        self,
        generic: bool,
        mine: list[Variant],
        misses: tuple[Miss, ...],
        function: FunctionType,
        locals: tuple[Any, ...],
    ) -> Any:
        """Which sizes and ints the next trace keeps symbolic."""
        dynamic = self.session.options.dynamic
        if dynamic is False:
            return None
        if generic or dynamic:
            return "all"
        if misses and is_about_extents(misses[0].guard):
            self.symbolic |= changed_extents(mine[-1].capture, function, locals)
        return self.symbolic or None

    def _at_limit(self, mine: list[Variant], misses: tuple[Miss, ...]) -> None:
        """Say loudly that a generic variant is made, or make room where even that did not fit."""
        worst, times = self.failures.most_common(1)[0] if self.failures else ("unknown", 0)
        code = mine[0].capture.code
        warn_once(
            ("BZ1101", code, mine[0].owner),
            f"BZ1101: {self.name} ({code.co_filename}:{code.co_firstlineno}) has been compiled {len(mine)} times in "
            f"{self.seconds:.1f} s; the guard that fails most ({times} times) is\n    {worst}\n"
            "  A generic variant, with every size symbolic, serves from now on.\n"
            "  do:  keep that value constant, pass it as a tensor, compile with dynamic=True, or raise "
            "options={'recompile_limit': n}",
            subject="recompiles",
        )
        if any(v.generic for v in mine):
            oldest = min(mine, key=lambda v: (v.used, v.generic))
            self.variants.remove(oldest)
            if self.entry is not None:
                self.entry.remove(oldest.program)
            trace.count("variants_evicted")


class _As:
    """An entry seen as that of another function of the same code."""

    __slots__ = ("__wrapped__",)

    def __init__(self, function: FunctionType) -> None:
        self.__wrapped__ = function


class _LazyGraph:
    """Prints a graph module only if a log line is really written."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph

    def __str__(self) -> str:
        return self.graph.print_readable(print_output=False)


def break_text(at: GraphBreak) -> str:
    """A graph break as a paragraph: code, reason, the user's line, what to do."""
    return str(
        Unsupported(at.code, f"graph break: {at.reason}", hints=at.hints, origin=at.origin, trail=at.trail)
    )


def arguments(code: CodeType, locals: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call that fills the argument slots so."""
    position = code.co_argcount
    args = locals[:position]
    kwargs = dict(
        zip(code.co_varnames[position:], locals[position : position + code.co_kwonlyargcount], strict=False)
    )
    position += code.co_kwonlyargcount
    if code.co_flags & 0x04:
        args += tuple(locals[position])
        position += 1
    if code.co_flags & 0x08:
        kwargs.update(locals[position])
    return args, kwargs
