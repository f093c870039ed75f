"""Loss functions by gathers, elementwise operators and one reduction."""

from __future__ import annotations

from typing import Any

import torch

from braze.decomp.numbers import cast, constant, reduced, widened
from braze.decomp.registry import decompose

aten = torch.ops.aten
Tensor = torch.Tensor
#: types of targets; of others PyTorch's kernel says that they are refused
CLASSES = (torch.int64, torch.uint8)


@decompose(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss_forward(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> Any:
    """-x[target], weighted; targets equal to ``ignore_index`` count for nothing. Also the total weight."""
    if x.numel() == 0 or x.dim() not in (1, 2, 4) or target.dtype not in CLASSES:
        return NotImplemented
    dim = 0 if x.dim() == 1 else 1
    kept, safe = _targets(target, ignore_index)
    at = aten.unsqueeze.default(safe, dim)
    wide = widened(x)
    losses = aten.neg.default(aten.squeeze.dim(aten.gather.default(wide, dim, at), dim))
    zero = constant(0.0, wide)
    if weight is not None:
        weights = _weights(weight, safe)
        losses = aten.mul.Tensor(losses, weights)
        weights = aten.where.self(kept, weights, zero)
    else:
        weights = cast(kept, wide.dtype)
    losses = aten.where.self(kept, losses, zero)
    if reduction == 0 and x.dim() > 1:
        return cast(losses, x.dtype), constant(0.0, x)
    total = aten.sum.default(weights)
    result = aten.sum.default(losses)
    if reduction == 1:
        result = aten.div.Tensor(result, total)
    return cast(result, x.dtype), cast(total, x.dtype)


def _targets(target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Which targets count, and the targets with 0 for those that do not."""
    kept = aten.ne.Scalar(target, ignore_index)
    return kept, aten.where.self(kept, target, constant(0, target))


def _weights(weight: Tensor, classes: Tensor) -> Tensor:
    """The weight of each class named."""
    found = aten.index_select.default(widened(weight), 0, aten.reshape.default(classes, [-1]))
    return aten.view.default(found, list(classes.shape))


@decompose(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    grad: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total: Tensor,
) -> Any:
    """-grad · weight where the class is the target, else 0: a comparison per element, that later ones fuse with."""
    if x.numel() == 0 or x.dim() not in (1, 2, 4):
        return NotImplemented
    dim = 0 if x.dim() == 1 else 1
    kept, safe = _targets(target, ignore_index)
    each = widened(grad)
    if reduction == 1:
        each = aten.div.Tensor(each, widened(total))
    if weight is not None:
        each = aten.mul.Tensor(each, _weights(weight, safe))
    zero = constant(0.0, each)
    each = aten.where.self(kept, aten.neg.default(each), zero)
    # narrow numbers compare as many at a time as the gradient has
    classes = aten.arange.start_step(0, x.shape[dim], 1, dtype=torch.int32, device=x.device)
    classes = aten.view.default(classes, [x.shape[dim], *[1] * (x.dim() - dim - 1)])
    hit = aten.eq.Tensor(aten.unsqueeze.default(cast(safe, torch.int32), dim), classes)
    return cast(aten.where.self(hit, aten.unsqueeze.default(each, dim), zero), x.dtype)


@decompose(aten.mse_loss.default)
def mse_loss(x: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    """(x - target)²."""
    difference = aten.sub.Tensor(x, target)
    return reduced(aten.mul.Tensor(difference, difference), reduction)


@decompose(aten.smooth_l1_loss.default)
def smooth_l1_loss(x: Tensor, target: Tensor, reduction: int = 1, beta: float = 1.0) -> Any:
    """Quadratic below ``beta``, linear above; of floats alone."""
    common = torch.result_type(x, target)
    if not beta > 0 or not common.is_floating_point:
        return NotImplemented
    size = _distance(x, target, common)
    inner = aten.div.Scalar(aten.mul.Tensor(aten.mul.Scalar(size, 0.5), size), beta)
    outer = aten.sub.Scalar(size, 0.5 * beta)
    losses = aten.where.self(aten.lt.Scalar(size, beta), inner, outer)
    return reduced(cast(losses, common), reduction)


def _distance(x: Tensor, target: Tensor, common: torch.dtype) -> Tensor:
    """|x - target| in the type they have in common, of halves in float32: of smooth_l1 and huber, eager's kernels round it, or do not, by the type and the device."""
    x, target = widened(cast(x, common)), widened(cast(target, common))
    return aten.abs.default(aten.sub.Tensor(x, target))


@decompose(aten.huber_loss.default)
def huber_loss(x: Tensor, target: Tensor, reduction: int = 1, delta: float = 1.0) -> Any:
    """Quadratic up to ``delta``, linear above; in the type of x, whatever the target's."""
    if not x.dtype.is_floating_point or target.dtype.is_complex:
        return NotImplemented
    size = _distance(x, target, torch.result_type(x, target))
    inner = aten.mul.Tensor(aten.mul.Scalar(size, 0.5), size)
    outer = aten.mul.Scalar(aten.sub.Scalar(size, 0.5 * delta), delta)
    return reduced(cast(aten.where.self(aten.le.Scalar(size, delta), inner, outer), x.dtype), reduction)


@decompose(aten.binary_cross_entropy.default)
def binary_cross_entropy(
    x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    """-(t·log x + (1-t)·log(1-x)), each logarithm at least -100."""
    if x.device.type == "cpu":
        for name, value in (("input", x), ("target", target)):
            inside = aten.logical_and.default(aten.ge.Scalar(value, 0), aten.le.Scalar(value, 1))
            text = f"all elements of {name} should be between 0 and 1"
            aten._assert_async.msg(aten.all.default(inside), text)
    low = -100.0
    log_x = aten.clamp_min.default(aten.log.default(x), low)
    log_rest = aten.clamp_min.default(aten.log1p.default(aten.neg.default(x)), low)
    losses = aten.sub.Tensor(
        aten.mul.Tensor(aten.sub.Scalar(target, 1), log_rest), aten.mul.Tensor(target, log_x)
    )
    if weight is not None:
        losses = aten.mul.Tensor(losses, weight)
    return reduced(losses, reduction)


@decompose(aten.soft_margin_loss.default)
def soft_margin_loss(x: Tensor, target: Tensor, reduction: int = 1) -> Any:
    """log(1 + exp(-t·x)), written into -t step by step, in the type of x."""
    if not (x.dtype.is_floating_point and target.dtype.is_floating_point) or x.shape != target.shape:
        return NotImplemented
    product = aten.mul.Tensor(cast(aten.neg.default(target), x.dtype), x)
    return reduced(aten.log1p.default(aten.exp.default(product)), reduction)


@decompose(aten.binary_cross_entropy_with_logits.default)
def binary_cross_entropy_with_logits(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = 1,
) -> Any:
    """(1 - t)·x - log(sigmoid x)·(1 + (pos_weight - 1)·t), written into 1 - t step by step: the type is that of t."""
    if not target.dtype.is_floating_point:
        return NotImplemented
    log_sigmoid = aten.log_sigmoid_forward.default(x)[0]
    if pos_weight is not None:
        scale = aten.add.Scalar(aten.mul.Tensor(aten.sub.Scalar(pos_weight, 1), target), 1)
        log_sigmoid = cast(aten.mul.Tensor(scale, log_sigmoid), x.dtype)
    losses = cast(aten.mul.Tensor(aten.rsub.Scalar(target, 1), x), target.dtype)
    losses = cast(aten.sub.Tensor(losses, log_sigmoid), target.dtype)
    if weight is not None:
        losses = cast(aten.mul.Tensor(losses, weight), target.dtype)
    return reduced(losses, reduction)
