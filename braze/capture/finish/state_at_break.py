"""The state of all frames at a graph break, and what the residual code must run there."""

from __future__ import annotations

import opcode as cpython
import warnings
import weakref
from logging import Logger
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from braze.capture.facts.breaks import LOOKS_AT_THE_STACK, Retry
from braze.capture.facts.bytecode import SAVED, end_of, stack_kinds, wanted_from
from braze.capture.facts.frame import Frame
from braze.capture.facts.records import BreakKind, FrameState, GraphBreak
from braze.capture.facts.stand_ins import place_of, tell
from braze.capture.finish.reconstruction import RecipeTable
from braze.capture.python.higher_order import WHOLE
from braze.capture.python.opcodes.table import OUTSIDE, Pending
from braze.capture.python.unwinding import trail_of
from braze.capture.state.frames import Frames


def remedy_of(code: str) -> str:
    """What a code's page says to do."""
    from braze.support.codes import CODES  # a long table, which captures without breaks need not load

    return CODES[code].remedy


def break_state(frames: Frames, table: RecipeTable) -> GraphBreak:
    """The GraphBreak of a trace that stopped before an instruction."""
    for f in frames.stack[1:]:
        if not f.tail or f.code in WHOLE:
            # of a copy of a container, say, no frame is worth going on in: they are told apart by what lies where
            raise Retry(f.entered_at)
    inner = frames.stack[-1]
    signal = frames.break_at
    if signal is not None and signal.reason == LOOKS_AT_THE_STACK and len(frames.stack) > 1:
        # the frames below it must be there: up to the call that the outermost makes
        raise Retry(inner.entered_at)
    pending = None if signal is not None and signal.skip else describe(inner)
    if pending is None and len(frames.stack) > 1:
        # residual code cannot do this instruction: the whole inner call runs uncaptured
        raise Retry(inner.entered_at)
    kind, operands, detail, left, pushes = pending or (BreakKind.RUN, [], None, len(inner.stack), 0)
    if kind is BreakKind.CALL and looks_for_its_caller(operands[0]):
        operands = [tell, tuple(map(place_of, frames.stack)), *operands]
    offset = after(inner) if kind is not BreakKind.RUN else 2 * start_of(inner)
    stacks, handled = stacks_of(frames, left)
    referred = operands[1] if len(operands) > 1 and any(operands[0] is made for made in WEAK) else None
    states = [suspended(table, inner, offset, stacks[0], pushes, referred)]
    for f, stack in zip(reversed(frames.stack[:-1]), stacks[1:], strict=True):
        states.append(suspended(table, f, after(f), stack, 1))
    code = signal.code if signal is not None else "BZ1001"
    # the line that cannot be carried may lie deeper than the call that is run instead
    trail = (signal.trail if signal is not None else ()) or trail_of(frames)
    return GraphBreak(
        kind=kind,
        operands=tuple(table.id_of(v) for v in operands),
        detail=detail,
        code=code,
        reason=signal.reason if signal is not None else "the trace was asked to stop here",
        hints=(signal.hints if signal is not None else ()) or (remedy_of(code),),
        origin=trail[-1],
        trail=trail,
        frames=tuple(states),
        handled=tuple(-1 if error is None else table.id_of(error) for error in handled),
    )


def stacks_of(frames: Frames, left: int) -> tuple[list[list[Any]], list[BaseException | None]]:
    """The stacks of all frames, innermost first and cut to ``left``, and the exceptions that are handled in them.

    A slot where PUSH_EXC_INFO saved the previous exception gets the one handled in its block: see ``resume``.
    """
    stacks, every = [], []
    handled = frames.handled
    for f in reversed(frames.stack):
        stack = list(f.stack)
        every.append(handled)
        if handled is not None:
            kinds = stack_kinds(f.code).get(2 * f.at, ())
            for i in reversed(range(min(len(kinds), len(stack)))):
                if kinds[i] == SAVED:
                    stack[i], handled = handled, stack[i]
        stacks.append(stack)
    stacks[0] = stacks[0][:left]
    return stacks, every


def after(f: Frame) -> int:
    """The offset at which the instruction at hand ends."""
    return end_of(f.code, 2 * f.at, 2 * f.decoded.instruction(f.at)[2])


def start_of(f: Frame) -> int:
    """The index of the instruction at hand, from its EXTENDED_ARG on."""
    at = f.at
    raw = f.code.co_code
    extended = cpython.opmap["EXTENDED_ARG"]
    while at > 0 and raw[2 * at - 2] == extended:
        at -= 1
    return at


#: what the variables of a frame alone keep alive, then
WEAK = (weakref.ref, weakref.proxy, weakref.finalize)


def suspended(
    table: RecipeTable, f: Frame, offset: int, stack: Any, pushes: int, referred: Any = None
) -> FrameState:
    """One frame as data; ``referred``: what its operation makes a weak reference to."""
    free = len(f.locals) - len(f.code.co_freevars)
    wanted = wanted_from(f.code, 2 * f.at)
    return FrameState(
        code=f.code,
        offset=offset,
        stack=tuple(table.id_of(v) for v in stack),
        locals=tuple(
            table.id_of(v) if i < free and (v is referred or not is_spent(f, i, v, wanted)) else -1
            for i, v in enumerate(f.locals)
        ),
        function=table.id_of(f.function),
        pushes=pushes,
    )


def is_spent(f: Frame, i: int, value: Any, wanted: frozenset[str]) -> bool:
    """Whether a local is a function that nothing reads any more: one made anew at each call would never be the same."""
    names = f.code.co_varnames
    return i < len(names) and type(value) is FunctionType and names[i] not in wanted


def describe(f: Frame) -> Pending | None:
    """The instruction before which a frame stands, in the terms of residual code; None where it has none."""
    _, arg, following, op = f.decoded.instruction(f.at)
    outside = OUTSIDE.get(cpython.opname[op])
    return outside(f, arg, following) if outside is not None else None


#: what looks at the stack for the place that it is called from, and nowhere else
MESSAGES = frozenset(
    {
        warnings.warn,
        *(getattr(Logger, n) for n in ["debug", "info", "warning", "error", "critical", "exception", "log"]),
    }
)


def looks_for_its_caller(fn: Any) -> bool:
    """Whether a function tells the place in the program from which it is called."""
    method = fn.__func__ if type(fn) is MethodType else fn
    return type(method) in (FunctionType, BuiltinFunctionType) and method in MESSAGES
