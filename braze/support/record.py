"""Frozen records, and interned ones whose equality is identity."""

from __future__ import annotations

import dataclasses
import operator
import reprlib
import weakref
from _weakref import _remove_dead_weakref  # type: ignore[attr-defined]
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
    made.__new__ = _creator(made)  # and no __init__: object's takes what __new__ has taken
    made.__copy__ = _same
    made.__deepcopy__ = _same
    names = tuple(field.name for field in dataclasses.fields(made))
    made.__reduce__ = lambda self: (made, tuple(getattr(self, n) for n in names))
    return made


class _Reference(weakref.ref):
    """A weak reference to a record that knows the record's key."""

    __slots__ = ("key",)


_CREATE = """
def __new__(cls, {parameters}):
    _key = ({keys},)
    _reference = _found(_key)
    if _reference is not None:
        _record = _reference()
        if _record is not None:
            return _record
    _new = _make(cls)
    {writes}
    _mine = _Reference(_new, _forget)
    _mine.key = _key
    # one winner when two threads make the same record at once
    while (_theirs := _put(_key, _mine)) is not _mine:
        _record = _theirs()
        if _record is not None:
            return _record
        _forget(_theirs)
    return _new
"""


def _creator(made: Any) -> Callable[..., Any]:
    """``__new__`` that looks a record up by its fields, and makes it only if it is not there. Most that are asked for are."""
    table: dict[Any, _Reference] = {}

    def forget(reference: Any) -> None:
        _remove_dead_weakref(table, reference.key)

    scope: dict[str, Any] = dict(
        _found=table.get, _put=table.setdefault, _make=object.__new__, _Reference=_Reference, _forget=forget,
        _type=type, _int=int, _distinct=_distinct, _LOOKALIKES=_LOOKALIKES,
    )  # fmt: skip
    parameters, keys, writes = [], [], []
    for k, field in enumerate(dataclasses.fields(made)):
        name = field.name
        scope[f"_write{k}"], scope[f"_default{k}"] = getattr(made, name).__set__, field.default
        parameters.append(name if field.default is dataclasses.MISSING else f"{name}=_default{k}")
        writes.append(f"_write{k}(_new, {name})")
        if field.type in (int, "int"):
            keys.append(f"{name} if _type({name}) is _int else (_type({name}), _distinct({name}))")
        else:
            keys.append(f"{name} if _type({name}) not in _LOOKALIKES else _distinct({name})")
    text = _CREATE.format(parameters=", ".join(parameters), keys=", ".join(keys), writes="; ".join(writes))
    exec(text, scope)
    create = scope["__new__"]
    create.__qualname__, create.__module__ = f"{made.__qualname__}.__new__", made.__module__
    return create


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
    if kind is tuple and not _LOOKALIKES.isdisjoint(map(type, value)):
        return tuple([_distinct(v) if type(v) in _LOOKALIKES else v for v in value])
    return value
