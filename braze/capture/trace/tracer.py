"""Trace one frame: interpret its bytecode on fakes and shadows, and hand down what came out as a Capture."""

from __future__ import annotations

import sys
import types
from typing import Any

from braze.capture.facts.breaks import BreakSignal, Retry, Stopped, Unrebuildable, skip_frame
from braze.capture.facts.bytecode import GENERATORS
from braze.capture.facts.frame import Frame
from braze.capture.facts.marks import Named
from braze.capture.facts.records import Capture, Source, Step
from braze.capture.facts.values import NULL, Lookups
from braze.capture.features import (
    attention,
    cached_functions,
    checkpoints,
    class_bodies,
    control_flow,
    devices,
    functions,
    hooks,
    library,
    loops,
    math_rules,
    messages,
    numpy_rules,
    random_numbers,
    rules,
    sequential,
    torch_objects,
    torch_rules,
    transforms,
)
from braze.capture.features.messages import warnings_named
from braze.capture.finish import effects, outcome, reconstruction
from braze.capture.graph.recorder import Recorder, ViewsMatter
from braze.capture.outside import held, reads
from braze.capture.outside.given_texts import ValueMatters
from braze.capture.outside.symbols import Marked
from braze.capture.outside.torch_state import TorchState
from braze.capture.python import (
    attributes,
    calls,
    generators,
    higher_order,
    interpret,
    iteration,
    operations,
    raised,
    unwinding,
)
from braze.capture.python.opcodes import decoded
from braze.capture.state.frames import Frames
from braze.capture.state.handlers import HANDLERS, Feature
from braze.capture.state.ledger import Ledger
from braze.capture.state.outside import Outside, Symbolic
from braze.capture.state.trace import GraphState, Recording, Trace
from braze.graph.fakes import fakes
from braze.options import Options
from braze.support import trace
from braze.support.collector import collector_paused
from braze.support.errors import Unsupported


def features() -> tuple[Feature, ...]:
    """What has a meaning of its own while tracing, in the order in which it is entered, and is done when the graph has run."""
    return (
        hooks.FEATURE,  # put on before anything is written, in the order of the program
        effects.FEATURE,
        reconstruction.FEATURE,
        higher_order.FEATURE,
        attention.FEATURE,
        cached_functions.FEATURE,
        checkpoints.FEATURE,
        class_bodies.FEATURE,
        control_flow.FEATURE,
        devices.FEATURE,
        functions.FEATURE,
        library.FEATURE,
        loops.FEATURE,
        math_rules.FEATURE,
        messages.FEATURE,
        numpy_rules.FEATURE,
        random_numbers.FEATURE,
        rules.FEATURE,
        sequential.FEATURE,
        torch_objects.FEATURE,
        torch_rules.FEATURE,
        transforms.FEATURE,
    )


HANDLERS.enter(*features())


class Tracer(Trace):
    """One trace, with the interpreter's verbs filled in."""

    call = calls.call
    run = interpret.run
    attribute = attributes.load_attr
    item = operations.get_item
    iterate = iteration.iterate
    advance = iteration.advance

    def truth(self, value: Any) -> bool:
        """``bool(value)``."""
        return value if value is True or value is False else iteration.truth(self, value)

    def release(self) -> None:
        """Let go of the values of the call, which the parts of a trace that point at each other would keep until they are collected."""
        self.outside.release()
        recording: Recording | None = self.graph.recorder
        while recording is not None:
            inner, recording = recording, recording.outer
            vars(inner).clear()
        for part in (self.done, self.graph, self.frames):
            vars(part).clear()


def new_trace(
    function: types.FunctionType,
    options: Options,
    stop_at: int,
    symbolic: Symbolic,
    trusting: bool,
    hooks_inside: frozenset[int],
) -> Tracer:
    """A trace in which nothing has happened."""
    mode = fakes.new_mode(
        dynamic=bool(symbolic),
        scalars=options.capture_scalar_outputs,
        shapes=options.capture_dynamic_output_shape_ops,
    )
    frames = Frames(stop_at, decoded, unwinding.BUDGET)
    outside, graph = Outside(function, symbolic, trusting), GraphState(mode, hooks_inside)
    t = Tracer(options, outside, Ledger(frames), graph, frames)
    graph.recorder = Recorder(t, mode)
    outside.see = types.MethodType(reads.wrap, t)
    outside.settings = TorchState()
    return t


def trace_frame(
    function: types.FunctionType,
    localsplus: tuple[Any, ...],
    options: Options,
    *,
    stop_at: int | None = None,
    symbolic: Symbolic = None,
    named: Named | None = None,
    trusting: bool = True,
) -> Capture:
    """Capture one call of a function whose arguments are bound in ``localsplus``.

    A graph break traces again up to the instruction that broke, so that the graph and the state of all
    frames there come out. ``localsplus`` may be shorter than the frame's; NULL or nothing means unbound.
    """
    with trace.stage("capture"):
        stop = -1 if stop_at is None else stop_at
        reason: BreakSignal | None = None
        inside: frozenset[int] = frozenset()
        exact, plain = False, frozenset[Source]()
        while True:
            t = new_trace(function, options, stop, symbolic, trusting, inside)
            t.graph.mode.exact_views = exact
            t.outside.plain = plain
            t.outside.marked = Marked(t, named or {}, localsplus)
            t.frames.break_at = reason
            try:
                return _trace(t, localsplus)
            except hooks.Inside as found:  # from the start: the hook's instructions count, too
                inside |= {found.step}
                stop, reason = -1 if stop_at is None else stop_at, None
            except ViewsMatter:  # from the start: other branches may be taken
                exact = True
                stop, reason = -1 if stop_at is None else stop_at, None
            except ValueMatters as found:  # from the start: other branches may be taken
                plain |= found.sources
                stop, reason = -1 if stop_at is None else stop_at, None
            except Retry as retry:
                if stop == 1:  # not even the arguments can be handed on
                    raise Unsupported(
                        "BZ1014", reason.reason if reason is not None else "an argument"
                    ) from None
                stop = retry.stop_at if stop < 0 else min(stop - 1, retry.stop_at)
                stop = max(stop, 1)
                reason = t.frames.break_at or reason
            finally:
                t.release()


#: frames of Python that calls inlined in one another need (`entering.MAX_DEPTH` of them 3,000). What C code calls back without end,
#: as an attribute that asks for itself, must meet this limit before the stack of C ends: of 8 MB after some 13,000
ROOM = 5_000


def _trace(t: Tracer, localsplus: tuple[Any, ...]) -> Capture:
    t.outside.settings.remember()
    if t.outside.settings.inference and t.outside.settings.start["grad"]:
        raise Unsupported("BZ1023", "grad mode is on in inference mode")
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, ROOM))
    Lookups.begin()
    try:
        with collector_paused, t.outside.settings.outside_inference(), t.graph.mode, warnings_named(t.done):
            return _interpret(t, localsplus)
    finally:
        try:
            sys.setrecursionlimit(limit)
            t.outside.settings.restore()
        finally:
            Lookups.forget()
            raised.end(t.done, t.frames.left_over)
            for finish in HANDLERS.finish:
                finish(t)
            t.graph.mode.release()


def _interpret(t: Tracer, localsplus: tuple[Any, ...]) -> Capture:
    try:
        f = _root_frame(t, localsplus)
    except BreakSignal as signal:
        raise Unsupported(
            signal.code, signal.reason, why="it is an argument of the function", hints=signal.hints
        ) from None
    except RecursionError:
        raise Unsupported("BZ1016", "an argument holds containers that are nested too deeply") from None
    try:
        value = t.run(f)
        _leave(t, f)
        t.frames.live = False
    except Stopped:
        return outcome.at_break(t)
    except BreakSignal as signal:
        # without its frames, which hold the trace and with it the values of the call
        signal.__context__ = None
        t.frames.break_at = signal.with_traceback(None)
        raise Retry(signal.position) from None
    except RecursionError:
        t.frames.break_at = BreakSignal("BZ1016", "calls nested too deeply", skip=True)
        raise Retry(1) from None
    except Exception as error:
        t.frames.break_at = BreakSignal(
            "BZ1012",
            f"the function raises {type(error).__name__}: {error}",
            ("the error is raised by eager code",),
            skip=True,
        )
        t.frames.break_at.__cause__ = error
        passed = raised.known(t.done, error)
        t.frames.break_at.trail = passed.trail if passed is not None else ()
        raise Retry(1) from None
    return outcome.at_return(t, value)


def _leave(t: Tracer, f: Frame) -> None:
    """Drop the variables of the function that has returned, and with them its generators."""
    if (generator := held.out_of_turn(t, f)) is not None:
        outcome.retry_before(t.done, Unrebuildable(generator))
    f.stack.clear()
    f.locals.reverse()  # a list drops its elements from the last on
    f.locals = []  # an exception may hold what was there
    t.frames.stack.append(f)
    generators.finish_left_over(t)
    t.frames.stack.pop()
    if (generator := raised.held_midway(t.done)) is not None:
        outcome.retry_before(t.done, Unrebuildable(generator))


def _root_frame(t: Tracer, localsplus: tuple[Any, ...]) -> Frame:
    function = t.outside.function
    code = function.__code__
    d = decoded(code)
    slots: list[Any] = [NULL] * len(d.slots)
    free = len(slots) - len(code.co_freevars)
    for index, value in enumerate(localsplus[:free]):
        if value is NULL:
            continue
        slots[index] = reads.wrap(t, t.outside.tree.root(Step.LOCAL, index), value)
    f = Frame(function, d, slots)
    f.tail = True
    if code.co_flags & GENERATORS:
        skip_frame("BZ1009", "a generator or coroutine as the compiled function")
    return f
