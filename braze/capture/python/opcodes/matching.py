"""The patterns of ``match``."""

from __future__ import annotations

from typing import Any

from braze.capture.facts.frame import Frame
from braze.capture.python.opcodes.table import opcode, rows
from braze.capture.state.trace import Interpreter, Trace

#: flags of types: what sequence, mapping and self patterns go by
SEQUENCE, MAPPING, MATCH_SELF = 1 << 5, 1 << 6, 1 << 22


rows(
    {
        "MATCH_MAPPING": lambda t, f, arg: f.stack.append(bool(type(f.stack[-1]).__flags__ & MAPPING)),
        "MATCH_SEQUENCE": lambda t, f, arg: f.stack.append(bool(type(f.stack[-1]).__flags__ & SEQUENCE)),
    }
)


@opcode("MATCH_KEYS")
def match_keys(t: Trace, f: Frame, arg: int) -> None:
    subject, keys = f.stack[-2:]
    absent = object()
    get = t.attribute(subject, "get")
    values = []
    for key in keys:
        value = t.call(get, (key, absent))
        if value is absent:
            f.stack.append(None)
            return
        values.append(value)
    f.stack.append(tuple(values))


@opcode("MATCH_CLASS")
def match_class(t: Trace, f: Frame, arg: int) -> None:
    names = f.stack.pop()
    cls = f.stack.pop()
    subject = f.stack.pop()
    f.stack.append(parts(t, subject, cls, names, arg) if t.call(isinstance, (subject, cls)) else None)


def parts(
    t: Trace, subject: Any, cls: Any, names: tuple[str, ...], positional: int
) -> tuple[Any, ...] | None:
    """What the sub-patterns of a class pattern are matched with; None where an attribute is missing."""
    found: list[Any] = []
    wanted: tuple[str, ...] = ()
    if positional:
        by_position, itself = match_args(t, cls)
        allowed = 1 if itself else len(by_position)
        if allowed < positional:
            more = "" if allowed == 1 else "s"
            raise TypeError(
                f"{cls.__name__}() accepts {allowed} positional sub-pattern{more} ({positional} given)"
            )
        if itself:
            found.append(subject)
        else:
            wanted = by_position[:positional]
    for name in (*wanted, *names):
        try:
            found.append(t.attribute(subject, name))
        except AttributeError:
            return None
    return tuple(found)


def match_args(t: Interpreter, cls: Any) -> tuple[tuple[str, ...], bool]:
    """(names that positional sub-patterns stand for, whether the one pattern is for the subject itself)."""
    try:
        found = t.attribute(cls, "__match_args__")
    except AttributeError:
        return (), bool(cls.__flags__ & MATCH_SELF)
    if not isinstance(found, tuple):
        raise TypeError(f"{cls.__name__}.__match_args__ must be a tuple (got {type(found).__name__})")
    for name in found:
        if type(name) is not str:
            raise TypeError(f"__match_args__ elements must be strings (got {type(name).__name__})")
    return found, False
