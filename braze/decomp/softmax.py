"""Softmax and its kin: the greatest element is taken out first, as eager does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from braze.decomp.numbers import cast, constant, float_dtype, widened
from braze.decomp.registry import decompose

aten = torch.ops.aten
Tensor = torch.Tensor


def _result_dtype(x: Tensor, half_to_float: bool) -> torch.dtype:
    return torch.float32 if half_to_float else x.dtype


@decompose(aten._softmax.default)
def softmax(x: Tensor, dim: int, half_to_float: bool) -> Any:
    """exp(x - max) / sum(exp(x - max)); a row of only -inf gives nan."""
    if x.numel() == 0:
        return aten.empty.memory_format(list(x.shape), dtype=_result_dtype(x, half_to_float), device=x.device)
    wide = widened(x)
    top = aten.amax.default(wide, [dim], True)
    weights = aten.exp.default(aten.sub.Tensor(wide, top))
    y = aten.div.Tensor(weights, aten.sum.dim_IntList(weights, [dim], True))
    return cast(y, _result_dtype(x, half_to_float))


@decompose(aten._log_softmax.default)
def log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Any:
    """x - max - log(sum(exp(x - max)))."""
    if x.numel() == 0:
        return aten.empty.memory_format(list(x.shape), dtype=_result_dtype(x, half_to_float), device=x.device)
    wide = widened(x)
    shifted = aten.sub.Tensor(wide, aten.amax.default(wide, [dim], True))
    total = aten.sum.dim_IntList(aten.exp.default(shifted), [dim], True)
    return cast(aten.sub.Tensor(shifted, aten.log.default(total)), _result_dtype(x, half_to_float))


@decompose(aten._safe_softmax.default)
def safe_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
    """Softmax in which a row of only -inf gives zeros."""
    y = aten.softmax.int(x, dim, dtype)
    masked = aten.all.dim(aten.eq.Scalar(x, float("-inf")), dim, True)
    return aten.where.self(masked, constant(0.0, y), y)


@decompose(aten.logsumexp.default)
def logsumexp(x: Tensor, dim: Sequence[int], keepdim: bool = False) -> Any:
    """log(sum(exp(x))), with an infinite maximum left in place."""
    if x.numel() == 0 or x.is_complex():
        return NotImplemented
    dims = [d % max(x.dim(), 1) for d in dim] or list(range(x.dim()))
    dtype = float_dtype(x)
    wide = widened(cast(x, dtype))
    top = aten.amax.default(wide, dims, True)
    top = aten.where.self(aten.eq.Scalar(aten.abs.default(top), float("inf")), constant(0.0, top), top)
    total = aten.sum.dim_IntList(aten.exp.default(aten.sub.Tensor(wide, top)), dims, True)
    y = aten.add.Tensor(aten.log.default(total), top)
    if not keepdim and dims:
        y = aten.squeeze.dims(y, dims)
    return cast(y, dtype)


@decompose(aten._softmax_backward_data.default)
def softmax_backward(grad: Tensor, y: Tensor, dim: int, input_dtype: torch.dtype) -> Any:
    """(grad - sum(grad · y)) · y."""
    if y.numel() == 0 or y.is_complex():
        return NotImplemented
    wide, weights = widened(grad), widened(y)
    total = aten.sum.dim_IntList(aten.mul.Tensor(wide, weights), [dim], True)
    return cast(aten.mul.Tensor(aten.sub.Tensor(wide, total), weights), input_dtype)


@decompose(aten._log_softmax_backward_data.default)
def log_softmax_backward(grad: Tensor, y: Tensor, dim: int, input_dtype: torch.dtype) -> Any:
    """grad - exp(y) · sum(grad)."""
    if y.numel() == 0:
        return NotImplemented
    wide = widened(grad)
    total = aten.sum.dim_IntList(wide, [dim], True)
    taken = aten.mul.Tensor(aten.exp.default(widened(y)), total)
    return cast(aten.sub.Tensor(wide, taken), input_dtype)
