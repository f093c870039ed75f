"""A memory budget for training: keep less than the cheapest cut does, until the simulated peak fits.

From the minimum cut on, kept values are given up one by one, the one that frees most bytes for the arithmetic of making it
again first. After each, forward and backward are played through with the values that kernels write to memory; the
order does not depend on the budget, so a smaller budget never takes more memory. Random draws are never repeated.
"""

from __future__ import annotations

import math

import torch

from braze.aot.cut import (
    CHEAP,
    Choice,
    Halves,
    backward_order,
    fuses,
    is_elementwise,
    is_random,
    min_cut_choice,
)
from braze.aot.views import elements, hint, is_view
from braze.support import trace
from braze.support.log import warn_once

aten = torch.ops.aten
Node = torch.fx.Node


def budget_choice(budget: float) -> Choice:
    """What to keep within ``budget``: up to 1 a share of the minimum cut's peak, above 1 bytes."""
    if budget == 1:
        return _told(min_cut_choice)

    def choose(halves: Halves) -> set[Node]:
        kept = min_cut_choice(halves)
        least = peak(halves, kept)
        wanted = budget * least if budget < 1 else budget
        best = kept
        while least > wanted:
            fewer = _give_up_one(halves, kept)
            if fewer is None:
                warn_once(
                    ("memory budget", budget),
                    f"BZ2026: a memory budget of {budget:g} cannot be kept: the least peak is about {least / 1e6:.1f} MB",
                )
                break
            kept = fewer
            here = peak(halves, kept)
            if here < least:
                least, best = here, kept
        return best

    return _told(choose)


def _told(choice: Choice) -> Choice:
    """A choice whose simulated peak whoever collects events is told."""

    def choose(halves: Halves) -> set[Node]:
        kept = choice(halves)
        if trace.collecting():
            trace.emit("peak", peak(halves, kept))
        return kept

    return choose


def peak(halves: Halves, kept: set[Node]) -> float:
    """The most bytes live at once in forward and backward, beside inputs; as a simulation of both says."""
    return max(_Play(halves, kept, backward=False).peak, _Play(halves, kept, backward=True).peak)


def memory_of(node: Node) -> Node:
    """The value whose memory a node is, through views."""
    while is_view(node):
        node = node.all_input_nodes[0]
    return node


class _Play:
    """One half, node by node, with the bytes that are live."""

    def __init__(self, halves: Halves, kept: set[Node], *, backward: bool) -> None:
        # what is returned as a view is the memory that it views
        results = {memory_of(n) for n in halves.results}
        stays = {memory_of(n) for n in halves.gradients} if backward else {*results, *kept}
        self.ends = {*kept, *stays}
        self.order = backward_nodes(halves, kept) if backward else _forward_order(halves)
        self.position = {node: i for i, node in enumerate(self.order)}
        last = self._last_uses()
        held = sum(_size(n) for n in results)
        if backward:
            held += sum(_size(n) for n in kept if n not in results)
        free: dict[int, float] = {}
        if backward:
            for node in kept:
                free[last.get(node, -1)] = free.get(last.get(node, -1), 0) + _size(node)
        live = most = float(held)
        for i, node in enumerate(self.order):
            if self._in_memory(node) and node not in results:
                live += _size(node)
                dying = (n for n in node.all_input_nodes if last.get(n) == i and n not in stays)
                over = is_elementwise(node.target) and any(
                    _size(n) == _size(node) and self._in_memory(n) for n in dying
                )
                most = max(most, live - _size(node) if over else live)
                if node not in stays:
                    free[last.get(node, i)] = free.get(last.get(node, i), 0) + _size(node)
            live -= free.pop(i, 0)
        self.peak = most

    def _in_memory(self, node: Node) -> bool:
        """Whether a kernel writes this value: not views, nor what only fuses into its readers."""
        if node.op != "call_function" or is_view(node) or not isinstance(node.meta.get("val"), torch.Tensor):
            return False
        if node in self.ends or not (is_elementwise(node.target) or node.target in CHEAP):
            return True
        return self._is_read_whole(node)

    def _is_read_whole(self, node: Node) -> bool:
        """Whether what fuses with nothing reads this from memory, through views or not."""
        users = [u for u in node.users if u in self.position]
        return any(self._is_read_whole(u) if is_view(u) else not fuses(u) for u in users)

    def _last_uses(self) -> dict[Node, int]:
        """When each value is read last, through views and what fuses."""
        last: dict[Node, int] = {}
        for node in reversed(self.order):
            until = max(self.position[node], 0 if self._in_memory(node) else last.get(node, 0))
            for source in node.all_input_nodes:
                last[source] = max(last.get(source, -1), until)
        return last


def _forward_order(halves: Halves) -> list[Node]:
    return [n for n in halves.graph.nodes if n in halves.forward and n.op == "call_function"]


def backward_nodes(halves: Halves, kept: set[Node]) -> list[Node]:
    """The backward's nodes, in the order of the graph that ``split`` makes."""
    ends = [n for n in halves.needed if n in halves.behind or n in halves.gradients]
    return backward_order(halves.graph, ends, lambda n: n in kept or n.op != "call_function")


def _give_up_one(halves: Halves, kept: set[Node]) -> set[Node] | None:
    """``kept`` less the value that is cheapest to make again for its bytes, and what is then not read; None: no such."""
    best, value = None, 0.0
    for node in halves.choices:  # in order, so that equal ones are given up alike under every budget
        if node not in kept or node.op != "call_function" or _size(node) < 1024:
            continue
        cost = _cost_again(halves, kept, node)
        if cost is not None and _size(node) / cost > value:
            best, value = node, _size(node) / cost
    if best is None:
        return None
    return _read(halves, kept - {best})


def _cost_again(halves: Halves, kept: set[Node], node: Node) -> float | None:
    """Arithmetic to make a value from the other kept ones and the inputs; None where it cannot be."""
    cost = 0.0
    todo, seen = [node], {node}
    while todo:
        here = todo.pop()
        if is_random(here) or here in halves.written or halves.must_be_saved(here):
            return None
        cost += _work(here)
        for source in here.all_input_nodes:
            if source in seen or source in kept or source.op in ("get_attr", "placeholder"):
                if source in halves.written:
                    return None
                continue
            seen.add(source)
            todo.append(source)
    return max(cost, 1.0)


def _read(halves: Halves, kept: set[Node]) -> set[Node]:
    """Those kept values that the backward reads, inputs included."""
    found: set[Node] = set()
    todo, seen = list(halves.read), set(halves.read)
    while todo:
        node = todo.pop()
        if isinstance(node.meta.get("val"), torch.SymInt):
            continue
        if node in kept or (node.op == "placeholder" and node not in halves.written):
            found.add(node)
            continue
        for source in node.all_input_nodes:
            if source not in seen:
                seen.add(source)
                todo.append(source)
    return found


def _size(node: Node) -> float:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or node.op == "placeholder":
        return 0.0
    return float(elements(value) * value.dtype.itemsize)


def _work(node: Node) -> float:
    """About how many operations a node takes."""
    value = node.meta.get("val")
    parts = value if isinstance(value, (tuple, list)) else (value,)
    made = sum(elements(t) for t in parts if isinstance(t, torch.Tensor))
    sources = [n.meta["val"] for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    if node.target in (aten.mm.default, aten.bmm.default):
        return 2.0 * made * hint(sources[0].shape[-1])
    if node.target is aten.addmm.default:
        return 2.0 * made * hint(sources[1].shape[-1])
    if node.target is aten.convolution.default:
        return 2.0 * made * math.prod(hint(n) for n in sources[1].shape[1:])
    if node.target is not None and "attention" in str(node.target):
        return 4.0 * made * hint(sources[1].shape[-2])
    return 0.0 if is_view(node) else float(made)
