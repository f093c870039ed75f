"""Which instructions hand text from outside on, or write it into other text: before any other it is the text of this call (``outside/given_texts.py``)."""

from __future__ import annotations

import logging
import types
import warnings
from typing import Any

from braze.capture.facts import policy
from braze.capture.facts.bytecode import opcodes
from braze.capture.facts.frame import Frame
from braze.capture.facts.values import HEAP_TYPE, NULL, UnknownText, lookup_in_mro
from braze.capture.outside import texts
from braze.capture.outside.chosen import DICTS
from braze.capture.outside.given_texts import refuse, sources_in
from braze.capture.python.calls import is_special
from braze.capture.python.looks import MOVING, TAKEN
from braze.capture.state.handlers import HANDLERS
from braze.capture.state.trace import Trace

#: which write text into other text, put it into containers, or give it to whoever called
HANDING = (MOVING - opcodes("IS_OP")) | opcodes(
    """FORMAT_VALUE FORMAT_SIMPLE FORMAT_WITH_SPEC CONVERT_VALUE BUILD_STRING BUILD_TUPLE BUILD_LIST BUILD_MAP BUILD_CONST_KEY_MAP
    LIST_APPEND MAP_ADD STORE_SUBSCR STORE_ATTR RETURN_VALUE YIELD_VALUE RETURN_GENERATOR"""
)
_CALLS, _UNPACKED, _SUMS = opcodes("CALL CALL_KW"), opcodes("CALL_FUNCTION_EX"), opcodes("BINARY_OP")
_IDENTITY, _ITEMS = opcodes("IS_OP"), opcodes("BINARY_SUBSCR")
_KEYS = _ITEMS | opcodes("CONTAINS_OP")
#: functions in C that hand text on, write it into other text, or ask for an attribute of that name
WRITING = frozenset({print, warnings.warn, str, repr, format, isinstance, type, getattr, hasattr})
#: and methods, of the classes that they are methods of
ADDING = frozenset(
    {
        (list, "append"),
        (list, "insert"),
        (list, "extend"),
        (dict, "get"),
        (dict, "setdefault"),
        (str, "format"),
        (str, "join"),
    }
)


def before(t: Trace, f: Frame) -> None:
    """Put the text of this call in the place of what stands for it, where an instruction looks at it."""
    _, arg, _, op = f.decoded.instruction(f.at)
    if op in HANDING:
        return
    stack = f.stack
    count = TAKEN[op](arg) if op in TAKEN else len(stack)
    if op in _CALLS and op not in TAKEN:  # with the names of arguments on top, from Python 3.13 on
        count = arg + 3
    first = max(0, len(stack) - count)
    if op in _UNPACKED:
        refuse_unpacked(stack[first:])
    if not any(type(value) is UnknownText for value in stack[first:]) or leaves_alone(op, stack[first:]):
        return
    for place in range(first, len(stack)):
        if next(sources_in((stack[place],)), None) is not None:
            stack[place] = texts.written(stack[place])


def leaves_alone(op: int, operands: list[Any]) -> bool:
    """Whether an instruction that may look at text does not look at this."""
    if op in _IDENTITY:
        return any(value is None or value is True or value is False for value in operands)
    if op in _SUMS:
        return True  # which asks what it adds
    if op in _KEYS:
        holder, key = operands if op in _ITEMS else reversed(operands)
        method = lookup_in_mro(type(holder), "__getitem__" if op in _ITEMS else "__contains__")[0]
        by_key = type(holder) in (*DICTS, set, frozenset) or type(method) is types.FunctionType
        return by_key and type(key) is UnknownText
    return op in _CALLS and is_handed_on(*[value for value in operands if value is not NULL])


def is_handed_on(function: Any, *args: Any) -> bool:
    """Whether a call puts its arguments into variables of a frame, into a container, or into text."""
    if isinstance(function, types.BuiltinFunctionType | types.MethodDescriptorType) and args:
        owner = args[0] if type(function) is types.MethodDescriptorType else function.__self__
        if (type(owner), function.__name__) in ADDING:
            return True
    if type(function) is types.MethodType:
        function = function.__func__
    kind = type(function)
    if kind is type or kind is types.BuiltinFunctionType:
        made = kind is type and function.__flags__ & HEAP_TYPE and function.__new__ is object.__new__
        return bool(made) or function in WRITING
    if kind is not types.FunctionType:
        function = lookup_in_mro(kind, "__call__")[0]
    if type(function) is not types.FunctionType:
        return False
    if function.__module__ == logging.__name__:
        return True  # messages, which are given when the graph has run
    special = is_special(function.__module__) or function in policy.NATIVE_FUNCTIONS
    return not special and function not in HANDLERS.calls and function.__code__ not in HANDLERS.codes


def refuse_unpacked(operands: list[Any]) -> None:
    """Trace again before a call gets text in a tuple or a dict, but for one that puts it into variables of a frame."""
    function, *given = [value for value in operands if value is not NULL]
    for values in given:
        held = values.values() if type(values) is dict else values
        if isinstance(values, tuple | list | dict) and not is_handed_on(function):
            refuse(*held)
