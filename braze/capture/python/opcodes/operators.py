"""Unary, binary and comparing instructions, subscripts, formatting."""

from __future__ import annotations

import operator
import sys
from typing import Any

import torch

from braze.capture.facts.frame import Frame
from braze.capture.facts.operators import COMPARE_METHODS, METHODS
from braze.capture.facts.records import BreakKind
from braze.capture.graph import unbacked
from braze.capture.outside import lists_of_numbers
from braze.capture.python import data_errors
from braze.capture.python.looks import part_for_a_tensor, sum_for_a_tensor
from braze.capture.python.opcodes.table import Handler, Pending, applied, opcode, rows
from braze.capture.python.operations import (
    binary,
    compare,
    contains,
    delete_item,
    get_item,
    number,
    set_item,
    text,
    unary,
)
from braze.capture.state.trace import Trace

#: by the arguments of their instructions
BINARY_OPERATORS, COMPARISONS = tuple(METHODS), tuple(COMPARE_METHODS)
COMPARE_SHIFT = {(3, 11): 0, (3, 12): 4}.get(sys.version_info[:2], 5)
PLAIN = frozenset({int, float, bool, str})


@opcode("BINARY_OP", outside=applied(lambda arg: BINARY_OPERATORS[arg].__name__, -2, -1))
def binary_op(t: Trace, f: Frame, arg: int) -> None:
    stack = f.stack
    b = stack.pop()
    a = stack.pop()
    if type(a) in PLAIN and type(b) in PLAIN:
        stack.append(BINARY_OPERATORS[arg](a, b))
    elif BINARY_OPERATORS[arg] is operator.add and (part := sum_for_a_tensor(t, f, stack, a, b)):
        stack.append(lists_of_numbers.part(t.outside, a, *part))
    else:
        stack.append(binary(t, BINARY_OPERATORS[arg], a, b, True))


def unary_of(function: Any) -> Handler:
    def handler(t: Trace, f: Frame, arg: int) -> None:
        f.stack[-1] = unary(t, function, f.stack[-1])

    return handler


for _name, _function in (("NEGATIVE", operator.neg), ("POSITIVE", operator.pos), ("INVERT", operator.invert)):
    opcode(f"UNARY_{_name}", outside=applied(_function.__name__, -1))(unary_of(_function))


@opcode("UNARY_NOT", outside=applied("not_", -1))
def unary_not(t: Trace, f: Frame, arg: int) -> None:
    value = f.stack[-1]
    if type(value) is torch.SymBool and unbacked.is_unbacked(value):
        f.stack[-1] = torch.sym_not(value)
    else:
        f.stack[-1] = not t.truth(value)


def compared(arg: int) -> str | None:
    """The operator of a comparison that does not ask for its truth as well."""
    return None if COMPARE_SHIFT == 5 and arg & 16 else COMPARISONS[arg >> COMPARE_SHIFT].__name__


@opcode("COMPARE_OP", outside=applied(compared, -2, -1))
def compare_op(t: Trace, f: Frame, arg: int) -> None:
    stack = f.stack
    b = stack.pop()
    a = stack.pop()
    function = COMPARISONS[arg >> COMPARE_SHIFT]
    result = function(a, b) if type(a) in PLAIN and type(b) in PLAIN else compare(t, function, a, b, True)
    if COMPARE_SHIFT == 5 and arg & 16 and not data_errors.left_to_a_jump(f, result):
        result = t.truth(result)
    stack.append(result)


@opcode("IS_OP")
def is_op(t: Trace, f: Frame, arg: int) -> None:
    stack = f.stack
    b = stack.pop()
    a = stack[-1]
    if type(a) is torch.SymBool or type(b) is torch.SymBool:  # there is one True
        a, b = number(a), number(b)
    if a is not b:
        t.outside.told_apart(a, b)
    stack[-1] = (a is not b) if arg else (a is b)


@opcode("CONTAINS_OP")
def contains_op(t: Trace, f: Frame, arg: int) -> None:
    container = f.stack.pop()
    found = contains(t, container, f.stack.pop())
    f.stack.append(not found if arg else found)


@opcode("BINARY_SUBSCR", outside=applied("getitem", -2, -1))
def binary_subscr(t: Trace, f: Frame, arg: int) -> None:
    key = f.stack.pop()
    obj = f.stack.pop()
    f.stack.append(item_or_part(t, f, obj, key))


@opcode("STORE_SUBSCR", outside=applied("setitem", -2, -1, -3, pushes=0))
def store_subscr(t: Trace, f: Frame, arg: int) -> None:
    value, obj, key = f.stack[-3:]
    del f.stack[-3:]
    set_item(t, obj, key, value)


@opcode("DELETE_SUBSCR", outside=applied("delitem", -2, -1, pushes=0))
def delete_subscr(t: Trace, f: Frame, arg: int) -> None:
    obj, key = f.stack[-2:]
    del f.stack[-2:]
    delete_item(t, obj, key)


def slice_taken(f: Frame, arg: int, following: int) -> Pending:
    obj, start, stop = f.stack[-3:]
    return BreakKind.OPERATOR, [obj, slice(start, stop)], "getitem", len(f.stack) - 3, 1


@opcode("BINARY_SLICE", outside=slice_taken)
def binary_slice(t: Trace, f: Frame, arg: int) -> None:
    obj, start, stop = f.stack[-3:]
    del f.stack[-3:]
    f.stack.append(item_or_part(t, f, obj, slice(start, stop)))


def item_or_part(t: Trace, f: Frame, obj: Any, key: Any) -> Any:
    """``obj[key]``, where ``key`` is the last thing that an instruction takes."""
    part = part_for_a_tensor(t, f, f.stack, obj, key)
    return get_item(t, obj, key, True) if part is None else lists_of_numbers.part(t.outside, obj, *part)


def slice_stored(f: Frame, arg: int, following: int) -> Pending:
    value, obj, start, stop = f.stack[-4:]
    return BreakKind.STATEMENT, [obj, slice(start, stop), value], "setitem", len(f.stack) - 4, 0


@opcode("STORE_SLICE", outside=slice_stored)
def store_slice(t: Trace, f: Frame, arg: int) -> None:
    value, obj, start, stop = f.stack[-4:]
    del f.stack[-4:]
    set_item(t, obj, slice(start, stop), value)


# -- formatting

CONVERSIONS = (None, str, repr, ascii)


@opcode("FORMAT_VALUE")
def format_value(t: Trace, f: Frame, arg: int) -> None:
    spec = f.stack.pop() if arg & 4 else ""
    value = f.stack.pop()
    f.stack.append(text(t, value, CONVERSIONS[arg & 3], spec))


rows(
    {
        "CONVERT_VALUE": lambda t, f, arg: f.stack.append(text(t, f.stack.pop(), CONVERSIONS[arg], "")),
        "FORMAT_SIMPLE": lambda t, f, arg: f.stack.append(text(t, f.stack.pop(), None, "")),
    }
)


@opcode("FORMAT_WITH_SPEC")
def format_with_spec(t: Trace, f: Frame, arg: int) -> None:
    spec = f.stack.pop()
    f.stack[-1] = text(t, f.stack[-1], None, spec)
