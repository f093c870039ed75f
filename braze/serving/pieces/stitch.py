"""A split graph as one flat function that calls its pieces and lets go of each value after its last use; and what stands around pieces."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from braze.capture.facts.purity import WRITING, name_of, overloads_of
from braze.cudagraphs.registry import records
from braze.graph.nodes.captured import forward_of
from braze.graph.nodes.facts import InputRole, facts
from braze.graph.operators.operators import written_parameters
from braze.graph.private.torch_compat import copy_all, storage_key
from braze.serving.policy.dispatch import BatchDescriptor
from braze.serving.policy.modes import CUDAGraphMode
from braze.serving.step.context import get_forward_context
from braze.support.errors import InternalError, UserError


def stitched(
    split: Graph, runnables: Mapping[str, Callable[..., Any]], owner: Any = None
) -> Callable[..., Any]:
    """The split graph as a function of its inputs. ``runnables``: what is called in place of each submodule; ``owner``: holds its attributes."""
    graph = Graph()
    env: dict[Node, Node] = {}
    for node in split.nodes:
        if node.op == "call_module":
            args = torch.fx.map_arg(node.args, lambda n: env[n])
            env[node] = graph.create_node("call_function", runnables[str(node.target)], args, name=node.name)
        else:
            env[node] = graph.node_copy(node, lambda n: env[n])
    written = forward_of(graph)
    if written is None:
        raise InternalError("BZ9113", "a split graph has a node that no function can be written for")
    return types.MethodType(written, owner if owner is not None else graph)


class Bridge:
    """A piece that is not recorded, between recorded ones: what it makes anew is copied to where they expect it.

    ``fresh``: which of its outputs lie elsewhere at each call. Without a recording mode it is the piece alone.
    """

    def __init__(self, run: Callable[..., Any], fresh: Sequence[int], name: str = "") -> None:
        self.run, self.fresh, self.name = run, tuple(fresh), name
        self.places = Places(name)

    def __call__(self, *args: Any) -> Any:
        outputs = self.run(*args)
        if not self.fresh:
            return outputs
        return self.places.moved(outputs, self.fresh)


class Places:
    """For each batch descriptor, memory that stays, to which values are copied. Used in steps that record by pieces alone."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.buffers: dict[BatchDescriptor, list[torch.Tensor]] = {}

    def moved(self, values: Sequence[Any], which: Sequence[int]) -> Sequence[Any]:
        """The values, those at the places ``which`` in memory that stays."""
        context = get_forward_context()
        descriptor = context.batch_descriptor
        if context.cudagraph_runtime_mode is not CUDAGraphMode.PIECEWISE or descriptor is None:
            return values
        given = [values[i] for i in which]
        if not records(given[0].device.type):
            return values
        buffers = self.buffers.get(descriptor)
        if buffers is None:
            buffers = self.buffers[descriptor] = [x.clone() for x in given]
        else:
            self._fit(buffers, given, descriptor)
            copy_all(buffers, given)
        result = list(values)
        for i, buffer in zip(which, buffers, strict=True):
            result[i] = buffer
        return result

    def clear(self) -> None:
        """Let go of the memory, with the recordings that read it."""
        self.buffers = {}

    def drop(self, descriptor: BatchDescriptor) -> None:
        """Let go of a descriptor's."""
        self.buffers.pop(descriptor, None)

    def _fit(
        self, buffers: list[torch.Tensor], given: list[torch.Tensor], descriptor: BatchDescriptor
    ) -> None:
        for buffer, x in zip(buffers, given, strict=True):
            if buffer.shape != x.shape:
                raise UserError(
                    "BZ7207",
                    f"a value that {self.name} passes on has sizes {tuple(x.shape)} at {descriptor}, and had {tuple(buffer.shape)} "
                    "when this was recorded",
                    why="recordings are kept by the descriptor, which must tell all sizes",
                    hints=["pad inputs to the descriptor's sizes"],
                )


def fresh_outputs(piece: GraphModule) -> list[int]:
    """Which outputs of a piece are tensors in memory of their own, and not of its inputs."""
    given = {_storage(n) for n in piece.graph.nodes if n.op == "placeholder"}
    found = []
    results: Any = piece.graph.output_node().args[0]
    for i, node in enumerate(results):
        place = _storage(node) if isinstance(node, Node) else None
        if place is not None and place not in given:
            found.append(i)
    return found


def moving_inputs(gm: GraphModule) -> list[int]:
    """Which inputs of a graph the caller makes anew for each step: tensors of varying sizes that the graph does not write."""
    written = written_storages(gm)
    found = []
    for i, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or facts(node).role not in (None, InputRole.USER):
            continue
        if any(isinstance(n, torch.SymInt) for n in value.shape) and _storage(node) not in written:
            found.append(i)
    return found


def written_storages(gm: GraphModule) -> dict[int, Node]:
    """The memory that a graph's operators write, with the first that does."""
    found: dict[int, Node] = {}
    for node in gm.graph.nodes:
        for target in _written(node):
            place = _storage(target)
            if place is not None:
                found.setdefault(place, node)
    return found


def _written(node: Node) -> list[Node]:
    """The arguments that a node writes: by its schema, or by the names that PyTorch and Python give such operators."""
    places: list[Any] = [node.kwargs.get("out")]
    name = name_of(node)
    overloads = overloads_of(node.target)
    for op in overloads:
        for i, parameter in written_parameters(op):
            places.append(node.args[i] if i < len(node.args) else node.kwargs.get(parameter.name))
    in_place = name in WRITING or name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
    if not overloads and in_place and node.args:
        places.append(node.args[0])
    found: list[Node] = []
    torch.fx.map_arg(places, found.append)
    return found


def _storage(node: Node) -> int | None:
    value = node.meta.get("val")
    return storage_key(value) if isinstance(value, torch.Tensor) else None
