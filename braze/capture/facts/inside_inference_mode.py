"""Graphs all of whose tensors are made in an inference mode that the function enters itself: what is compiled of one runs in that mode.

Compiled graphs hold no settings, and what they give is made by the call: eager's results are of inference mode, and autograd refuses them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from braze.graph.nodes.facts import facts
from braze.graph.private.torch_settings import (
    enter_inference_mode,
    enters_inference_mode,
    leave_inference_mode,
    leaves_inference_mode,
)
from braze.runtime.call.boxed import boxed, is_boxed
from braze.support.nested import every


def is_inside(graph: torch.fx.Graph) -> bool:
    """Whether each tensor that a captured graph computes is made in inference mode."""
    modes: list[bool] = []
    made = False
    for node in graph.nodes:
        if enters_inference_mode(node.target):
            modes.append(bool(node.args[0]))
        elif leaves_inference_mode(node.target):
            modes[-1:] = []  # it may have been entered before a break
        elif node.op.startswith("call_") and not facts(node).setting:
            if any(True for _ in every(torch.Tensor, node.meta.get("val"))):
                if not modes or not modes[-1]:
                    return False
                made = True
    return made


def in_its_mode(run: Callable[..., Any]) -> Callable[..., Any]:
    """What was compiled of such a graph, in inference mode. One that runs as captured enters that itself."""
    if not is_boxed(run):
        return run

    @boxed
    def inside(inputs: Sequence[Any]) -> Sequence[Any]:
        mode = enter_inference_mode(True)  # half of what the context manager costs
        try:
            return run(inputs)  # type: ignore[no-any-return]
        finally:
            leave_inference_mode(mode)

    return inside
