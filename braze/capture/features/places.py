"""What asks for the gradient of a tensor in the middle of the graph: hooks, ``retain_grad``, derivatives by it.

The results of a graph are one operation for autograd: what it made of a tensor that it gives too does not come through that tensor. So
the graph ends before the first operation that uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from braze.capture.facts.breaks import HINT_MOVE, BreakSignal, graph_break
from braze.capture.python import calls
from braze.capture.python.unwinding import trail_of
from braze.capture.state.handlers import Feature
from braze.capture.state.trace import Trace
from braze.graph.facts import facts
from braze.graph.fakes import was_given_history

FEATURE = Feature()
rule = FEATURE.call

INSIDE = "gradients are computed inside the function"


def end_before_use(t: Trace, tensor: Any, reason: str, *hints: str) -> None:
    """End the graph before what first used a tensor that it makes, or an argument to whose history it has added.

    Nothing ends where no use counts for autograd, nor for an argument with the history that it came with: gradients of those come out of the graph.
    """
    outside = t.outside.tree.node_of(tensor) is not None
    if not t.graph.recorder.knows(tensor) or (outside and not was_given_history(tensor)):
        return
    uses = [n for n in t.graph.recorder.node_of(tensor).users if carries_gradient(n)]
    if uses:
        signal = BreakSignal("BZ1010", reason, hints)
        signal.position = max(1, min(facts(n).step for n in uses))
        signal.trail = trail_of(t.frames)
        raise signal


def carries_gradient(node: torch.fx.Node) -> bool:
    """Whether what a node makes may have a history; a write says nothing of what it wrote."""
    made = node.meta.get("val")
    return not isinstance(made, torch.Tensor) or made.requires_grad


def tensors_among(values: Any) -> list[torch.Tensor]:
    """A tensor, or those of a sequence of them."""
    if isinstance(values, torch.Tensor):
        return [values]
    return [x for x in values if isinstance(x, torch.Tensor)] if isinstance(values, Sequence) else []


#: what takes gradients by the tensors in its argument ``inputs``, and which argument that is
DIFFERENTIATING: dict[Any, int] = {
    torch.autograd.grad: 1,
    torch.autograd.backward: 5,
    torch.Tensor.backward: 4,
}


@FEATURE.each(*DIFFERENTIATING)
def differentiate(function: Any, t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    place = DIFFERENTIATING[function]
    inputs = args[place] if len(args) > place else kwargs.get("inputs")
    for tensor in tensors_among(inputs):
        end_before_use(t, tensor, INSIDE, HINT_MOVE)
    graph_break("BZ1013", INSIDE, HINT_MOVE)


@rule(torch.Tensor.retain_grad)
def retain_grad(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """The tensor's gradient is to be kept."""
    for tensor in args[:1]:
        end_before_use(
            t, tensor, "the gradient of a tensor that the graph has used before is kept", HINT_MOVE
        )
    return calls.call_c(t, torch.Tensor.retain_grad, args, kwargs)
