"""Graphs that run as captured, by eager PyTorch, because the stages cannot carry them; said once per graph.

1. A graph whose results carry gradients: the ahead-of-time stage compiles inference.
2. A graph of which a stage says ``Unsupported``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from braze.support import log, trace
from braze.support.errors import Unsupported


def compiled_or_as_captured(
    gm: torch.fx.GraphModule, name: str, compile: Callable[[], Callable[..., Any]]
) -> Callable[..., Any]:
    """What ``compile()`` makes of the graph, or the graph itself where it needs autograd or is refused."""
    carried = what_needs_autograd(gm)
    if carried:
        refusal = Unsupported(
            "BZ2001",
            f"training is not compiled yet: the graph of {name} runs eagerly, as captured",
            why=f"grad mode is on, and {carried}",
            hints=["call it under torch.no_grad() or torch.inference_mode() to have it compiled"],
        )
    else:
        try:
            return compile()
        except Unsupported as error:
            refusal = error
    trace.count("graphs_run_as_captured")
    trace.emit("fallback", f"the graph of {name} ({refusal.code}: {refusal.what})")
    log.logger("aot").warning("%s", refusal if carried else f"{name} runs eagerly, as captured.\n{refusal}")
    return gm.forward


def what_needs_autograd(gm: torch.fx.GraphModule) -> str:
    """What of the graph carries gradients, in words; empty where nothing does."""
    for node in gm.graph.nodes:
        if node.op == "output":
            for used in node.all_input_nodes:
                # an input that is returned as it is needs nothing of us
                if used.op != "placeholder" and _requires_grad(used.meta.get("val")):
                    return f"its result {used.name} requires grad"
        if node.op == "placeholder":
            # inputs are leaves of the trace: one with a history has been written by a differentiable operation
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and value.grad_fn is not None:
                return f"its input {node.name} is changed in place by what requires grad"
    return ""


def _requires_grad(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_requires_grad, value))
    return isinstance(value, torch.Tensor) and value.requires_grad
