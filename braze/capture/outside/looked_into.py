"""What C code looks into is read whole before, and text in it is written."""

from __future__ import annotations

import collections
import gc
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from braze.capture.facts.breaks import FORMATTED, FORMATTED_NUMBER, HINT_FORMAT, graph_break
from braze.capture.facts.policy import ASKING
from braze.capture.facts.values import BY_INDEX, DICT_WALKS, SET_WALK, UNTIL, UnknownText
from braze.capture.outside import given_texts
from braze.capture.outside.shadows import iterate
from braze.capture.state.outside import Outside
from braze.support.caches import remembered

SEQUENCES = (list, tuple, collections.deque)
_READ_WHOLE = (dict, *SEQUENCES)
#: what stands in a container, or goes over other iterators
ITERATORS = (ASKING - {BY_INDEX, UNTIL}) | {
    *DICT_WALKS, SET_WALK, type(iter([])), type(iter(())), type(iter(collections.deque())), type(reversed([])),
    type(reversed({})), reversed,
}  # fmt: skip
#: and the views that C code goes over as it does over these
_WALKS = ITERATORS | {type({}.values()), type({}.items())}


def fill(outside: Outside, value: Any) -> None:
    """Read all of a lazily filled dict."""
    if not issubclass(type(value), dict):
        return
    node = outside.tree.known.get(id(value))
    if node is not None and node.value is value:
        if node.container is not None and not node.container.filled:
            node.container.fill(outside)
        return
    shadow = outside.dict_views.get(id(value))
    if shadow is not None and shadow.view is value:
        shadow.fill(outside)


def write_texts(container: Any) -> None:
    """Text in a container, written: C code looks into it."""
    if UnknownText not in set(map(type, contents(container))):
        return
    pairs = list(container.items()) if issubclass(type(container), dict) else list(enumerate(container))
    for key, value in pairs:
        if type(value) is UnknownText and value.made is not None:
            container[key] = given_texts.written(value)


@remembered(4096)
def is_looked_into(kind: type) -> bool:
    """Whether values of a class hold others, or are text that may not be written yet."""
    return kind is UnknownText or issubclass(kind, _READ_WHOLE)


def fill_arguments(outside: Outside, values: Collection[Any]) -> None:
    """Read all of the lazily filled dicts among values that C code gets, however deep, and write the text in them."""
    if not any(map(is_looked_into, map(type, values))):
        return
    for value in everything(values, _looked_into):
        kind = type(value)
        if kind is UnknownText:
            given_texts.refuse(value)
            graph_break(*(FORMATTED if value.made is None else FORMATTED_NUMBER), HINT_FORMAT)
        if kind is list or kind is dict:
            write_texts(value)
        if issubclass(kind, dict):
            fill(outside, value)


def fill_walked(outside: Outside, values: Iterable[Any]) -> None:
    """The same of what iterators and views among values go over, where C code looks at what they give."""
    for value in values:
        if type(value) in _WALKS and outside.tree.node_of(value) is None:
            parts = gc.get_referents(value)
            fill_arguments(outside, parts)
            fill_walked(outside, [p for part in parts for p in (part if type(part) is tuple else (part,))])


def fill_method(outside: Outside, owner: Any, args: Collection[Any]) -> None:
    """The same before a method in C compares what its object holds."""
    fill_arguments(outside, (owner,))
    fill_walked(outside, (owner, *args))


def _looked_into(value: Any) -> Iterable[Any] | None:
    """What a container holds, if C code would look into any of that; by types first, since it may be long and given again and again."""
    if not issubclass(type(value), _READ_WHOLE):
        return None
    return contents(value) if any(map(is_looked_into, set(map(type, contents(value))))) else None


def everything(values: Iterable[Any], held_by: Callable[[Any], Iterable[Any] | None]) -> Iterator[Any]:
    """Values and all that they hold, however deep, each that holds something once. ``held_by``: what one holds, if it is looked into; asked once it has been given."""
    waiting, seen = [iter(values)], set[int]()
    while waiting:
        for value in waiting.pop():
            if id(value) in seen:
                continue
            yield value
            held = held_by(value)
            if held is not None:
                seen.add(id(value))
                waiting.append(iter(held))


def contents(container: Any) -> Iterable[Any]:
    """What a container holds, a dict's keys left out, past any override in a subclass."""
    return dict.values(container) if issubclass(type(container), dict) else iterate(container)
