"""Put groups into an order that keeps few bytes alive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from braze.loops.inputs_written import may_fail_by_data
from braze.schedule.facts.records import Group
from braze.support.order import on_demand
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
    course = _course(order, weights)
    return max((top for top, _ in course), default=0), sum(live for _, live in course)


def _course(order: Sequence[Group], weights: Weights) -> list[tuple[int, int]]:
    """Bytes alive at each group: with what it takes for itself, and without."""
    sizes = weights.sizes
    last = {name: k for k, g in enumerate(order) for name in (*g.reads, *g.writes)}
    seen = set(weights.given)
    live = sum(sizes[name] for name in seen)
    course = []
    for k, g in enumerate(order):
        for name in g.writes:
            if name in sizes and name not in seen:
                seen.add(name)
                live += sizes[name]
        course.append((live + weights.beside.get(g.name, 0), live))
        for name in {*g.reads, *g.writes}:
            if name in seen and last[name] == k and name not in weights.kept:
                live -= sizes[name]
    return course


def low_peak_order(groups: Sequence[Group], before: Mapping[int, set[int]], weights: Weights) -> list[Group]:
    """A topological order of ``groups`` (given in one; ``before`` by position) with a low peak.

    Of the given one, of one that frees the most at each step, and of one that makes each value when it is wanted:
    of equal peaks the one with fewer bytes alive over time, of equal ones the first.
    """
    if not groups:
        return []
    orders = list(groups), _greedy(groups, before, weights), _on_demand(groups, before, weights.kept)
    order = min(orders, key=lambda order: alive(order, weights))
    return _ends_late(order, {groups[k].name for needs in before.values() for k in needs}, weights)


def failing_first(
    groups: Sequence[Group],
    before: Sequence[Set[int]],
    written: Set[str],
) -> list[list[Group]]:
    """(what may fail, and what that needs; all others) of groups of which some write inputs, the buffers ``written``.

    As long as no input is written Python can run a call again that fails. What a write leads to is among the others.
    """
    led: set[int] = set()
    for k, g in enumerate(groups):
        if not led.isdisjoint(before[k]) or not written.isdisjoint(g.writes):
            led.add(k)
    failing = [k for k, g in enumerate(groups) if k not in led and any(map(may_fail_by_data, g.work))]
    first = set(on_demand(failing, lambda k: sorted(before[k])))
    return [[g for k, g in enumerate(groups) if (k in first) is early] for early in (True, False)]


def _ends_late(order: list[Group], needed: Set[str], weights: Weights) -> list[Group]:
    """Let what leaves the program and is largest, of what is there when the most is, be made last of all, while that helps.

    A gradient as large as an embedding's table is then made when what the others are made of has gone.
    """
    course = _course(order, weights)
    while True:
        top = max(range(len(order)), key=lambda k: course[k][0])
        ends = [k for k in range(top + 1) if order[k].name not in needed]
        if not ends:
            return order
        k = max(ends, key=lambda k: sum(weights.sizes.get(name, 0) for name in order[k].writes))
        later = [*order[:k], *order[k + 1 :], order[k]]
        then = _course(later, weights)
        if max(then) >= max(course):
            return order
        order, course = later, then


def _on_demand(groups: Sequence[Group], before: Mapping[int, set[int]], kept: Set[str]) -> list[Group]:
    """What leaves the program in the given order, each behind what it still lacks.

    So what a backward makes again stands before its first reader, wherever fusion has put it.
    """
    needed = set().union(*before.values())
    ends = [k for k, g in enumerate(groups) if k not in needed or not kept.isdisjoint(g.writes)]
    return [groups[k] for k in on_demand(ends, lambda k: sorted(before[k]))]


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
