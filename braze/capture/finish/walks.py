"""Iterators over dicts and sets at the end of a trace: they stand again in the container itself, which the program may go on to change."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

from braze.capture.facts.breaks import Unrebuildable
from braze.capture.facts.records import Build, Constant, Recipe
from braze.capture.facts.replay import dict_walk_at, set_walk_at
from braze.capture.facts.values import DICT_WALKS, SET_WALK
from braze.capture.finish.reconstruction import RecipeTable
from braze.capture.outside.shadows import DictShadow, keys_of
from braze.capture.state.handlers import Feature

FEATURE = Feature()


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
    parts = (Constant(dict_walk_at), Constant(name), Constant(len(rest)))
    return Build("walk", (*(table.add(part) for part in parts), table.id_of(owner)))


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
    seen, there = keys_of(shadow.view), keys_of(shadow.real)
    return len(seen) != len(there) or any(a is not b for a, b in zip(seen, there, strict=True))


FEATURE.recipes |= {**dict.fromkeys(DICT_WALKS, of_dict), SET_WALK: of_set}
