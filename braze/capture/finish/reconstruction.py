"""Live values as recipes: how residual code finds or rebuilds what the trace holds at its end."""

from __future__ import annotations

import collections
import functools
import gc
import struct
import sys
import types
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor

from braze.capture.facts.breaks import BreakSignal, Unrebuildable
from braze.capture.facts.records import Build, Constant, FromSource, GraphOutput, Recipe, Step
from braze.capture.facts.replay import (
    builtin_base,
    dict_walk_at,
    empty,
    hashed_weak,
    native_new,
    set_walk_at,
    weak_to_nothing,
)
from braze.capture.facts.stand_ins import chain
from braze.capture.facts.values import (
    BASE_TYPE,
    BY_INDEX,
    CONSTANTS,
    DEFINED_METHOD,
    DICT_WALKS,
    HEAP_TYPE,
    MISSING,
    NULL,
    SEQUENCE_WALKS,
    SET_WALK,
    UNTIL,
    UnknownText,
    has_data_descriptor,
    held,
    is_bound_builtin,
    is_constant,
    is_identity_type,
)
from braze.capture.graph import floats, sizes, unbacked
from braze.capture.outside.class_values import has_hash_of_its_own
from braze.capture.outside.globals import owner_of_globals
from braze.capture.outside.shadows import DictShadow, keys_of
from braze.capture.python import raised
from braze.capture.state.handlers import HANDLERS, Feature
from braze.capture.state.trace import Trace
from braze.graph.private.torch_symbols import SYMBOLIC
from braze.support.caches import remembered

FEATURE = Feature()

WORD = struct.calcsize("P")
#: what its own ``__reduce__`` says how to make again
REDUCIBLE = SEQUENCE_WALKS | {zip, enumerate, map, filter, torch.finfo, torch.iinfo, BY_INDEX, UNTIL}


class RecipeTable:
    """The recipes of one trace, made of its live values; ids by identity of value. ``outputs``: graph nodes whose values residual code needs."""

    def __init__(self, t: Trace) -> None:
        self.t = t
        self.recipes: list[Recipe] = []
        self.ids: dict[int, tuple[Any, int]] = {}
        self.outputs: list[torch.fx.Node] = []
        self.output_index: dict[torch.fx.Node, int] = {}
        self.kept: set[torch.fx.Node] = set()

    def add(self, recipe: Recipe) -> int:
        """A new row."""
        self.recipes.append(recipe)
        return len(self.recipes) - 1

    def call(self, function: Any, *args: int, names: tuple[str, ...] = ()) -> Build:
        """What a function makes of values with these recipes, the last of them by ``names``."""
        return Build("call", (self.add(Constant(function)), *args), None, names)

    def id_of(self, value: Any) -> int:
        """The recipe of a value; -1 for NULL."""
        if value is NULL:
            return -1
        known = self.ids.get(id(value))
        if known is not None and known[0] is value:
            return known[1]
        if type(value) in CONSTANTS and (
            type(value) is not bytes or self.t.outside.tree.node_of(value) is None
        ):
            return self.add(Constant(value))
        # a place is reserved first, so that cycles end here
        index = self.add(Constant(None))
        self.ids[id(value)] = (value, index)
        self.recipes[index] = self.make(value)
        return index

    def make(self, value: Any) -> Recipe:
        """How to get one value."""
        t = self.t
        if issubclass(type(value), torch.Tensor):
            return self.tensor(value)
        kind = type(value)
        if kind in SYMBOLIC:
            return self.symbolic(value)
        node = t.outside.tree.node_of(value)
        if node is not None and node.step is not Step.CONSTANT:
            if node.step is Step.PART:
                node.container.fill(t.outside)
            return FromSource(node.source)
        shadow = t.outside.dict_views.get(id(value))
        if shadow is not None and shadow.view is value:
            return FromSource(shadow.node.child(Step.ATTR, "__dict__").source)
        if node is not None:
            return Constant(value)
        asked = t.done.asked_dicts.get(id(value))
        if asked is not None and held(asked[1], "__dict__") is value and id(value) not in t.done.namespaces:
            return self.call(held, self.id_of(asked[1]), self.id_of("__dict__"))
        if kind is types.FunctionType and t.done.is_ours(value):
            return self.function(value)
        if is_bound_builtin(value) and not t.outside.is_fixed(value):
            return bound_builtin(self, value)
        if t.done.made_classes and t.done.is_ours(value if issubclass(type(value), type) else kind):
            raise Unrebuildable(value if issubclass(type(value), type) else kind)
        if is_identity_type(kind) or is_constant(value) or issubclass(type(value), np.generic):
            return Constant(value)
        if kind is UnknownText:
            if value.made is None:
                raise Unrebuildable(value)
            function, args = value.made
            return self.call(function, *self.items(args))
        return self.built(value, kind)

    # -- kinds

    def tensor(self, value: torch.Tensor) -> Recipe:
        """An input as it came in, or an output of the graph."""
        node = self.t.outside.tree.node_of(value)
        if node is not None:
            return FromSource(node.source)
        if id(value) in self.t.done.leaves and (
            value.requires_grad or issubclass(type(value), torch.nn.Parameter)
        ):
            raise Unrebuildable(value)
        found = self.t.graph.recorder.nodes.get(id(value))
        if found is None:
            if not isinstance(value, FakeTensor):
                return Constant(value)
            raise Unrebuildable(value)
        return GraphOutput(self.output(found[1]))

    def output(self, node: torch.fx.Node) -> int:
        """The index of a graph output."""
        index = self.output_index.get(node)
        if index is None:
            index = self.output_index[node] = len(self.outputs)
            self.outputs.append(node)
        return index

    def symbolic(self, value: Any) -> Recipe:
        """A symbolic number, as computed by the graph; one that no graph can compute is guarded to stay the same."""
        maker = HANDLERS.recipes.get(type(value))
        if maker is not None and (made := maker(self, value)) is not None:
            return made
        if isinstance(value, torch.SymBool) and not unbacked.is_unbacked(value):
            return Constant(bool(value))
        place = self.t.outside.tree.node_of(value)
        if place is not None:
            return FromSource(place.source)
        written = floats.as_written(self.t.graph, value)
        value = value if written is MISSING else written
        if floats.is_computed(self.t.graph, value):
            function, args = floats.made_of(self.t.graph, value)
            return self.call(function, *self.items(args))
        try:
            node = sizes.node_for(self.t.graph.recorder, value)
        except BreakSignal:
            if unbacked.is_unbacked(value):
                raise Unrebuildable(value) from None
            return Constant(int(value) if isinstance(value, torch.SymInt) else float(value))
        if not isinstance(node, torch.fx.Node):
            return Constant(node)
        for place in self.t.outside.symbolic_places:
            if place.value is value or self.t.graph.recorder.placeholder_of(place) is node:
                return FromSource(place.source)
        return GraphOutput(self.output(node))

    def function(self, value: types.FunctionType) -> Recipe:
        """A function made in the trace."""
        owner = self.id_of(owner_of_globals(self.t, value))
        args = [
            owner,
            self.id_of(value.__name__),
            self.id_of(value.__defaults__),
            self.id_of(value.__kwdefaults__),
        ]
        args += [self.id_of(cell) for cell in value.__closure__ or ()]
        more = written_on(value)
        args += [self.id_of(v) for v in more.values()]
        return Build("function", tuple(args), value.__code__, tuple(more))

    def built(self, value: Any, kind: type) -> Recipe:
        """A container or object made in the trace."""
        maker = HANDLERS.recipes.get(kind)
        if maker is not None and (made := maker(self, value)) is not None:
            return made
        if issubclass(type(value), dict):
            return self.dict(value)
        if issubclass(type(value), list):
            return self.sequence("list", value, list.__iter__(value), kind)
        if issubclass(type(value), tuple):
            sort = "namedtuple" if hasattr(value, "_fields") else "tuple"
            return self.with_own(Build(sort, self.items(tuple.__iter__(value)), kind), value)
        if issubclass(type(value), set):
            return self.sequence("set", value, set.__iter__(value), kind)
        if issubclass(type(value), frozenset):
            check_keys(value, value)
            return self.with_own(Build("frozenset", self.items(frozenset.__iter__(value)), kind), value)
        if issubclass(type(value), BaseException):
            return self.exception(value, kind)
        if kind in REDUCIBLE:
            return self.reduced(value)
        if getattr(kind, "lives_in_trace", False):
            raise Unrebuildable(value)
        if kind.__flags__ & HEAP_TYPE:
            return self.object(value, kind)
        raise Unrebuildable(value)

    def items(self, values: Any) -> tuple[int, ...]:
        """Recipes of many."""
        return tuple([self.id_of(v) for v in values])

    def attributes(self, value: Any) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Names and recipes of an instance's attributes, slots too. A namespace that the program has given it is the program's dict."""
        space = held(value, "__dict__")
        slots: dict[str, Any] = {}
        for base in type(value).__mro__:
            for name, field in base.__dict__.items():
                if type(field) is types.MemberDescriptorType and base.__flags__ & HEAP_TYPE:
                    try:
                        slots[name] = field.__get__(value)
                    except AttributeError:
                        continue
                    if not may_be_set(field, value):
                        raise Unrebuildable(value)  # C code alone can fill it
        if space is not None and self.t.done.namespaces.get(id(space)) is space:
            slots["__dict__"] = space
        elif any(has_data_descriptor(type(value), name) for name in space or ()):
            # past what the class says of the name: a property's setter has run
            whole = self.add(Build("dict", self.items([part for item in space.items() for part in item])))
            return ("__dict__", *slots), (whole, *self.items(slots.values()))
        elif space:
            slots = {**space, **slots}
        return tuple(slots), self.items(slots.values())

    def sequence(self, kind: str, value: Any, items: Any, cls: type) -> Recipe:
        """A list or set; of a subclass with attributes."""
        if kind == "set":
            check_keys(value, value)
        args = self.items(items)
        if cls in (list, set):
            return Build(kind, args)
        names, values = self.attributes(value)
        return Build(kind, args + values, cls, names)

    def dict(self, value: Any) -> Recipe:
        """A dict, or an instance of a subclass with attributes."""
        check_keys(value, dict.__iter__(value))
        args: list[int] = []
        for key, item in list(builtin_base(value).items(value)):
            args += (self.id_of(key), self.id_of(item))
        cls = type(value)
        if cls is dict:
            return Build("dict", tuple(args))
        if cls is collections.defaultdict:
            pairs = self.add(Build("dict", tuple(args)))
            return self.call(cls, self.id_of(value.default_factory), pairs)
        names, values = self.attributes(value)
        if issubclass(type(value), collections.defaultdict):  # no ``__init__`` runs a second time
            names, values = ("default_factory", *names), (self.id_of(value.default_factory), *values)
        return Build("dict", (*args, *values), cls, names)

    def object(self, value: Any, cls: type) -> Recipe:
        """An instance of a class written in Python."""
        base = next(b for b in cls.__mro__ if not b.__flags__ & HEAP_TYPE)
        if base is not object or not can_be_made(cls):
            raise Unrebuildable(value)
        names, values = self.attributes(value)
        place = self.t.outside.tree.node_of(cls)
        if place is not None and place.step is not Step.CONSTANT:  # read there, and not kept
            made = self.add(self.call(empty, self.id_of(cls)))
            return Build("attributes", (made, *values), None, names)
        return Build("object", values, cls, names)

    def exception(self, value: BaseException, cls: type) -> Recipe:
        """An exception with its arguments, cause, context and attributes; no ``__init__`` runs a second time."""
        maker, *first = maker_of(cls)
        made = self.call(maker, *[self.add(Constant(part)) for part in first], *self.items(given(value)))
        more = {**fields(value), **linked(value)}
        if value.__traceback__ is not None:
            more = {"__traceback__": value.__traceback__, **more}
        found = raised.known(self.t.done, value)
        if found is None or not found.alone or value.__context__ is not None:
            return self.with_attributes(made, more)
        handled = self.add(self.call(sys.exception))
        values = (self.add(made), *self.items(more.values()), handled)
        return Build("attributes", values, None, (*more, "__context__"))

    def with_attributes(self, made: Build, more: Mapping[str, Any]) -> Recipe:
        """What is made, with further attributes set on it in their order."""
        if not more:
            return made
        return Build("attributes", (self.add(made), *self.items(more.values())), None, tuple(more))

    def with_own(self, made: Build, value: Any) -> Recipe:
        """A tuple or frozenset, of a subclass with the attributes that it has."""
        if held(value, "__dict__") is None:
            return made
        names, values = self.attributes(value)
        return Build("attributes", (self.add(made), *values), None, names) if names else made

    def reduced(self, value: Any) -> Recipe:
        """What says itself how to make it: iterators."""
        made = value.__reduce__()
        callable_, args = made[0], made[1]
        parts = [self.add(Constant(callable_)), *self.items(args)]
        if len(made) > 2 and made[2] is not None:
            if not isinstance(made[2], int):
                raise Unrebuildable(value)
            return Build("iterator", (*parts, self.id_of(made[2])))
        return Build("call", tuple(parts))


@remembered(1024)
def can_be_made(cls: type) -> bool:
    """Whether an empty instance can be made without Python code of the class, and is attributes and nothing else.

    Classes of extensions (pybind11's) look like classes of Python's, and a new instance of theirs holds memory as it was found;
    those that may not be derived from (`functools.KeyWrapper`) are made by functions of theirs alone.
    """
    derivable = bool(cls.__flags__ & BASE_TYPE)
    return derivable and native_new(cls) is object.__new__ and holds_only_attributes(cls)


def holds_only_attributes(cls: type) -> bool:
    """Whether an instance has room for its slots, its dict and its weak references, and for no more."""
    slots = sum(
        type(field) is types.MemberDescriptorType for base in cls.__mro__ for field in vars(base).values()
    )
    return cls.__basicsize__ <= object.__basicsize__ + WORD * (slots + 2)


def written_on(function: types.FunctionType) -> dict[str, Any]:
    """The attributes of a function that its code does not say, as ``functools.wraps`` writes them."""
    more: dict[str, Any] = {}
    if function.__qualname__ != function.__code__.co_qualname:
        more["__qualname__"] = function.__qualname__
    first = function.__code__.co_consts[:1]
    if function.__doc__ is not None and first != (function.__doc__,):
        more["__doc__"] = function.__doc__
    if function.__module__ != function.__globals__.get("__name__"):
        more["__module__"] = function.__module__
    if function.__annotations__:
        more["__annotations__"] = function.__annotations__
    return {**more, **function.__dict__}


def may_be_set(field: types.MemberDescriptorType, value: Any) -> bool:
    """Whether a field of an object that the trace made can be written."""
    try:
        field.__set__(value, field.__get__(value))
    except (AttributeError, TypeError):
        return False
    return True


def check_keys(container: Any, keys: Iterable[Any]) -> None:
    """Refuse keys whose class has code of the program's that says what they are equal to: it would run once more."""
    for key in keys:
        if type(key) not in CONSTANTS and (key is container or has_hash_of_its_own(type(key))):
            raise Unrebuildable(container)


def maker_of(cls: type) -> tuple[Any, ...]:
    """What makes an exception of its arguments, while no ``__init__`` of the program's runs: a callable and its first argument, or the class."""
    written = bool(cls.__flags__ & HEAP_TYPE) or issubclass(cls, BaseExceptionGroup)
    return (native_new(cls), cls) if written else (cls,)


def given(value: Any) -> tuple[Any, ...]:
    """The arguments that C code makes an exception of."""
    if issubclass(type(value), BaseExceptionGroup):
        return (value.message, list(value.exceptions))
    return value.args


def fields(value: BaseException) -> dict[str, Any]:
    """The fields in C of an exception that its arguments do not tell, as the name and the object of an AttributeError."""
    cls = type(value)
    found: dict[str, Any] = {}
    try:
        make, *first = maker_of(cls)
        again = make(*first, *given(value))
    except (TypeError, ValueError):
        raise Unrebuildable(value) from None
    for base in cls.__mro__:
        for name, field in () if base.__flags__ & HEAP_TYPE else vars(base).items():
            if type(field) is types.MemberDescriptorType and not name.startswith("__"):
                now, then = getattr(value, name, MISSING), getattr(again, name, MISSING)
                if now is not then and now is not MISSING and name not in ("message", "exceptions"):
                    found[name] = now
    if value.args != again.args:
        found["args"] = value.args
    return found


def linked(value: BaseException) -> dict[str, Any]:
    """The attributes of an exception beyond its arguments, in the order in which they are set."""
    found = {
        name: getattr(value, name)
        for name in ("__cause__", "__context__")
        if getattr(value, name) is not None
    }
    if value.__suppress_context__ != ("__cause__" in found):
        found["__suppress_context__"] = value.__suppress_context__
    return {**found, **value.__dict__}


def _traceback(table: RecipeTable, value: types.TracebackType) -> Recipe:
    """The entries that the trace made, in front of those that an outside exception has."""
    rows, rest = raised.rows_of(value)
    args = [table.add(Constant(rows))]
    if rest is not None:
        owner = next(
            (r.error for r in table.t.done.raised.values() if r.before and r.before["__traceback__"] is rest),
            None,
        )
        if owner is None:
            raise Unrebuildable(value)
        args.append(table.id_of(owner))
    return table.call(chain, *args)


def _cell(table: RecipeTable, cell: types.CellType) -> Recipe:
    known = table.t.outside.cells.get(id(cell))
    if known is not None:
        return Constant(cell)
    try:
        return Build("cell", (table.id_of(cell.cell_contents),))
    except ValueError:
        return Build("cell", ())


def _partial(table: RecipeTable, value: functools.partial[Any]) -> Recipe:
    """A partial call with the attributes that the program has put on it."""
    parts = table.items((value.func, *value.args, *value.keywords.values()))
    return table.with_attributes(Build("partial", parts, None, tuple(value.keywords)), vars(value))


def _weak(table: RecipeTable, ref: weakref.ref[Any]) -> Recipe:
    """A weak reference to what the trace holds, or one whose object is gone. It keeps the hash that it was asked for."""
    target = ref()
    if ref.__callback__ is not None or (target is not None and has_hash_of_its_own(type(target))):
        raise Unrebuildable(ref)
    if target is None:
        try:
            kept = (table.id_of(hash(ref)),)
        except TypeError:
            kept = ()
        return table.call(weak_to_nothing, *kept)
    return table.call(hashed_weak, table.id_of(target))


def _array(table: RecipeTable, array: np.ndarray[Any, Any]) -> Recipe:
    """A fresh copy of an array at each call; what shares its memory with another cannot be made again."""
    if array.base is not None or array.dtype == object or array.nbytes > 1 << 16:
        raise Unrebuildable(array)
    return table.call(np.copy, table.add(Constant(array.copy())))


def bound_builtin(table: RecipeTable, value: Any) -> Recipe:
    """``[].append``: read off its object again."""
    return table.call(getattr, table.id_of(value.__self__), table.id_of(value.__name__))


FEATURE.recipes |= {
    list: lambda table, v: Build("list", table.items(v)),
    tuple: lambda table, v: Build("tuple", table.items(v)),
    torch.Size: lambda table, v: table.call(torch.Size, table.add(Build("tuple", table.items(v)))),
    dict: RecipeTable.dict,
    set: lambda table, v: table.sequence("set", v, v, set),
    slice: lambda table, v: Build("slice", table.items((v.start, v.stop, v.step))),
    bytearray: lambda table, v: table.call(bytearray, table.add(Constant(bytes(v)))),
    range: lambda table, v: Build("range", table.items((v.start, v.stop, v.step))),
    collections.deque: lambda table, v: Build(
        "deque", (table.id_of(v.maxlen), *table.items(collections.deque.__iter__(v)))
    ),
    types.CellType: _cell,
    weakref.ref: _weak,
    np.ndarray: _array,
    types.TracebackType: _traceback,
    types.MethodType: lambda table, v: Build("method", table.items((v.__func__, v.__self__))),
    functools.partial: _partial,
    super: lambda table, v: Build("super", table.items((v.__thisclass__, v.__self__))),
    types.SimpleNamespace: lambda table, v: table.call(
        types.SimpleNamespace, *table.items(vars(v).values()), names=tuple(vars(v))
    ),
    DEFINED_METHOD: bound_builtin,
    types.BuiltinFunctionType: bound_builtin,
    types.MethodWrapperType: bound_builtin,
}


# -- iterators over dicts and sets: they stand again in the container itself, which the program may go on to change


def of_dict(table: RecipeTable, walk: Any) -> Recipe:
    """As far along its dict as it has come; what can no longer be told by a number is left to Python, from before it was made."""
    dicts = [held for held in gc.get_referents(walk) if issubclass(type(held), dict)]
    if not dicts:  # it has ended
        return table.reduced(walk)
    (owner,) = dicts
    name = DICT_WALKS[type(walk)]
    rest = what_is_left(walk)
    if not ends_with(list(getattr(dict, name)(owner)), rest) or keys_differ_outside(table, owner):
        raise Unrebuildable(walk)
    parts = [table.add(Constant(part)) for part in (dict_walk_at, name, len(rest))]
    return Build("walk", (*parts, table.id_of(owner)))


def of_set(table: RecipeTable, walk: Any) -> Recipe:
    """The same of a set. The order of one that is made again may be another: then it goes along what is left of the one traced."""
    sets = [held for held in gc.get_referents(walk) if issubclass(type(held), set)]
    if not sets:  # it has ended, or goes along a frozenset
        return table.reduced(walk)
    (owner,) = sets
    node = table.t.outside.tree.node_of(owner)
    rest = what_is_left(walk)
    if node is not None and node.container is not None and node.container.changed():
        raise Unrebuildable(walk)
    return Build("walk", (table.add(Constant(set_walk_at)), table.id_of(owner), *table.items(rest)))


def what_is_left(walk: Any) -> Sequence[Any]:
    """The elements that an iterator has still to give."""
    try:
        return walk.__reduce__()[1][0]  # type: ignore[no-any-return]
    except RuntimeError:  # its container has changed: the next step says so
        raise Unrebuildable(walk) from None


def ends_with(whole: list[Any], rest: Sequence[Any]) -> bool:
    """Whether the last of these are those: pairs by what is in them, for each look makes them anew."""
    last = whole[len(whole) - len(rest) :]
    return len(last) == len(rest) and all(
        a is b or (type(a) is type(b) is tuple and len(a) == len(b) == 2 and a[0] is b[0] and a[1] is b[1])
        for a, b in zip(last, rest, strict=True)
    )


def keys_differ_outside(table: RecipeTable, owner: dict[Any, Any]) -> bool:
    """Whether a dict from outside has, until what was written is replayed, other keys than the program sees."""
    node = table.t.outside.tree.node_of(owner)
    shadow = table.t.outside.dict_views.get(id(owner)) if node is None else node.container
    if not isinstance(shadow, DictShadow):
        return False
    shadow.settle()
    seen, there = keys_of(shadow.view), keys_of(shadow.real)
    return len(seen) != len(there) or any(a is not b for a, b in zip(seen, there, strict=True))


FEATURE.recipes |= {**dict.fromkeys(DICT_WALKS, of_dict), SET_WALK: of_set}
