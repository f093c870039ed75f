"""What the program wrote outside, as effects to replay when the graph has run."""

from __future__ import annotations

from typing import Any

from braze.capture.facts.records import Build, Constant, Effect, EffectKind, FromSource
from braze.capture.facts.values import MISSING
from braze.capture.finish.reconstruction import RecipeTable
from braze.capture.outside import definitions
from braze.capture.outside.shadows import DictShadow, keys_of
from braze.capture.state.handlers import HANDLERS, Feature
from braze.capture.state.ledger import Ledger
from braze.capture.state.trace import Trace

FEATURE = Feature()


def collect(t: Trace, table: RecipeTable) -> list[Effect]:
    """All effects, in the order in which features are handed in."""
    found = [effect for effects in HANDLERS.effects for effect in effects(t, table)]
    for check in HANDLERS.checks:
        check(t, table)
    return found


def written(t: Trace, table: RecipeTable) -> list[Effect]:
    """What was written to objects from outside, and calls that are made again."""
    effects: list[Effect] = []
    for shadow in t.outside.shadows:
        if isinstance(shadow, DictShadow):
            effects += items_written(table, shadow)
        elif shadow.changed():
            effects.append(contents(table, shadow))
    for shadow in t.outside.instance_dicts.values():
        effects += attributes_written(table, shadow)
    for node in t.done.slotted:
        for name, value in (node.slots or {}).items():
            target = table.add(FromSource(node.source))
            effects.append(Effect(EffectKind.SETATTR, (target, table.id_of(value)), name))
    for table_of in t.outside.globals.values():
        for name, value in table_of.written.items():
            if table_of.function is None:
                owner = table.add(Constant(table_of.module))
                effects.append(Effect(EffectKind.SETATTR, (owner, table.id_of(value)), name))
                continue
            owner = table.add(Constant(table_of.function))
            effects.append(Effect(EffectKind.SET_GLOBAL, (owner, table.id_of(value)), name))
    for owner_of, name, value in definitions.written(t.done):
        target = table.add(Constant(owner_of))
        effects.append(Effect(EffectKind.SETATTR, (target, table.id_of(value)), name))
    for cell, value in t.done.cells_written.values():
        if value is not MISSING:
            effects.append(Effect(EffectKind.SET_CELL, (table.id_of(cell), table.id_of(value))))
        else:
            effects.append(Effect(EffectKind.DELATTR, (table.id_of(cell),), "cell_contents"))
    for error in t.done.raised.values():
        for name, value in (error.before or {}).items():
            if getattr(error.error, name) is not value:
                target = table.id_of(error.error)
                effects.append(
                    Effect(EffectKind.SETATTR, (target, table.id_of(getattr(error.error, name))), name)
                )
    for function, args, kwargs in t.done.replays:
        target = table.add(Constant(function))
        if kwargs:
            named = tuple(table.id_of(v) for v in kwargs.values())
            target = table.add(Build("partial", (target, *named), None, tuple(kwargs)))
        effects.append(Effect(EffectKind.CALL, (target, *(table.id_of(v) for v in args))))
    return effects + tensor_fields(t.done, table)


FEATURE.effects.append(written)


def tensor_fields(done: Ledger, table: RecipeTable) -> list[Effect]:
    """Attributes put on tensors of the graph, where the tensor itself is handed on."""
    effects: list[Effect] = []
    waiting = list(done.tensor_fields.values())
    while found := [row for row in waiting if id(row[0]) in table.ids]:
        waiting = [row for row in waiting if id(row[0]) not in table.ids]
        for tensor, fields in found:
            effects += [
                Effect(EffectKind.SETATTR, (table.id_of(tensor), table.id_of(v)), k)
                for k, v in fields.items()
            ]
    return effects


def attributes_written(table: RecipeTable, shadow: DictShadow) -> list[Effect]:
    """Attributes set and deleted on an outside object."""
    written, gone = shadow.changed_keys()
    if not written and not gone:
        return []
    target = table.add(FromSource(shadow.node.source))
    effects = [Effect(EffectKind.DELATTR, (target,), k) for k in gone]
    return effects + [Effect(EffectKind.SETATTR, (target, table.id_of(v)), k) for k, v in written]


def items_written(table: RecipeTable, shadow: DictShadow) -> list[Effect]:
    """Items set and deleted in an outside dict; all of it where the order changed."""
    written, gone = shadow.changed_keys()
    if not written and not gone and not reordered(shadow):
        return []
    target = table.add(FromSource(shadow.node.source))
    if reordered(shadow):
        return [Effect(EffectKind.SET_CONTENTS, (target, table.add(as_dict(table, shadow))))]
    effects = [Effect(EffectKind.DELITEM, (target, table.id_of(k))) for k in gone]
    return effects + [
        Effect(EffectKind.SETITEM, (target, table.id_of(k), table.id_of(v))) for k, v in written
    ]


def reordered(shadow: DictShadow) -> bool:
    """Whether writing and deleting items one by one would leave another order."""
    if not shadow.filled:
        return False
    now = keys_of(shadow.view)
    stayed = shadow.original.keys() - shadow.deleted
    kept = [k for k in keys_of(shadow.real) if k in stayed and k in now]
    expected = kept + [k for k in now if k not in kept]
    return now != expected


def as_dict(table: RecipeTable, shadow: DictShadow) -> Any:
    """A plain dict with a shadow's contents."""
    args: list[int] = []
    for key in keys_of(shadow.view):
        args += (table.id_of(key), table.id_of(dict.__getitem__(shadow.view, key)))
    return Build("dict", tuple(args))


def contents(table: RecipeTable, shadow: Any) -> Effect:
    """A list, set or deque that has other elements now."""
    items = tuple(table.id_of(v) for v in shadow.view)
    kind = "set" if isinstance(shadow.view, set) else "list"
    target = table.add(FromSource(shadow.node.source))
    return Effect(EffectKind.SET_CONTENTS, (target, table.add(Build(kind, items))))
