"""The call instructions."""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Sequence
from typing import Any

from braze import native
from braze.capture.facts.frame import Frame
from braze.capture.facts.records import BreakKind
from braze.capture.facts.values import NULL
from braze.capture.outside import lists_of_numbers
from braze.capture.outside.looked_into import fill
from braze.capture.python.calls import call
from braze.capture.python.iteration import gathered
from braze.capture.python.looks import copy_for_a_tensor
from braze.capture.python.opcodes.building import mapping, refused_keywords, shown
from braze.capture.python.opcodes.table import Pending, opcode
from braze.capture.state.trace import Trace


@opcode("KW_NAMES")
def kw_names(t: Trace, f: Frame, arg: int) -> None:
    f.kwnames = f.code.co_consts[arg]


def split_call(f: Frame, arg: int, stack: list[Any]) -> tuple[Any, list[Any]]:
    """(callable, arguments) of the call at hand; the stack is left as it is."""
    args = stack[len(stack) - arg :]
    first, second = stack[-arg - 2], stack[-arg - 1]
    if first is NULL:
        return second, args
    if second is NULL:
        return first, args
    return first, [second, *args]


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


def call_outside(f: Frame, arg: int, following: int) -> Pending | None:
    return called(*split_call(f, arg, f.stack), f.kwnames, len(f.stack) - arg - 2)


def call_kw_outside(f: Frame, arg: int, following: int) -> Pending | None:
    *stack, names = f.stack
    return called(*split_call(f, arg, stack), names, len(stack) - arg - 2)


def called(fn: Any, args: list[Any], names: Sequence[str], left: int) -> Pending | None:
    if any(fn is builtin for builtin in (*OF_THE_FRAME, *OF_THE_PROCESS)):
        return None
    return BreakKind.CALL, [fn, *args], tuple(names), left, 1


@opcode("PRECALL", outside=call_outside)
def precall(t: Trace, f: Frame, arg: int) -> None:
    """Nothing: the call follows."""


@opcode("CALL", outside=call_outside)
def call_instruction(t: Trace, f: Frame, arg: int) -> None:
    stack = f.stack
    base = len(stack) - arg - 2
    fn = stack[base]
    if fn is NULL:
        fn, args = stack[base + 1], stack[base + 2 :]
    else:
        args = stack[base + 2 :] if stack[base + 1] is NULL else stack[base + 1 :]
    del stack[base:]
    names = f.kwnames
    kwargs = None
    if names:
        f.kwnames = ()
        split = len(args) - len(names)
        kwargs = dict(zip(names, args[split:], strict=True))
        args = args[:split]
    if fn is list and not names and (part := copy_for_a_tensor(t, f, stack, [fn, *args])):
        stack.append(lists_of_numbers.part(t.outside, args[0], *part))
    else:
        stack.append(call(t, fn, args, kwargs, True))


@opcode("CALL_KW", outside=call_kw_outside)
def call_kw(t: Trace, f: Frame, arg: int) -> None:
    f.kwnames = f.stack.pop()
    call_instruction(t, f, arg)


def call_ex_outside(f: Frame, arg: int, following: int) -> Pending:
    *_, first, second, args = f.stack[: len(f.stack) - (arg & 1)]
    fn = second if first is NULL else first
    return (
        BreakKind.CALL_EX,
        [fn, args, *f.stack[len(f.stack) - (arg & 1) :]],
        None,
        len(f.stack) - 3 - (arg & 1),
        1,
    )


@opcode("CALL_FUNCTION_EX", outside=call_ex_outside)
def call_function_ex(t: Trace, f: Frame, arg: int) -> None:
    stack = f.stack
    kwargs = stack.pop() if arg & 1 else None
    args = stack.pop()
    first, second = stack[-2:]
    del stack[-2:]
    fn = second if first is NULL else first
    if kwargs is not None and type(kwargs) is not dict:
        kwargs = mapping(t, kwargs, refused_keywords(t, fn))
    elif kwargs is not None:
        fill(t.outside, kwargs)
    if type(args) is not tuple:
        if not hasattr(type(args), "__iter__") and not hasattr(type(args), "__getitem__"):
            kind = type(args).__name__
            raise TypeError(f"{shown(t, fn)} argument after * must be an iterable, not {kind}")
        args = tuple(gathered(t, args))
    stack.append(call(t, fn, args, kwargs, True))
