"""A call of several operations of autograd's, each as if it were the only one: of the forward's inputs and all that it gives.

One run of the forward makes all results. Each operation is then applied to the inputs and these values, of which it picks its own;
what else its backward reads, and the results of others that it takes, are inputs to it.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import torch

from braze.aot.facts.records import Backward, Partition, Saved, SavedFrom
from braze.graph.fakes.fakes import spec_of
from braze.graph.nodes.captured import Late
from braze.graph.nodes.facts import facts, set_facts
from braze.graph.nodes.specs import SymbolSpec, TensorSpec
from braze.runtime.call.boxed import Boxed, boxed
from braze.support.record import record

#: of what is no tensor nothing is asked but that
_NUMBER = SymbolSpec("", 0)


@record
class Alone:
    """One operation: its backward as autograd's node sees it, and as it is compiled; ``places`` of its results among the values."""

    seen: Backward
    original: Backward
    places: tuple[int, ...]
    count: int

    def compiled(self, half: Backward) -> Backward:
        """A half of ``seen``, for tangents that come in, in the numbers of the forward's inputs and items."""
        gradients = tuple(i if i < self.count else ~(i - self.count) for i in half.gradients)
        return dataclasses.replace(self.original, graph=half.graph, gradients=gradients, depends=half.depends)


def with_results_as_inputs(partition: Partition, hidden: Sequence[TensorSpec]) -> Partition:
    """The partition with all that its forward gives as further inputs, and what stands for hidden results."""
    items: Any = partition.forward.graph.output_node().args[0]
    values = [getattr(item, "meta", {}).get("val") for item in items]
    specs = [spec_of(value) if isinstance(value, torch.Tensor) else _NUMBER for value in values]
    return dataclasses.replace(partition, inputs=(*partition.inputs, *specs, *hidden))


def hidden_results(partition: Partition) -> list[TensorSpec]:
    """Results that stand between operations alone: of those nothing but a history is read, so that one number may be all of one."""
    whole = partition.backward
    assert whole is not None
    count = len(partition.forward.graph.output_node().args[0])  # type: ignore[arg-type]
    specs: Any = whole.inputs[len(whole.saved) :]
    found = sorted((i, spec) for i, spec in zip(whole.tangents, specs, strict=True) if i >= count)
    return [dataclasses.replace(spec, strides=(0,) * len(spec.sizes)) for _, spec in found]


def of_group(part: Backward, group: tuple[int, ...], count: int) -> Alone:
    """The operation of some tangents by number, whose backward is ``part``, of a forward of so many inputs."""
    graph = copy.deepcopy(part.graph.graph)
    placeholders = graph.find_nodes(op="placeholder")
    first = len(part.saved)
    told = {each.name for each in part.saved if each.source is SavedFrom.SYMBOL}
    read = [i for i in range(first) if placeholders[i].users or _tells_more(part.inputs[i], told)]
    wanted = [*read, *(first + k for k in group)]
    for i in {*range(len(placeholders))} - {*wanted}:
        graph.erase_node(placeholders[i])
    for node in graph.nodes:  # tangents are known by number
        if bits := facts(node).tangents:
            set_facts(node, tangents=sum((bits >> k & 1) << i for i, k in enumerate(group)))
    items = tuple(part.tangents[k] for k in group)
    original = dataclasses.replace(
        part,
        graph=Late(graph, part.graph),
        saved=tuple(part.saved[i] for i in read),
        tangents=items,
        depends=tuple(tuple(group.index(k) for k in made_of if k in group) for made_of in part.depends),
        inputs=tuple(part.inputs[i] for i in wanted),
        apart=(),
    )
    seen = dataclasses.replace(
        original,
        saved=tuple(_seen(each, items, count) for each in original.saved),
        tangents=tuple(range(len(items))),
        gradients=tuple(i if i >= 0 else count + ~i for i in part.gradients),
        results=len(items),
        guarded=tuple(items.index(i) for i in part.guarded if i in items),
    )
    return Alone(seen, original, tuple(count + i for i in items), count)


def _tells_more(spec: Any, told: Collection[str]) -> bool:
    """Whether code may ask a saved value for a size, though no node reads it: one that no saved number tells."""
    if not isinstance(spec, TensorSpec):
        return True
    return any(
        isinstance(n, str) and n.isidentifier() and n not in told for n in (*spec.sizes, *spec.strides)
    )


def _seen(saved: Saved, items: tuple[int, ...], count: int) -> Saved:
    """Where a saved value comes from: a result of the operation, or any other value."""
    if saved.source is not SavedFrom.OUTPUT:
        return saved
    if saved.index in items:
        return dataclasses.replace(saved, index=items.index(saved.index))
    return dataclasses.replace(saved, source=SavedFrom.INPUT, index=count + saved.index)


def is_fixed(spec: Any) -> bool:
    """Whether a value is a tensor of sizes and strides that are known beforehand."""
    return isinstance(spec, TensorSpec) and all(isinstance(n, int) for n in (*spec.sizes, *spec.strides))


def picked(places: Sequence[int]) -> Boxed:
    """The forward of an operation whose results have been computed."""

    @boxed
    def found(values: Sequence[Any]) -> Sequence[Any]:
        return [values[place] for place in places]

    return found
