"""A backward for calls in which some gradients do not come in: what is made of those alone is left out.

Where a result has no part in the loss (the pooled output of an encoder, say), autograd hands in nothing for it. Eager then does not
run what leads there. A value made only of such tangents is undefined, as they are: a sum with it is the other summand,
a gradient that is undefined is not given, and for what else reads it stands zero.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

import torch

from braze.aot.cut import reached
from braze.aot.records import Backward
from braze.graph import torch_compat
from braze.graph.captured import Late
from braze.graph.passes import drop_unread, is_impure

aten = torch.ops.aten
Node = torch.fx.Node


def without_tangents(backward: Backward, missing: Collection[int]) -> tuple[Backward, frozenset[int]]:
    """``backward`` where the tangents of these numbers are missing, and those that it does not read.

    Gradients that are undefined are not among its own; its inputs stay what they are. The backward itself, reading all, where
    a value that is read with others has no zeros to stand for it, or sizes are symbols, which a tangent may tell.
    """
    if any(isinstance(n, torch.SymInt) for i in missing for n in _sizes(backward, i)):
        return backward, frozenset()
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(backward.graph.graph, {}))
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    tangents = placeholders[len(backward.saved) :]
    undefined = {tangents[i] for i in missing}
    behind = reached(graph, tangents)
    for node in list(graph.nodes):
        if node.op != "call_function" or undefined.isdisjoint(node.all_input_nodes):
            continue
        if is_impure(node):
            return backward, frozenset()
        if all(n in undefined for n in node.all_input_nodes if n in behind):
            undefined.add(node)
        elif (other := _other_summand(node, undefined)) is not None:
            node.replace_all_uses_with(other)
        elif not _reads_zeros(graph, node, undefined):
            return backward, frozenset()
    output: Any = graph.output_node()
    kept = [i for i, n in enumerate(output.args[0]) if n not in undefined]
    output.args = (tuple(output.args[0][i] for i in kept),)
    drop_unread(graph)
    graph.lint()
    made = dataclasses.replace(
        backward,
        graph=Late(graph, backward.graph),
        gradients=tuple(backward.gradients[i] for i in kept),
        depends=tuple(backward.depends[i] for i in kept),
    )
    return made, frozenset(i for i in missing if not tangents[i].users)


def _sizes(backward: Backward, tangent: int) -> tuple[object, ...]:
    placeholders = [n for n in backward.graph.graph.nodes if n.op == "placeholder"]
    return tuple(placeholders[len(backward.saved) + tangent].meta["val"].shape)


def _other_summand(node: Node, undefined: set[Node]) -> Node | None:
    """What a sum is whose one summand is undefined, if the other has its form."""
    if node.target is not aten.add.Tensor or node.kwargs or len(node.args) != 2:
        return None
    others = [n for n in node.args if n not in undefined]
    if len(others) != 1 or not isinstance(others[0], Node):
        return None
    value, other = node.meta["val"], others[0].meta["val"]
    same = isinstance(other, torch.Tensor) and value.dtype is other.dtype and value.shape == other.shape
    return others[0] if same and value.stride() == other.stride() else None


def _reads_zeros(graph: torch.fx.Graph, node: Node, undefined: set[Node]) -> bool:
    """Let a node read zeros for what is undefined; False where that is not a plain dense tensor of known sizes."""
    for source in [n for n in node.all_input_nodes if n in undefined]:
        value = source.meta.get("val")
        if not isinstance(value, torch.Tensor) or not all(isinstance(n, int) for n in value.shape):
            return False
        if not value.is_contiguous():
            return False
        with graph.inserting_before(node):
            zeros = graph.call_function(
                aten.full.default,
                (list(value.shape), 0),
                {"dtype": value.dtype, "device": torch_compat.device_of_fake(value)},
            )
        zeros.meta["val"] = value
        node.replace_input_with(source, zeros)
    return True
