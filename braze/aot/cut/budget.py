"""A memory budget for training: keep less than the cheapest cut does, until the peak fits.

From the minimum cut on, kept values are given up one by one, the one that frees most bytes for the arithmetic of making it
again first; random draws are never repeated. On the way lie the choices that are weighed, the same ones under every
budget: by what whoever compiles the halves says they take (``Measure``), else by a timeline of the graph. A smaller budget never takes
more: see `_within`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch

from braze.aot.cut.arithmetic import quick_choice
from braze.aot.cut.min_cut import Choice, Halves, ancestors, is_random, min_cut_choice
from braze.aot.cut.timeline import Timeline, size_of
from braze.aot.facts.symbols import is_size
from braze.aot.facts.views import elements, hint, sees_memory
from braze.support.log import warn_once

aten = torch.ops.aten
Node = torch.fx.Node

#: values to keep -> the most bytes that the halves take so; None where whoever is asked cannot tell
Measure = Callable[[set[Node]], float | None]

#: choices of which each keeps this part of the first one's bytes less than the one before are weighed
STEP = 0.01
#: a peak so much above the least that can be is as good; one of the timeline may be lower in truth
NEAR = 1.02
#: a peak this near below what is wanted is near enough
CLOSE = 0.97
#: peaks that differ by less may be the other way round when the halves run: operators take memory of which nobody tells
CLEAR = 1.01


def budget_choice(budget: float, measure: Measure | None = None) -> Choice:
    """What to keep within ``budget``: up to 1 a share of the minimum cut's peak, above 1 bytes."""
    if budget == 1:
        return quick_choice

    def choose(halves: Halves) -> set[Node]:
        first = min_cut_choice(halves)
        timeline = Timeline(halves)
        measured = _measured(timeline, measure, first)
        whole = measured(first)
        wanted = budget * whole if budget < 1 else budget
        if whole <= wanted:
            return first
        rungs = _rungs(timeline, first) if whole > NEAR * timeline.floor else [first]
        kept = _within(rungs, wanted, measured)
        least = measured(kept)
        if least > wanted:
            share = f"{budget:g}, " if budget < 1 else ""
            warn_once(
                ("memory budget", budget),
                f"BZ2026: a memory budget of {share}{wanted / 1e6:.1f} MB cannot be kept: "
                f"the least peak is about {least / 1e6:.1f} MB",
            )
        return kept

    return choose


def _measured(timeline: Timeline, measure: Measure | None, first: set[Node]) -> Callable[[set[Node]], float]:
    """The peak of a choice, found once: as ``measure`` says if it can tell that of ``first``, else as the timeline."""
    known: dict[frozenset[Node], float] = {}
    found = measure(first) if measure is not None else None
    if found is not None:
        known[frozenset(first)] = found

    def measured(kept: set[Node]) -> float:
        key = frozenset(kept)
        if key not in known:
            known[key] = _peak(kept)
        return known[key]

    def _peak(kept: set[Node]) -> float:
        if measure is None or found is None:
            return timeline.peak(kept)
        said = measure(kept)
        return math.inf if said is None else said

    return measured


def _within(rungs: list[set[Node]], wanted: float, measured: Callable[[set[Node]], float]) -> set[Node]:
    """A choice whose peak is at most ``wanted``; the least one that was found where none is.

    Halves an interval whose ends have peaks above and not above ``wanted``, at points that do not depend on ``wanted`` and
    whose peaks lie between those of the ends. So where a larger ``wanted`` goes another way, it ends in an interval
    with no smaller peaks.
    """

    def peak_at(k: int) -> float:
        return measured(rungs[k])

    low = 0
    if peak_at(low) <= wanted:
        return rungs[low]
    high = min(_spread(low, len(rungs) - 1), key=lambda k: (peak_at(k), k))
    while high != low and peak_at(high) < CLOSE * wanted:
        middle = next(
            (
                k
                for k in _spread(low, high)[1:-1]
                if CLEAR * peak_at(high) <= peak_at(k) <= peak_at(low) / CLEAR
            ),
            None,
        )
        if middle is None:
            break
        if peak_at(middle) <= wanted:
            high = middle
        else:
            low = middle
    return rungs[high]


def _spread(low: int, high: int) -> list[int]:
    """The ends of an interval and the quarters between them; the middle is the first of these."""
    between = [(low + high) // 2, (3 * low + high) // 4, (low + 3 * high) // 4]
    return [low, *dict.fromkeys(k for k in between if low < k < high), high]


def _rungs(timeline: Timeline, first: set[Node]) -> list[set[Node]]:
    """``first``, and what is kept on the way down from it, as long as the timeline has peaks near its lowest ahead."""
    rungs, peaks = [first], [timeline.peak(first)]
    step = STEP * _bytes_of(first)
    giving = _Giving(timeline.halves, first)
    while giving.give_up_one():
        if _bytes_of(giving.kept) <= _bytes_of(rungs[-1]) - step:
            rungs.append(set(giving.kept))
            peaks.append(timeline.peak(giving.kept))
    last = max(k for k, each in enumerate(peaks) if each <= NEAR * min(peaks))
    return rungs[: last + 1]


def _bytes_of(kept: set[Node]) -> float:
    return sum(map(size_of, kept))


class _Giving:
    """What is kept, one value less at a time."""

    def __init__(self, halves: Halves, kept: set[Node]) -> None:
        self.halves = halves
        self.kept = kept
        #: in order, so that equal ones are given up alike under every budget
        self.choices = [n for n in halves.choices if n.op == "call_function" and size_of(n) >= 1024]
        self.work = functools.cache(_work)
        #: value -> arithmetic to make it again, and the kept ones that this starts from
        self.costs: dict[Node, tuple[float | None, set[Node]]] = {}

    def give_up_one(self) -> bool:
        """Let go of the value that is cheapest to make again for its bytes, and of what is then not read."""
        best, value = None, 0.0
        for node in self.choices:
            if node not in self.kept:
                continue
            if node not in self.costs:
                self.costs[node] = self._cost_again(node)
            cost, _ = self.costs[node]
            if cost is not None and size_of(node) / cost > value:
                best, value = node, size_of(node) / cost
        if best is None:
            return False
        kept = _read(self.halves, self.kept - {best})
        gone = self.kept - kept
        self.kept = kept
        for node in [n for n, (_, sources) in self.costs.items() if not gone.isdisjoint(sources)]:
            del self.costs[node]
        return True

    def _cost_again(self, node: Node) -> tuple[float | None, set[Node]]:
        """Arithmetic to make a value from the other kept ones and the inputs, and those; None where it cannot be."""
        halves = self.halves
        cost = 0.0
        todo, seen = [node], {node}
        sources: set[Node] = set()
        while todo:
            here = todo.pop()
            if is_random(here) or here in halves.written or halves.must_be_saved(here):
                return None, sources
            cost += self.work(here)
            for source in here.all_input_nodes:
                if source in seen or source in self.kept or source.op in ("get_attr", "placeholder"):
                    if source in halves.written:
                        return None, sources
                    if source in self.kept:
                        sources.add(source)
                    continue
                seen.add(source)
                todo.append(source)
        return max(cost, 1.0), sources


def _read(halves: Halves, kept: set[Node]) -> set[Node]:
    """Those kept values that the backward reads, inputs included."""

    def is_there(node: Node) -> bool:
        return node in kept or (node.op == "placeholder" and node not in halves.written)

    found = ancestors(halves.read, lambda node: is_size(node) or is_there(node))
    return {n for n in found if is_there(n) and not is_size(n)}


def _work(node: Node) -> float:
    """About how many operations a node takes."""
    value = node.meta.get("val")
    parts = value if isinstance(value, (tuple, list)) else (value,)
    made = sum(elements(t) for t in parts if isinstance(t, torch.Tensor))
    # by its place in the call: one tensor may stand at several
    place = 0 if node.target in (aten.mm.default, aten.bmm.default) else 1
    operand = node.args[place] if len(node.args) > place else None
    read = operand.meta.get("val") if isinstance(operand, Node) else None
    if isinstance(read, torch.Tensor) and read.dim() > 1:
        if node.target in (aten.mm.default, aten.bmm.default, aten.addmm.default):
            return 2.0 * made * hint(read.shape[-1])
        if node.target is aten.convolution.default:
            return 2.0 * made * math.prod(hint(n) for n in read.shape[1:])
        if node.target is not None and "attention" in str(node.target):
            return 4.0 * made * hint(read.shape[-2])
    return 0.0 if sees_memory(node) else float(made)
