"""Whether a captured graph must leave an autograd graph behind.

The ahead-of-time stage compiles inference. A graph whose results carry gradients runs as captured, by eager
PyTorch, and says so once.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from braze.support import log, trace

_MESSAGE = """\
BZ2001: training is not compiled yet: the graph of {name} runs eagerly, as captured
  why: grad mode is on, and {what}
  do:  call it under torch.no_grad() or torch.inference_mode() to have it compiled"""


def training_runs_eagerly(gm: torch.fx.GraphModule, name: str = "this function") -> bool:
    """Whether ``gm`` needs autograd; warns, once per graph, where it does."""
    what = needs_autograd(gm)
    if not what:
        return False
    trace.count("training_graphs")
    trace.emit("fallback", "BZ2001: training runs eagerly")
    log.logger("aot").warning(_MESSAGE.format(name=name, what=what))
    return True


def needs_autograd(gm: torch.fx.GraphModule) -> str:
    """What of the graph carries gradients, in words; empty where nothing does."""
    for node in gm.graph.nodes:
        if node.op == "output":
            for used in node.all_input_nodes:
                if _requires_grad(used.meta.get("val")):
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
