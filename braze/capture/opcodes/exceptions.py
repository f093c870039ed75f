"""Raising, handling, and ``with``."""

from __future__ import annotations

import types
from typing import Any

from braze.capture import raised
from braze.capture.attributes import class_lookup
from braze.capture.breaks import graph_break
from braze.capture.opcodes.table import opcode
from braze.capture.values import MISSING


@opcode("RAISE_VARARGS")
def raise_varargs(t: Any, f: Any, arg: int) -> None:
    cause: Any = f.stack.pop() if arg == 2 else MISSING
    if arg == 0:
        if t.handled is None:
            raise RuntimeError("No active exception to reraise")
        raised.about_to_raise(t, t.handled)
        raise t.handled
    error: Any = f.stack.pop()
    if isinstance(error, type):
        error = t.call(error, ())
    if not isinstance(error, BaseException):
        raise TypeError("exceptions must derive from BaseException")
    raised.about_to_raise(t, error)
    if cause is not MISSING:
        error.__cause__ = t.call(cause, ()) if isinstance(cause, type) else cause
    if not isinstance(error, Exception):
        graph_break("BZ1012", f"{type(error).__name__} is raised")
    raise error


@opcode("RERAISE")
def reraise(t: Any, f: Any, arg: int) -> None:
    error = f.stack.pop()
    raised.about_to_raise(t, error)
    raise error


@opcode("PUSH_EXC_INFO")
def push_exc_info(t: Any, f: Any, arg: int) -> None:
    error = f.stack.pop()
    f.stack += (t.handled, error)
    t.handled = error


@opcode("POP_EXCEPT")
def pop_except(t: Any, f: Any, arg: int) -> None:
    t.handled = f.stack.pop()


@opcode("CHECK_EXC_MATCH")
def check_exc_match(t: Any, f: Any, arg: int) -> None:
    kinds = f.stack.pop()
    f.stack.append(isinstance(f.stack[-1], kinds))


@opcode("CLEANUP_THROW")
def cleanup_throw(t: Any, f: Any, arg: int) -> None:
    error = f.stack.pop()
    if isinstance(error, StopIteration):
        del f.stack[-2:]
        f.stack += (None, error.value)
        return
    raised.about_to_raise(t, error)
    raise error


@opcode("LOAD_ASSERTION_ERROR")
def load_assertion_error(t: Any, f: Any, arg: int) -> None:
    f.stack.append(AssertionError)


@opcode("BEFORE_WITH")
def before_with(t: Any, f: Any, arg: int) -> None:
    manager = f.stack.pop()
    cls = type(manager)
    enter, enter_owner, _ = class_lookup(cls, "__enter__")
    leave, leave_owner, _ = class_lookup(cls, "__exit__")
    if enter is MISSING or leave is MISSING:
        raise TypeError(f"'{cls.__name__}' object does not support the context manager protocol")
    for name, found, owner in (("__enter__", enter, enter_owner), ("__exit__", leave, leave_owner)):
        if type(found) is types.FunctionType:
            t.trust_class_value(owner, name, found)
    f.stack.append(types.MethodType(leave, manager) if callable(leave) else leave.__get__(manager, cls))
    f.stack.append(t.call(enter, (manager,), None, True))


@opcode("WITH_EXCEPT_START")
def with_except_start(t: Any, f: Any, arg: int) -> None:
    error = f.stack[-1]
    leave = f.stack[-4]
    f.stack.append(t.call(leave, (type(error), error, error.__traceback__), None))
