"""Inputs that overlap in memory, one of which is written: views of one further input, which is the memory they share.

Applies to inputs of one storage and element type, of known sizes, that lie close together. The graph gets an input of one
dimension for the stretch of memory from the first element of any of them to the last; each becomes a view of it. A write to
one is then seen by the others as any write to a view is. Who calls the graph makes that input, where the inputs lie
to each other as they did here (``SharedInputs``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from braze.aot.facts.overlap import is_symbolic, may_overlap
from braze.aot.facts.records import SharedInputs
from braze.aot.facts.writes import written_arguments
from braze.graph.fakes.fakes import FakeMode
from braze.graph.nodes.facts import InputRole, facts, set_facts
from braze.graph.private import torch_compat
from braze.support.layouts import span
from braze.support.record import record

aten = torch.ops.aten
Node = torch.fx.Node

#: memory between inputs is copied with them: at most so many times their own
SPREAD = 4


@record
class Shared:
    """One stretch of memory: its new placeholder, and the views that stand for the inputs."""

    base: Node
    views: dict[Node, Node]
    inputs: SharedInputs

    def counting(self, written: set[Node]) -> Shared:
        """With the inputs noted of which autograd counts a write, by the views that were written."""
        marks = [view in written for view in self.views.values()]
        counted = tuple(i for i, mark in zip(self.inputs.inputs, marks, strict=True) if mark)
        return dataclasses.replace(self, inputs=dataclasses.replace(self.inputs, counted=counted))


def unite_overlapping(graph: torch.fx.Graph, writes: Sequence[Node], mode: FakeMode) -> list[Shared]:
    """Give the graph an input for each memory that it writes and several of its inputs see."""
    written = {torch_compat.storage_key(n.meta["val"]) for node in writes for n in written_arguments(node)}
    placeholders = graph.find_nodes(op="placeholder")
    united = [_united(graph, placeholders, members, mode) for members in _overlapping(placeholders, written)]
    return [each for each in united if each is not None]


def _overlapping(placeholders: Sequence[Node], written: set[int]) -> list[list[Node]]:
    """Sets of inputs that overlap, directly or through others."""
    groups: list[list[Node]] = []
    for node in placeholders:
        val = node.meta["val"]
        if not isinstance(val, torch.Tensor) or torch_compat.storage_key(val) not in written:
            continue
        key = torch_compat.storage_key(val)
        touched = [
            g
            for g in groups
            if any(
                torch_compat.storage_key(n.meta["val"]) == key and may_overlap(n.meta["val"], val) for n in g
            )
        ]
        groups = [g for g in groups if g not in touched]
        groups.append([n for g in touched for n in g] + [node])
    return [g for g in groups if len(g) > 1]


def _united(
    graph: torch.fx.Graph, placeholders: Sequence[Node], members: list[Node], mode: FakeMode
) -> Shared | None:
    """The new input for members that overlap, or None where they are too unlike or too far apart."""
    fakes = [n.meta["val"] for n in members]
    extents = [_extent(fake) for fake in fakes]
    if None in extents or len({(fake.dtype, fake.device) for fake in fakes}) > 1:
        return None
    known = [e for e in extents if e is not None]
    start, stop = min(e[0] for e in known), max(e[1] for e in known)
    if stop - start > SPREAD * sum(fake.numel() for fake in fakes):
        return None
    with graph.inserting_after(graph.find_nodes(op="placeholder")[-1]):
        base = graph.placeholder(f"shared_{members[0].name}")
    base.meta["val"] = _stretch(fakes[0], start, stop - start, mode)
    set_facts(base, role=InputRole.USER, source=base.name)
    views = {node: _view(graph, base, node, start, mode) for node in members}
    numbers = {node: i for i, node in enumerate(placeholders)}
    offsets = tuple(int(fake.storage_offset()) - start for fake in fakes)
    return Shared(base, views, SharedInputs(tuple(numbers[n] for n in members), offsets, start, stop - start))


def _extent(fake: torch.Tensor) -> tuple[int, int] | None:
    """The first element in the storage, and the one after the last."""
    if is_symbolic(fake):
        return None
    first = int(fake.storage_offset())
    return first, first + span(fake.shape, fake.stride())


def _stretch(like: torch.Tensor, start: int, size: int, mode: FakeMode) -> torch.Tensor:
    with torch_compat.outside_modes():
        meta = torch.empty(0, dtype=like.dtype, device="meta")
        meta.set_(like.untyped_storage(), start, (size,), (1,))
        return torch_compat.assemble_fake(mode.dispatch, meta, torch_compat.device_of_fake(like), False)


def _view(graph: torch.fx.Graph, base: Node, node: Node, start: int, mode: FakeMode) -> Node:
    """What stands for an input; slices where that is enough, which lower to plain indexing."""
    fake = node.meta["val"]
    origin = facts(node).origin
    first = int(fake.storage_offset()) - start
    after = next(n for n in graph.nodes if n.op != "placeholder")
    with graph.inserting_before(after):
        if fake.is_contiguous():
            part = graph.call_function(aten.slice.Tensor, (base, 0, first, first + fake.numel()))
            part.meta["val"] = _stretch(fake, start + first, fake.numel(), mode)
            set_facts(part, origin=origin)
            view = graph.call_function(aten.view.default, (part, list(fake.shape)))
        else:
            view = graph.call_function(
                aten.as_strided.default, (base, list(fake.shape), list(fake.stride()), start + first)
            )
    node.replace_all_uses_with(view)
    view.meta["val"] = fake
    set_facts(view, origin=origin)
    return view
