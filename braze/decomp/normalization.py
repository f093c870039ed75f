"""Layer, RMS, group and batch normalization by means and variances, in the type eager computes in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from braze.decomp.numbers import cast, compute_dtype, widened
from braze.decomp.registry import decompose

aten = torch.ops.aten
Tensor = torch.Tensor


def _shifted(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """y · weight + bias; on the CPU eager adds a missing bias too, as 0, and no zero of its results is negative."""
    y = _affine(y, weight, bias)
    return aten.add.Scalar(y, 0.0) if bias is None and y.device.type == "cpu" else y


def _affine(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if weight is not None and bias is not None:
        return aten.addcmul.default(widened(bias), y, widened(weight))
    if weight is not None:
        y = aten.mul.Tensor(y, widened(weight))
    if bias is not None:
        y = aten.add.Tensor(y, widened(bias))
    return y


#: no correction, as a float: the lowering then sums in the type of the values, as norms do, and not in double, as torch.var does
SUMMED_AS_IT_IS = 0.0


def _normalized(x: Tensor, dims: list[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """((x - mean) / sqrt(var + eps), mean, 1 / sqrt(var + eps)), with the dims kept."""
    var, mean = aten.var_mean.correction(x, dims, correction=SUMMED_AS_IT_IS, keepdim=True)
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
    kept = _kept_dtype(x, weight)
    return cast(_shifted(y, weight, bias), x.dtype), cast(mean, kept), cast(rstd, kept)


def _kept_dtype(x: Tensor, weight: Tensor | None) -> torch.dtype:
    """The type of statistics that are kept for a backward: on the CPU that of the parameters, which may be wider than the input's."""
    if x.device.type != "cpu":
        return compute_dtype(x.dtype)
    return x.dtype if weight is None else weight.dtype


def _by_root_mean_square(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    """(x / sqrt(mean(x²) + eps) · weight over the last dims, 1 / sqrt(mean(x²) + eps))."""
    wide = widened(x)
    dims = list(range(x.dim() - len(shape), x.dim()))
    mean = aten.mean.dim(aten.mul.Tensor(wide, wide), dims, True)
    rstd = aten.rsqrt.default(aten.add.Scalar(mean, torch.finfo(wide.dtype).eps if eps is None else eps))
    return cast(_affine(aten.mul.Tensor(wide, rstd), weight, None), x.dtype), rstd


@decompose(aten.rms_norm.default)
def rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Any:
    """The normalized values alone."""
    return _by_root_mean_square(x, shape, weight, eps)[0] if x.dtype.is_floating_point else NotImplemented


@decompose(aten._fused_rms_norm.default)
def fused_rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None) -> Any:
    """Also 1/std, for the backward."""
    known = x.numel() and x.dtype.is_floating_point
    return _by_root_mean_square(x, shape, weight, eps) if known else NotImplemented


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
    # a processor reduces along memory first, wherever a group's channels lie
    apart = [each, spread] if x.device.type == "cpu" else [each * spread]
    grouped = aten.view.default(
        aten.clone.default(widened(x), memory_format=torch.contiguous_format), [n, groups, *apart]
    )
    y, mean, rstd = _normalized(grouped, list(range(2, grouped.dim())), eps)
    y = aten.view.default(y, [n, channels, spread])
    put = _affine if weight is None else _shifted
    y = put(
        y,
        None if weight is None else aten.unsqueeze.default(weight, -1),
        None if bias is None else aten.unsqueeze.default(bias, -1),
    )
    y = cast(aten.view.default(y, list(x.shape)), x.dtype)
    kept = x.dtype if weight is None or x.device.type != "cpu" else weight.dtype
    mean, rstd = (cast(aten.view.default(s, [n, groups]), kept) for s in (mean, rstd))
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
    found = _batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)
    return NotImplemented if found is None else found[0]


def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor] | None:
    """(result, mean, 1 / sqrt(variance + eps)), the latter of the batch, in training, which moves the running ones, or of these."""
    wide = widened(x)
    if training:
        mean, var = _batch_statistics(wide)
        invstd = _of_batch(var, eps)
    elif running_mean is None or running_var is None:
        return None
    else:
        mean, var = widened(running_mean), widened(running_var)
        invstd = aten.rsqrt.default(aten.add.Scalar(var, eps))
    around = (weight, bias, running_mean, running_var)
    put = _scaled if _in_rows(x, around) else _centred
    y = _laid_out(cast(put(wide, mean, invstd, weight, bias), x.dtype))
    if training:
        _keep(running_mean, mean, momentum)
        _keep(running_var, _unbiased(var, x), momentum)
    return y, mean, invstd


def _in_rows(x: Tensor, around: Sequence[Tensor | None]) -> bool:
    """Whether eager takes the kernel of one scale and one shift per channel; on the CPU all lies in order for it."""
    if x.device.type != "cpu":
        return True
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    ordered = x.is_contiguous() or bool(last and x.is_contiguous(memory_format=last))
    return ordered and all(t is None or t.is_contiguous() for t in around)


def _laid_out(y: Tensor) -> Tensor:
    """On the CPU eager's result is in row-major order or in channels-last, whatever other order the dims of the input have."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(y.dim())
    rows = y.is_contiguous()
    if y.device.type != "cpu" or (rows and not _points_elsewhere(y)):
        return y
    if not rows and last and y.is_contiguous(memory_format=last):
        return y
    return aten.clone.default(y, memory_format=torch.contiguous_format)


def _points_elsewhere(y: Tensor) -> bool:
    """Whether a dim of one element has another stride than row by row, where sizes are known."""
    step = 1
    for size, stride in zip(reversed(y.shape), reversed(y.stride()), strict=True):
        if type(size) is not int or type(stride) is not int:
            return False
        if stride != step:
            return True
        step *= size
    return False


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
    """As batch_norm; the saved statistics are empty, on a GPU those that were given."""
    if x.device.type != "cpu":
        return native_batch_norm(x, weight, bias, running_mean, running_var, False, momentum, eps)
    return _with_nothing_saved(
        x, batch_norm(x, weight, bias, running_mean, running_var, False, momentum, eps)
    )


def _with_nothing_saved(x: Tensor, y: Any) -> Any:
    """What batch_norm gives, and statistics that are empty."""
    if y is NotImplemented:
        return NotImplemented
    empty = aten.empty.memory_format([0], dtype=compute_dtype(x.dtype), device=x.device)
    return y, empty, empty


@decompose(
    aten.native_batch_norm.default, aten._native_batch_norm_legit.default, aten.miopen_batch_norm.default
)
def native_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """As batch_norm; also mean and 1/std of the batch for the backward, on the CPU empty outside training."""
    if x.numel() == 0 or x.dim() < 2:
        return NotImplemented
    found = _batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)
    if found is None:
        return NotImplemented
    y, mean, invstd = found
    kept = _kept_dtype(x, weight)
    if not training and x.device.type == "cpu":
        empty = aten.empty.memory_format([0], dtype=kept, device=x.device)
        return y, empty, empty
    return y, cast(mean, kept), cast(invstd, kept)


@decompose(aten._native_batch_norm_legit.no_stats)
def native_batch_norm_no_stats(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> Any:
    """By the batch's statistics, which nobody keeps."""
    return native_batch_norm(x, weight, bias, None, None, training, momentum, eps)


@decompose(aten._native_batch_norm_legit_functional.default)
def native_batch_norm_functional(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """As native_batch_norm; the new running statistics are results."""
    if x.numel() == 0 or x.dim() < 2 or not training:
        return NotImplemented
    made = native_batch_norm(x, weight, bias, None, None, training, momentum, eps)
    mean, var = _batch_statistics(widened(x))
    return (
        *made,
        _moved(running_mean, mean, momentum),
        _moved(running_var, _unbiased(var, x), momentum),
    )


@decompose(aten._batch_norm_with_update.default)
def batch_norm_with_update(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> Any:
    """As native_batch_norm in training, with a reserve that its backward does not need."""
    return _with_reserve(native_batch_norm(x, weight, bias, running_mean, running_var, True, momentum, eps))


@decompose(aten.cudnn_batch_norm.default)
def cudnn_batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """As native_batch_norm, with a reserve that its backward does not need; nothing is saved outside training."""
    if training:
        made = native_batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)
    elif running_mean is None or running_var is None:
        return NotImplemented
    else:
        y = batch_norm(x, weight, bias, running_mean, running_var, False, momentum, eps)
        made = _with_nothing_saved(x, y)
    return _with_reserve(made)


def _with_reserve(made: Any) -> Any:
    """The results of native_batch_norm and an empty reserve, on the same device."""
    if made is NotImplemented:
        return NotImplemented
    return (*made, aten.empty.memory_format([0], dtype=torch.uint8, device=made[0].device))


def _batch_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    dims = [0, *range(2, x.dim())]
    var, mean = aten.var_mean.correction(x, dims, correction=SUMMED_AS_IT_IS)
    return mean, var


def _unbiased(var: Tensor, x: Tensor) -> Tensor:
    """The variance of the population that the batch was taken from."""
    count = x.numel() // x.shape[1]
    return aten.mul.Scalar(var, count / (count - 1) if count > 1 else float("nan"))


def _moved(running: Tensor, batch: Tensor, momentum: float) -> Tensor:
    """A running statistic, moved towards the batch's."""
    kept = aten.mul.Scalar(running, 1 - momentum)
    return aten.add.Tensor(kept, aten.mul.Scalar(cast(batch, running.dtype), momentum))


def _keep(running: Tensor | None, batch: Tensor, momentum: float) -> None:
    if running is not None:
        aten.copy_.default(running, _moved(running, batch, momentum))


def _of_batch(var: Tensor, eps: float) -> Tensor:
    """1 / sqrt(var + eps), on the CPU rounded once, as eager's, which is computed in double."""
    wide = var if var.device.type != "cpu" else cast(var, torch.float64)
    return cast(aten.rsqrt.default(aten.add.Scalar(wide, eps)), var.dtype)


def _scaled(x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """x · scale + shift with one scale and shift per channel; like eager's kernel rounded once, after the sum."""
    scale = invstd if weight is None else aten.mul.Tensor(invstd, widened(weight))
    if bias is None:
        # 0 - m: never the negative zero that -m may be
        shift = aten.rsub.Scalar(aten.mul.Tensor(mean, scale), 0.0)
    else:
        shift = aten.addcmul.default(widened(bias), mean, scale, value=-1)
    return aten.addcmul.default(_per_channel(shift, x), x, _per_channel(scale, x))


def _centred(x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """(x - mean) · invstd · weight + bias, which keeps what a scale and a shift lose where means are large."""
    y = aten.mul.Tensor(aten.sub.Tensor(x, _per_channel(mean, x)), _per_channel(invstd, x))
    weight, bias = (None if s is None else _per_channel(s, x) for s in (weight, bias))
    return _shifted(y, weight, bias)


def _per_channel(s: Tensor, x: Tensor) -> Tensor:
    """A number for each channel, beside x."""
    return aten.reshape.default(s, [1, x.shape[1], *[1] * (x.dim() - 2)])
