"""Put groups into an order that keeps few bytes alive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from braze.schedule.records import Group


def peak(order: Sequence[Group], sizes: Mapping[str, int], kept: set[str]) -> int:
    """Greatest number of bytes of buffers alive at once; ``sizes``: the buffers that count."""
    last = {name: k for k, g in enumerate(order) for name in (*g.reads, *g.writes)}
    live = 0
    top = 0
    seen: set[str] = set()
    for k, g in enumerate(order):
        for name in g.writes:
            if name in sizes and name not in seen:
                seen.add(name)
                live += sizes[name]
        top = max(top, live)
        for name in {*g.reads, *g.writes}:
            if name in seen and last[name] == k and name not in kept:
                live -= sizes[name]
    return top


def low_peak_order(
    groups: Sequence[Group], before: Mapping[int, set[int]], sizes: Mapping[str, int], kept: set[str]
) -> list[Group]:
    """A topological order of ``groups`` (given in one; ``before`` by position) with a low peak.

    Tries the greedy order that frees the most at each step; keeps the given one unless that is better.
    """
    greedy = _greedy(groups, before, sizes, kept)
    return min((list(groups), greedy), key=lambda order: peak(order, sizes, kept))


def _greedy(
    groups: Sequence[Group], before: Mapping[int, set[int]], sizes: Mapping[str, int], kept: set[str]
) -> list[Group]:
    after: dict[int, list[int]] = {k: [] for k in range(len(groups))}
    waiting = {k: len(before[k]) for k in range(len(groups))}
    for k, needs in before.items():
        for need in needs:
            after[need].append(k)
    readers: dict[str, int] = {}
    for g in groups:
        for name in {*g.reads, *g.writes}:
            readers[name] = readers.get(name, 0) + 1
    made: set[str] = set()
    ready = [k for k in range(len(groups)) if not waiting[k]]
    out: list[Group] = []

    def growth(k: int) -> int:
        g = groups[k]
        total = sum(sizes[n] for n in g.writes if n in sizes and n not in made)
        for name in {*g.reads, *g.writes}:
            if readers[name] == 1 and name in sizes and name not in kept:
                total -= sizes[name]
        return total

    while ready:
        # with many ready groups only the earliest are compared, so that the cost stays near-linear
        ready.sort()
        k = min(ready[:16], key=lambda k: (growth(k), k))
        ready.remove(k)
        out.append(groups[k])
        made.update(groups[k].writes)
        for name in {*groups[k].reads, *groups[k].writes}:
            readers[name] -= 1
        for follower in after[k]:
            waiting[follower] -= 1
            if not waiting[follower]:
                ready.append(follower)
    return out
