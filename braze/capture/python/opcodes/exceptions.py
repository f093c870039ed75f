"""Raising, handling, and ``with``."""

from __future__ import annotations

import types
from typing import Any

from braze.capture.facts.breaks import graph_break
from braze.capture.facts.frame import Frame
from braze.capture.facts.values import MISSING
from braze.capture.outside.class_values import trust_class_value
from braze.capture.python import raised
from braze.capture.python.attributes import class_lookup, note_absent
from braze.capture.python.opcodes.table import opcode, rows
from braze.capture.state.trace import Trace


@opcode("RAISE_VARARGS")
def raise_varargs(t: Trace, f: Frame, arg: int) -> None:
    cause: Any = f.stack.pop() if arg == 2 else MISSING
    if arg == 0:
        if t.frames.handled is None:
            if t.outside.settings.is_handling():
                graph_break("BZ1012", "the exception that a caller handles is raised again")
            raise RuntimeError("No active exception to reraise")
        raised.about_to_raise(t, t.frames.handled)
        raise t.frames.handled
    error: Any = instance(t, f.stack.pop(), "exceptions must derive from BaseException")
    if cause is not MISSING and cause is not None:
        cause = instance(t, cause, "exception causes must derive from BaseException")
    found = raised.about_to_raise(t, error)
    if cause is not MISSING:
        error.__cause__ = cause
    raised.set_context(error, t.frames.handled)
    found.alone = t.frames.handled is None
    if not isinstance(error, Exception):
        graph_break("BZ1012", f"{type(error).__name__} is raised")
    raise error


def instance(t: Trace, given: Any, refusal: str) -> BaseException:
    """The exception that ``raise`` is given, or made of the class that it is given."""
    if issubclass(type(given), BaseException):
        return given
    if not (issubclass(type(given), type) and issubclass(given, BaseException)):
        raise TypeError(refusal)
    made = t.call(given, ())
    if not isinstance(made, BaseException):
        raise TypeError(
            f"calling {given!r} should have returned an instance of BaseException, not {type(made)!r}"
        )
    return made


@opcode("RERAISE")
def reraise(t: Trace, f: Frame, arg: int) -> None:
    error = f.stack.pop()
    raised.about_to_raise(t, error)
    raise error


@opcode("PUSH_EXC_INFO")
def push_exc_info(t: Trace, f: Frame, arg: int) -> None:
    error = f.stack.pop()
    driver = f.generator
    f.stack += (t.frames.handled if driver is None else driver.handled, error)
    t.frames.handled = error
    if driver is not None:
        driver.handled = error


@opcode("POP_EXCEPT")
def pop_except(t: Trace, f: Frame, arg: int) -> None:
    t.frames.handled = f.stack.pop()
    driver = f.generator
    if driver is not None:
        driver.handled = t.frames.handled
        if t.frames.handled is None:
            t.frames.handled = driver.around


@opcode("CHECK_EXC_MATCH")
def check_exc_match(t: Trace, f: Frame, arg: int) -> None:
    kinds = f.stack.pop()
    every = kinds if isinstance(kinds, tuple) else (kinds,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in every):
        raise TypeError("catching classes that do not inherit from BaseException is not allowed")
    # no __instancecheck__ and no __class__ of the program's is asked
    f.stack.append(any(kind in type(f.stack[-1]).__mro__ for kind in every))


@opcode("CLEANUP_THROW")
def cleanup_throw(t: Trace, f: Frame, arg: int) -> None:
    error = f.stack.pop()
    if isinstance(error, StopIteration):
        del f.stack[-2:]
        f.stack += (None, error.value)
        return
    raised.about_to_raise(t, error)
    raise error


rows({"LOAD_ASSERTION_ERROR": lambda t, f, arg: f.stack.append(AssertionError)})


@opcode("BEFORE_WITH")
def before_with(t: Trace, f: Frame, arg: int) -> None:
    manager = f.stack.pop()
    cls = type(manager)
    enter, enter_owner, _ = class_lookup(cls, "__enter__")
    leave, leave_owner, _ = class_lookup(cls, "__exit__")
    if enter is MISSING or leave is MISSING:
        missed = " (missed __exit__ method)" if enter is not MISSING else ""
        raise TypeError(f"'{cls.__name__}' object does not support the context manager protocol{missed}")
    for name, found, owner in (("__enter__", enter, enter_owner), ("__exit__", leave, leave_owner)):
        note_absent(t, cls, name, owner)
        if type(found) is types.FunctionType:
            trust_class_value(t, owner, name, found)
    f.stack.append(types.MethodType(leave, manager) if callable(leave) else leave.__get__(manager, cls))
    f.stack.append(t.call(enter, (manager,), None, True))


@opcode("WITH_EXCEPT_START")
def with_except_start(t: Trace, f: Frame, arg: int) -> None:
    error = f.stack[-1]
    leave = f.stack[-4]
    f.stack.append(t.call(leave, (type(error), error, error.__traceback__), None))
