"""What gradients of activations and losses look like: most are one loop over the gradient that comes in and what it is of.

PyTorch's fakes make several of them of other operators, which order their dims by the operand alone, or lay row by row what eager
turns as the gradient is turned. As in ``layout_rules.py``: functions of plain meta tensors, which give new ones, or NotImplemented.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze.graph.rules.elementwise import allocated, fits_into, laid_like
from braze.graph.rules.layout_rules import (
    channels_last,
    fills_channels_last,
    row_major,
    suggests_channels_last,
)
from braze.graph.sizes.extents import TENSORS

aten = torch.ops.aten


def _of_one_type(tensors: Sequence[Any]) -> bool:
    dtype = tensors[0].dtype
    return bool(dtype.is_floating_point) and all(isinstance(t, TENSORS) and t.dtype is dtype for t in tensors)


def _alike(tensors: Sequence[Any]) -> bool:
    """Whether they have one type and one shape, so that a new one has these too."""
    return _of_one_type(tensors) and all(
        len(t.shape) == len(tensors[0].shape)
        and all(n is m or n == m for n, m in zip(t.shape, tensors[0].shape, strict=True))
        for t in tensors[1:]
    )


def _loop(gradient: Any, x: Any, /, *rest: Any, **options: Any) -> Any:
    return allocated([gradient, x], x.dtype) if _of_one_type((gradient, x)) else NotImplemented


def _elu(gradient: Any, alpha: Any, scale: Any, input_scale: Any, is_result: bool, x: Any) -> Any:
    if is_result and not alpha >= 0:
        return NotImplemented  # an error
    return _loop(gradient, x)


def _rrelu(gradient: Any, x: Any, noise: Any, low: Any, high: Any, training: bool, is_result: bool) -> Any:
    """In training a product of the noise and the gradient."""
    if not (training and high - low > 1e-6):
        return _leaky_relu(gradient, x, (low + high) / 2, is_result)
    return allocated([noise, gradient], x.dtype) if _of_one_type((gradient, x, noise)) else NotImplemented


def _threshold(gradient: Any, x: Any, *rest: Any) -> Any:
    return _loop(x, gradient)


def _leaky_relu(gradient: Any, x: Any, slope: Any, is_result: bool) -> Any:
    return NotImplemented if is_result and not slope >= 0 else _threshold(gradient, x)


def _log_sigmoid(gradient: Any, x: Any, buffer: Any) -> Any:
    """Into memory like the gradient's."""
    return laid_like(gradient, x.dtype) if _alike((gradient, x)) else NotImplemented


def _prelu(gradient: Any, x: Any, weight: Any) -> Any:
    """One loop over three, which gives two."""
    if not _alike((gradient, x)) or weight.dtype is not x.dtype or not fits_into(weight.shape, x.shape):
        return NotImplemented
    return tuple(allocated([x, weight, gradient], x.dtype) for _ in range(2))


def _loss(gradient: Any, x: Any, target: Any, reduction: int, *rest: Any) -> Any:
    """Row by row, however its operands lie."""
    if reduction not in (0, 1, 2) or not _alike((x, target)) or gradient.dtype is not x.dtype:
        return NotImplemented
    return row_major(x.shape, x.dtype) if not gradient.dim() or _alike((x, gradient)) else NotImplemented


def _cross_entropy(gradient: Any, x: Any, target: Any, weight: Any = None, reduction: int = 1) -> Any:
    """Into memory like that of the probabilities."""
    told = weight is None and _loss(gradient, x, target, reduction) is not NotImplemented
    return laid_like(x, x.dtype) if told else NotImplemented


def _soft_margin(gradient: Any, x: Any, target: Any, reduction: int) -> Any:
    """A product of the target and an exponential of the two."""
    if _loss(gradient, x, target, reduction) is NotImplemented:
        return NotImplemented
    exponential = allocated([allocated([target], x.dtype), x], x.dtype)
    return allocated([target, exponential], x.dtype)


def _softmax(gradient: Any, made: Any, dim: int, dtype: torch.dtype) -> Any:
    known = _alike((gradient, made)) and dtype is made.dtype and -made.dim() <= dim < made.dim()
    return row_major(gradient.shape, dtype) if known else NotImplemented


def _convolution(
    gradient: Any, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    extra: Any, groups: Any, mask: Sequence[bool],
) -> Any:  # fmt: skip
    """Of pictures of doubles, of which oneDNN has no part: channels-last if an operand is.

    But a weight of one place lies so already, whatever its strides: PyTorch's fake makes its gradient channels-last, and eager's lies as it does.
    """
    if x.dtype is not torch.float64 or not _of_one_type((gradient, x, weight)) or weight.dim() != 4:
        return NotImplemented
    dilated = any(n != 1 for n in dilation) and not transposed
    if dilated or x.dim() != 4 or any(n == 0 for t in (gradient, x, weight) for n in t.shape):
        return NotImplemented
    if groups != 1 and all(n == 1 for n in x.shape[2:]):
        return NotImplemented  # parts of one channel and one place, which lie in any order, are joined
    turned = suggests_channels_last(x) or suggests_channels_last(weight)
    either = fills_channels_last(weight) and not suggests_channels_last(weight)
    of_x = (channels_last if turned else row_major)(x.shape, x.dtype) if mask[0] else None
    of_weight = channels_last if turned and not either else row_major
    of_bias = row_major([gradient.shape[1]], x.dtype) if mask[2] else None
    return of_x, of_weight(weight.shape, x.dtype) if mask[1] else None, of_bias


GRADIENTS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(
        (
            aten.gelu_backward.default,
            aten.silu_backward.default,
            aten.mish_backward.default,
            aten.hardswish_backward.default,
            aten.hardsigmoid_backward.default,
            aten.hardtanh_backward.default,
            aten.softplus_backward.default,
            aten.logit_backward.default,
            aten.sigmoid_backward.default,
            aten.tanh_backward.default,
        ),
        _loop,
    ),
    aten.elu_backward.default: _elu,
    aten.threshold_backward.default: _threshold,
    aten.leaky_relu_backward.default: _leaky_relu,
    aten.rrelu_with_noise_backward.default: _rrelu,
    aten.log_sigmoid_backward.default: _log_sigmoid,
    aten._prelu_kernel_backward.default: _prelu,
    **dict.fromkeys(
        (
            aten.mse_loss_backward.default,
            aten.smooth_l1_loss_backward.default,
            aten.huber_loss_backward.default,
        ),
        _loss,
    ),
    aten.binary_cross_entropy_backward.default: _cross_entropy,
    aten.soft_margin_loss_backward.default: _soft_margin,
    aten.convolution_backward.default: _convolution,
    aten._softmax_backward_data.default: _softmax,
    aten._log_softmax_backward_data.default: _softmax,
}
