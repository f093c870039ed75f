"""A joint graph's forward and backward played through node by node, with the bytes that are live: what a choice of values costs.

An estimate from the graph alone, of what kernels write to memory. Whoever compiles the halves can count more exactly.
"""

from __future__ import annotations

import functools
from collections.abc import Collection

import torch

from braze.aot.cut.min_cut import Halves, backward_order, fuses
from braze.aot.facts.views import bytes_of, root_of, sees_memory
from braze.graph.operators.operators import is_cheap, is_elementwise

Node = torch.fx.Node


class Timeline:
    """What is the same for all choices of one joint graph."""

    def __init__(self, halves: Halves) -> None:
        self.halves = halves
        self.sizes = {n: size_of(n) for n in halves.graph.nodes}
        self.views = {n for n in halves.graph.nodes if sees_memory(n)}
        #: results of operators, but views: what a kernel might write
        self.made = {
            n
            for n in halves.graph.nodes
            if n.op == "call_function" and n not in self.views and isinstance(n.meta.get("val"), torch.Tensor)
        }
        self.elementwise = {n for n in self.made if is_elementwise(n.target)}
        #: what fuses into its readers, where nothing reads it whole
        self.cheap = {n for n in self.made if is_cheap(n.target)}
        self.fusing = {n for n in halves.graph.nodes if fuses(n)}
        # what is returned as a view is the memory that it views
        self.results = {root_of(n) for n in halves.results}
        self.gradients = {root_of(n) for n in halves.gradients}
        self.held = sum(self.sizes[n] for n in self.results)
        self.tangents = {n: bytes_of(n) for n in halves.behind if n.op == "placeholder"}

    @property
    def floor(self) -> float:
        """What is there at the end, whatever is kept: gradients, and results that the caller holds."""
        return self.held + sum(self.sizes[n] for n in self.gradients - self.results)

    def peak(self, kept: Collection[Node]) -> float:
        """The most bytes live at once in forward and backward, beside inputs."""
        return max(self.forward_peak(kept), self.backward_peak(kept))

    def forward_peak(self, kept: Collection[Node]) -> float:
        """While the forward runs, at whose end its results and what is kept are there."""
        stays = {*self.results, *kept}
        return _Half(self, self._forward, {*kept, *stays}, stays, {}).peak

    def backward_peak(self, kept: Collection[Node]) -> float:
        """While the backward runs, from the kept values on to all gradients; the caller holds the results."""
        saved = {n: self.sizes[n] for n in kept if n not in self.results} | self.tangents
        order = backward_nodes(self.halves, kept)
        return _Half(self, order, {*kept, *self.gradients}, self.gradients, saved).peak

    @functools.cached_property
    def _forward(self) -> list[Node]:
        return [n for n in self.halves.graph.nodes if n in self.halves.forward and n.op == "call_function"]


class _Half:
    """One half, node by node. ``ends``: written for others to read; ``stays``: of these, to the end; ``saved``: until read last."""

    def __init__(
        self,
        timeline: Timeline,
        order: list[Node],
        ends: Collection[Node],
        stays: Collection[Node],
        saved: dict[Node, float],
    ) -> None:
        self.timeline = timeline
        self.ends = ends
        self.position = {node: i for i, node in enumerate(order)}
        self.whole: dict[Node, bool] = {}
        sizes, results = timeline.sizes, timeline.results
        written = {n for n in order if self._in_memory(n)}
        last = self._last_uses(order, written)
        free: dict[int, float] = {}
        for node, size in saved.items():
            free[last.get(node, -1)] = free.get(last.get(node, -1), 0) + size
        live = most = timeline.held + sum(saved.values())
        for i, node in enumerate(order):
            if node in written and node not in results:
                live += sizes[node]
                dying = (n for n in node.all_input_nodes if last.get(n) == i and n not in stays)
                over = node in timeline.elementwise and any(
                    sizes[n] == sizes[node] and (n in written or n in saved) for n in dying
                )
                most = max(most, live - sizes[node] if over else live)
                if node not in stays:
                    free[last.get(node, i)] = free.get(last.get(node, i), 0) + sizes[node]
            live -= free.pop(i, 0)
        self.peak = float(most)

    def _in_memory(self, node: Node) -> bool:
        """Whether a kernel writes this value: not views, nor what only fuses into its readers."""
        if node not in self.timeline.made:
            return False
        return node in self.ends or node not in self.timeline.cheap or self._is_read_whole(node)

    def _is_read_whole(self, node: Node) -> bool:
        """Whether what fuses with nothing reads this from memory, through views or not."""
        found = self.whole.get(node)
        if found is None:
            users = [u for u in node.users if u in self.position]
            views, fusing = self.timeline.views, self.timeline.fusing
            found = any(self._is_read_whole(u) if u in views else u not in fusing for u in users)
            self.whole[node] = found
        return found

    def _last_uses(self, order: list[Node], written: set[Node]) -> dict[Node, int]:
        """When each value is read last, through views and what fuses."""
        last: dict[Node, int] = {}
        for node in reversed(order):
            until = max(self.position[node], 0 if node in written else last.get(node, 0))
            for source in node.all_input_nodes:
                if last.get(source, -1) < until:
                    last[source] = until
        return last


def backward_nodes(halves: Halves, kept: Collection[Node]) -> list[Node]:
    """The backward's nodes, in the order of the graph that ``split`` makes."""
    return backward_order(halves.graph, halves.ends, lambda n: n in kept or n.op != "call_function")


def size_of(node: Node) -> float:
    """Bytes of what the graph makes; inputs are there anyway."""
    return 0.0 if node.op == "placeholder" else bytes_of(node)
