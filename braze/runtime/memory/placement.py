"""Offsets for buffers of known sizes and lives: the plan of a static graph, and at run time of one with
symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

ALIGNMENT = 64

#: (first group, last group, bytes)
Life = tuple[int, int, int]


def place(lives: Sequence[Life]) -> tuple[list[int], int]:
    """An offset for each life so that overlapping ones are apart, and the bytes in all.

    Two greedy rules are tried; the smaller total wins. ``lives`` are sorted by their start.
    """
    plans = [best_fit(lives)]
    if len(lives) <= 400:
        plans.append(largest_first(lives))
    return min(plans, key=lambda plan: plan[1])


def rounded(size: int) -> int:
    """The size in whole cache lines."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def largest_first(lives: Sequence[Life]) -> tuple[list[int], int]:
    """Place the largest buffers first, each at the lowest offset free during its life."""
    offsets = [0] * len(lives)
    placed: list[tuple[int, int, int, int]] = []
    total = 0
    for k in sorted(range(len(lives)), key=lambda k: -lives[k][2]):
        start, stop, size = lives[k]
        need = rounded(size)
        at = 0
        for low, high, first, last in placed:
            if first <= stop and start <= last:
                if at + need <= low:
                    break
                at = max(at, high)
        offsets[k] = at
        placed.append((at, at + need, start, stop))
        placed.sort()
        total = max(total, at + need)
    return offsets, total


def best_fit(lives: Sequence[Life]) -> tuple[list[int], int]:
    """Walk in order of start; take the smallest free gap that is large enough."""
    offsets = []
    live: list[tuple[int, int, int]] = []  # offset, end, last group
    total = 0
    for start, stop, size in lives:
        live = sorted(x for x in live if x[2] >= start)
        need = rounded(size)
        best: tuple[int, int] | None = None
        at = 0
        for offset, end, _ in live:
            gap = offset - at
            if gap >= need and (best is None or gap < best[0]):
                best = gap, at
            at = max(at, end)
        at = best[1] if best else at
        offsets.append(at)
        live.append((at, at + need, stop))
        total = max(total, at + need)
    return offsets, total


class Layout:
    """The arena of one combination of sizes: ``sizes`` is what segments get, sizes then offsets."""

    __slots__ = ("bytes", "offsets", "sizes")

    def __init__(self, sizes: tuple[int, ...], offsets: list[int], total: int) -> None:
        self.offsets = tuple(offsets)
        self.sizes = (*sizes, *offsets)
        self.bytes = total


class Layouts:
    """Layouts of a graph with symbolic sizes, planned when a combination is first seen."""

    #: combinations that are remembered
    limit = 256

    def __init__(self, lives: Sequence[tuple[int, int]], sizes: Callable[..., Sequence[int]]) -> None:
        self._lives = tuple(lives)
        self._sizes = sizes
        self._known: dict[Any, Layout] = {}

    def __call__(self, *symbols: int) -> Layout:
        found = self._known.get(symbols)
        if found is None:
            sizes = self._sizes(*symbols)
            lives = [(start, stop, size) for (start, stop), size in zip(self._lives, sizes, strict=True)]
            found = Layout(symbols, *place(lives))
            if len(self._known) >= self.limit:
                self._known.clear()
            self._known[symbols] = found
        return found
