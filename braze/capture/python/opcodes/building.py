"""New containers, functions, and taking sequences apart."""

from __future__ import annotations

import builtins
import operator
import types
from collections.abc import Callable
from typing import Any

from braze.capture.facts.breaks import graph_break
from braze.capture.facts.frame import Frame
from braze.capture.facts.replay import builtin_base
from braze.capture.facts.values import CONSTANTS, NULL, UnknownText
from braze.capture.graph.sizes import as_key
from braze.capture.outside import texts, told_apart
from braze.capture.outside.class_values import has_hash_of_its_own
from braze.capture.outside.looked_into import fill
from braze.capture.python.calls import call_c
from braze.capture.python.iteration import elements, gathered
from braze.capture.python.opcodes.table import applied, opcode, rows
from braze.capture.python.operations import set_item, unary
from braze.capture.state.trace import Interpreter, Trace


def popn(f: Frame, count: int) -> list[Any]:
    """Take ``count`` values off the stack, in order."""
    if not count:
        return []
    items = f.stack[-count:]
    del f.stack[-count:]
    return items


def hashed(t: Trace, function: Any, keys: list[Any], *args: Any) -> Any:
    """Call a function of C (with the keys themselves, if with nothing else) that hashes and compares keys, by Python code where their classes have some."""
    args = args or (keys,)
    told_apart.compared(t.outside, keys)
    plain = all(type(key) in CONSTANTS or not has_hash_of_its_own(type(key)) for key in keys)
    return function(*args) if plain else call_c(t, function, args, None)


rows(
    {
        "BUILD_TUPLE": lambda t, f, arg: f.stack.append(tuple(popn(f, arg))),
        "BUILD_LIST": lambda t, f, arg: f.stack.append(popn(f, arg)),
        "BUILD_SET": lambda t, f, arg: f.stack.append(hashed(t, set, list(map(as_key, popn(f, arg))))),
        "BUILD_SLICE": lambda t, f, arg: f.stack.append(slice(*popn(f, arg))),
        "LOAD_BUILD_CLASS": lambda t, f, arg: f.stack.append(builtins.__build_class__),
    }
)


@opcode("BUILD_MAP")
def build_map(t: Trace, f: Frame, arg: int) -> None:
    items = popn(f, 2 * arg)
    keys = list(map(as_key, items[::2]))
    f.stack.append(hashed(t, dict, keys, list(zip(keys, items[1::2], strict=True))))


@opcode("BUILD_CONST_KEY_MAP")
def build_const_key_map(t: Trace, f: Frame, arg: int) -> None:
    keys = f.stack.pop()
    f.stack.append(dict(zip(keys, popn(f, arg), strict=True)))


@opcode("BUILD_STRING")
def build_string(t: Trace, f: Frame, arg: int) -> None:
    parts = popn(f, arg)
    later = texts.joined(t.done, parts) if UnknownText in map(type, parts) else "".join(parts)
    f.stack.append(t.done.claim(UnknownText()) if later is None else later)


@opcode("LIST_APPEND")
def list_append(t: Trace, f: Frame, arg: int) -> None:
    value = f.stack.pop()
    f.stack[-arg].append(value)


@opcode("SET_ADD")
def set_add(t: Trace, f: Frame, arg: int) -> None:
    value = f.stack.pop()
    key = as_key(value)
    hashed(t, f.stack[-arg].add, [key], key)


@opcode("MAP_ADD")
def map_add(t: Trace, f: Frame, arg: int) -> None:
    key, value = popn(f, 2)
    set_item(t, f.stack[-arg], key, value)


@opcode("LIST_EXTEND")
def list_extend(t: Trace, f: Frame, arg: int) -> None:
    values = f.stack.pop()
    if not hasattr(type(values), "__iter__") and not hasattr(type(values), "__getitem__"):
        raise TypeError(f"Value after * must be an iterable, not {type(values).__name__}")
    f.stack[-arg].extend(gathered(t, values))


@opcode("SET_UPDATE")
def set_update(t: Trace, f: Frame, arg: int) -> None:
    values = f.stack.pop()
    keys = list(elements(t, values))
    hashed(t, f.stack[-arg].update, keys)


@opcode("DICT_UPDATE")
def dict_update(t: Trace, f: Frame, arg: int) -> None:
    values = mapping(t, f.stack.pop(), lambda kind: f"'{kind}' object is not a mapping")
    hashed(t, f.stack[-arg].update, list(values), values)


@opcode("DICT_MERGE")
def dict_merge(t: Trace, f: Frame, arg: int) -> None:
    below = -arg - 3  # the keywords so far and the positional arguments
    fn = f.stack[below] if f.stack[below] is not NULL else f.stack[below - 1]
    values = mapping(t, f.stack.pop(), refused_keywords(t, fn))
    target = f.stack[-arg]
    for key in values:
        if key in target:
            raise TypeError(f"{shown(t, fn)} got multiple values for keyword argument '{key}'")
        if not isinstance(key, str):
            raise TypeError("keywords must be strings")
    target.update(values)


def shown(t: Interpreter, fn: Any) -> str:
    """A callable as error messages of CPython name it: to be asked for such a message alone, since it may run the program's code."""
    name = t.call(getattr, (fn, "__qualname__", None))
    if name is None:
        text = t.call(str, (fn,))
        if type(text) is UnknownText:
            graph_break("BZ1012", "an error tells of a callable whose text only the graph knows")
        return str(text)
    module = t.call(getattr, (fn, "__module__", None))
    return f"{name}()" if module in (None, "builtins") else f"{module}.{name}()"


def refused_keywords(t: Interpreter, fn: Any) -> Callable[[str], str]:
    """What is said of a class whose object stands behind the ``**`` of a call, and is no mapping."""
    return lambda kind: f"{shown(t, fn)} argument after ** must be a mapping, not {kind}"


def mapping(t: Trace, values: Any, refusal: Callable[[str], str]) -> Any:
    """A dict of what ``**values`` gives; ``refusal`` says that its class, of such a name, is none of a mapping."""
    if issubclass(type(values), dict):
        fill(t.outside, values)
        return dict(builtin_base(values).items(values))
    if not hasattr(type(values), "keys"):
        raise TypeError(refusal(type(values).__name__))
    keys = elements(t, t.call(t.attribute(values, "keys"), ()))
    return {key: t.item(values, key) for key in keys}


@opcode("LIST_TO_TUPLE")
def list_to_tuple(t: Trace, f: Frame, arg: int) -> None:
    f.stack[-1] = tuple(f.stack[-1])


@opcode("CALL_INTRINSIC_1", outside=applied(lambda arg: "pos" if arg == 5 else None, -1))
def call_intrinsic_1(t: Trace, f: Frame, arg: int) -> None:
    if arg == 6:
        f.stack[-1] = tuple(f.stack[-1])
    elif arg == 5:
        f.stack[-1] = unary(t, operator.pos, f.stack[-1])
    elif arg == 3:
        error = f.stack[-1]
        if isinstance(error, StopIteration):
            f.stack[-1] = RuntimeError("generator raised StopIteration")
            f.stack[-1].__cause__ = f.stack[-1].__context__ = error
    else:
        graph_break("BZ1006", f"the intrinsic {arg} is not carried yet")


def unpackable(value: Any) -> Any:
    """A value to be unpacked, refused in the words for that if it cannot be iterated."""
    cls = type(value)
    if hasattr(cls, "__iter__") or hasattr(cls, "__getitem__"):
        return value
    raise TypeError(f"cannot unpack non-iterable {cls.__name__} object")


def first_of(t: Interpreter, value: Any, most: int) -> Any:
    """The first items of an iterable, which is asked for no more of them; all of a list or tuple."""
    if type(value) in (list, tuple):
        return value
    items: list[Any] = []
    iterator, end = t.iterate(value), object()
    while len(items) < most and (item := t.advance(iterator, end)) is not end:
        items.append(item)
    return items


@opcode("UNPACK_SEQUENCE")
def unpack_sequence(t: Trace, f: Frame, arg: int) -> None:
    items = first_of(t, unpackable(f.stack.pop()), arg + 1)
    if len(items) != arg:
        many = "too many values to unpack" if len(items) > arg else "not enough values to unpack"
        raise ValueError(
            f"{many} (expected {arg}, got {len(items)})" if len(items) < arg else f"{many} (expected {arg})"
        )
    f.stack.extend(reversed(items))


@opcode("UNPACK_EX")
def unpack_ex(t: Trace, f: Frame, arg: int) -> None:
    before, after = arg & 255, arg >> 8
    values = unpackable(f.stack.pop())
    if type(values) is tuple or type(values) is list:
        items = list(values)
    else:
        iterator, end = t.iterate(values), object()
        items = []
        while len(items) < before and (item := t.advance(iterator, end)) is not end:
            items.append(item)
        if len(items) == before:
            items += gathered(t, iterator)
    if len(items) < before + after:
        raise ValueError(
            f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
        )
    split = len(items) - after
    f.stack.extend(reversed(items[split:]))
    f.stack.append(items[before:split])
    f.stack.extend(reversed(items[:before]))


@opcode("GET_LEN")
def get_len(t: Trace, f: Frame, arg: int) -> None:
    fill(t.outside, f.stack[-1])
    f.stack.append(len(f.stack[-1]))


# -- functions


@opcode("MAKE_FUNCTION", until=(3, 12))
def make_function(t: Trace, f: Frame, arg: int) -> None:
    code = f.stack.pop()
    closure = f.stack.pop() if arg & 8 else None
    annotations = f.stack.pop() if arg & 4 else None
    kwdefaults = f.stack.pop() if arg & 2 else None
    defaults = f.stack.pop() if arg & 1 else None
    made = types.FunctionType(code, f.globals, code.co_name, defaults, closure)
    made.__kwdefaults__ = kwdefaults
    if annotations is not None:
        made.__annotations__ = (
            dict(zip(annotations[::2], annotations[1::2], strict=True))
            if isinstance(annotations, tuple)
            else annotations
        )
    f.stack.append(t.done.claim(made))


@opcode("MAKE_FUNCTION", since=(3, 13))
def make_function_313(t: Trace, f: Frame, arg: int) -> None:
    code = f.stack.pop()
    closure = tuple(types.CellType() for _ in code.co_freevars) or None
    f.stack.append(t.done.claim(types.FunctionType(code, f.globals, code.co_name, None, closure)))


@opcode("SET_FUNCTION_ATTRIBUTE")
def set_function_attribute(t: Trace, f: Frame, arg: int) -> None:
    made = f.stack.pop()
    value = f.stack.pop()
    if arg == 1:
        made.__defaults__ = value
    elif arg == 2:
        made.__kwdefaults__ = value
    elif arg == 4:
        made.__annotations__ = (
            dict(zip(value[::2], value[1::2], strict=True)) if isinstance(value, tuple) else value
        )
    else:
        made = t.done.claim(
            types.FunctionType(made.__code__, f.globals, made.__name__, made.__defaults__, value)
        )
    f.stack.append(made)
