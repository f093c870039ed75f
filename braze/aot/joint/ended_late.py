"""A checkpoint of code outside ends its second run of a graph by an error, where it has seen as many tensors saved as in its first.

Eager saves each tensor at its operation, and has written by then what stands before the last one: running statistics, say. A
graph's operation saves all its tensors before anything is written. So the error waits until what eager would have written is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from braze.aot.facts.views import is_view
from braze.aot.facts.writes import is_write, written_arguments
from braze.aot.joint.histories import saves
from braze.graph.nodes.facts import facts
from braze.graph.private.torch_compat import RecomputedEnough, SavingHooks, storage_key
from braze.runtime.call.boxed import Boxed
from braze.support.nested import every


def computed_whole(
    compiled: Boxed, inputs: Sequence[Any], unreached: Sequence[int], hooks: SavingHooks
) -> tuple[Sequence[Any], RecomputedEnough | None]:
    """What ``compiled`` gives under ``hooks``, and the error by which a checkpoint wants the call to end; if so, None for the ``unreached`` results."""
    pack, unpack = hooks
    ends: list[RecomputedEnough] = []

    def packed(tensor: torch.Tensor) -> Any:
        try:
            return pack(tensor)
        except RecomputedEnough as end:
            ends.append(end)
            return tensor

    with torch.autograd.graph.saved_tensors_hooks(packed, unpack):
        results = compiled(inputs)
    if not ends:
        return results, None
    return [None if i in unreached else result for i, result in enumerate(results)], ends[0]


def written_after_saves(graph: torch.fx.Graph) -> set[int]:
    """The memory that operators of a traced forward write after the last tensor that eager saves for its backward.

    A call of the program's that saves writes before: a batch norm, whose statistics have operators of their own here.
    """
    writes: list[torch.fx.Node] = []
    for node in reversed(graph.nodes):
        if any(map(saves, _histories(node))):
            writes = [write for write in writes if facts(write).origin != facts(node).origin]
            break
        if is_write(node):
            writes.append(node)
    return {storage_key(target.meta["val"]) for node in writes for target in written_arguments(node)}


def _histories(node: torch.fx.Node) -> list[Any]:
    """Autograd's nodes of what an operator computes or has written. A view is not asked: it would look for its history again."""
    if is_view(node):
        return []
    tensors = [t if t._base is None else t._base for t in every(torch.Tensor, node.meta.get("val"))]
    return [t.grad_fn for t in tensors if t.grad_fn is not None]
