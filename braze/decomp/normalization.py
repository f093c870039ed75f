"""Layer, RMS, group and batch normalization by means and variances, in the type eager computes in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from braze.decomp.numbers import cast, compute_dtype, widened
from braze.decomp.registry import decompose

aten = torch.ops.aten
Tensor = torch.Tensor


def _affine(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if weight is not None:
        y = aten.mul.Tensor(y, widened(weight))
    if bias is not None:
        y = aten.add.Tensor(y, widened(bias))
    return y


def _normalized(x: Tensor, dims: list[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """((x - mean) / sqrt(var + eps), mean, 1 / sqrt(var + eps)), with the dims kept."""
    var, mean = aten.var_mean.correction(x, dims, correction=0, keepdim=True)
    rstd = aten.rsqrt.default(aten.add.Scalar(var, eps))
    return aten.mul.Tensor(aten.sub.Tensor(x, mean), rstd), mean, rstd


@decompose(aten.native_layer_norm.default)
def native_layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Any:
    """Normalize over the last dims; also gives mean and 1/std."""
    if x.numel() == 0 or not shape:
        return NotImplemented
    dims = list(range(x.dim() - len(shape), x.dim()))
    y, mean, rstd = _normalized(widened(x), dims, eps)
    # statistics come in the type of the parameters where those are wider than the input
    kept = weight.dtype if weight is not None else x.dtype
    if x.device.type != "cpu":
        kept = compute_dtype(x.dtype)
    return cast(_affine(y, weight, bias), x.dtype), cast(mean, kept), cast(rstd, kept)


@decompose(aten.rms_norm.default)
def rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Any:
    """x / sqrt(mean(x²) + eps) · weight over the last dims."""
    if x.is_complex() or not x.dtype.is_floating_point:
        return NotImplemented
    wide = widened(x)
    dims = list(range(x.dim() - len(shape), x.dim()))
    mean = aten.mean.dim(aten.mul.Tensor(wide, wide), dims, True)
    rstd = aten.rsqrt.default(aten.add.Scalar(mean, torch.finfo(wide.dtype).eps if eps is None else eps))
    y = _affine(aten.mul.Tensor(wide, rstd), weight, None)
    return cast(y, x.dtype)


@decompose(aten.native_group_norm.default)
def native_group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    n: int,
    channels: int,
    spread: int,
    groups: int,
    eps: float,
) -> Any:
    """Normalize each group of channels of each sample."""
    if x.numel() == 0:
        return NotImplemented
    each = channels // groups
    grouped = aten.view.default(
        aten.clone.default(widened(x), memory_format=torch.contiguous_format), [n, groups, each * spread]
    )
    y, mean, rstd = _normalized(grouped, [2], eps)
    y = aten.view.default(y, [n, channels, spread])
    y = _affine(
        y,
        None if weight is None else aten.unsqueeze.default(weight, -1),
        None if bias is None else aten.unsqueeze.default(bias, -1),
    )
    y = cast(aten.view.default(y, list(x.shape)), x.dtype)
    kept = x.dtype if weight is None or x.device.type != "cpu" else weight.dtype
    mean, rstd = (cast(aten.squeeze.dim(s, 2), kept) for s in (mean, rstd))
    return y, mean, rstd


@decompose(aten.batch_norm.default)
def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = False,
) -> Any:
    """Normalize each channel; in training by the batch, updating the running statistics."""
    if x.numel() == 0 or x.dim() < 2:
        return NotImplemented
    wide = widened(x)
    if training:
        mean, var = _batch_statistics(wide)
        if running_mean is not None:
            _update(running_mean, mean, momentum)
        if running_var is not None:
            count = x.numel() // x.shape[1]
            _update(
                running_var,
                aten.mul.Scalar(var, count / (count - 1) if count > 1 else float("nan")),
                momentum,
            )
    else:
        if running_mean is None or running_var is None:
            return NotImplemented
        mean, var = widened(running_mean), widened(running_var)
    return cast(_scaled(wide, mean, var, weight, bias, eps), x.dtype)


@decompose(aten._native_batch_norm_legit_no_training.default)
def batch_norm_no_training(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> Any:
    """As batch_norm; the saved statistics are empty."""
    y = batch_norm(x, weight, bias, running_mean, running_var, False, momentum, eps)
    if y is NotImplemented:
        return NotImplemented
    empty = aten.empty.memory_format([0], dtype=compute_dtype(x.dtype), device=x.device)
    return y, empty, empty


def _batch_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    dims = [0, *range(2, x.dim())]
    var, mean = aten.var_mean.correction(x, dims, correction=0)
    return mean, var


def _update(running: Tensor, batch: Tensor, momentum: float) -> None:
    kept = aten.mul.Scalar(running, 1 - momentum)
    aten.copy_.default(running, aten.add.Tensor(kept, aten.mul.Scalar(cast(batch, running.dtype), momentum)))


def _scaled(
    x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """x · scale + shift with one scale and shift per channel, as eager's kernel does."""
    scale = aten.rsqrt.default(aten.add.Scalar(var, eps))
    if weight is not None:
        scale = aten.mul.Tensor(scale, widened(weight))
    shift = aten.neg.default(aten.mul.Tensor(mean, scale))
    if bias is not None:
        shift = aten.add.Tensor(widened(bias), shift)
    per_channel = [1, x.shape[1], *[1] * (x.dim() - 2)]
    scale, shift = (aten.view.default(s, per_channel) for s in (scale, shift))
    return aten.add.Tensor(aten.mul.Tensor(x, scale), shift)
