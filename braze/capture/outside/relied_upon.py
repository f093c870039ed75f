"""What a library's function that is not interpreted finds by name when it runs: guarded, as if it had been interpreted.

``torch.nn.functional.relu`` is one node of a graph, and calls ``torch.relu``: the program may put another function there. What a function
may look up tells its code. Where the program has put something of its own there, the function is interpreted as any other.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from braze.capture.facts.bytecode import looked_up
from braze.capture.facts.libraries import is_library_function, is_library_name
from braze.capture.facts.records import Check, Step
from braze.capture.facts.values import (
    MISSING,
    is_bound_builtin,
    is_identity_type,
    is_immutable,
    lookup_in_mro,
)
from braze.capture.state.outside import Outside
from braze.capture.state.sources import Node

#: modules whose functions decide nothing of an answer: who overrides PyTorch's functions is asked elsewhere
NOT_FOLLOWED = (
    "torch.overrides",
    "torch._jit_internal",
    "torch.jit",
    "torch.fx",
    "torch._utils_internal",
    "warnings",
)
#: what asks whether the program overrides PyTorch's functions, which is asked elsewhere
ASKING = ("has_torch_function", "handle_torch_function")
#: how many functions are looked into for one
MOST = 100
#: (module or class, name) -> what a library had there when it was first seen
_FIRST: dict[tuple[Any, str], Any] = {}


class Place:
    """A name in a module or class, and what is there."""

    __slots__ = ("name", "owner", "step", "value")

    def __init__(self, owner: Any, step: Step, name: str, value: Any) -> None:
        self.owner, self.step, self.name, self.value = owner, step, name, value

    def now(self) -> Any:
        """What is there now."""
        if self.step is Step.CLASS_ATTR:
            return lookup_in_mro(self.owner, self.name)[0]
        return vars(self.owner).get(self.name, MISSING)

    def node(self, outside: Outside) -> Node:
        """Its node."""
        return outside.tree.constant(self.owner).child(self.step, self.name)


#: function -> the places that it, and what it calls, looks up
_PLACES: dict[types.FunctionType, tuple[Place, ...]] = {}


def trust(outside: Outside, function: Any) -> bool:
    """Guard what a library's function looks up. Whether all of it is the library's own: else the function is to be interpreted."""
    known = outside.relied.get(function)
    if known is None:
        places = _PLACES.get(function)
        if places is None or any(place.now() is not place.value for place in places):
            places = _PLACES[function] = tuple(_places(function))
        own = [trust_place(outside, place) for place in places]  # all of them, whatever the first is
        known = outside.relied[function] = all(own)
    return known


def trust_method(outside: Outside, name: str) -> bool:
    """Guard what tensors' class has under a name. Whether that is PyTorch's own."""
    known = outside.relied.get(name)
    if known is None:
        found, _ = lookup_in_mro(torch.Tensor, name)
        known = trust_place(outside, Place(torch.Tensor, Step.CLASS_ATTR, name, found))
        if known and isinstance(found, types.FunctionType):
            known = trust(outside, found)
        outside.relied[name] = known
    return known


def trust_place(outside: Outside, place: Place) -> bool:
    """Guard what is at a place. Whether that is the library's own."""
    if place.value is MISSING:
        note_missing(outside, place.owner, place.name)
        return True
    node, value = place.node(outside), place.value
    if node.real is MISSING:
        outside.tree.meet(node, value)
        node.guard(Check.IS, value)
    if not is_librarys(value):
        return False
    return _FIRST.setdefault((place.owner, place.name), value) is value


def note_missing(outside: Outside, owner: Any, name: str) -> None:
    """Guard that there is no such name in the dict of a class, function or module."""
    node = outside.tree.constant(owner)
    if node.absent is None:
        node.absent = {}
        outside.tree.order.append(node)
    node.absent[name] = True


def is_librarys(value: Any) -> bool:
    """Whether this is what libraries have in their modules and classes, rather than something of the program's."""
    if isinstance(value, types.FunctionType):
        return is_library_function(value)
    kind = type(value)
    if is_identity_type(kind):
        return not isinstance(value, type) or is_immutable(value) or is_library_name(value.__module__)
    return is_library_name(kind.__module__) and not kind.__module__.startswith("unittest")


def _places(function: types.FunctionType) -> Iterator[Place]:
    """The places that a function, and the library's functions that it finds there, look up."""
    root = str(function.__globals__.get("__name__")).partition(".")[0]
    if root == "braze":
        return
    seen, todo, told = {function}, [function], set()
    while todo and len(seen) < MOST:
        here = todo.pop()
        found = [*_looked_up(here)]
        for place in found:
            if (place.owner, place.name) not in told:
                told.add((place.owner, place.name))
                yield place
        inner = [cell.cell_contents for cell in here.__closure__ or () if cell != types.CellType()]
        for value in (*(place.value for place in found), *inner):
            if isinstance(value, property | classmethod | staticmethod):
                value = value.fget if isinstance(value, property) else value.__func__
            if isinstance(value, types.FunctionType) and value not in seen and _is_followed(value, root):
                seen.add(value)
                todo.append(value)


def _is_followed(function: types.FunctionType, root: str) -> bool:
    name = function.__globals__.get("__name__")
    return (
        isinstance(name, str)
        and name.partition(".")[0] == root
        and not name.startswith(NOT_FOLLOWED)
        and is_library_function(function)
    )


def _looked_up(function: types.FunctionType) -> Iterator[Place]:
    """The places that a function itself looks up: in its module, in modules and classes found there, in its class, and in tensors'."""
    space = function.__globals__
    home = sys.modules.get(space.get("__name__", ""))
    if home is None or vars(home) is not space:
        return
    own = _class_of(function, home)
    for first, *names in looked_up(function.__code__):
        if first.startswith(ASKING):
            continue
        if not first:
            if len(names) == 1:
                yield from _attribute(own, names[0])
                if own is not torch.Tensor and home.__name__.startswith("torch"):
                    yield from _attribute(torch.Tensor, names[0])
            continue
        owner, name = home, first
        for name in (first, *names):
            if isinstance(owner, types.ModuleType):
                step, value = Step.DICT, vars(owner).get(name, MISSING)
            else:
                owner = owner if isinstance(owner, type) else type(owner)
                step, value = Step.CLASS_ATTR, lookup_in_mro(owner, name)[0]
            last, owner = owner, value
        if value is MISSING:
            if (
                lookup_in_mro(type(last), "__getattr__")[0] is not MISSING
            ):  # as torch._VF, hands out what it does not hold
                yield Place(last, step, name, value)
        elif is_relied_upon(last, value):
            yield Place(last, step, name, value)


def _attribute(cls: Any, name: str) -> Iterator[Place]:
    """What a class has under a name, if that is something to call."""
    if cls is not None:
        value, _ = lookup_in_mro(cls, name)
        if value is not MISSING and is_relied_upon(cls, value):
            yield Place(cls, Step.CLASS_ATTR, name, value)


def is_relied_upon(owner: Any, value: Any) -> bool:
    """Whether what is found in a module or class is looked at: something to call, or a class or module, where it may be replaced."""
    if isinstance(owner, type) and is_immutable(owner):
        return False
    if isinstance(value, property | classmethod):
        return True
    if isinstance(value, type) and is_immutable(value):
        return False  # Python's own, which has not a name for all of them
    return callable(value) and not is_bound_builtin(value)


def _class_of(function: types.FunctionType, home: types.ModuleType) -> Any:
    """The class in whose body a method is written, or None."""
    found: Any = home
    for part in function.__qualname__.split(".")[:-1]:
        found = vars(found).get(part) if isinstance(found, type | types.ModuleType) else None
    return found if isinstance(found, type) else None
