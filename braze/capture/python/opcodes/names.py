"""Globals, attributes, imports."""

from __future__ import annotations

import operator
import sys
import types
from typing import Any

from braze import native
from braze.capture.facts.breaks import graph_break
from braze.capture.facts.frame import Frame
from braze.capture.facts.records import BreakKind
from braze.capture.facts.values import MISSING, NULL
from braze.capture.outside.globals import globals_of
from braze.capture.python.attributes import load_attr
from braze.capture.python.opcodes.stack import filled
from braze.capture.python.opcodes.table import DoneOutside, Pending, opcode, rows
from braze.capture.python.stores import delete_attr, store_attr
from braze.capture.state.outside import Outside
from braze.capture.state.trace import Interpreter, Trace


@opcode("LOAD_GLOBAL", until=(3, 12))
def load_global(t: Trace, f: Frame, arg: int) -> None:
    if arg & 1:
        f.stack.append(NULL)
    f.stack.append(globals_of(t.outside, f).get(t, f.code.co_names[arg >> 1]))


@opcode("LOAD_GLOBAL", since=(3, 13))
def load_global_313(t: Trace, f: Frame, arg: int) -> None:
    f.stack.append(globals_of(t.outside, f).get(t, f.code.co_names[arg >> 1]))
    if arg & 1:
        f.stack.append(NULL)


# -- in the body of a class


def class_name(t: Interpreter, namespace: Any, name: str) -> Any:
    """A name in a class body's namespace, or MISSING."""
    if type(namespace) is dict:
        return namespace.get(name, MISSING)
    try:
        return t.item(namespace, name)
    except KeyError:
        return MISSING


def name_of_body(t: Trace, f: Frame, namespace: Any, name: str) -> Any:
    """A name in a class body, else a global."""
    value = class_name(t, namespace, name)
    return globals_of(t.outside, f).get(t, name) if value is MISSING else value


def cell_of_body(t: Trace, f: Frame, namespace: Any, arg: int) -> Any:
    """A variable of the function around, unless the class body has one of its name."""
    value = class_name(t, namespace, f.decoded.slots[arg])
    return filled(t, f, arg) if value is MISSING else value


rows(
    {
        "LOAD_LOCALS": lambda t, f, arg: f.stack.append(f.names),
        "LOAD_NAME": lambda t, f, arg: f.stack.append(name_of_body(t, f, f.names, f.code.co_names[arg])),
        "LOAD_FROM_DICT_OR_GLOBALS": lambda t, f, arg: f.stack.append(
            name_of_body(t, f, f.stack.pop(), f.code.co_names[arg])
        ),
        "LOAD_CLASSDEREF": lambda t, f, arg: f.stack.append(cell_of_body(t, f, f.names, arg)),
        "LOAD_FROM_DICT_OR_DEREF": lambda t, f, arg: f.stack.append(cell_of_body(t, f, f.stack.pop(), arg)),
        # a namespace with rules of its own, as enums have, is of the standard library
        "STORE_NAME": lambda t, f, arg: native.unhooked(
            operator.setitem, f.names, f.code.co_names[arg], f.stack.pop()
        ),
        "DELETE_NAME": lambda t, f, arg: native.unhooked(operator.delitem, f.names, f.code.co_names[arg]),
        "DELETE_ATTR": lambda t, f, arg: delete_attr(t, f.stack.pop(), f.code.co_names[arg]),
    }
)


@opcode("SETUP_ANNOTATIONS")
def setup_annotations(t: Trace, f: Frame, arg: int) -> None:
    if "__annotations__" not in f.names:
        native.unhooked(operator.setitem, f.names, "__annotations__", {})


@opcode("STORE_GLOBAL")
def store_global(t: Trace, f: Frame, arg: int) -> None:
    globals_of(t.outside, f).put(f, f.code.co_names[arg], f.stack.pop())


def attribute_read(shift: int) -> DoneOutside:
    """``getattr``; the last bit of an argument that is shifted asks for a method to call."""

    def outside(f: Frame, arg: int, following: int) -> Pending | None:
        operands = [f.stack[-1], f.code.co_names[arg >> shift]]
        return None if arg & shift else (BreakKind.OPERATOR, operands, "getattr", len(f.stack) - 1, 1)

    return outside


@opcode("LOAD_ATTR", until=(3, 11), outside=attribute_read(0))
def load_attribute(t: Trace, f: Frame, arg: int) -> None:
    stack = f.stack
    stack.append(load_attr(t, stack.pop(), f.code.co_names[arg], True))


@opcode("LOAD_METHOD", until=(3, 11))
def load_method(t: Trace, f: Frame, arg: int) -> None:
    push_method(t.outside, f, load_attr(t, f.stack.pop(), f.code.co_names[arg]))


def push_method(outside: Outside, f: Frame, value: Any) -> None:
    """The two values that a call takes: function and self, or NULL and callable. One from outside is guarded as it is called."""
    if type(value) is types.MethodType and outside.tree.node_of(value) is None:
        f.stack += (value.__func__, value.__self__)
    else:
        f.stack += (NULL, value)


@opcode("LOAD_ATTR", since=(3, 12), until=(3, 12), outside=attribute_read(1))
def load_attribute_312(t: Trace, f: Frame, arg: int) -> None:
    if arg & 1:
        push_method(t.outside, f, load_attr(t, f.stack.pop(), f.code.co_names[arg >> 1]))
    else:
        f.stack.append(load_attr(t, f.stack.pop(), f.code.co_names[arg >> 1], True))


@opcode("LOAD_ATTR", since=(3, 13), outside=attribute_read(1))
def load_attribute_313(t: Trace, f: Frame, arg: int) -> None:
    if arg & 1:
        f.stack += (load_attr(t, f.stack.pop(), f.code.co_names[arg >> 1]), NULL)
    else:
        f.stack.append(load_attr(t, f.stack.pop(), f.code.co_names[arg >> 1], True))


@opcode("LOAD_SUPER_ATTR")
def load_super_attr(t: Trace, f: Frame, arg: int) -> None:
    *_, callable_, cls, obj = f.stack[-3:]
    del f.stack[-3:]
    name = f.code.co_names[arg >> 2]
    if callable_ is super:
        value = load_attr(t, super(cls, obj), name)
    else:
        value = load_attr(t, t.call(callable_, (cls, obj) if arg & 2 else ()), name)
    if not arg & 1:
        f.stack.append(value)
    elif sys.version_info >= (3, 13):
        f.stack += (value, NULL)
    else:
        push_method(t.outside, f, value)


def attribute_stored(f: Frame, arg: int, following: int) -> Pending:
    value, obj = f.stack[-2:]
    return BreakKind.STATEMENT, [obj, f.code.co_names[arg], value], "setattr", len(f.stack) - 2, 0


@opcode("STORE_ATTR", outside=attribute_stored)
def store_attribute(t: Trace, f: Frame, arg: int) -> None:
    obj, value = f.stack.pop(), f.stack.pop()
    store_attr(t, obj, f.code.co_names[arg], value)


@opcode("IMPORT_NAME")
def import_name(t: Trace, f: Frame, arg: int) -> None:
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
    for part in names or ():
        if is_part_to_import(sys.modules[full], part):
            graph_break(
                "BZ1007", f"the module {full}.{part} is imported for the first time", "import it before"
            )
    f.stack.append(sys.modules[full] if names or level else sys.modules[full.partition(".")[0]])


def is_part_to_import(module: Any, name: str) -> bool:
    """Whether ``from module import name`` imports a module of a package."""
    if not issubclass(type(module), types.ModuleType) or "__path__" not in vars(module):
        return False
    return not hasattr(module, name) and f"{module.__name__}.{name}" not in sys.modules


@opcode("IMPORT_FROM")
def import_from(t: Trace, f: Frame, arg: int) -> None:
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
