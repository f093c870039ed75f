"""Which graphs Python can run again for their own error: those that have changed nothing when they fail.

Random numbers that were drawn are put back; a graph that may have written into a tensor is not run again.
"""

from __future__ import annotations

import inspect
import types
from typing import Any

import torch
import torch.fx

from braze.capture.facts.purity import OPERATORS, is_opaque, is_random, name_of, overloads_of
from braze.capture.facts.values import words
from braze.graph.torch_compat import storage_key
from braze.support.caches import remembered

#: functions of ``operator`` and the like that write their first operand
WRITING = frozenset(
    words(
        """setitem delitem setattr iadd isub imul itruediv ifloordiv imod ipow imatmul iand ior ixor ilshift
    irshift"""
    )
)
#: functions that keep statistics in their second and third arguments, and the argument that says so, by place
STATISTICS = {"batch_norm": ("training", 5), "instance_norm": ("use_input_stats", 5)}


def can_run_again(graph: torch.fx.Graph) -> bool:
    """Whether a graph that fails has changed nothing but the state of random numbers."""
    writing = [node for node in graph.nodes if writes(node)]
    if not writing:
        return True
    outside = {
        key for node in graph.nodes if node.op in ("placeholder", "get_attr") for key in memory_of(node)
    }
    return not any(is_opaque(node) or reaches(node, outside) for node in writing)


def reaches(node: torch.fx.Node, outside: set[int]) -> bool:
    """Whether a node may write to one of these storages."""
    written = memory_of(*written_by(node))
    return not written or not outside.isdisjoint(written)


def written_by(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The nodes whose tensors a writing node may write: the first operand, or any where that is not known."""
    name = name_of(node)
    if (node.op == "call_method" or name in WRITING) and "out" not in node.kwargs and node.args:
        return [node.args[0]] if isinstance(node.args[0], torch.fx.Node) else []
    return node.all_input_nodes


def memory_of(*nodes: torch.fx.Node) -> set[int]:
    """The storages of the tensors that nodes give."""
    values = [node.meta.get("val") for node in nodes]
    parts = [p for v in values for p in (v if isinstance(v, (list, tuple)) else (v,))]
    return {storage_key(part) for part in parts if isinstance(part, torch.Tensor)}


def draws(graph: torch.fx.Graph) -> bool:
    """Whether a graph may draw random numbers."""
    return any(map(is_random, graph.nodes))


def writes(node: torch.fx.Node) -> bool:
    """Whether a node of the graph may have changed something before the graph failed."""
    name = name_of(node)
    if node.op == "call_function" and (overloads := overloads_of(node.target)):
        return any(overload._schema.is_mutable for overload in overloads)
    if not name:
        return False
    if name.startswith("__"):
        return name == "__setitem__"
    if node.target in OPERATORS:  # and_, or_, not_ write nothing
        return name in WRITING
    if name.endswith("_") or "out" in node.kwargs or name in WRITING or is_opaque(node):
        return True
    if node.kwargs.get("inplace") or node.kwargs.get("max_norm") is not None:
        return True
    if name in STATISTICS:
        word, index = STATISTICS[name]
        keeps = node.kwargs.get(word, node.args[index] if len(node.args) > index else False)
        return keeps is not False and (len(node.args) > 1 or "running_mean" in node.kwargs)
    place = place_of_inplace(node.target) if node.op == "call_function" else None
    return place is not None and len(node.args) > place and node.args[place] is not False


@remembered(1024)
def place_of_inplace(target: Any) -> int | None:
    """Where a function takes its argument ``inplace``."""
    if not isinstance(target, types.FunctionType):
        return None
    names = list(inspect.signature(target).parameters)
    return names.index("inplace") if "inplace" in names else None


def random_state() -> tuple[torch.Tensor, torch.Tensor | None]:
    """The state of the generators that a graph draws from."""
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    return torch.get_rng_state(), cuda


def put_back(state: tuple[torch.Tensor, torch.Tensor | None]) -> None:
    """Set the generators back to a state."""
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1])
