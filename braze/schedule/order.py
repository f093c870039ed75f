"""Put groups into an order that keeps few bytes alive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from braze.schedule.records import Group
from braze.support.record import record


@record
class Weights:
    """Bytes by which orders are judged: of buffers, by name, those of ``given`` being there from the start.

    ``beside``: what a group takes for itself, by name. ``kept``: buffers that stay to the end.
    """

    sizes: Mapping[str, int]
    kept: Set[str]
    given: Set[str]
    beside: Mapping[str, int]


def alive(order: Sequence[Group], weights: Weights) -> tuple[int, int]:
    """Greatest number of bytes alive at once, and their sum over all groups."""
    sizes = weights.sizes
    last = {name: k for k, g in enumerate(order) for name in (*g.reads, *g.writes)}
    seen = set(weights.given)
    live = top = sum(sizes[name] for name in seen)
    total = 0
    for k, g in enumerate(order):
        for name in g.writes:
            if name in sizes and name not in seen:
                seen.add(name)
                live += sizes[name]
        top = max(top, live + weights.beside.get(g.name, 0))
        total += live
        for name in {*g.reads, *g.writes}:
            if name in seen and last[name] == k and name not in weights.kept:
                live -= sizes[name]
    return top, total


def low_peak_order(groups: Sequence[Group], before: Mapping[int, set[int]], weights: Weights) -> list[Group]:
    """A topological order of ``groups`` (given in one; ``before`` by position) with a low peak.

    Of the given one, of one that frees the most at each step, and of one that makes each value when it is wanted:
    of equal peaks the one with fewer bytes alive over time, of equal ones the first.
    """
    orders = list(groups), _greedy(groups, before, weights), _on_demand(groups, before, weights.kept)
    return min(orders, key=lambda order: alive(order, weights))


def _on_demand(groups: Sequence[Group], before: Mapping[int, set[int]], kept: Set[str]) -> list[Group]:
    """What leaves the program in the given order, each behind what it still lacks.

    So what a backward makes again stands before its first reader, wherever fusion has put it.
    """
    needed = set().union(*before.values())
    ends = [k for k, g in enumerate(groups) if k not in needed or not kept.isdisjoint(g.writes)]
    done: set[int] = set()
    out: list[Group] = []
    for end in ends:
        todo = [end]
        while todo:
            k = todo[-1]
            missing = [n for n in before[k] if n not in done]
            if k in done:
                todo.pop()
            elif missing:
                todo += sorted(missing, reverse=True)
            else:
                done.add(k)
                out.append(groups[k])
                todo.pop()
    return out


def _greedy(groups: Sequence[Group], before: Mapping[int, set[int]], weights: Weights) -> list[Group]:
    sizes = {name: size for name, size in weights.sizes.items() if name not in weights.kept}
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
            if readers[name] == 1 and name in sizes:
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
