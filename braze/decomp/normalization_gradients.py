"""Gradients of layer, RMS, group and batch normalization by sums along rows and columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from braze.decomp.numbers import cast, widened
from braze.decomp.registry import decompose

aten = torch.ops.aten
Tensor = torch.Tensor


def _sum(x: Tensor, dims: list[int], keepdim: bool = False) -> Tensor:
    return aten.sum.dim_IntList(x, dims, keepdim) if dims else x


def _mean(x: Tensor, dims: list[int]) -> Tensor:
    return aten.mean.dim(x, dims, True)


def _of_rows(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, dims: list[int]) -> Tensor:
    """rstd · (grad - (mean(grad) + y · mean(grad · y))), with y the normalized values.

    Of a row of zeros the CPU's kernels give grad + x · slope, whose slope is a zero with the sign of the row's mean.
    """
    y = _normalized(x, mean, rstd)
    return _without(grad, x, mean, rstd, _mean(grad, dims), _mean(aten.mul.Tensor(grad, y), dims))


def _without(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, level: Tensor, dot: Tensor) -> Tensor:
    """The same of mean(grad) and mean(grad · y)."""
    tilt = aten.mul.Tensor(_normalized(x, mean, rstd), dot)
    taken = aten.add.Tensor(level, tilt)  # of a row of zeros a positive one
    if x.device.type == "cpu":
        grad = aten.add.Tensor(grad, aten.mul.Tensor(x, aten.mul.Scalar(mean, 0.0)))
    return aten.mul.Tensor(aten.sub.Tensor(grad, taken), rstd)


def _normalized(x: Tensor, mean: Tensor, rstd: Tensor) -> Tensor:
    return aten.mul.Tensor(aten.sub.Tensor(x, mean), rstd)


def _centred_again(x: Tensor, mean: Tensor) -> Tensor:
    """x - mean in other words: two kernels that need it each compute it, rather than one leaves it in memory. A kernel that does what both do says it in the same words again (``mixed.py``)."""
    return aten.add.Tensor(x, aten.neg.default(mean))


def _with_rank(statistic: Tensor, rank: int) -> Tensor:
    """A statistic of rows as wide numbers with as many dims as the rows have."""
    wide = widened(statistic)
    return wide if wide.dim() == rank else aten.view.default(wide, [*wide.shape, *[1] * (rank - wide.dim())])


@decompose(aten.native_layer_norm_backward.default)
def native_layer_norm_backward(
    grad: Tensor,
    x: Tensor,
    shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Sequence[bool],
) -> Any:
    """Of the input, the weight and the bias; None where not asked for."""
    if x.numel() == 0 or not shape:
        return NotImplemented
    lead = x.dim() - len(shape)
    dims, rows = list(range(lead, x.dim())), list(range(lead))
    dy, wide = widened(grad), widened(x)
    centre, scale = _with_rank(mean, x.dim()), _with_rank(rstd, x.dim())
    dx = dw = db = None
    if mask[0]:
        weighted = dy if weight is None else aten.mul.Tensor(dy, widened(weight))
        dx = cast(_of_rows(weighted, wide, centre, scale, dims), x.dtype)
    if mask[1] and weight is not None:
        product = aten.mul.Tensor(dy, aten.mul.Tensor(_centred_again(wide, centre), scale))
        dw = cast(_sum(product, rows), weight.dtype)
    if mask[2] and bias is not None:
        db = cast(_sum(dy, rows), bias.dtype)
    return dx, dw, db


@decompose(aten._fused_rms_norm_backward.default)
def fused_rms_norm_backward(
    grad: Tensor,
    x: Tensor,
    shape: Sequence[int],
    rstd: Tensor,
    weight: Tensor | None,
    mask: Sequence[bool],
) -> Any:
    """Of the input and the weight; None where not asked for."""
    if x.numel() == 0 or not shape:
        return NotImplemented
    lead = x.dim() - len(shape)
    dims, rows = list(range(lead, x.dim())), list(range(lead))
    dy, scale = widened(grad), _with_rank(rstd, x.dim())
    wide = widened(x)
    dx = dw = None
    if mask[0]:
        weighted = dy if weight is None else aten.mul.Tensor(dy, widened(weight))
        y = aten.mul.Tensor(wide, scale)
        tilt = aten.mul.Tensor(y, _mean(aten.mul.Tensor(weighted, y), dims))
        dx = cast(aten.mul.Tensor(aten.sub.Tensor(weighted, tilt), scale), x.dtype)
    if mask[1] and weight is not None:
        dw = cast(_sum(aten.mul.Tensor(aten.mul.Tensor(dy, scale), wide), rows), weight.dtype)
    return dx, dw


@decompose(aten.native_group_norm_backward.default)
def native_group_norm_backward(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    n: int,
    channels: int,
    spread: int,
    groups: int,
    mask: Sequence[bool],
) -> Any:
    """Of the input, the weight and the bias; None where not asked for."""
    if x.numel() == 0:
        return NotImplemented
    if x.device.type == "cpu" and mask[0] and (mask[1] or mask[2]):
        return _by_channels(grad, x, mean, rstd, weight, [n, groups, channels // groups, spread], mask)
    split = [n, groups, channels // groups, spread]
    dy, values = (aten.reshape.default(widened(t), split) for t in (grad, x))
    centre, scale = (aten.view.default(widened(t), [n, groups, 1, 1]) for t in (mean, rstd))
    dx = dw = db = None
    if mask[0]:
        weighted = dy
        if weight is not None:
            weighted = aten.mul.Tensor(
                dy, aten.view.default(widened(weight), [groups, channels // groups, 1])
            )
        dx = cast(
            aten.view.default(_of_rows(weighted, values, centre, scale, [2, 3]), list(x.shape)),
            x.dtype,
        )
    if mask[1]:
        kept = x.dtype if weight is None else weight.dtype
        # along memory first, then the few sums of each sample
        product = _sum(aten.mul.Tensor(dy, _centred_again(values, centre)), [3], True)
        dw = _sum(aten.mul.Tensor(product, scale), [0, 3])
        dw = cast(aten.view.default(dw, [channels]), kept)
    if mask[2]:
        kept = x.dtype if weight is None else weight.dtype
        db = cast(aten.view.default(_sum(_sum(dy, [3]), [0]), [channels]), kept)
    return dx, dw, db


def _by_channels(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    split: list[int],
    mask: Sequence[bool],
) -> Any:
    """The gradients of group norm from sums over each channel's pixels, which all three are made of: memory is read for these, and for the input's."""
    n, groups, each, spread = split
    channels = groups * each
    dy, values = (aten.reshape.default(widened(t), [n, channels, spread]) for t in (grad, x))

    def of_channels(statistic: Tensor) -> Tensor:
        alike = aten.expand.default(aten.view.default(statistic, [n, groups, 1]), [n, groups, each])
        return aten.reshape.default(alike, [n, channels, 1])

    centre, scale = of_channels(widened(mean)), of_channels(widened(rstd))
    total = _sum(dy, [2], True)
    dot = aten.mul.Tensor(_sum(aten.mul.Tensor(dy, _centred_again(values, centre)), [2], True), scale)
    gain = None if weight is None else aten.view.default(widened(weight), [channels, 1])

    def of_groups(sums: Tensor) -> Tensor:
        weighted = sums if gain is None else aten.mul.Tensor(sums, gain)
        found = _sum(aten.view.default(weighted, [n, groups, each]), [2])
        return of_channels(aten.div.Scalar(found, each * spread))

    weighted = dy if gain is None else aten.mul.Tensor(dy, gain)
    dx = _without(weighted, values, centre, scale, of_groups(total), of_groups(dot))
    dx = cast(aten.view.default(dx, list(x.shape)), x.dtype)
    kept = x.dtype if weight is None else weight.dtype
    dw = cast(aten.view.default(_sum(dot, [0]), [channels]), kept) if mask[1] else None
    db = cast(aten.view.default(_sum(total, [0]), [channels]), kept) if mask[2] else None
    return dx, dw, db


@decompose(aten.native_batch_norm_backward.default)
def native_batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    train: bool,
    eps: float,
    mask: Sequence[bool],
) -> Any:
    """Of the input, the weight and the bias; through the batch's statistics in training alone."""
    if x.numel() == 0 or x.dim() < 2:
        return NotImplemented
    if train:
        if save_mean is None or save_invstd is None:
            return NotImplemented
        mean, invstd = widened(save_mean), widened(save_invstd)
    else:
        if running_mean is None or running_var is None:
            return NotImplemented
        mean = widened(running_mean)
        invstd = aten.rsqrt.default(aten.add.Scalar(widened(running_var), eps))
    per_channel = [1, x.shape[1], *[1] * (x.dim() - 2)]
    dims = [0, *range(2, x.dim())]
    dy = widened(grad)
    wide, centre = widened(x), aten.view.default(mean, per_channel)
    needs_sums = train and mask[0]
    total = _sum(dy, dims) if mask[2] or needs_sums else None
    dot = _sum(aten.mul.Tensor(dy, aten.sub.Tensor(wide, centre)), dims) if mask[1] or needs_sums else None
    kept = x.dtype if weight is None else weight.dtype
    dx = dw = db = None
    if mask[0]:
        scale = invstd if weight is None else aten.mul.Tensor(invstd, widened(weight))
        if total is not None and dot is not None and train:
            count = x.numel() // x.shape[1]
            tilt = aten.div.Scalar(aten.mul.Tensor(dot, aten.mul.Tensor(invstd, invstd)), count)
            level = aten.div.Scalar(total, count)
            tilt, level = (aten.view.default(t, per_channel) for t in (tilt, level))
            dy = aten.addcmul.default(
                aten.sub.Tensor(dy, level), _centred_again(wide, centre), tilt, value=-1
            )
        dx = cast(aten.mul.Tensor(dy, aten.view.default(scale, per_channel)), x.dtype)
    if mask[1] and dot is not None:
        dw = cast(aten.mul.Tensor(dot, invstd), kept)
    if mask[2] and total is not None:
        db = cast(total, kept)
    return dx, dw, db


@decompose(aten.batch_norm_backward.default)
def batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_var: Tensor | None,
    update: bool,
    eps: float,
    mask: Sequence[bool],
    reserve: Tensor,
) -> Any:
    """As native_batch_norm_backward."""
    return native_batch_norm_backward(
        grad, x, weight, running_mean, running_var, save_mean, save_var, update, eps, mask
    )


@decompose(aten.cudnn_batch_norm_backward.default, aten.miopen_batch_norm_backward.default)
def library_batch_norm_backward(
    x: Tensor,
    grad: Tensor,
    weight: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_var: Tensor | None,
    eps: float,
    reserve: Tensor | None = None,
) -> Any:
    """In training: as native_batch_norm_backward."""
    return native_batch_norm_backward(
        grad, x, weight, running_mean, running_var, save_mean, save_var, True, eps, [True, True, True]
    )
