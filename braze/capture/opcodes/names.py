"""Globals, attributes, imports."""

from __future__ import annotations

import sys
import types
from typing import Any

from braze.capture.attributes import load_attr, super_attr
from braze.capture.breaks import graph_break
from braze.capture.opcodes.table import opcode
from braze.capture.stores import delete_attr, store_attr
from braze.capture.values import NULL


@opcode("LOAD_GLOBAL", until=(3, 12))
def load_global(t: Any, f: Any, arg: int) -> None:
    if arg & 1:
        f.stack.append(NULL)
    f.stack.append(t.globals_of(f).get(t, f.code.co_names[arg >> 1]))


@opcode("LOAD_GLOBAL", since=(3, 13))
def load_global_313(t: Any, f: Any, arg: int) -> None:
    f.stack.append(t.globals_of(f).get(t, f.code.co_names[arg >> 1]))
    if arg & 1:
        f.stack.append(NULL)


@opcode("LOAD_NAME")
def load_name(t: Any, f: Any, arg: int) -> None:
    graph_break("BZ1006", "code of a class body or module")


@opcode("STORE_GLOBAL")
def store_global(t: Any, f: Any, arg: int) -> None:
    t.globals_of(f).put(t, f, f.code.co_names[arg], f.stack.pop())


@opcode("LOAD_ATTR", until=(3, 11))
def load_attribute(t: Any, f: Any, arg: int) -> None:
    stack = f.stack
    stack.append(load_attr(t, stack.pop(), f.code.co_names[arg], True))


@opcode("LOAD_METHOD", until=(3, 11))
def load_method(t: Any, f: Any, arg: int) -> None:
    push_method(f, load_attr(t, f.stack.pop(), f.code.co_names[arg]))


def push_method(f: Any, value: Any) -> None:
    """The two values that a call takes: function and self, or NULL and callable."""
    if type(value) is types.MethodType:
        f.stack += (value.__func__, value.__self__)
    else:
        f.stack += (NULL, value)


@opcode("LOAD_ATTR", since=(3, 12), until=(3, 12))
def load_attribute_312(t: Any, f: Any, arg: int) -> None:
    if arg & 1:
        push_method(f, load_attr(t, f.stack.pop(), f.code.co_names[arg >> 1]))
    else:
        f.stack.append(load_attr(t, f.stack.pop(), f.code.co_names[arg >> 1], True))


@opcode("LOAD_ATTR", since=(3, 13))
def load_attribute_313(t: Any, f: Any, arg: int) -> None:
    if arg & 1:
        f.stack += (load_attr(t, f.stack.pop(), f.code.co_names[arg >> 1]), NULL)
    else:
        f.stack.append(load_attr(t, f.stack.pop(), f.code.co_names[arg >> 1], True))


@opcode("LOAD_SUPER_ATTR")
def load_super_attr(t: Any, f: Any, arg: int) -> None:
    *_, callable_, cls, obj = f.stack[-3:]
    del f.stack[-3:]
    name = f.code.co_names[arg >> 2]
    if callable_ is super:
        value = super_attr(t, super(cls, obj), name, False)
    else:
        value = load_attr(t, t.call(callable_, (cls, obj) if arg & 2 else ()), name)
    if not arg & 1:
        f.stack.append(value)
    elif sys.version_info >= (3, 13):
        f.stack += (value, NULL)
    else:
        push_method(f, value)


@opcode("STORE_ATTR")
def store_attribute(t: Any, f: Any, arg: int) -> None:
    obj, value = f.stack.pop(), f.stack.pop()
    store_attr(t, obj, f.code.co_names[arg], value)


@opcode("DELETE_ATTR")
def delete_attribute(t: Any, f: Any, arg: int) -> None:
    delete_attr(t, f.stack.pop(), f.code.co_names[arg])


@opcode("IMPORT_NAME")
def import_name(t: Any, f: Any, arg: int) -> None:
    level, names = f.stack[-2:]
    del f.stack[-2:]
    name = f.code.co_names[arg]
    package = f.globals.get("__package__") or f.globals.get("__name__", "")
    full = name
    if level:
        base = package.rsplit(".", level - 1)[0] if level > 1 else package
        full = f"{base}.{name}" if name else base
    if full not in sys.modules:
        graph_break("BZ1007", f"the module {full} is imported for the first time", "import it before")
    f.stack.append(sys.modules[full] if names or level else sys.modules[full.partition(".")[0]])


@opcode("IMPORT_FROM")
def import_from(t: Any, f: Any, arg: int) -> None:
    module = f.stack[-1]
    name = f.code.co_names[arg]
    full = f"{module.__name__}.{name}"
    if not hasattr(module, name) and full in sys.modules:
        f.stack.append(sys.modules[full])
        return
    try:
        f.stack.append(load_attr(t, module, name))
    except AttributeError:
        raise ImportError(
            f"cannot import name {name!r} from {module.__name__!r}", name=module.__name__
        ) from None
