"""Items that a program has written to a dict from outside and nothing has looked for yet: no guard on their keys, nor on whether they were there.

``log[step] = loss`` gives a dict a new key at each call, and ``log[f"loss/{step}"]`` another text. Such items wait here in order, and are written when the graph
has run, after all that the trace knows of the dict. Once anything looks at it they are written in the trace, by the keys of this call, which are guarded then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from braze.capture.facts.values import MISSING, UnknownText

#: types of keys that are the same at each call
SAME = frozenset({int, str})


class Later:
    """What waits to be written to one dict."""

    __slots__ = ("items",)

    def __init__(self) -> None:
        #: what tells a key from others -> (key, value)
        self.items: dict[tuple[Any, Any], tuple[Any, Any]] = {}

    def put(self, key: Any, value: Any) -> bool:
        """Write an item; whether that can wait."""
        tag = _tag(key)
        if tag in self.items and not self._is_last(tag):
            return False
        self.items[tag] = (key, value)
        return True

    def last(self, key: Any) -> Any:
        """What a key was given last; MISSING where it was given nothing, or another key may be the same in a call."""
        tag = _tag(key) if self.items else None
        return self.items[tag][1] if tag in self.items and self._is_last(tag) else MISSING

    def take(self) -> Iterable[tuple[Any, Any]]:
        """All of it, which waits no longer."""
        taken, self.items = self.items, {}
        return taken.values()

    def _is_last(self, tag: tuple[Any, Any]) -> bool:
        """Whether nothing was written since by a key that may be the same in a call."""
        if next(reversed(self.items)) == tag:
            return True
        return tag[0] in SAME and all(kind in SAME for kind, _ in self.items)


def _tag(key: Any) -> tuple[Any, Any]:
    """Which number or text a key is, or how it is computed."""
    kind = type(key)
    if kind is tuple:
        return kind, tuple(map(_tag, key))
    if kind is UnknownText and key.made is not None:
        return kind, (key.made[0], _tag(key.made[1]))
    return kind, key if kind in SAME else key.node.expr if kind is torch.SymInt else id(key)
