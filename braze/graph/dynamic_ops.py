"""Metadata of operators of which PyTorch knows no fake, a wrong one, or none of varying sizes: those that only the data tell are fresh symbols."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException

from braze.graph import torch_compat

aten = torch.ops.aten


def ctc_loss(
    env: Any, log_probs: torch.Tensor, *others: Any, **words: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of each sample, and what its gradient needs: as wide as the longest target."""
    steps, samples, _ = log_probs.shape
    width = env.create_unbacked_symint()
    torch._check(width >= 1)
    return log_probs.new_empty((samples,)), log_probs.new_empty((samples, steps, width))


def ctc_loss_backward(env: Any, grad: torch.Tensor, log_probs: torch.Tensor, *others: Any) -> torch.Tensor:
    """A gradient of the shape of what it is the gradient of."""
    return log_probs.new_empty(log_probs.shape)


def unique(env: Any, *args: Any) -> Any:
    """The gradient of ``index_fill`` asks for it; before 2.12 PyTorch's fake has one element, whatever the data."""
    raise DynamicOutputShapeException(aten._unique.default)


def rrelu_with_noise(env: Any, x: torch.Tensor, *others: Any, **words: Any) -> torch.Tensor:
    """A new tensor in the usual order, whatever the operand's; PyTorch's fake keeps that."""
    return x.new_empty(x.shape)


def native_batch_norm_legit(env: Any, *args: Any) -> Any:
    """The kernel of native_batch_norm, by the name that tells what it writes."""
    return aten.native_batch_norm.default(*args)


def dead_zone_backward(env: Any, grad: torch.Tensor, x: torch.Tensor, *others: Any) -> torch.Tensor:
    """Elementwise in both; PyTorch's own knows no sizes that vary."""
    return torch.mul(grad, x)


def difference(env: Any, a: Any, b: Any, **words: Any) -> Any:
    """Eager subtracts no bools, PyTorch's fakes do: the error is eager's own."""
    if torch.bool in (getattr(a, "dtype", None), getattr(b, "dtype", None)):
        with torch_compat.outside_modes():
            torch.sub(*(torch.ones((), dtype=t.dtype) if isinstance(t, torch.Tensor) else t for t in (a, b)))
    return NotImplemented


#: operator -> rule(env, arguments)
RULES: dict[Any, Callable[..., Any]] = {
    aten.sub.Tensor: difference,
    aten.sub_.Tensor: difference,
    aten.sub.Scalar: difference,
    aten.sub_.Scalar: difference,
    aten.rsub.Tensor: difference,
    aten.rsub.Scalar: difference,
    aten._ctc_loss.Tensor: ctc_loss,
    aten._ctc_loss_backward.Tensor: ctc_loss_backward,
    aten._unique.default: unique,
    aten._native_batch_norm_legit.default: native_batch_norm_legit,
    aten.rrelu_with_noise.default: rrelu_with_noise,
    aten.softshrink_backward.default: dead_zone_backward,
    aten.hardshrink_backward.default: dead_zone_backward,
}
#: those that make symbols
SYMBOLIC = frozenset({aten._ctc_loss.Tensor})


def result_of(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Fakes of the results under a FakeTensorMode; NotImplemented where such symbols are not wanted."""
    env = mode.shape_env
    if func in SYMBOLIC and (env is None or not env.allow_dynamic_output_shape_ops):
        return NotImplemented
    with mode:
        return RULES[func](env, *args, **kwargs)
