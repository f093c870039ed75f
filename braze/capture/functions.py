"""``torch.autograd.Function``: its forward is captured; where gradients are wanted it is one node, with its own backward."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

import torch

from braze.capture.attributes import load_attr
from braze.capture.rules import rule
from braze.capture.torch_rules import grad_off

if TYPE_CHECKING:
    from braze.capture.tracer import Tracer

Function = torch.autograd.Function


class Applied:
    """A call of an autograd function, as a node's target: graphs name their targets by module and name."""

    def __init__(self, cls: Any) -> None:
        self.cls = cls
        self.__name__ = self.__qualname__ = f"apply_{cls.__name__}"
        self.__module__ = cls.__module__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.cls.apply(*args, **kwargs)


applied = functools.cache(Applied)


class Context:
    """What a forward gets as ``ctx``, for as long as the trace lasts."""

    def __init__(self) -> None:
        self.saved_tensors: tuple[Any, ...] = ()
        self.needs_input_grad: tuple[bool, ...] = ()
        self.dirty: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        """Nothing is differentiated in the trace, so that they need only be readable."""
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """As for the backward."""

    def mark_dirty(self, *tensors: Any) -> None:
        """Inputs that the forward writes are its outputs as they are."""
        self.dirty = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Known to autograd when the node runs."""

    def set_materialize_grads(self, value: bool) -> None:
        """Known to autograd when the node runs."""


@rule(Function.apply.__func__)  # type: ignore[attr-defined]
def apply(t: Tracer, args: Any, kwargs: Any, tail: bool) -> Any:
    """Interpret the forward; where autograd must see the function itself, put one call of it in its place."""
    cls, *inputs = args
    graph = t.recorder.graph
    before = next(iter(reversed(graph.nodes)), None)
    differentiated = torch.is_grad_enabled() and any(
        isinstance(x, torch.Tensor) and x.requires_grad for x in inputs
    )
    output = _forward(t, cls, inputs, kwargs, differentiated)
    if not differentiated:
        return output
    for node in list(reversed(graph.nodes)):
        if node is before:
            break
        if node.op == "placeholder":
            continue
        graph.erase_node(node)
    for key, (_, node) in tuple(t.recorder.nodes.items()):
        if node._erased:
            del t.recorder.nodes[key]
    return t.recorder.call(applied(cls), tuple(inputs), kwargs)


def _forward(t: Tracer, cls: Any, inputs: list[Any], kwargs: Any, differentiated: bool) -> Any:
    context = Context()
    context.needs_input_grad = tuple(
        differentiated and isinstance(x, torch.Tensor) and x.requires_grad for x in inputs
    )
    forward, setup = load_attr(t, cls, "forward"), load_attr(t, cls, "setup_context")
    with grad_off(t):
        if setup is Function.setup_context:
            output = t.call(forward, (context, *inputs), kwargs)
        else:
            bound = inspect.signature(cls.forward).bind(*inputs, **kwargs)
            bound.apply_defaults()
            output = t.call(forward, bound.args, bound.kwargs)
            t.call(setup, (context, bound.args, output), None)
    if isinstance(output, tuple):
        return tuple(_fresh(t, x, inputs, context) for x in output)
    return _fresh(t, output, inputs, context)


def _fresh(t: Tracer, output: Any, inputs: list[Any], context: Context) -> Any:
    """An output; an input that comes out unchanged is a view of itself."""
    if isinstance(output, torch.Tensor) and any(output is x for x in inputs):
        if not any(output is x for x in context.dirty):
            return t.recorder.call(torch.Tensor.view_as, (output, output), {})
    return output
