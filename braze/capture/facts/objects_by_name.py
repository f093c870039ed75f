"""Objects by name: how a process says to a later one which function, class or operator it means.

A name is a tuple of plain strings and numbers: the kind, then where to look. It is given only if looking there
finds the very object, so that a name never means something else in the process that gave it.
"""

from __future__ import annotations

import functools
import importlib
import logging
import re
import sys
import types
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import torch

from braze.capture.facts.libraries import is_library_function, is_library_name
from braze.support.spoken import spoken

Name = tuple[Any, ...]

#: where functions in C are looked for that do not say where they live
SHELVES = ("torch", "torch.nn.functional", "torch._C", "torch._C._nn", "builtins", "math", "operator")
#: how far to look behind a decorated function
DEPTH = 4
_MISSING = object()


def name_of(value: Any) -> Name | None:
    """A name under which :func:`object_at` finds this very object, in any process of the same code."""
    if isinstance(value, types.MethodType):
        parts = (_name_of(value.__func__), name_of(value.__self__))
        return None if None in parts else ("method", *parts)
    return _name_of(value)


def object_at(name: Name) -> Any:
    """The object of a name; LookupError where there is none."""
    kind, *rest = name
    if kind not in _FOUND:
        raise LookupError(f"a name of kind {kind!r}")
    found = _FOUND[kind](*rest)
    if kind == "at" and isinstance(found, types.FunctionType) and not is_library_function(found):
        if is_library_name(rest[0]):
            raise LookupError(f"the program has put a function of its own at {rest[0]}.{'.'.join(rest[1])}")
    return found


def module_of(name: Name) -> str | None:
    """The module in which a name begins, if it begins in one."""
    if name[0] in ("at", "globals"):
        return str(name[1])
    return module_of(name[1]) if name[0] in ("behind", "method", "type") else None


def _name_of(value: Any) -> Name | None:
    for name in _candidates(value):
        try:
            if object_at(name) is value:
                return name
        except (LookupError, AttributeError, ImportError):
            continue
    return _decorated(value) if isinstance(value, types.FunctionType) else None


def _candidates(value: Any) -> Iterator[Name]:
    """Where the object may be found, likeliest first."""
    for kinds, name in _NAMED:
        if isinstance(value, kinds):
            yield name(value)
            return
    if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
        yield "pattern", value.pattern, value.flags & ~int(re.UNICODE)
        return
    if type(value) is dict:
        yield "globals", value.get("__name__")
        return
    if isinstance(value, types.FunctionType) and "<locals>" in value.__qualname__:
        yield from _held_by_an_instance(value)
    yield from _by_its_own_word(value)
    if isinstance(value, type) and issubclass(value, type):
        for key, held in list(vars(sys.modules.get(value.__module__, types)).items()):
            if type(held) is value:
                yield "type", ("at", value.__module__, (key,))
                break
    # what only a module holds: os.environ, the classes that module types names, methods such as random.random
    for module in ("types", type(value).__module__, type(getattr(value, "__self__", None)).__module__):
        for key, held in list(vars(sys.modules.get(module, types)).items()):
            if held is value:
                yield "at", module, (key,)


def _held_by_an_instance(value: types.FunctionType) -> Iterator[Name]:
    """A function made in another that an object of its module keeps: ``os.environ.encodekey``."""
    for key, held in list(vars(sys.modules.get(value.__module__, types)).items()):
        if isinstance(held, type | types.ModuleType | types.FunctionType):
            continue
        for own, found in list(getattr(held, "__dict__", {}).items()):
            if found is value:
                yield "at", value.__module__, (key, own)


def _by_its_own_word(value: Any) -> Iterator[Name]:
    """By ``__module__`` and ``__qualname__``, or those of what it wraps or belongs to."""
    for speaker in (value, *_speakers(value)):
        module, path = (
            spoken(speaker, "__module__"),
            spoken(speaker, "__qualname__", "__name__"),
        )
        if module and path and "<locals>" not in path:
            yield "at", module, tuple(path.split("."))
    owner = getattr(value, "__objclass__", None) or getattr(value, "__self__", None)
    own = spoken(value, "__name__")
    if isinstance(owner, type) and own and owner is not type(value):
        above = name_of(owner)
        if above is not None and above[0] == "at":
            yield "at", above[1], (*above[2], own)
    if own:
        for shelf in SHELVES:
            yield "at", shelf, (own,)


def _speakers(value: Any) -> Iterator[Any]:
    """The functions that give a descriptor its name."""
    for attribute in ("fget", "__func__", "func", "__wrapped__"):
        found = getattr(value, attribute, None) if not isinstance(value, type) else None
        if isinstance(found, types.FunctionType):
            yield found


def _decorated(value: types.FunctionType) -> Name | None:
    """A function behind the decorated one that took its name: in its closure, or its ``__wrapped__``."""
    module, path = value.__module__, value.__qualname__
    if not module:
        return None
    tops = [path]
    if "<locals>" in path:  # a decorator's own function: what it wraps says the name
        inner = [v for v in _inside(value) if isinstance(v[1], types.FunctionType)]
        tops = [v.__qualname__ for _, v in inner if "<locals>" not in v.__qualname__]
        modules = [v.__module__ for _, v in inner if "<locals>" not in v.__qualname__]
    else:
        modules = [module]
    for where, top in zip(modules, tops, strict=True):
        start: Name = ("at", where, tuple(top.split(".")))
        try:
            found = object_at(start)
        except (LookupError, AttributeError, ImportError):
            continue
        steps = _search(found, value)
        if steps is not None:
            return ("behind", start, steps) if steps else start
    return None


def _search(start: Any, wanted: Any) -> tuple[Any, ...] | None:
    """The steps from a decorated object to the function behind it, by breadth first."""
    level: list[tuple[tuple[Any, ...], Any]] = [((), start)]
    seen: set[int] = set()
    for _ in range(DEPTH):
        following = []
        for steps, at in level:
            if at is wanted:
                return steps
            if id(at) not in seen:
                seen.add(id(at))
                following += [((*steps, step), found) for step, found in _inside(at)]
        level = following
    return next((steps for steps, at in level if at is wanted), None)


def _inside(value: Any) -> Iterator[tuple[Any, Any]]:
    """(step, what is there) for the functions that a function or descriptor holds."""
    for attribute in ("__wrapped__", "__func__", "fget"):
        found = getattr(value, attribute, None)
        if found is not None:
            yield attribute, found
    if isinstance(value, types.FunctionType):
        for i, cell in enumerate(value.__closure__ or ()):
            try:
                found = cell.cell_contents
            except ValueError:
                continue
            if isinstance(found, types.FunctionType | staticmethod | classmethod | property):
                yield i, found


def _behind(value: Any, step: Any) -> Any:
    found = next((found for at, found in _inside(value) if at == step and type(at) is type(step)), _MISSING)
    if found is _MISSING:
        raise LookupError(f"nothing at {step} of {value!r}")
    return found


def _attribute(owner: Any, name: str) -> Any:
    """An attribute; of a class, what it holds itself (a descriptor as it is)."""
    if isinstance(owner, type):
        for base in type.__dict__["__mro__"].__get__(owner):
            if name in base.__dict__:
                return base.__dict__[name]
    found = getattr(owner, name, _MISSING)
    if found is _MISSING:
        raise LookupError(f"{owner!r} has no {name}")
    return found


def _module(name: Any) -> types.ModuleType:
    """A module that is loaded, or belongs to a package that is."""
    found = sys.modules.get(name) if isinstance(name, str) else None
    if found is not None:
        return found
    if not isinstance(name, str) or name.partition(".")[0] not in sys.modules:
        raise LookupError(f"no module {name!r}")
    return importlib.import_module(name)


#: what says its own name
_NAMED: tuple[tuple[Any, Callable[[Any], Name]], ...] = (
    (type(torch.ops.aten), lambda v: ("operator", v.name)),
    (types.ModuleType, lambda v: ("at", v.__name__, ())),
    (
        (torch.dtype, torch.layout, torch.memory_format),
        lambda v: ("at", "torch", (str(v).removeprefix("torch."),)),
    ),
    (logging.Logger, lambda v: ("logger", v.name)),
    (Enum, lambda v: ("at", type(v).__module__, (*type(v).__qualname__.split("."), v.name))),
    (torch._ops.OpOverload, lambda v: ("operator", *v._schema.name.split("::", 1), v._overloadname)),
    (torch._ops.OpOverloadPacket, lambda v: ("operator", *v._qualified_op_name.split("::", 1))),
)
#: how the object of a name of each kind is found
_FOUND: dict[Any, Callable[..., Any]] = {
    "method": lambda function, owner: types.MethodType(object_at(function), object_at(owner)),
    "type": lambda of: type(object_at(of)),
    "logger": logging.getLogger,
    "pattern": re.compile,  # the very object that a module holds, as long as module re remembers it
    "operator": lambda *path: functools.reduce(_attribute, path, torch.ops),
    "globals": lambda module: vars(_module(module)),
    "at": lambda module, path: functools.reduce(_attribute, path, _module(module)),
    "behind": lambda start, steps: functools.reduce(_behind, steps, object_at(start)),
}
