"""What the program wrote outside, as effects to replay when the graph has run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from braze.capture.facts.records import Build, Constant, Effect, EffectKind, FromSource
from braze.capture.facts.replay import delete_in_dict, set_in_dict
from braze.capture.facts.values import MISSING, has_data_descriptor
from braze.capture.finish.reconstruction import RecipeTable
from braze.capture.outside import definitions
from braze.capture.outside.shadows import DictShadow, SequenceShadow, iterate, keys_of
from braze.capture.state.handlers import HANDLERS, Feature
from braze.capture.state.ledger import Ledger
from braze.capture.state.outside import Outside
from braze.capture.state.trace import Trace

FEATURE = Feature()


def collect(t: Trace, table: RecipeTable) -> list[Effect]:
    """All effects, in the order in which features are handed in."""
    found = [effect for effects in HANDLERS.effects for effect in effects(t, table)]
    for check in HANDLERS.checks:
        check(t, table)
    return found


def of_writes(t: Trace, table: RecipeTable) -> list[Effect]:
    """What was written to objects from outside, and calls that are made again."""
    return [
        *of_containers(t.outside, table),
        *of_globals(t.outside, table),
        *of_cells(t.done, table),
        *of_attributes(t.done, table),
        *of_calls(t.done, table),
        *tensor_fields(t.done, table),
    ]


FEATURE.effects.append(of_writes)


def of_containers(outside: Outside, table: RecipeTable) -> Iterator[Effect]:
    """Items of containers, and attributes that lie in instance dicts."""
    for shadow in outside.shadows:
        if isinstance(shadow, DictShadow):
            yield from items_written(table, shadow)
        elif shadow.changed():
            yield from elements_written(table, shadow)
    for shadow in outside.instance_dicts.values():
        yield from attributes_written(table, shadow)


def of_attributes(done: Ledger, table: RecipeTable) -> Iterator[Effect]:
    """Attributes that lie in slots, those of classes and functions, and what raising has changed of exceptions from outside."""
    for node in done.slotted:
        for name, value in (node.slots or {}).items():
            yield set_attribute(table, table.add(FromSource(node.source)), name, value)
    for owner, name, value in definitions.new_values(done):
        yield set_attribute(table, table.add(Constant(owner)), name, value)
    for raised in done.raised.values():
        for name, value in (raised.before or {}).items():
            now = getattr(raised.error, name)
            if now is not value:
                yield set_attribute(table, table.id_of(raised.error), name, now)


def of_globals(outside: Outside, table: RecipeTable) -> Iterator[Effect]:
    """Globals: by a function that has them, or by the module through which they were written."""
    for space in outside.globals.values():
        for name, value in space.written.items():
            if space.function is None:
                yield set_attribute(table, table.add(Constant(space.module)), name, value)
            else:
                owner = table.add(Constant(space.function))
                yield Effect(EffectKind.SET_GLOBAL, (owner, table.id_of(value)), name)


def of_cells(done: Ledger, table: RecipeTable) -> Iterator[Effect]:
    """Variables of functions around."""
    for cell, value in done.cells_written.values():
        if value is not MISSING:
            yield Effect(EffectKind.SET_CELL, (table.id_of(cell), table.id_of(value)))
        else:
            yield Effect(EffectKind.DELATTR, (table.id_of(cell),), "cell_contents")


def of_calls(done: Ledger, table: RecipeTable) -> Iterator[Effect]:
    """Calls that are made again."""
    for function, args, kwargs in done.replays:
        target = table.add(Constant(function))
        if kwargs:
            named = tuple(table.id_of(v) for v in kwargs.values())
            target = table.add(Build("partial", (target, *named), None, tuple(kwargs)))
        yield Effect(EffectKind.CALL, (target, *(table.id_of(v) for v in args)))


def set_attribute(table: RecipeTable, owner: int, name: str, value: Any) -> Effect:
    """The effect of ``owner.name = value``."""
    return Effect(EffectKind.SETATTR, (owner, table.id_of(value)), name)


def tensor_fields(done: Ledger, table: RecipeTable) -> list[Effect]:
    """Attributes put on tensors of the graph, where the tensor itself is handed on."""
    effects: list[Effect] = []
    waiting = list(done.tensor_fields.values())
    while found := [row for row in waiting if id(row[0]) in table.ids]:
        waiting = [row for row in waiting if id(row[0]) not in table.ids]
        for tensor, fields in found:
            effects += [set_attribute(table, table.id_of(tensor), k, v) for k, v in fields.items()]
    return effects


def attributes_written(table: RecipeTable, shadow: DictShadow) -> list[Effect]:
    """Attributes set and deleted on an outside object."""
    written, gone = shadow.changed_keys()
    if not written and not gone:
        return []
    target = table.add(FromSource(shadow.node.source))
    cls = type(shadow.node.real)
    effects = [
        call_of(table, delete_in_dict, (target, table.id_of(k)))
        if is_past_the_class(cls, k)
        else Effect(EffectKind.DELATTR, (target,), k)
        for k in gone
    ]
    return effects + [
        call_of(table, set_in_dict, (target, table.id_of(k), table.id_of(v)))
        if is_past_the_class(cls, k)
        else set_attribute(table, target, k, v)
        for k, v in written
    ]


def is_past_the_class(cls: type, key: Any) -> bool:
    """Whether what an object's dict has by a key is written there: the class has it otherwise, or it is no name of an attribute."""
    return not isinstance(key, str) or has_data_descriptor(cls, key)


def call_of(table: RecipeTable, function: Any, args: Iterable[int]) -> Effect:
    """The effect of a call with what recipes give."""
    return Effect(EffectKind.CALL, (table.add(Constant(function)), *args))


def items_written(table: RecipeTable, shadow: DictShadow) -> list[Effect]:
    """Items set and deleted in an outside dict; all of it where the order changed."""
    written, gone = shadow.changed_keys()
    if not written and not gone and not shadow.later.items and not reordered(shadow):
        return []
    target = table.add(FromSource(shadow.node.source))
    if reordered(shadow):
        return [Effect(EffectKind.SET_CONTENTS, (target, table.add(as_dict(table, shadow))))]
    effects = [Effect(EffectKind.DELITEM, (target, table.id_of(k))) for k in gone]
    return effects + [
        Effect(EffectKind.SETITEM, (target, table.id_of(k), table.id_of(v)))
        for k, v in (*written, *shadow.later.items.values())
    ]


def reordered(shadow: DictShadow) -> bool:
    """Whether writing and deleting items one by one would leave another order."""
    if not shadow.filled:
        return False
    now = keys_of(shadow.view)
    stayed, there = shadow.original.keys() - shadow.deleted, set(now)
    kept = dict.fromkeys(k for k in keys_of(shadow.real) if k in stayed and k in there)
    return now != [*kept, *(k for k in now if k not in kept)]


def as_dict(table: RecipeTable, shadow: DictShadow) -> Any:
    """A plain dict with a shadow's contents."""
    args: list[int] = []
    for key in keys_of(shadow.view):
        args += (table.id_of(key), table.id_of(dict.__getitem__(shadow.view, key)))
    return Build("dict", tuple(args))


def elements_written(table: RecipeTable, shadow: SequenceShadow) -> Iterator[Effect]:
    """Elements of a list, set or deque: of a list that nothing has looked into, those at places that change from call to call, and then those at its end."""
    for key, value in shadow.later.items.values():
        target = table.add(FromSource(shadow.node.source))
        yield Effect(EffectKind.SETITEM, (target, table.id_of(key), table.id_of(value)))
    if shadow.filled or shadow.view:
        yield contents(table, shadow)


def contents(table: RecipeTable, shadow: SequenceShadow) -> Effect:
    """A list, set or deque that has other elements now; of one that nothing has looked into, those at its end."""
    items = tuple(table.id_of(v) for v in iterate(shadow.view))
    kind = "set" if isinstance(shadow.view, set) else "list"
    target = table.add(FromSource(shadow.node.source))
    effect = EffectKind.SET_CONTENTS if shadow.filled else EffectKind.EXTEND
    return Effect(effect, (target, table.add(Build(kind, items))))
