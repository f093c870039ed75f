"""Jumps and loops."""

from __future__ import annotations

import sys
from typing import Any

from braze.capture.facts.frame import Frame
from braze.capture.facts.records import BreakKind
from braze.capture.outside.held import popped, refuse_endings
from braze.capture.python import data_errors, unwinding
from braze.capture.python.opcodes.table import LEAVE, YIELD, DoneOutside, Pending, applied, opcode, rows
from braze.capture.state.trace import Trace

AFTER_FOR = {(3, 11): 0, (3, 12): 1}.get(sys.version_info[:2], 2)
END = object()


@opcode("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def jump(t: Trace, f: Frame, arg: int) -> None:
    """Go on elsewhere. Any jump may close a loop: a ``while`` ends with one on its condition before Python 3.12."""
    f.ip = arg
    if t.frames.steps > t.frames.budget_ends:
        unwinding.check_budget(t.frames)


def branch(jumps_if: bool, keeps: bool = False) -> DoneOutside:
    """A jump on a truth value, which one that ``keeps`` leaves on the stack where it jumps."""

    def outside(f: Frame, target: int, following: int) -> Pending:
        if_false, if_true = (following, target) if jumps_if else (target, following)
        detail = 2 * if_false, 2 * if_true, jumps_if if keeps else None
        return BreakKind.BRANCH, f.stack[-1:], detail, len(f.stack) - 1, 0

    return outside


@opcode("POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_IF_TRUE", outside=branch(True))
def pop_jump_if_true(t: Trace, f: Frame, arg: int) -> None:
    value = f.stack[-1]
    if value is not True and value is not False:
        popped(t, f)
    f.stack.pop()
    if value is True or (value is not False and _goes(t, f, value, arg, True)):
        jump(t, f, arg)


@opcode("POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_FALSE", "POP_JUMP_IF_FALSE", outside=branch(False))
def pop_jump_if_false(t: Trace, f: Frame, arg: int) -> None:
    value = f.stack[-1]
    if value is not True and value is not False:
        popped(t, f)
    f.stack.pop()
    if value is False or (value is not True and not _goes(t, f, value, arg, False)):
        jump(t, f, arg)


def _goes(t: Trace, f: Frame, value: Any, target: int, jumps_if: bool) -> bool:
    """The truth of a condition. What only the data tell is not asked for, where one of the two ways raises an error."""
    granted = data_errors.taken_for_granted(t, f, value, target, jumps_if)
    return t.truth(value) if granted is None else granted


@opcode("POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NONE", "POP_JUMP_IF_NONE")
def pop_jump_if_none(t: Trace, f: Frame, arg: int) -> None:
    popped(t, f)
    if f.stack.pop() is None:
        jump(t, f, arg)


@opcode("POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE", "POP_JUMP_IF_NOT_NONE")
def pop_jump_if_not_none(t: Trace, f: Frame, arg: int) -> None:
    popped(t, f)
    if f.stack.pop() is not None:
        jump(t, f, arg)


@opcode("JUMP_IF_TRUE_OR_POP", outside=branch(True, keeps=True))
def jump_if_true_or_pop(t: Trace, f: Frame, arg: int) -> None:
    if t.truth(f.stack[-1]):
        f.ip = arg
    else:
        popped(t, f)
        f.stack.pop()


@opcode("JUMP_IF_FALSE_OR_POP", outside=branch(False, keeps=True))
def jump_if_false_or_pop(t: Trace, f: Frame, arg: int) -> None:
    if t.truth(f.stack[-1]):
        popped(t, f)
        f.stack.pop()
    else:
        f.ip = arg


@opcode("TO_BOOL", outside=applied("truth", -1))
def to_bool(t: Trace, f: Frame, arg: int) -> None:
    value = f.stack[-1]
    if not data_errors.left_to_a_jump(f, value):
        popped(t, f)
        f.stack[-1] = t.truth(value)


rows(
    {
        "GET_ITER": lambda t, f, arg: f.stack.append(t.iterate(f.stack.pop())),
        "GET_YIELD_FROM_ITER": lambda t, f, arg: f.stack.append(t.iterate(f.stack.pop())),
        # the driver was made before the frame ran
        "RETURN_GENERATOR": lambda t, f, arg: f.stack.append(None),
    }
)


def next_item(f: Frame, arg: int, following: int) -> Pending:
    return BreakKind.NEXT, f.stack[-1:], (2 * (arg + AFTER_FOR), 2 * following), len(f.stack) - 1, 0


@opcode("FOR_ITER", outside=next_item)
def for_iter(t: Trace, f: Frame, arg: int) -> None:
    value = t.advance(f.stack[-1], END)
    if value is END:
        f.stack.pop()
        f.ip = arg + AFTER_FOR
    else:
        f.stack.append(value)


@opcode("RETURN_VALUE")
def return_value(t: Trace, f: Frame, arg: int) -> Any:
    if len(t.frames.stack) == 1:
        refuse_endings(t, f)
    f.result = f.stack.pop()
    return left(t, f)


@opcode("RETURN_CONST")
def return_const(t: Trace, f: Frame, arg: int) -> Any:
    f.stack.append(f.code.co_consts[arg])
    return return_value(t, f, arg)


def left(t: Trace, f: Frame) -> Any:
    """The frame has returned. CPython drops its variables from the first on, where a list drops its elements from the last."""
    if f.generator is not None:
        f.generator.done = True
    if t.done.loose and len(t.frames.stack) > 1:
        f.locals.reverse()
    return LEAVE


# -- generators


@opcode("YIELD_VALUE")
def yield_value(t: Trace, f: Frame, arg: int) -> Any:
    f.result = f.stack.pop()
    return YIELD


@opcode("SEND")
def send(t: Trace, f: Frame, arg: int) -> None:
    receiver, value = f.stack[-2:]
    try:
        result = t.advance(receiver, None, True) if value is None else t.call(receiver.send, (value,))
    except StopIteration as stop:
        f.stack[-1] = stop.value
        if sys.version_info < (3, 12):
            del f.stack[-2]
        f.ip = arg
        return
    if f.generator is not None:
        f.generator.receiver = receiver
    f.stack[-1] = result


@opcode("END_SEND")
def end_send(t: Trace, f: Frame, arg: int) -> None:
    del f.stack[-2]
