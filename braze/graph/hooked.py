"""A hook on a tensor in the middle of a graph, as a node: the tensor as it is, whose gradient goes through a subgraph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Hooked(torch.autograd.Function):
    """``forward`` gives its tensor; ``backward`` what the hook makes of the gradient."""

    @staticmethod
    def forward(ctx: Any, hook: Callable[..., Any], tensor: torch.Tensor, *given: Any) -> torch.Tensor:
        ctx.hook = hook
        ctx.places = tuple(i for i, x in enumerate(given) if isinstance(x, torch.Tensor))
        ctx.given = [None if isinstance(x, torch.Tensor) else x for x in given]
        ctx.save_for_backward(*[given[i] for i in ctx.places])
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        given = list(ctx.given)
        for place, tensor in zip(ctx.places, ctx.saved_tensors, strict=True):
            given[place] = tensor
        (changed,) = ctx.hook(*grads, *given)
        return (None, changed, *[None] * len(given))


def hooked(tensor: torch.Tensor, hook: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    """The tensor; ``hook(gradient, *given)`` gives a tuple of the gradient that goes on."""
    return Hooked.apply(hook, tensor, *given)
