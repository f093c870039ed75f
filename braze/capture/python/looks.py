"""Which instructions look into the values that they take, so that a list from outside which waits to be read is read before (``outside/unread.py``)."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from typing import Any

import torch

from braze.capture.facts import policy
from braze.capture.facts.bytecode import GENERATORS, opcodes
from braze.capture.facts.frame import CO_VARARGS, CO_VARKEYWORDS, Frame
from braze.capture.facts.operators import METHODS
from braze.capture.facts.values import MISSING, NULL, lookup_in_mro
from braze.capture.outside import chosen, lists_of_numbers
from braze.capture.outside.shadows import instance_contents
from braze.capture.outside.unread import ADDING, counts, element, has_elements, last_elements, written_at
from braze.capture.python.calls import MODULE_CALL, is_special
from braze.capture.python.module_calls import calls_as_usual, forward_alone
from braze.capture.state.handlers import HANDLERS
from braze.capture.state.trace import Trace

#: which move values, or ask which objects they are
MOVING = opcodes(
    """NOP CACHE RESUME PUSH_NULL POP_TOP COPY SWAP COPY_FREE_VARS MAKE_CELL LOAD_CONST LOAD_FAST LOAD_FAST_CHECK LOAD_FAST_AND_CLEAR
    LOAD_FAST_LOAD_FAST STORE_FAST STORE_FAST_LOAD_FAST STORE_FAST_STORE_FAST DELETE_FAST LOAD_DEREF STORE_DEREF LOAD_CLOSURE LOAD_GLOBAL STORE_GLOBAL
    PRECALL KW_NAMES IS_OP JUMP_FORWARD JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE
    POP_JUMP_FORWARD_IF_NONE POP_JUMP_FORWARD_IF_NOT_NONE POP_JUMP_BACKWARD_IF_NONE POP_JUMP_BACKWARD_IF_NOT_NONE"""
)
#: which ask whether a value is true
_OF_TRUTH = """POP_JUMP_IF_TRUE POP_JUMP_IF_FALSE POP_JUMP_FORWARD_IF_TRUE POP_JUMP_FORWARD_IF_FALSE POP_JUMP_BACKWARD_IF_TRUE
    POP_JUMP_BACKWARD_IF_FALSE TO_BOOL UNARY_NOT"""
#: how many values others take, by their argument; those that are not here are taken to look at the whole stack
_TAKEN: tuple[tuple[str, Callable[[int], int]], ...] = (
    (
        # what a comprehension makes lies deeper in the stack, and is only added to
        f"LOAD_ATTR LOAD_METHOD UNARY_NEGATIVE UNARY_INVERT RETURN_VALUE GET_ITER FOR_ITER LIST_APPEND SET_ADD {_OF_TRUTH}",
        lambda arg: 1,
    ),
    ("BINARY_OP COMPARE_OP BINARY_SUBSCR CONTAINS_OP STORE_ATTR MAP_ADD", lambda arg: 2),
    ("STORE_SUBSCR BINARY_SLICE", lambda arg: 3),
    ("BUILD_TUPLE BUILD_LIST BUILD_SET BUILD_STRING BUILD_SLICE", lambda arg: arg),
    ("CALL", lambda arg: arg + 2),
    ("CALL_KW", lambda arg: arg + 3),
)
TAKEN = {op: count for names, count in _TAKEN for op in opcodes(names)}

_ATTRIBUTES, _CALLS, _BY_NAME = opcodes("LOAD_ATTR LOAD_METHOD"), opcodes("CALL CALL_KW"), opcodes("CALL_KW")
_LISTS = opcodes("BUILD_LIST")
#: what pushes one value, what pushes and takes none, and what takes one for one
_NAMED, _ASIDE = opcodes("LOAD_CONST LOAD_FAST LOAD_GLOBAL LOAD_DEREF"), opcodes("PRECALL KW_NAMES CACHE")
_READ = opcodes("LOAD_ATTR")
_TRUTHS, _RETURNS = opcodes(_OF_TRUTH), opcodes("RETURN_VALUE")
_OPERATORS, _STORES = opcodes("BINARY_OP"), opcodes("STORE_ATTR")
_ELEMENTS, _SLICES = opcodes("STORE_SUBSCR"), opcodes("BINARY_SLICE")
_ITEMS, _ITERATIONS, _PLACES = opcodes("BINARY_SUBSCR"), opcodes("GET_ITER"), (int, torch.SymInt)
#: how far the number of a name is shifted in an instruction that may take a method to call
_SHIFT = 0 if opcodes("LOAD_METHOD") else 1
_IN_PLACE_ADD, _ADD = map(list(METHODS).index, (operator.iadd, operator.add))
#: a slice of all there is
_ALL = slice(None)
#: what puts a value where it is told to, as it is
SETTERS = (object.__setattr__, torch.nn.Module.__setattr__)
#: functions of which the frame is all that a call of them is have neither of these
_NOT_PLAIN = CO_VARARGS | CO_VARKEYWORDS | GENERATORS


def before(t: Trace, f: Frame) -> None:
    """Read what an instruction is to look into, where that has waited."""
    _, arg, _, op = f.decoded.instruction(f.at)
    if op in MOVING:
        return
    stack, unread = f.stack, t.outside.unread
    count = TAKEN[op](arg) if op in TAKEN else len(stack)
    for value in stack[len(stack) - count :]:
        shadow = unread.get(id(value))
        if shadow is None and op in _CALLS and type(value) is list and len(value) == 1:
            shadow = unread.get(id(value[0]))  # see goes_into_a_tensor
        if shadow is None or leaves_alone(t, f, op, arg, value):
            continue
        if op in _ITERATIONS or (op in _ITEMS and value is stack[-2] and type(stack[-1]) in _PLACES):
            shadow.open(t.outside)
        else:
            shadow.fill(t.outside)


def leaves_alone(t: Trace, f: Frame, op: int, arg: int, value: Any) -> bool:
    """Whether an instruction that takes a list does not look into it, but adds at its end, say."""
    stack = f.stack
    if op in _RETURNS:  # to the instruction that pushes it
        return f.tail
    if op in _ATTRIBUTES:
        return f.code.co_names[arg >> _SHIFT] in ADDING
    if op in _OPERATORS:
        if arg == _ADD:
            return value is stack[-2] and sum_for_a_tensor(t, f, stack[:-2], value, stack[-1]) is not None
        return arg == _IN_PLACE_ADD and type(value) is list and stack[-1] is not value
    if op in _ITEMS and type(stack[-1]) is int:
        return value is stack[-2] and element(t.outside, value, stack[-1]) is not MISSING
    if op in _ITEMS and type(stack[-1]) is torch.SymInt:
        if value is not stack[-2]:
            return False
        known = written_at(t.outside, value, stack[-1])
        return known is not MISSING or chosen.item(t, value, stack[-1]) is not MISSING
    if op in _ELEMENTS:
        # what it is put into, where that knows when it is written
        return value is stack[-2] and value is not stack[-3] and type(stack[-1]) is torch.SymInt
    if op in _ITEMS and type(stack[-1]) is slice:
        return value is stack[-2] and is_taken_a_part_of(t, f, stack[:-2], value, stack[-1])
    if op in _SLICES and value is stack[-3]:
        return is_taken_a_part_of(t, f, stack[:-3], value, slice(stack[-2], stack[-1]))
    if op in _TRUTHS:
        return has_elements(t.outside, value)
    if op in _STORES:  # what ``+=`` gives, back to where it was
        owner, name = stack[-1], f.code.co_names[arg]
        known = owner is not value and t.outside.tree.node_of(owner) is not None
        setter = lookup_in_mro(type(owner), "__setattr__")[0]
        return known and setter in SETTERS and instance_contents(t.outside, owner, name) is value
    if op in _LISTS:
        return arg == 1 and goes_into_a_tensor(t, f, value)
    if op not in _CALLS:
        return False
    names = stack[-1] if op in _BY_NAME else f.kwnames
    operands = stack[len(stack) - arg - 3 : -1] if op in _BY_NAME else stack[len(stack) - arg - 2 :]
    if lists_of_numbers.is_made_a_tensor(t.outside, t.graph, operands, len(names), value):
        return True
    if names or id(value) not in t.outside.unread:
        return False
    below = stack[: len(stack) - len(operands)]
    return is_handed_on(t, operands, value) or copy_for_a_tensor(t, f, below, operands) is not None


def goes_into_a_tensor(t: Trace, f: Frame, value: Any) -> bool:
    """Whether a list that waits is all that another will hold, which is the first argument of a function that makes a tensor, and nothing but the call sees."""
    if id(value) not in t.outside.unread:
        return False
    made = lists_of_numbers.is_made_a_tensor(t.outside, t.graph, f.stack[-3:], 0, value)
    return made and is_argument_alone(f)


def is_taken_a_part_of(t: Trace, f: Frame, below: list[Any], value: Any, key: slice) -> bool:
    """Whether a slice of a list is of a few elements from the end, or goes into a tensor."""
    if part_for_a_tensor(t, f, below, value, key) is not None:
        return True
    return last_elements(t.outside, value, key) is not MISSING


def part_for_a_tensor(t: Trace, f: Frame, below: list[Any], value: Any, key: Any) -> Any:
    """The bounds of a slice of which a function below it on the stack makes a tensor, and what was added to the list there; None of any other."""
    if not t.outside.unread:
        return None
    bounds = lists_of_numbers.part_bounds(t.outside, t.graph, value, key)
    if bounds is None or not is_argument_alone(f):
        return None
    made = lists_of_numbers.is_made_a_tensor(t.outside, t.graph, [*below[-2:], value], 0, value)
    return bounds if made else None


def sum_for_a_tensor(t: Trace, f: Frame, below: list[Any], value: Any, other: Any) -> Any:
    """The same of ``tokens + [t]``, where the other list is the program's own."""
    if type(value) is not list or type(other) is not list or t.outside.tree.node_of(other) is not None:
        return None
    part = part_for_a_tensor(t, f, below, value, _ALL)
    return part and (part[0], part[1] + other)


def copy_for_a_tensor(t: Trace, f: Frame, below: list[Any], operands: list[Any]) -> Any:
    """The same of ``list(tokens)``, with the function and the list on the stack."""
    call = [v for v in operands if v is not NULL]
    if len(call) != 2 or call[0] is not list:
        return None
    return part_for_a_tensor(t, f, below, call[1], _ALL)


def is_argument_alone(f: Frame) -> bool:
    """Whether what an instruction is about to push stays where it is, below other arguments that are named or read, until a call takes it first.

    So does what is alone in a list that is made of it at once.
    """
    at, pushed = f.decoded.instruction(f.at)[2], 0
    while True:
        _, arg, following, op = f.decoded.instruction(at)
        if op in _LISTS and arg == 1 and not pushed:
            at = following
            continue
        if op in _CALLS:
            return bool(arg == pushed if op in _BY_NAME else arg == pushed + 1)
        if op in _NAMED:
            pushed += 1
        elif not (op in _ASIDE or (op in _READ and pushed)):
            return False
        at = following


def is_handed_on(t: Trace, operands: list[Any], value: Any) -> bool:
    """Whether a call puts its arguments into variables of a frame, asks for their classes, or adds to the first."""
    function, *args = [v for v in operands if v is not NULL]
    if function is len:
        return counts(t.outside, value)
    if function is isinstance:
        return len(args) == 2 and args[1] is not value
    if type(function) is types.MethodDescriptorType and function.__name__ in ADDING:
        return args[0] is value and all(v is not value for v in args[1:])
    if type(function) is types.MethodType:
        function = function.__func__
    elif lookup_in_mro(type(function), "__call__")[0] is MODULE_CALL and calls_as_usual(t, function):
        function = forward_alone(t, function)
    if type(function) is not types.FunctionType or function.__code__.co_flags & _NOT_PLAIN:
        return False
    told_apart = function.__dict__ or is_special(function.__module__) or function in policy.NATIVE_FUNCTIONS
    return not told_apart and function not in HANDLERS.calls and function.__code__ not in HANDLERS.codes
