"""Partition functions: from a joint graph to a forward and a backward, as ``aot_function(partition_fn=...)`` takes them.

``partition_fn(joint_module, joint_inputs, *, num_fwd_outputs) -> (forward, backward)``. The joint module takes the
forward's inputs and then the tangents, and returns ``num_fwd_outputs`` items and then gradients. The forward takes the
former and returns the items and then what is saved; the backward takes what is saved and the tangents, and returns the gradients.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import torch.fx

from braze.aot.cut.budget import Measure, budget_choice
from braze.aot.cut.min_cut import Choice, default_choice
from braze.aot.facts.records import Backward, InputRole, JointGraph, SavedFrom
from braze.aot.facts.roles import placeholders
from braze.aot.facts.symbols import SymbolNodes
from braze.aot.joint.checked_partition import divided
from braze.aot.joint.split_joint import split
from braze.graph.fakes.fakes import mode_of_graph, new_mode, on_fakes
from braze.graph.nodes.captured import Late
from braze.graph.nodes.facts import facts
from braze.options import Options
from braze.support import trace

Node = torch.fx.Node
ForwardAndBackward = tuple[torch.fx.GraphModule, torch.fx.GraphModule]


class PartitionFn(Protocol):
    """What divides a joint graph."""

    def __call__(
        self, joint_module: torch.fx.GraphModule, joint_inputs: Any, /, *, num_fwd_outputs: int
    ) -> ForwardAndBackward:
        """(forward, backward); both may be new modules, and the joint one may be changed."""


def default_partition(
    joint_module: torch.fx.GraphModule, joint_inputs: Any = (), *, num_fwd_outputs: int, **_: Any
) -> ForwardAndBackward:
    """Save what the backward reads of the forward, as eager does; nothing is computed twice but views and sizes.

    ``joint_module``: ATen operators on any dtypes, its placeholders with roles (or named ``tangents_1`` and so on); it is
    not changed. ``joint_inputs`` is not read. Checkpointed regions are computed again, as their policies say.
    """
    return _halves(joint_module, num_fwd_outputs, default_choice)


def min_cut_partition(
    joint_module: torch.fx.GraphModule,
    joint_inputs: Any = (),
    *,
    num_fwd_outputs: int,
    memory_budget: float = 1.0,
    **_: Any,
) -> ForwardAndBackward:
    """Save the fewest bytes from which the backward can make the rest by cheap operators (Zheng et al. 2022).

    Products of matrices, convolutions, attention, reductions and random draws are never repeated, but that
    ``memory_budget`` below 1 (a share of the peak) or above it (bytes) asks for it; draws not even then.
    ``joint_module`` as in :func:`default_partition`.
    """
    return _halves(joint_module, num_fwd_outputs, budget_choice(memory_budget))


#: (forward, backward) -> the most bytes that they take; None where that cannot be told
Weigh = Callable[[torch.fx.GraphModule, Backward], float | None]


def divide(
    joint: JointGraph,
    options: Options,
    partition_fn: PartitionFn | None = None,
    choice: Choice | None = None,
    weigh: Weigh | None = None,
) -> tuple[torch.fx.GraphModule, Backward]:
    """Forward and backward of a joint graph, whose module is used up: by ``choice``, a function, or what the options say.

    ``weigh`` says what the halves of a division take, where there is a memory budget.
    """
    with trace.stage("aot.cut"):
        measure = _measure_of(joint, weigh) if weigh is not None else None
        chosen = choice or _choice_of(partition_fn, options, measure)
        if chosen is None:
            assert partition_fn is not None
            return divided(joint, partition_fn)
        with on_fakes(joint.mode):
            return joint.module, split(joint, chosen)


def _measure_of(joint: JointGraph, weigh: Weigh) -> Measure:
    """What ``weigh`` says of a joint graph's halves, made of copies of it."""

    def measure(kept: set[Node]) -> float | None:
        with trace.muted():
            copy, found = _copied(joint)
            backward = split(copy, lambda _: {found[n] for n in kept})
            return weigh(copy.module, backward)

    return measure


def _copied(joint: JointGraph) -> tuple[JointGraph, dict[Node, Node]]:
    """A copy that may be used up, and its nodes by those that they stand for."""
    found: dict[Node, Node] = {}
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(joint.module.graph, found))
    copy = dataclasses.replace(
        joint,
        module=Late(graph, joint.module),
        written=tuple(found[n] for n in joint.written),
        tangents=tuple(found[n] for n in joint.tangents),
    )
    return copy, found


def _choice_of(partition_fn: PartitionFn | None, options: Options, measure: Measure | None) -> Choice | None:
    """The choice that a partition function of ours stands for; None for the functions of others."""
    if partition_fn is default_partition or (partition_fn is None and options.partition == "default"):
        return default_choice
    if partition_fn is min_cut_partition or partition_fn is None:
        return budget_choice(options.memory_budget, measure)
    return None


NAMED: dict[str, Callable[..., ForwardAndBackward]] = {
    "default": default_partition,
    "min_cut": min_cut_partition,
}


def _halves(joint_module: torch.fx.GraphModule, results: int, choice: Choice) -> ForwardAndBackward:
    """A copy of the joint module cut by ``choice``, into modules that say by themselves what is saved."""
    module = torch.fx.GraphModule(joint_module, copy.deepcopy(joint_module.graph))
    graph = module.graph
    mode = mode_of_graph(graph) or new_mode()
    inputs = placeholders(module)
    tangents = tuple(n for n in inputs if _is_tangent(n))
    written = tuple(n for n in inputs if facts(n).written)
    with on_fakes(mode):
        backward = split(JointGraph(module, results, written, tangents, (), (), mode), choice)
    output = graph.output_node()
    given = [n for n in placeholders(module) if n not in tangents]
    wanted = placeholders(backward.graph)
    values: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    sizes = SymbolNodes(graph)
    with graph.inserting_before(output):
        if mode.env is not None:
            sizes.find(given)
        named = {
            each.name: sizes.node(node.meta["val"])
            for node, each in zip(wanted, backward.saved, strict=False)
            if each.source is SavedFrom.SYMBOL
        }
        saved = [each.of(given, values, named) for each in backward.saved]
    output.args = ((*values[:results], *saved),)
    module.recompile()
    return module, backward.graph


def _is_tangent(node: Node) -> bool:
    role = facts(node).role
    return role is InputRole.TANGENT if role is not None else "tangents" in str(node.target)
