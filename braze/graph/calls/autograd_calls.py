"""The program's own backwards, as targets of nodes: calls of its autograd functions, and hooks on tensors in the middle of a graph."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from braze.graph.private.torch_compat import apply_function


class Applied:
    """A call of an autograd function: graphs name their targets by module and name.

    ``scales``: its backward makes nothing of gradients that are zero, in all calls so far. ``draws``: from which generators its
    forward has drawn in these ("cpu", "cuda", "all"; "" from none, None where no call was interpreted). ``writes``: whether it has written an argument.
    """

    def __init__(self, cls: Any) -> None:
        self.cls = cls
        self.scales = True
        self.draws: str | None = None
        self.writes = False
        self.__name__ = self.__qualname__ = f"apply_{cls.__name__}"
        self.__module__ = cls.__module__

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return apply_function(self.cls, args, kwargs)


#: the targets that graphs hold: an autograd function of the program's is let go with the last graph that calls it
_applied: weakref.WeakValueDictionary[int, Applied] = weakref.WeakValueDictionary()


def applied(cls: Any) -> Applied:
    """The one target for an autograd function."""
    found = _applied.get(id(cls))
    if found is None:  # a target keeps its class, so that no other class has this identity while it lives
        found = _applied[id(cls)] = Applied(cls)
    return found


class Hooked(torch.autograd.Function):
    """A hook: ``forward`` gives its tensor as it is, ``backward`` what a subgraph makes of the gradient."""

    @staticmethod
    def forward(ctx: Any, hook: Callable[..., Any], tensor: torch.Tensor, *given: Any) -> torch.Tensor:
        ctx.hook = hook
        ctx.places = tuple(i for i, x in enumerate(given) if isinstance(x, torch.Tensor))
        ctx.given = [None if isinstance(x, torch.Tensor) else x for x in given]
        ctx.save_for_backward(*[given[i] for i in ctx.places])
        return torch.ops.aten.alias.default(tensor)  # `view_as` gives dims of one element other strides

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        given = list(ctx.given)
        for place, tensor in zip(ctx.places, ctx.saved_tensors, strict=True):
            given[place] = tensor
        (changed,) = ctx.hook(*grads, *given)
        return (None, changed, *[None] * len(given))


def hooked(tensor: torch.Tensor, hook: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    """The tensor; ``hook(gradient, *given)`` gives a tuple of the gradient that goes on, also of one that is put there under ``no_grad``."""
    with torch.enable_grad():
        return Hooked.apply(hook, tensor, *given)


def holds_functions(gm: torch.fx.GraphModule) -> bool:
    """Whether a captured graph has backwards of the program's own in it."""
    graphs = [part.graph for part in gm.modules() if isinstance(part, torch.fx.GraphModule)]
    return any(isinstance(n.target, Applied) or n.target is hooked for graph in graphs for n in graph.nodes)
