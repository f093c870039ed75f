"""Which sizes a graph is recorded for: those that are called most, at most so many; or those that the user lists."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from braze.cudagraphs.recording import Recording
from braze.cudagraphs.storages import Seen


class Group:
    """The recordings of one graph for one choice of sizes on one stream."""

    def __init__(self, changed: Callable[[], object]) -> None:
        #: to be called when there are other recordings
        self.changed = changed
        self.calls = 0
        self.recordings: list[Recording] = []
        #: where the inputs of the first call lay, by their places
        self.seen: dict[int, Seen] = {}
        #: how often an input lay elsewhere than in every recording
        self.moved: dict[int, int] = {}
        #: inputs that are copied though they looked static
        self.unsteady: set[int] = set()
        #: how often its recordings had to make room
        self.evicted = 0
        #: why no more is recorded
        self.closed = ""


class Sizes:
    """The groups of one graph, by sizes. ``limit``: how many, or the sizes that are recorded; ``changed`` is called when a group has other recordings."""

    def __init__(self, limit: int | tuple[int, ...], changed: Callable[[], object] = lambda: None) -> None:
        self._changed = changed
        self._most = limit if isinstance(limit, int) else None
        self._listed = frozenset() if isinstance(limit, int) else frozenset(limit)
        self.groups: dict[Hashable, Group] = {}
        #: calls of sizes that have no group
        self._waiting: dict[Hashable, int] = {}

    def listed(self, sizes: tuple[int, ...]) -> bool:
        """Whether the user wants these sizes recorded, as far as lists tell."""
        return self._most is not None or self._listed.issuperset(sizes)

    def why_not(self) -> str:
        """Why a call has no group that is not of listed sizes."""
        if self._most == 0:
            return "is not recorded: cudagraph_sizes=0 records nothing"
        return "is called with more sizes than are recorded (cudagraph_sizes); not recorded"

    def find(self, key: Hashable) -> tuple[Group | None, Group | None]:
        """The group of a key, if it may have one, and the one that gives way to it.

        A key that is new where all places are taken waits until it was called more than twice as often as the group that is
        called least: sizes that take turns do not drive each other out.
        """
        found = self.groups.get(key)
        if found is not None:
            found.calls += 1
            return found, None
        if self._most is None or len(self.groups) < self._most:
            return self._enter(key), None
        if not self._most:
            return None, None
        if len(self._waiting) > 64 * self._most:
            self._waiting.clear()
        waited = self._waiting[key] = self._waiting.get(key, 0) + 1
        least = min(self.groups, key=lambda k: self.groups[k].calls)
        if waited <= 2 * self.groups[least].calls + 2:
            return None, None
        del self._waiting[key]
        gone = self.groups.pop(least)
        for group in self.groups.values():
            group.calls //= 2
        return self._enter(key), gone

    def _enter(self, key: Hashable) -> Group:
        found = self.groups[key] = Group(self._changed)
        found.calls = 1
        return found


def describe(sizes: Any) -> str:
    """Sizes for a message."""
    return f" at sizes {', '.join(map(str, sizes))}" if sizes else ""
