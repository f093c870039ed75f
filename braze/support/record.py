"""Frozen records, and interned ones whose equality is identity."""

from __future__ import annotations

import dataclasses
import inspect
import operator
import reprlib
import threading
import weakref
from _weakref import _remove_dead_weakref  # type: ignore[attr-defined]
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


#: under this name a class keeps its fields: the annotation and the default, or what ``dataclasses.field`` gave, of each
_FIELDS = "__record_fields__"

Fields = dict[str, tuple[Any, Any]]


@dataclass_transform(frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """A frozen dataclass with slots: compared by value, hashed by value.

    The class and its methods are ours: what ``dataclasses`` does for all records would be a good part of the time it
    takes to import them. What it knows of fields, and the text of ``__init__``, is made when it is asked for.
    """
    fields = _fields_of(cls)
    values = _values_of([name for name, (_, default) in fields.items() if _says(default, "compare")])

    def __eq__(self: Any, other: object) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(values(self))

    methods: dict[str, Any] = {"__eq__": __eq__, "__init__": _Late("__init__", _initialiser)}
    hashes = {"__hash__": __hash__} if cls.__dict__.get("__hash__") is None else {}
    return _with_slots(cls, fields, (), methods, hashes)


def _fields_of(cls: type) -> Fields:
    """All fields, those of bases first."""
    fields: Fields = {}
    for base in reversed(cls.__mro__[1:]):
        fields.update(base.__dict__.get(_FIELDS, {}))
    for name, annotation in inspect.get_annotations(cls).items():
        default = cls.__dict__.get(name, dataclasses.MISSING)
        if isinstance(default, dataclasses.Field) and (
            default.default_factory is not dataclasses.MISSING or default.kw_only is True or not default.init
        ):
            raise TypeError(f"{cls.__name__}.{name}: records have plain fields and defaults")
        fields[name] = annotation, default
    return fields


def _says(default: Any, what: str) -> bool:
    """Whether a field is compared, or shown."""
    return not isinstance(default, dataclasses.Field) or bool(getattr(default, what))


def _values_of(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that gives the fields of an instance as a tuple."""
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda instance: tuple([getattr(instance, name) for name in names])


class _Late:
    """An attribute of a class that is made of the class when it is first asked for."""

    __slots__ = ("make", "name", "owner")

    def __init__(self, name: str, make: Callable[[Any], Any]) -> None:
        self.name, self.make = name, make

    def __set_name__(self, owner: type, name: str) -> None:
        self.owner = owner

    def __get__(self, instance: Any, kind: Any = None) -> Any:
        with _making:  # once: of an interned class it has the table of all that there are
            if self.owner.__dict__[self.name] is self:
                setattr(self.owner, self.name, self.make(self.owner))
        value = self.owner.__dict__[self.name]
        bind = getattr(type(value), "__get__", None)
        return value if bind is None else bind(value, instance, kind)


_making = threading.RLock()


def _with_slots(
    cls: type[T], fields: Fields, more: tuple[str, ...], methods: Mapping[str, Any], over: Mapping[str, Any]
) -> type[T]:
    """The class made again: a slot a field and ``more``, ``methods`` that it does not have, and ``over`` instead of those it has."""
    taken = {slot for base in cls.__mro__[1:-1] for slot in base.__dict__.get("__slots__", ())}
    own = {
        name: value
        for name, value in cls.__dict__.items()
        if name not in fields and name not in ("__dict__", "__weakref__")
    }
    namespace = {
        "__match_args__": tuple(fields),
        "__dataclass_fields__": _Late("__dataclass_fields__", lambda made: _described(made)[0]),
        "__dataclass_params__": _Late("__dataclass_params__", lambda made: _described(made)[1]),
        **_frozen_methods(fields),
        **methods,
        **own,
        **over,
        _FIELDS: fields,
        "__slots__": tuple([name for name in (*fields, *more) if name not in taken]),
        "__qualname__": cls.__qualname__,
    }
    metaclass: Any = type(cls)
    return metaclass(cls.__name__, cls.__bases__, namespace)  # type: ignore[no-any-return]


def _described(made: Any) -> tuple[Any, Any]:
    """What ``dataclasses`` knows of a dataclass with these fields: them, and how it was made."""
    fields: Fields = made.__dict__[_FIELDS]
    namespace: dict[str, Any] = {
        name: given for name, (_, given) in fields.items() if given is not dataclasses.MISSING
    }
    namespace["__annotations__"] = {name: annotation for name, (annotation, _) in fields.items()}
    namespace.update(__module__=made.__module__, __doc__="")
    plain: Any = dataclasses.dataclass(init=False, repr=False, eq=False)(type(made.__name__, (), namespace))
    return plain.__dataclass_fields__, plain.__dataclass_params__


def _parameters(made: Any, scope: dict[str, Any]) -> list[tuple[str, str]]:
    """Each field's name and how it stands among parameters; what writes it and its default go into ``scope``."""
    found = []
    for k, (name, (_, given)) in enumerate(made.__dict__[_FIELDS].items()):
        default = given.default if isinstance(given, dataclasses.Field) else given
        scope[f"_write{k}"], scope[f"_default{k}"] = getattr(made, name).__set__, default
        found.append((name, name if default is dataclasses.MISSING else f"{name}=_default{k}"))
    return found


def _initialiser(made: Any) -> Callable[..., None]:
    """``__init__`` that writes each field by its slot."""
    scope: dict[str, Any] = {}
    parameters = _parameters(made, scope)
    lines = [f"_write{k}(self, {name})" for k, (name, _) in enumerate(parameters)] or ["pass"]
    exec(f"def __init__(self, {', '.join([p for _, p in parameters])}):\n " + "\n ".join(lines), scope)
    return _named(scope["__init__"], made)


def _named(function: Any, made: Any) -> Any:
    """A function from a text, as a method of its class."""
    function.__qualname__, function.__module__ = f"{made.__qualname__}.{function.__name__}", made.__module__
    function.__annotations__ = {name: annotation for name, (annotation, _) in made.__dict__[_FIELDS].items()}
    return function


def _frozen_methods(fields: Fields) -> dict[str, Any]:
    """Repr, refusal of writes, and pickling by values."""
    names = list(fields)
    shown = [name for name, (_, default) in fields.items() if _says(default, "repr")]

    @reprlib.recursive_repr()
    def __repr__(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join([f'{n}={getattr(self, n)!r}' for n in shown])})"

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if name in fields or _is_made(type(self)):
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        object.__setattr__(self, name, value)

    def __delattr__(self: Any, name: str) -> None:
        if name in fields or _is_made(type(self)):
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        object.__delattr__(self, name)

    def __getstate__(self: Any) -> list[Any]:
        return [getattr(self, name) for name in names]

    def __setstate__(self: Any, state: list[Any]) -> None:
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)

    methods = (__repr__, __setattr__, __delattr__, __getstate__, __setstate__)
    return {method.__name__: method for method in methods}


def _is_made(cls: type) -> bool:
    """Whether a class is a record itself, not derived from one by others."""
    return _FIELDS in cls.__dict__


@dataclass_transform(frozen_default=True)
def interned(cls: type[T]) -> type[T]:
    """A frozen dataclass of which equal instances are the same object.

    Fields must be hashable. The table holds its values weakly, so a record lives as long as
    somebody uses it. ``True`` and ``1`` (and ``1.0``, ``-0.0``) are told apart by their types and signs.
    """
    fields = _fields_of(cls)
    names = tuple(fields)

    def __reduce__(self: Any) -> Any:
        return type(self), tuple([getattr(self, n) for n in names])

    methods = {
        "__new__": _Late("__new__", _creator)
    }  # and no __init__: object's takes what __new__ has taken
    over = {"__copy__": _same, "__deepcopy__": _same, "__reduce__": __reduce__}
    return _with_slots(cls, fields, ("__weakref__",), methods, over)


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
    parameters, keys, writes = _parameters(made, scope), [], []
    plain = ("str", made.__name__, f"{made.__name__} | None")  # no number nor tuple
    for k, (name, (annotation, _)) in enumerate(made.__dict__[_FIELDS].items()):
        writes.append(f"_write{k}(_new, {name})")
        if annotation in plain:
            keys.append(name)
        elif annotation in (int, "int"):
            keys.append(f"{name} if _type({name}) is _int else (_type({name}), _distinct({name}))")
        else:
            keys.append(f"{name} if _type({name}) not in _LOOKALIKES else _distinct({name})")
    given = ", ".join([p for _, p in parameters])
    exec(_CREATE.format(parameters=given, keys=", ".join(keys), writes="; ".join(writes)), scope)
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
