"""From a miss to a variant: trace the frame, compile its graph, generate its residual code, guard it.

Each entry has a :class:`Site`, which owns its variants and knows when and how to make another.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
import weakref
from collections.abc import Callable, Hashable
from types import FunctionType
from typing import Any

from braze import native
from braze.capture.dispatch.announce import announce
from braze.capture.dispatch.attempt import attempt
from braze.capture.dispatch.closures import OfClosure, is_bound, is_to_end, same_closure
from braze.capture.dispatch.recompiles import (
    Copies,
    History,
    Recompile,
    refuse,
    warn_of_limit,
    warn_of_storm,
)
from braze.capture.dispatch.shared import Shared, this_thread
from braze.capture.dispatch.skip import is_plain_python
from braze.capture.dispatch.stance import Stance, stance
from braze.capture.facts.breaks import DIFFERENTIATED_TWICE, LOOKS_AT_THE_STACK
from braze.capture.facts.inside_inference_mode import in_its_mode, is_inside
from braze.capture.facts.records import Capture, Check
from braze.capture.facts.resume import CannotResume
from braze.capture.facts.slots import Owner, arguments, owner_of
from braze.capture.guards.backend_guards import Questions
from braze.capture.guards.dynamic import (
    ALL,
    Extents,
    all_extents,
    changed_extents,
    changed_lengths,
    changed_since,
    changed_texts,
    extents,
    is_about_extents,
    is_about_text,
)
from braze.capture.guards.misses import Miss, explain_miss, place_of
from braze.capture.guards.report import compiled_frame
from braze.capture.guards.tables import GuardTable, build_table, read_source
from braze.capture.residual.as_captured import told_of_writes
from braze.capture.residual.points import ResumePoint
from braze.capture.residual.residual import build_residual
from braze.graph.operators.untraced_formulas import StandsBetween
from braze.graph.private.torch_compat import (
    dispatch_modes,
    is_shortage,
    leave_modes,
    mute_fakes,
    watched,
    without_saving_hooks,
)
from braze.graph.private.torch_symbols import symbolic_sizes
from braze.support import interrupts, trace
from braze.support.collector import collector_paused
from braze.support.errors import BrazeError, CaptureError, InternalError
from braze.support.log import logger, warn_once
from braze.support.shortage import Shortage

Answer = tuple[Callable[..., Any], tuple[Any, ...]]

#: times that a tensor may turn out to hold something else before the numbers in it are not taken for known
MOST_DOUBTS = 3
#: tracing and compiling patch process-wide state: one at a time
_compiling = threading.RLock()
#: the functions compiled so far, by code
copies = Copies()
_sites: weakref.WeakSet[Site] = weakref.WeakSet()


class _Tables:
    """What the process has registered that compiled code depends on and no guard sees: operators' kernels, decompositions."""

    now: Hashable = None


_tables = _Tables()
#: tables whose variants a site keeps beside those in use
MOST_ASIDE = 8
mute_fakes(lambda: getattr(this_thread, "busy", False))


def turn_to(tables: Hashable) -> None:
    """From now on calls run what was compiled under these tables, or compile: no guard sees the tables."""
    _tables.now = tables
    for site in all_sites():
        site.turn_to(tables)


def all_sites() -> tuple[Site, ...]:
    """The sites of all live entries."""
    return tuple(_sites)


def history_of(target: Any) -> tuple[Recompile, ...]:
    """The recompiles of a function or module, under whichever compiled callables of it are alive."""
    found: list[Recompile] = []
    for site in all_sites():
        wrapped = getattr(site.entry, "__wrapped__", None)
        if wrapped is not None and (wrapped is target or getattr(wrapped, "__self__", None) is target):
            found += site.history.events
    return tuple(found)


class Variant:
    """One capture with its guards, compiled."""

    def __init__(
        self, capture: Capture, table: GuardTable, program: Any, residual: Any, owner: Owner | None
    ) -> None:
        # guards explain later misses; the graph with its fake inputs is the backend's from here on
        self.capture = dataclasses.replace(
            capture, graph=None, examples=(), recipes=(), effects=(), inlined=()
        )
        self.table = table
        self.program = program
        self.residual = residual
        self.owner = owner
        self.generic = False
        self.seconds = 0.0
        self.hits = 0  # the program's own count when it was last looked at
        self.measured = 0  # hits that were none of the program's
        self.used = 0  # the number of the miss before which it was last seen to be used


class Site:
    """The variants of one entry, and the rules by which more are made."""

    def __init__(self, session: Shared, name: str, *, point: ResumePoint | None = None, hooked: bool) -> None:
        self.session = session
        self.name = name
        self.point = point
        self.hooked = hooked
        self.entry: Any = None
        self.lock = threading.RLock()
        self.closures: dict[tuple[int, ...], Any] = {}
        self.clear()
        _sites.add(self)

    @property
    def resumed(self) -> bool:
        """Whether it is of frames that go on after a break."""
        return self.point is not None

    def clear(self) -> None:
        """Forget everything learnt."""
        with self.lock:
            self.variants: list[Variant] = []
            self.symbolic: frozenset[Any] = frozenset()
            self.history = History()
            #: sizes of the first calls that ran as they are, by owner (stance "eager_then_compile")
            self.seen: dict[Owner | None, Extents] = {}
            self.misses = 0
            self.short = Shortage()
            self.seconds = 0.0
            self.uncaptured = 0
            #: how many variants have been compiled: what a profiler knows them by
            self.made = 0
            #: how often a small tensor of a model's held another number than a variant was made for
            self.doubts = 0
            self.closures.clear()
            #: the tables that these variants were made under, and the variants made under others
            self.tables = _tables.now
            self.aside: dict[Hashable, list[Variant]] = {}
            if self.entry is not None:
                self.entry.clear()

    def turn_to(self, tables: Hashable) -> None:
        """Put the variants aside that were made under other tables, and take up those made under these."""
        with self.lock:
            if tables == self.tables:
                return
            self.aside[self.tables] = self.variants
            self.variants = self.aside.pop(tables, [])
            self.tables = tables
            while len(self.aside) > MOST_ASIDE:
                del self.aside[next(iter(self.aside))]
            if self.entry is not None:
                self.entry.clear()
                for variant in self.variants:
                    self.entry.add(variant.program, variant.residual)

    def _add(self, variant: Variant) -> None:
        """Let the entry ask this variant too."""
        self.variants.append(variant)
        if self.entry is not None:
            self.entry.add(variant.program, variant.residual)

    def _remove(self, variant: Variant) -> None:
        """Let it ask the variant no more."""
        self.variants.remove(variant)
        if self.entry is not None:
            self.entry.remove(variant.program)

    def on_miss(self, entry: Any, function: FunctionType, locals: tuple[Any, ...]) -> Answer | None:
        """Called by the entry: make a variant for these values, and say how to run it now."""
        try:
            return self._answer(entry, function, locals)
        except BaseException as error:  # of a frame that was half run
            failed = self.point.failing(function, locals[0], error) if self.point is not None else None
            if failed is None:
                raise
            return failed, ()

    def _answer(self, entry: Any, function: FunctionType, locals: tuple[Any, ...]) -> Answer | None:
        if getattr(this_thread, "busy", False):
            return self._as_it_is(function)  # a call made while tracing or compiling
        if watched():
            return self._as_it_is(function)
        if self.hooked and function is not entry.__wrapped__:
            return self._other_closure(entry.__wrapped__, function, locals)
        with self.lock:
            answer = self._served(function, locals)
            if answer is None and stance() is not Stance.DEFAULT and self._held_back(function, locals):
                return self._as_it_is(function)
        if answer is not None:
            return answer
        # whoever compiles may ask for any site, to forget or to turn it: no site is held while another compile is waited for
        with _compiling, self.lock:
            answer = self._served(function, locals)
            if answer is not None:
                return answer
            if self.short.waits():
                return self._as_it_is(function)
            this_thread.busy = True
            started, modes = time.perf_counter(), dispatch_modes()
            try:
                return native.in_range(f"braze: compiles {self.name}", self._compile, function, locals)  # type: ignore[no-any-return]
            except Exception as error:
                if not is_shortage(error):
                    raise
                self.short.note(self.name, place_of(function, locals), time.perf_counter() - started, error)
            finally:
                this_thread.busy = False
                leave_modes(modes)
        return self._as_it_is(function)

    def _served(self, function: FunctionType, locals: tuple[Any, ...]) -> Answer | None:
        """What another thread has made while this one was on its way."""
        for variant in self.variants:
            inputs = variant.program.match(function, locals)
            if inputs is not None:
                return variant.residual, inputs
        return None

    def _other_closure(self, first: Any, function: FunctionType, locals: tuple[Any, ...]) -> Answer | None:
        """Frames of one code met in broken calls may belong to several closures: each has its own site."""
        if same_closure(function, first):
            return self.on_miss(_As(function), function, locals)
        if is_to_end(function):
            return self._as_it_is(function)
        key = (id(function.__globals__), *(id(cell) for cell in function.__closure__ or ()))
        with self.lock:
            found = self.closures.get(key)
            if found is None:
                if len(self.closures) >= 64:
                    self.closures.clear()
                site = Site(self.session, self.name, hooked=True)
                site.entry = native.Entry(function, site.on_miss)
                found = self.closures[key] = (site, site.entry, function)
        return found[0].on_miss(_As(function), function, locals)

    # -- one compile

    def _compile(self, function: FunctionType, locals: tuple[Any, ...]) -> Answer | None:
        started = time.perf_counter()
        limit = self.session.options.recompile_limit
        owner = owner_of(function, locals)
        mine = [v for v in self.variants if v.owner is owner]
        self._note_uses()
        if self.hooked and is_plain_python([v.capture for v in mine]):
            return self._uncapturable(function)
        generic = len(mine) >= limit
        if generic and any(v.generic for v in mine) and self.history.rests(mine[-1].hits - mine[-1].measured):
            trace.count("misses_let_by")
            return self._uncapturable(function) if self.resumed else self._as_it_is(function)
        misses = self._explain(mine, function, locals)
        again = self.history.note(misses)
        place = place_of(function, locals)
        if generic and self._overflows(mine, misses, place):
            return self._as_it_is(function)
        try:
            with interrupts.deferring, without_saving_hooks():
                return self._make(function, locals, owner, mine, misses, generic)
        finally:
            seconds = time.perf_counter() - started
            self.seconds += seconds
            if mine:
                trace.count("recompiles")
                self.history.add(
                    Recompile(
                        self.name, len(mine), misses, generic, seconds, limit, place, again, self.seconds
                    )
                )
            elif owner is None and not (self.hooked or self.resumed):
                copies.note(self.name, function.__code__, seconds)

    def _make(
        self,
        function: FunctionType,
        locals: tuple[Any, ...],
        owner: Owner | None,
        mine: list[Variant],
        misses: tuple[Miss, ...],
        generic: bool,
    ) -> Answer | None:
        """Trace, compile, guard, install."""
        started = time.perf_counter()
        symbolic = self._choose_symbolic(generic, mine, misses, function, locals)
        keeper, options = self._keeper(), self.session.options
        backend = self.session.backend
        capture = keeper.find(function, locals, options, symbolic, backend) if keeper is not None else None
        traced = capture is None
        if capture is None:
            inner, trusting = self.hooked or self.resumed, self.doubts < MOST_DOUBTS
            capture = attempt(
                self.session, self.name, function, locals, symbolic, inner=inner, trusting=trusting
            )
        if capture is None:
            return self._uncapturable(function)
        packed = keeper.pack(capture, function) if keeper is not None and traced else None
        announce(capture, self.name, self.session, hooked=self.hooked, resumed=self.resumed)
        broken = capture.graph_break
        if self.hooked and broken is not None and broken.reason == LOOKS_AT_THE_STACK:
            return self._uncapturable(function)  # it is its caller's frame that it looks for
        try:
            variant = self._variant(capture, function, locals, owner)
        except StandsBetween:
            return self._make(function, locals, owner, mine, misses, generic)
        if variant is None:
            return self._uncapturable(function)
        variant.generic, variant.used = generic, self.misses
        variant.seconds = time.perf_counter() - started
        self._tell(variant, function, locals, traced)
        answer = self._install(variant, function, locals)
        if keeper is not None and variant in self.variants:
            keeper.keep(packed, capture, variant.capture, backend, function, locals, options, symbolic)
        return answer

    def _variant(
        self, capture: Capture, function: FunctionType, locals: tuple[Any, ...], owner: Owner | None
    ) -> Variant | None:
        """A capture's graph compiled, its guards and its residual function; None where a broken frame cannot go on."""
        questions = Questions(capture)
        self.made += 1
        label = self.name if self.made == 1 else f"{self.name} #{self.made}"
        graph = self._compile_graph(capture, label)
        capture = questions.answered()
        made: list[Variant] = []
        with collector_paused:
            try:
                doubted = functools.partial(self._doubt, made)
                residual = build_residual(capture, graph, function, len(locals), self.session, doubted, label)
            except CannotResume as error:
                warn_once(("BZ1008", function.__code__), f"BZ1008: {self.name} runs uncompiled: {error}")
                return None
            table = build_table(capture, function, locals)
            program = table.program()
            if self.hooked and is_bound(residual, capture, function):
                program = OfClosure(program, function)
        made.append(Variant(capture, table, program, residual, owner))
        return made[0]

    def _tell(self, variant: Variant, function: FunctionType, locals: tuple[Any, ...], traced: bool) -> None:
        """Count and log a variant that has been made."""
        if traced:
            trace.count("captures")
        if trace.collecting():
            program = variant.program
            frame = compiled_frame(
                self.name, variant.capture, program, variant.seconds, self.entry, function, locals
            )
            trace.emit("frame", frame)
            variant.measured = getattr(program, "hits", 0)
        if self.resumed:
            logger("graph_breaks").info(
                "cost of that break: %.3f s to capture %s, and a guard walk and a call more in each run",
                variant.seconds,
                self.name,
            )

    def _doubt(self, made: list[Variant]) -> None:
        """A tensor holds what this variant was not made for: it is given up, and the next call makes another."""
        trace.count("variants_doubted")
        with self.lock:
            for variant in made:
                if variant in self.variants:
                    self.doubts += 1
                    self._remove(variant)

    def _keeper(self) -> Any:
        """What keeps captures on disk, where that is asked for; it loads what a capture is rebuilt with."""
        if not self.session.options.keep_captures or self.doubts:
            return None
        from braze.capture.archive import kept_captures

        return kept_captures

    def _install(self, variant: Variant, function: FunctionType, locals: tuple[Any, ...]) -> Answer:
        inputs = variant.program.match(function, locals)
        if inputs is not None:
            self._add(variant)
            return variant.residual, inputs
        # the capture is right for this call all the same; it only cannot be found again
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

    def _uncapturable(self, function: FunctionType) -> Answer | None:
        """Run the frame as it is; what it calls is still captured."""
        trace.count("frames_uncaptured")
        self.uncaptured += 1
        if self.hooked:
            native.skip_code(function.__code__)
            return None
        run, code = self.session.run_uncaptured(function), function.__code__

        def uncaptured(inputs: tuple[Any, ...], *locals: Any) -> Any:
            args, kwargs = arguments(code, locals)
            return run(*args, **kwargs)

        uncaptured.__qualname__ = f"braze: {self.name}, uncompiled"
        return uncaptured, ()

    def _compile_graph(self, capture: Capture, label: str) -> Callable[..., Any] | None:
        """Hand the graph to the backend, with what a profiler is told of it."""
        graph = capture.graph
        if capture.call is not None:
            return capture.call  # type: ignore[no-any-return]
        if graph is None:
            return None
        if not any(node.op.startswith("call_") for node in graph.graph.nodes):
            return graph.forward
        graph.meta["functions"] = capture.inlined
        graph.meta["label"] = label
        after = capture.graph_break
        graph.meta["differentiated_twice"] = after is not None and after.code == DIFFERENTIATED_TWICE
        graph.meta["may_break"] = not self.session.options.fullgraph
        graph.meta["effects"] = [(e, [capture.recipes[i] for i in e.args]) for e in capture.effects]
        try:
            compiled = self.session.backend(graph, list(capture.examples))
        except BrazeError as error:
            error.add_note(
                f"while compiling a graph of {self.name} ({capture.code.co_filename}:{capture.code.co_firstlineno})"
            )
            raise
        finally:
            del graph.meta["functions"]  # the program's own: the graph may outlive them
        if not callable(compiled):
            raise CaptureError(
                "BZ0009",
                f"the backend gave {type(compiled).__name__} for {self.name}",
                why="it must give a callable",
                hints=["return gm.forward, or a function of the same inputs"],
            )
        trace.count("graphs")
        if is_inside(graph.graph):
            return in_its_mode(compiled)
        return told_of_writes(graph, compiled)

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
        found = [explain_miss(v.capture, v.table, v.program, function, locals) for v in reversed(mine)]
        return tuple(m for m in found if m is not None)

    def _held_back(self, function: FunctionType, locals: tuple[Any, ...]) -> bool:
        """Whether the stance says not to compile now; raises where it says to fail."""
        owner = owner_of(function, locals)
        mine = [v for v in self.variants if v.owner is owner]
        match stance():
            case Stance.EAGER_ON_RECOMPILE:
                return True
            case Stance.EAGER_THEN_COMPILE if not mine:
                now = extents(locals)
                before = self.seen.setdefault(owner, now)
                self.symbolic |= changed_since(before, now)
                return before is now
            case Stance.FAIL_ON_RECOMPILE if self.uncaptured and not mine:
                return True  # nothing of it is ever compiled
            case Stance.FAIL_ON_RECOMPILE:
                raise refuse(
                    self.name,
                    place_of(function, locals),
                    self._explain(mine, function, locals),
                    len(mine),
                    "BZ1102",
                    "the stance is fail_on_recompile",
                )
        return False

    def _as_it_is(self, function: FunctionType) -> Answer | None:
        """Run the function with nothing captured, what it calls included."""
        trace.count("calls_as_they_are")
        if self.hooked:
            return None
        code = function.__code__

        def as_it_is(inputs: tuple[Any, ...], *locals: Any) -> Any:
            args, kwargs = arguments(code, locals)
            return native.unhooked(function, *args, **kwargs)

        return as_it_is, ()

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
        if dynamic is False or not symbolic_sizes.holds():
            return None
        if generic and not dynamic:
            captures = [variant.capture for variant in mine]
            return self.symbolic.union(*(all_extents(capture) for capture in captures))
        if misses and is_about_extents(misses[0].guard):
            self.symbolic |= changed_extents(mine[-1].capture, function, locals)
        elif misses and is_about_text(misses[0].guard):
            self.symbolic |= changed_texts(mine[-1].capture, function, locals)
        elif misses and misses[0].guard.check is Check.LENGTH:
            self.symbolic |= changed_lengths(mine[-1].capture, function, locals)
        if dynamic:  # what lies elsewhere than in arguments is a symbol once it has changed
            return self.symbolic | {ALL} if self.symbolic else ALL
        return self.symbolic or None

    def _overflows(self, mine: list[Variant], misses: tuple[Miss, ...], place: str) -> bool:
        """At the limit: whether this call is to run uncompiled. Else there is room for a generic variant."""
        # of the places at which one function goes on, one is told
        code = place if self.resumed else mine[0].capture.code
        key, policy = (code, mine[0].owner), self.session.options.on_overflow
        if policy == "error":
            why = f"it has been compiled {len(mine)} times (recompile_limit) and on_overflow is 'error'"
            raise refuse(self.name, place, misses, len(mine), "BZ1101", why)
        then = {
            "generic": "one more variant, with every size and number symbolic where that can be, serves from now on",
            "eager": "calls that fit no variant run uncompiled from now on (on_overflow='eager')",
        }[policy]
        warn_of_limit(self.name, place, key, self.history, self.seconds, len(mine), then)
        if policy == "eager":
            return True
        if any(v.generic for v in mine):
            self._remove(min(mine, key=lambda v: (v.used, v.generic)))
            trace.count("variants_evicted")
            warn_of_storm(self.name, place, key, self.history, self.seconds)
        return False


class _As:
    """An entry seen as that of another function of the same code."""

    __slots__ = ("__wrapped__",)

    def __init__(self, function: FunctionType) -> None:
        self.__wrapped__ = function
