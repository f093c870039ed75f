"""Frozen records, and interned ones whose equality is identity."""

from __future__ import annotations

import dataclasses
import operator
import reprlib
import weakref
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """A frozen dataclass with slots: compared by value, hashed by value.

    The methods are ours: writing each as text and compiling it, as ``dataclasses`` does, for all records would
    be a good part of the time it takes to import them.
    """
    own = cls.__dict__
    explicit_hash = own.get("__hash__") is not None
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    if "__init__" not in own:
        made.__init__ = _initialiser(made)
    _describe_and_freeze(made)
    values = _values_of([field.name for field in dataclasses.fields(made) if field.compare])

    def __eq__(self: Any, other: object) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(values(self))

    if "__eq__" not in own:
        made.__eq__ = __eq__
    if not explicit_hash:
        made.__hash__ = __hash__
    return made


def _values_of(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that gives the fields of an instance as a tuple."""
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda instance: tuple([getattr(instance, name) for name in names])


def _initialiser(made: Any) -> Callable[..., None]:
    """``__init__`` that writes each field by its slot."""
    fields = dataclasses.fields(made)
    scope: dict[str, Any] = {}
    parameters, lines = [], ["pass"]
    for k, field in enumerate(fields):
        if field.default_factory is not dataclasses.MISSING or field.kw_only or not field.init:
            raise TypeError(f"{made.__name__}.{field.name}: records have plain fields and defaults")
        scope[f"_write{k}"] = getattr(made, field.name).__set__
        scope[f"_default{k}"] = field.default
        has_default = field.default is not dataclasses.MISSING
        parameters.append(f"{field.name}=_default{k}" if has_default else field.name)
        lines.append(f"_write{k}(self, {field.name})")
    exec(f"def __init__(self, {', '.join(parameters)}):\n " + "\n ".join(lines), scope)
    init = scope["__init__"]
    init.__qualname__, init.__module__ = f"{made.__qualname__}.__init__", made.__module__
    init.__annotations__ = {field.name: field.type for field in fields}
    return init


def _describe_and_freeze(made: Any) -> None:
    """Repr, refusal of writes, and pickling by values."""
    names = [field.name for field in dataclasses.fields(made)]
    shown = [field.name for field in dataclasses.fields(made) if field.repr]
    known = frozenset(names)

    @reprlib.recursive_repr()
    def __repr__(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join([f'{n}={getattr(self, n)!r}' for n in shown])})"

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if type(self) is made or name in known:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        object.__setattr__(self, name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is made or name in known:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        object.__delattr__(self, name)

    def __getstate__(self: Any) -> list[Any]:
        return [getattr(self, name) for name in names]

    def __setstate__(self: Any, state: list[Any]) -> None:
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)

    for method in (__repr__, __setattr__, __delattr__, __getstate__, __setstate__):
        if method.__name__ not in made.__dict__:
            setattr(made, method.__name__, method)


@dataclass_transform(frozen_default=True)
def interned(cls: type[T]) -> type[T]:
    """A frozen dataclass of which equal instances are the same object.

    Fields must be hashable. The table holds its values weakly, so a record lives as long as
    somebody uses it. ``True`` and ``1`` (and ``1.0``, ``-0.0``) are told apart by their types and signs.
    """
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, weakref_slot=True)(cls)
    _describe_and_freeze(made)
    names = tuple(field.name for field in dataclasses.fields(made))
    defaults = {
        field.name: field.default
        for field in dataclasses.fields(made)
        if field.default is not dataclasses.MISSING
    }
    table: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()
    writers = [getattr(made, name).__set__ for name in names]
    count = len(names)
    references = table.data  # type: ignore[attr-defined]

    def create(cls: Any, /, *args: Any, **kwargs: Any) -> Any:
        if kwargs or len(args) != count:
            args = _bind(cls.__name__, names, defaults, args, kwargs)
        key = tuple([_distinct(a) if type(a) in _LOOKALIKES else a for a in args])
        # most records that are asked for exist: the table's own method would take as long again
        reference = references.get(key)
        if reference is not None:
            found = reference()
            if found is not None:
                return found
        new = object.__new__(cls)
        for write, value in zip(writers, args):
            write(new, value)
        # setdefault keeps one winner when two threads make the same record at once
        return table.setdefault(key, new)

    made.__new__ = create  # and no __init__: object's takes what __new__ has taken
    made.__copy__ = _same
    made.__deepcopy__ = _same
    made.__reduce__ = lambda self: (made, tuple(getattr(self, n) for n in names))
    return made


def _same(self: Any, memo: Any = None) -> Any:
    return self


#: types with values that compare equal to values of another type or sign, or may hold such
_LOOKALIKES = frozenset((float, complex, bool, int, tuple))


def _distinct(value: Any) -> Any:
    """A key under which values that merely compare equal (1, True, 1.0, -0.0) stay apart."""
    kind = type(value)
    if kind is float:
        return float, value.hex()
    if kind is complex:
        return complex, value.real.hex(), value.imag.hex()
    if kind is bool or kind is int:
        return kind, value
    if kind is tuple:
        return tuple([_distinct(v) if type(v) in _LOOKALIKES else v for v in value])
    return value


def _bind(
    owner: str,
    names: tuple[str, ...],
    defaults: dict[str, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Any, ...]:
    bound = dict(defaults)
    bound.update(zip(names, args, strict=False))
    bound.update(kwargs)
    missing = [n for n in names if n not in bound]
    unknown = [n for n in kwargs if n not in names]
    if missing or unknown or len(args) > len(names):
        raise TypeError(f"{owner} takes {', '.join(names)}; missing {missing}, unknown {unknown}")
    return tuple(bound[n] for n in names)
