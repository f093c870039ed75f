"""Frozen records, and interned ones whose equality is identity."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """A frozen dataclass with slots: compared by value, hashed by value."""
    return dataclasses.dataclass(frozen=True, slots=True)(cls)


@dataclass_transform(frozen_default=True)
def interned(cls: type[T]) -> type[T]:
    """A frozen dataclass of which equal instances are the same object.

    Fields must be hashable. The table holds its values weakly, so a record lives as long as
    somebody uses it. ``True`` and ``1`` (and ``1.0``, ``-0.0``) are told apart by their types and signs.
    """
    made: Any = dataclasses.dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)(cls)
    names = tuple(field.name for field in dataclasses.fields(made))
    defaults = {
        field.name: field.default
        for field in dataclasses.fields(made)
        if field.default is not dataclasses.MISSING
    }
    table: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()
    write = object.__setattr__

    def create(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs or len(args) < len(names):
            args = _bind(cls.__name__, names, defaults, args, kwargs)
        key = tuple([_distinct(a) if type(a) in _LOOKALIKES else a for a in args])
        found = table.get(key)
        if found is not None:
            return found
        new = object.__new__(cls)
        for name, value in zip(names, args, strict=True):
            write(new, name, value)
        # setdefault keeps one winner when two threads make the same record at once
        return table.setdefault(key, new)

    made.__new__ = create
    made.__init__ = _initialised_in_new
    made.__copy__ = _same
    made.__deepcopy__ = _same
    made.__reduce__ = lambda self: (made, tuple(getattr(self, n) for n in names))
    return made


def _initialised_in_new(self: Any, *args: Any, **kwargs: Any) -> None:
    """Fields are written once, when the instance is made."""


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
