"""Activations that are made of others; the rest stay single elementwise operators."""

from __future__ import annotations

from typing import Any

import torch

from braze.decomp.numbers import cast, widened
from braze.decomp.registry import decompose

aten = torch.ops.aten
Tensor = torch.Tensor


@decompose(aten.glu.default)
def glu(x: Tensor, dim: int = -1) -> Any:
    """First half times the sigmoid of the second."""
    size = x.shape[dim]
    if type(size) is not int or size % 2:
        return NotImplemented
    first, second = (widened(aten.slice.Tensor(x, dim, at, at + size // 2)) for at in (0, size // 2))
    return cast(aten.mul.Tensor(first, aten.sigmoid.default(second)), x.dtype)


@decompose(aten._prelu_kernel.default)
def prelu(x: Tensor, weight: Tensor) -> Tensor:
    """x where positive, else weight · x."""
    return aten.where.self(aten.gt.Scalar(x, 0), x, aten.mul.Tensor(weight, x))


@decompose(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(x: Tensor) -> Any:
    """min(x, 0) - log1p(exp(-|x|)); also exp(-|x|), for the backward, which on a GPU is not kept."""
    wide = widened(x)
    small = aten.exp.default(aten.neg.default(aten.abs.default(wide)))
    y = aten.sub.Tensor(aten.clamp_max.default(wide, 0), aten.log1p.default(small))
    return cast(y, x.dtype), aten.new_empty.default(x, [0]) if x.is_cuda else cast(small, x.dtype)


@decompose(aten.rrelu_with_noise.default)
def rrelu_with_noise(
    x: Tensor,
    noise: Tensor,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> Any:
    """Outside training: leaky_relu with the middle slope."""
    if training:
        return NotImplemented
    return aten.leaky_relu.default(x, (lower + upper) / 2)


@decompose(aten.logit.default)
def logit(x: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), with x kept ``eps`` from 0 and 1. On the CPU eager rounds after each step."""
    if not x.dtype.is_floating_point:
        return NotImplemented
    wide = x if x.device.type == "cpu" else widened(x)
    if eps is not None:
        # a limit that is no number limits nothing, and those that lie the wrong way round are asked in this order by eager
        kept = aten.where.ScalarSelf(aten.gt.Scalar(wide, 1 - eps), 1 - eps, wide)
        wide = aten.where.ScalarSelf(aten.lt.Scalar(wide, eps), eps, kept)
    y = aten.log.default(aten.div.Tensor(wide, aten.rsub.Scalar(wide, 1)))
    return cast(y, x.dtype)
