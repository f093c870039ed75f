"""Values that classes hold, which lookups of the trace rely on."""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Mapping
from typing import Any

from braze.capture.facts.libraries import is_library_class
from braze.capture.facts.records import Check, Step
from braze.capture.facts.values import (
    BUILTIN_METHODS,
    CONSTANTS,
    HEAP_TYPE,
    MISSING,
    Lookups,
    held,
    is_identity_type,
    is_immutable,
    is_plain,
    lookup_in_mro,
)
from braze.capture.state.trace import Trace

#: what classes hold to say how something else is bound
WRAPPERS = frozenset({property, staticmethod, classmethod, functools.cached_property})


def trust_class_value(t: Trace, owner: Any, name: str, found: Any) -> None:
    """Guard what a class holds; those of C do not change."""
    if is_immutable(owner) or t.done.is_ours(owner):
        return
    t.outside.read(t.outside.tree.constant(owner), Step.CLASS_ATTR, name, found)
    node = t.outside.tree.node_of(found)
    if node is not None and isinstance(found, property | classmethod | staticmethod):
        # of an object of the program's, as one of a class below is, the class alone is guarded
        node.guard(Check.IS, node.real)


def is_property(found: Any, *names: str) -> bool:
    """Whether a descriptor does as a property does: one, or of a class below that has none of these names for itself."""
    kind = type(found)
    if kind is property:
        return True
    return issubclass(kind, property) and all(lookup_in_mro(kind, n)[0] is vars(property)[n] for n in names)


def wrapped(t: Trace, holder: Any, name: str, value: Any) -> Any:
    """What a property, a static or class method or a cached property that stands in a class wraps: an object there is known as found in it."""
    if is_plain(value) or type(value) in BUILTIN_METHODS or t.outside.tree.node_of(holder) is None:
        return value
    return t.outside.read(t.outside.tree.constant(holder), Step.ATTR, name, value)


def is_programs(cls: type, name: str) -> bool:
    """Whether what a class has under a name is Python code that may do anything: not a library's, nor what a dataclass is given."""
    found, owner = lookup_in_mro(cls, name)
    if type(found) is not types.FunctionType or is_library_class(owner):
        return False
    return not ("__dataclass_params__" in vars(owner) and found.__code__.co_filename == "<string>")


def has_hash_of_its_own(cls: type) -> bool:
    """Whether ``hash()`` runs Python code that may do anything."""
    return is_programs(cls, "__hash__")


def runs_code_as_key(key: Any) -> bool:
    """Whether looking a key up may run Python code that may do anything: its class says how it is hashed, or what it is equal to."""
    cls = type(key)
    if cls in CONSTANTS:
        return False
    if issubclass(cls, tuple) and any(map(runs_code_as_key, tuple.__iter__(key))):
        return True
    return has_hash_of_its_own(cls) or has_equality_of_its_own(cls)


def has_equality_of_its_own(cls: type) -> bool:
    """Whether a look-up of an instance may run an ``__eq__`` that may do anything; those hashed by identity meet none but themselves."""
    return is_programs(cls, "__eq__") and lookup_in_mro(cls, "__hash__")[0] is not object.__hash__


class WholeOfClass:
    """A function that tells what the dict of a class holds: which names, in which order, and which values."""

    def __init__(self, cls: Any) -> None:
        self.cls = cls
        self.__name__ = f"vars of {held(cls, '__name__')}"

    def __call__(self) -> SameValues:
        return SameValues(held(self.cls, "__dict__"))


class SameValues:
    """Items that are equal to others if these are the very same, in the same order; text of names is compared."""

    __slots__ = ("names", "values")

    def __init__(self, items: Mapping[str, Any]) -> None:
        self.names, self.values = tuple(items), tuple(items.values())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SameValues) or self.names != other.names:
            return False
        return all(map(operator.is_, self.values, other.values))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "what it was"


def dict_of_class(t: Trace, cls: Any) -> None:
    """The dict of a class is read, of which anything may be asked: where the class can change, all that it holds is guarded."""
    if id(cls) in t.outside.class_dicts:
        return
    t.outside.class_dicts[id(cls)] = cls
    if not (is_immutable(cls) or is_library_class(cls) or t.done.is_ours(cls)):
        t.outside.settings.told(WholeOfClass(cls), (), None)


def in_class_dict(t: Trace, key: Any, found: Any) -> Any:
    """What the ``__dict__`` of a class gives under a key: an object or container there is known as what that class holds."""
    kind = type(found)
    if kind not in WRAPPERS and is_identity_type(kind):
        return found
    if not (kind in WRAPPERS or kind.__flags__ & HEAP_TYPE or kind in (dict, list, set)):
        return found
    for cls in t.outside.class_dicts.values():
        if held(cls, "__dict__").get(key, MISSING) is not found:
            continue
        if is_immutable(cls):
            t.outside.tree.constant(found)
        return class_value(t, cls, key, found)
    return found


def class_value(t: Trace, owner: Any, name: str, found: Any) -> Any:
    """A value that a class holds."""
    if t.done.made_classes and t.done.is_ours(owner):
        return found
    if Lookups.written and id(owner) in Lookups.written and name in Lookups.written[id(owner)][1]:
        return found
    if is_immutable(owner):
        return found
    return t.outside.read(t.outside.tree.constant(owner), Step.CLASS_ATTR, name, found)
