"""Roles written onto graphs, for those who compile or divide them: what each input and each output is.

A placeholder has its :class:`InputRole` in ``facts(placeholder).role``; ``module.meta["input_roles"]`` and
``module.meta["output_roles"]`` list the roles of all inputs and of the items of the graph's tuple.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch.fx

from braze.aot.facts.records import Backward, InputRole, OutputKind, OutputRole, Partition, SavedFrom
from braze.graph.nodes.facts import facts, set_facts
from braze.graph.nodes.specs import TensorSpec

Node = torch.fx.Node


def placeholders(module: torch.fx.GraphModule) -> list[Node]:
    """The graph's inputs, in order."""
    return module.graph.find_nodes(op="placeholder")


def tell_forward(
    module: torch.fx.GraphModule, results: Sequence[OutputRole], gradients: Sequence[int] = ()
) -> None:
    """Roles of a forward, or of a joint graph, whose tangents have theirs: what stands behind is saved, or a gradient."""
    inputs = [role_of_input(n) for n in placeholders(module)]
    behind: Any = [OutputRole(OutputKind.GRADIENT, input=i) for i in gradients]
    if not gradients:
        items: Any = module.graph.output_node().args[0]
        behind = [OutputRole(OutputKind.SAVED)] * (len(items) - len(results))
    _tell(module, inputs, [*results, *behind])


def tell_backward(backward: Backward) -> None:
    """Roles of a backward: saved values and sizes, then tangents; gradients."""
    inputs = [InputRole.SYMBOL if s.source is SavedFrom.SYMBOL else InputRole.SAVED for s in backward.saved]
    inputs += [InputRole.TANGENT] * len(backward.tangents)
    _tell(backward.graph, inputs, [OutputRole(OutputKind.GRADIENT, input=i) for i in backward.gradients])


def roles_of_results(
    mutations: Sequence[OutputRole],
    outputs: Sequence[OutputRole],
    results: int,
    wholes: Sequence[TensorSpec] = (),
) -> tuple[OutputRole, ...]:
    """What the items of a forward's tuple are: new contents, memory of which several outputs are views, the outputs.

    ``output`` of a VALUE is the number of the user's output that it is; -1 for what outputs are only views of, which
    are laid out as ``wholes`` says.
    """
    values = [
        dataclasses.replace(role, output=i) for i, role in enumerate(outputs) if role.kind is OutputKind.VALUE
    ]
    bases: Any = [OutputRole(OutputKind.VALUE, spec=spec) for spec in wholes]
    bases = bases or [OutputRole(OutputKind.VALUE)] * (results - len(mutations) - len(values))
    return (*mutations, *bases, *values)


def results_of(part: Partition) -> tuple[OutputRole, ...]:
    """What the items of the forward's tuple are, with their layouts."""
    results = part.forward.meta.get("output_roles")
    if results is not None:
        return tuple(results)
    items: Any = part.forward.graph.output_node().args[0]
    return roles_of_results(part.mutations, part.outputs, len(items))


def role_of_input(node: Node) -> InputRole:
    """What a graph's input is, as its facts say."""
    if not isinstance(node.meta.get("val"), torch.Tensor):
        return InputRole.SYMBOL
    return facts(node).role or InputRole.USER


def _tell(module: torch.fx.GraphModule, inputs: Sequence[InputRole], outputs: Sequence[OutputRole]) -> None:
    for node, role in zip(placeholders(module), inputs, strict=True):
        set_facts(node, role=role)
    module.meta["input_roles"] = tuple(inputs)
    module.meta["output_roles"] = tuple(outputs)
