"""Attributes of classes, functions and modules from outside: what the program writes there is written when the graph has run.

Until then it lies beside them: what is looked up in a class (:func:`braze.capture.facts.values.lookup_in_mro`), a function or a
module is found there first. Only plain values may be written so; what changes how others are looked up or called (methods,
descriptors, special names) ends the graph.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

from braze.capture.facts.breaks import HINT_MOVE, graph_break
from braze.capture.facts.libraries import is_library_class, is_library_function, is_library_module
from braze.capture.facts.records import Step
from braze.capture.facts.values import MISSING, Lookups, held, is_immutable, lookup_in_mro
from braze.capture.outside.globals import globals_at
from braze.capture.outside.shadows import DictShadow
from braze.capture.state.ledger import Ledger
from braze.capture.state.outside import Outside
from braze.capture.state.trace import Trace

#: the names under which functions carry marks for compilers start so
MARKS = ("__", "_torch", "_dynamo", "_is_torch", "_braze")


def refuse(what: str, obj: Any) -> None:
    """End the graph before a write that lookups of the trace would not all see."""
    name = held(obj, "__name__")
    graph_break("BZ1010", f"an attribute of the {what} {name!r} is assigned", HINT_MOVE)


def is_plain(value: Any) -> bool:
    """Whether a class may hold a value without changing how it is looked up."""
    kind = type(value)
    return not any(hasattr(kind, name) for name in ("__get__", "__set__", "__delete__", "__set_name__"))


def write_class(outside: Outside, cls: Any, name: str, value: Any) -> None:
    """``cls.name = value``."""
    meta = type(cls)
    writer, _ = lookup_in_mro(meta, "__setattr__")
    held, _ = lookup_in_mro(cls, name)
    of_meta, _ = lookup_in_mro(meta, name)
    usual = writer is type.__dict__["__setattr__"] and not name.startswith("__") and of_meta is MISSING
    if not usual or is_library_class(cls) or is_immutable(cls):
        refuse("class", cls)
    if id(cls) in outside.class_dicts or not is_plain(value) or (held is not MISSING and not is_plain(held)):
        refuse("class", cls)
    Lookups.write(cls, name, value)


def write_function(t: Trace, fn: Any, name: str, value: Any) -> None:
    """``fn.name = value``."""
    node = t.outside.tree.constant(fn)
    if name.startswith(MARKS) or is_library_function(fn) or (Step.ATTR, "__dict__") in node.children:
        refuse("function", fn)
    t.done.function_fields.setdefault(id(fn), (fn, {}))[1][name] = value


def is_written_by_dict(outside: Outside, fn: Any) -> bool:
    """Whether the program has written to a function's ``__dict__``, rather than to its attributes."""
    return written(outside, held(fn, "__dict__")) is not None


def written(outside: Outside, real: Any) -> DictShadow | None:
    """What stands for a dict from outside that the program has written to, by whichever name; None of another."""
    node = outside.tree.known.get(id(real))
    shadow = node.container if node is not None and node.real is real else None
    return shadow if isinstance(shadow, DictShadow) and shadow.changed() else None


def write_module(outside: Outside, module: Any, name: str, value: Any) -> None:
    """``module.name = value``."""
    own = object.__getattribute__(module, "__dict__")
    if type(module) is not types.ModuleType or name.startswith("__") or is_library_module(module):
        refuse("module", module)
    space = globals_at(outside, own, module)
    space.module = module
    space.written[name] = space.cache[name] = value


def new_values(done: Ledger) -> Iterator[tuple[Any, str, Any]]:
    """(class or function, name, value) of all that the program has written there by now."""
    for owner, fields in (*Lookups.written.values(), *done.function_fields.values()):
        for name, value in fields.items():
            yield owner, name, value
