"""Frames of interpreted code, and code objects whose instructions are decoded when they are first met."""

from __future__ import annotations

import inspect
import opcode
import types
from typing import Any, NoReturn

from braze.capture.facts.bytecode import (
    EXTENDED_ARG,
    GENERATORS,
    cache_units,
    decode_exceptions,
    opcodes,
    slot_names,
)
from braze.capture.facts.values import NULL
from braze.support.caches import remembered
from braze.support.errors import Origin

CO_VARARGS = inspect.CO_VARARGS
CO_VARKEYWORDS = inspect.CO_VARKEYWORDS
JUMPS_RELATIVE = frozenset(opcode.hasjrel)
#: instructions that do nothing: they are passed over
NOTHING = opcodes("NOP PRECALL")


#: inline cache entries after each instruction
CACHES = [cache_units(name) if name in opcode.opmap else 0 for name in opcode.opname[:256]]


class Decoded:
    """What the interpreter needs to know of a code object."""

    __slots__ = ("code", "handlers", "library", "ops", "origins", "slots", "table")

    def __init__(self, code: types.CodeType, handlers: list[Any]) -> None:
        self.code = code
        self.slots = slot_names(code)
        #: by instruction index in code units: (handler, argument, index of the next instruction, opcode)
        self.ops: list[Any] = [UNDECODED] * (len(code.co_code) // 2)
        self.handlers = handlers
        #: (start, end, target, depth, lasti) in code units, innermost last as in the code object
        self.table = [
            (row.start // 2, row.end // 2, row.target // 2, row.depth, row.lasti)
            for row in decode_exceptions(code.co_exceptiontable)
        ]
        self.origins: dict[int, Origin] = {}
        #: code of PyTorch's: not a place to show to users
        self.library = False

    def instruction(self, index: int) -> Any:
        """The decoded instruction at an index."""
        found = self.ops[index]
        if found is UNDECODED:
            found = self.ops[index] = decode(self.code, self.handlers, index)
        return found

    def origin(self, index: int) -> Origin:
        """The user's place of the instruction at an index (in code units)."""
        found = self.origins.get(index)
        if found is None:
            code = self.code
            found = self.origins[index] = position(code, index)
        return found


@remembered(1024)
def _positions(code: types.CodeType) -> list[Any]:
    return list(code.co_positions())


def position(code: types.CodeType, index: int) -> Origin:
    """The place of the instruction at an index (in code units)."""
    positions = _positions(code)
    line, end_line, column, end_column = positions[index] if 0 <= index < len(positions) else (None,) * 4

    def known(value: int | None) -> int:
        return -1 if value is None else value

    return Origin(
        code.co_filename,
        line if line is not None else code.co_firstlineno,
        known(column),
        known(end_line),
        known(end_column),
        code.co_qualname,
    )


def decode(code: types.CodeType, handlers: list[Any], index: int) -> tuple[Any, int, int, int]:
    """(handler, argument, index of the next instruction, opcode) of the instruction at an index."""
    raw = code.co_code
    at = index
    op, arg = raw[2 * at], raw[2 * at + 1]
    while op == EXTENDED_ARG:
        at += 1
        op, arg = raw[2 * at], raw[2 * at + 1] | arg << 8
    following = at + 1 + CACHES[op]
    if op in JUMPS_RELATIVE:
        arg = following - arg if "BACKWARD" in opcode.opname[op] else following + arg
    while 2 * following < len(raw) and raw[2 * following] in NOTHING:
        following += 1 + CACHES[raw[2 * following]]
    return handlers[op], arg, following, op


def decode_here(t: Any, f: Frame, arg: int) -> Any:
    """Stands for every instruction until it is first met: decode it, then do it."""
    handler, arg, f.ip, _ = f.decoded.instruction(f.at)
    return handler(t, f, arg)


UNDECODED = (decode_here, 0, 0, -1)


class Frame:
    """One activation. ``tail``: its return value is just what the caller's instruction pushes."""

    def __init__(self, function: types.FunctionType, decoded: Decoded, localsplus: list[Any]) -> None:
        self.function = function
        self.decoded = decoded
        self.code = decoded.code
        self.globals = function.__globals__
        self.builtins: dict[str, Any] = function.__builtins__  # type: ignore[attr-defined]
        self.locals = localsplus
        self.stack: list[Any] = []
        self.ip = 0
        self.at = 0
        self.kwnames: tuple[str, ...] = ()
        self.tail = False
        self.entered_at = 0
        #: the step of the instruction whose call into C is under way, which may call back many times; 0 for none
        self.in_c = 0
        self.result: Any = None
        self.generator: Any = None
        #: the namespace of a class body
        self.names: Any = None


def bind(function: types.FunctionType, args: Any, kwargs: dict[str, Any] | None, defaults: Any) -> list[Any]:
    """The localsplus of a call, as CPython would fill it; TypeError as it would raise.

    ``defaults(function)`` gives (positional defaults, keyword defaults) as the interpreter sees them.
    """
    code = function.__code__
    count, keyword_only, flags = code.co_argcount, code.co_kwonlyargcount, code.co_flags
    slots: list[Any] = [NULL] * (
        len(slot_names(code)) if code.co_cellvars else code.co_nlocals + len(code.co_freevars)
    )
    given = len(args)
    named = count + keyword_only
    if given > count and not flags & CO_VARARGS:
        refuse_call(function, args, kwargs)
    slots[: min(given, count)] = args[:count]
    if flags & CO_VARARGS:
        slots[named] = tuple(args[count:])
    if (kwargs or flags & CO_VARKEYWORDS) and not _bind_keywords(function, slots, kwargs or {}):
        refuse_call(function, args, kwargs)
    if given < named or code.co_kwonlyargcount:
        for slot in slots[:named]:
            if slot is NULL:
                positional, by_keyword = defaults(function)
                if not _fill_defaults(function, slots, positional, by_keyword):
                    refuse_call(function, args, kwargs, by_keyword)
                break
    return slots


def refuse_call(
    function: types.FunctionType,
    args: Any,
    kwargs: dict[str, Any] | None,
    by_keyword: dict[str, Any] | None = None,
) -> NoReturn:
    """Raise what CPython raises for a call with wrong arguments: asked of an empty function of the same signature.

    ``by_keyword``: the defaults of its keywords, where the program has written others.
    """
    code = function.__code__
    plain = code.co_flags & ~GENERATORS
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + 2]
    empty = _nothing.__code__.replace(
        co_argcount=code.co_argcount,
        co_posonlyargcount=code.co_posonlyargcount,
        co_kwonlyargcount=code.co_kwonlyargcount,
        co_nlocals=len(names),
        co_varnames=names,
        co_flags=plain & ~inspect.CO_NESTED,
        co_name=code.co_name,
        co_qualname=code.co_qualname,
    )
    asked = types.FunctionType(empty, {}, function.__name__, function.__defaults__)
    asked.__kwdefaults__ = function.__kwdefaults__ if by_keyword is None else by_keyword
    asked.__qualname__ = function.__qualname__
    asked(*args, **(kwargs or {}))
    raise TypeError(f"{function.__qualname__}() was called with wrong arguments")


def _nothing() -> None:
    return None


def _bind_keywords(function: types.FunctionType, slots: list[Any], kwargs: dict[str, Any]) -> bool:
    """Put keywords into their slots; False where one does not fit."""
    code = function.__code__
    named = code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames[:named]
    rest: dict[str, Any] = {}
    for name, value in kwargs.items():
        if name in names[code.co_posonlyargcount :]:
            index = names.index(name, code.co_posonlyargcount)
            if slots[index] is not NULL:
                return False
            slots[index] = value
        elif code.co_flags & CO_VARKEYWORDS:
            rest[name] = value
        else:
            return False
    if code.co_flags & CO_VARKEYWORDS:
        slots[named + bool(code.co_flags & CO_VARARGS)] = rest
    return True


def _fill_defaults(
    function: types.FunctionType, slots: list[Any], positional: tuple[Any, ...], by_keyword: dict[str, Any]
) -> bool:
    """Fill the slots that the call left empty; False where there is no default."""
    code = function.__code__
    count = code.co_argcount
    first = count - len(positional)
    for index in range(count):
        if slots[index] is NULL:
            if index < first:
                return False
            slots[index] = positional[index - first]
    for index in range(count, count + code.co_kwonlyargcount):
        if slots[index] is NULL:
            name = code.co_varnames[index]
            if name not in by_keyword:
                return False
            slots[index] = by_keyword[name]
    return True
