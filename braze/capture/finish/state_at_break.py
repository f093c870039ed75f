"""The state of all frames at a graph break, and what the residual code must run there."""

from __future__ import annotations

import gc
import inspect
import opcode as cpython
import sys
import warnings
import weakref
from logging import Logger
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from braze import native
from braze.capture.facts.breaks import LOOKS_AT_THE_STACK, Retry
from braze.capture.facts.bytecode import SAVED, end_of, stack_kinds, wanted_from
from braze.capture.facts.frame import Frame
from braze.capture.facts.records import BreakKind, FrameState, GraphBreak
from braze.capture.facts.told import place_of, tell
from braze.capture.facts.values import NULL
from braze.capture.finish.reconstruction import RecipeTable
from braze.capture.python.opcodes.calling import split_call
from braze.capture.python.opcodes.control import AFTER_FOR
from braze.capture.python.opcodes.operators import BINARY_OPERATORS, COMPARE_SHIFT, COMPARISONS
from braze.capture.python.unwinding import trail_of
from braze.capture.state.frames import Frames
from braze.capture.state.trace import Trace

#: kind, operands as values, detail, size of the stack that is left, whether a result is pushed
Pending = tuple[BreakKind, list[Any], Any, int, int]


def remedy_of(code: str) -> str:
    """What a code's page says to do."""
    from braze.support.codes import CODES  # a long table, which captures without breaks need not load

    return CODES[code].remedy


def break_state(t: Trace, table: RecipeTable) -> GraphBreak:
    """The GraphBreak of a trace that stopped before an instruction."""
    for f in t.frames.stack[1:]:
        if not f.tail:
            raise Retry(f.entered_at)
    inner = t.frames.stack[-1]
    signal = t.frames.break_at
    if signal is not None and signal.reason == LOOKS_AT_THE_STACK and len(t.frames.stack) > 1:
        raise Retry(
            inner.entered_at
        )  # the frames below it must be there: up to the call that the outermost makes
    whole = signal is not None and signal.skip
    following = after(inner)
    whole_call: Pending = (BreakKind.RUN, [], None, len(inner.stack), 0)
    kind, operands, detail, left, pushes = whole_call
    described = None if whole else describe(inner)
    if described is not None:
        kind, operands, detail, left, pushes = described
        if kind is BreakKind.CALL and looks_for_its_caller(operands[0]):
            operands = [tell, tuple(map(place_of, t.frames.stack)), *operands]
    elif not whole or len(t.frames.stack) > 1:
        # this instruction cannot be run from outside: the whole inner call runs uncaptured
        if len(t.frames.stack) > 1:
            raise Retry(inner.entered_at)
    offset = following if kind is not BreakKind.RUN else 2 * start_of(inner)
    stacks, handled = stacks_of(t.frames, left)
    referred = operands[1] if len(operands) > 1 and any(operands[0] is made for made in WEAK) else None
    states = [suspended(table, inner, offset, stacks[0], pushes, referred)]
    for f, stack in zip(reversed(t.frames.stack[:-1]), stacks[1:], strict=True):
        states.append(suspended(table, f, after(f), stack, 1))
    code = signal.code if signal is not None else "BZ1001"
    # the line that cannot be carried may lie deeper than the call that is run instead
    trail = (signal.trail if signal is not None else ()) or trail_of(t.frames)
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
    name = cpython.opname[op]
    stack = f.stack
    size = len(stack)
    if name in ("CALL", "PRECALL"):
        return call_pending(f, arg, stack)
    if name == "CALL_FUNCTION_EX":
        taken = 2 + 1 + (arg & 1)
        args = stack[-1 - (arg & 1)]
        fn = stack[-taken + 1] if stack[-taken] is NULL else stack[-taken]
        operands = [fn, args] + ([stack[-1]] if arg & 1 else [])
        return BreakKind.CALL_EX, operands, None, size - taken, 1
    if name == "BINARY_OP":
        return BreakKind.OPERATOR, stack[-2:], BINARY_OPERATORS[arg].__name__, size - 2, 1
    if name == "BINARY_SUBSCR":
        return BreakKind.OPERATOR, stack[-2:], "getitem", size - 2, 1
    if name == "COMPARE_OP" and not (COMPARE_SHIFT == 5 and arg & 16):
        return BreakKind.OPERATOR, stack[-2:], COMPARISONS[arg >> COMPARE_SHIFT].__name__, size - 2, 1
    if name in UNARY:
        return BreakKind.OPERATOR, stack[-1:], UNARY[name], size - 1, 1
    if name == "STORE_SUBSCR":
        value, obj, key = stack[-3:]
        return BreakKind.STATEMENT, [obj, key, value], "setitem", size - 3, 0
    if name == "DELETE_SUBSCR":
        return BreakKind.STATEMENT, stack[-2:], "delitem", size - 2, 0
    if name == "STORE_ATTR":
        value, obj = stack[-2:]
        return BreakKind.STATEMENT, [obj, f.code.co_names[arg], value], "setattr", size - 2, 0
    if name == "LOAD_ATTR" and (sys.version_info < (3, 12) or not arg & 1):
        attribute = f.code.co_names[arg if sys.version_info < (3, 12) else arg >> 1]
        return BreakKind.OPERATOR, [stack[-1], attribute], "getattr", size - 1, 1
    if name == "FOR_ITER":
        return BreakKind.NEXT, stack[-1:], (2 * (arg + AFTER_FOR), 2 * following), size - 1, 0
    if "JUMP" in name and "IF_" in name and "NONE" not in name:
        return branch_pending(name, arg, following, stack)
    return None


UNARY = {
    "UNARY_NEGATIVE": "neg",
    "UNARY_POSITIVE": "pos",
    "UNARY_INVERT": "invert",
    "UNARY_NOT": "not_",
    "TO_BOOL": "truth",
}


#: builtins that look at the frame that calls them: only the frame itself can run them
OF_THE_FRAME = (
    locals,
    globals,
    vars,
    dir,
    eval,
    exec,
    __import__,
    super,
    sys._getframe,
    getattr(sys, "_getframemodulename", sys._getframe),
    inspect.currentframe,
    native.throw,  # stands in front of the frame's code
)


#: what they give holds all objects, tuples that C code has not filled yet among them: nothing may look through it
OF_THE_PROCESS = (gc.get_objects, gc.get_referrers, gc.get_referents)


def call_pending(f: Frame, arg: int, stack: list[Any]) -> Pending | None:
    """A pending CALL."""
    fn, args = split_call(f, arg, stack)
    if any(fn is builtin for builtin in (*OF_THE_FRAME, *OF_THE_PROCESS)):
        return None
    return BreakKind.CALL, [fn, *args], tuple(f.kwnames), len(stack) - arg - 2, 1


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


def branch_pending(name: str, target: int, following: int, stack: list[Any]) -> Pending:
    """A pending jump on a truth value."""
    jumps_if = "IF_TRUE" in name
    if_false, if_true = (following, target) if jumps_if else (target, following)
    keep = jumps_if if name.endswith("OR_POP") else None
    return BreakKind.BRANCH, stack[-1:], (2 * if_false, 2 * if_true, keep), len(stack) - 1, 0
