"""Operators by what their kernels allocate before their loops: memory like an operand's, memory row by row, or what one loop orders.

PyTorch's fakes take most of them for other compositions than eager runs, which shows in strides of dims of one element, of what is
repeated and of what has no elements. As in ``layout_rules.py``: functions of plain meta tensors, which give new ones, or NotImplemented
where a call is to be refused, or is of types that are not told here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze.graph.rules.elementwise import allocated, broadcast, fits_into, laid_like
from braze.graph.rules.layout_rules import channels_last, row_major, suggests_channels_last
from braze.graph.sizes.extents import TENSORS, Geometry

aten = torch.ops.aten
Tensor = torch.Tensor

_COMPLEX = {torch.float16: torch.complex32, torch.float32: torch.complex64, torch.float64: torch.complex128}
_INTEGERS = frozenset([torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])


def _of_one_type(operands: Sequence[Any]) -> bool:
    return all(isinstance(t, TENSORS) and t.dtype is operands[0].dtype for t in operands)


def _loop(result: Callable[[torch.dtype], torch.dtype | None]) -> Callable[..., Any]:
    """One loop over operands of one type; ``result``: the type that it gives of that, or None where it takes none such."""

    def rule(*operands: Any) -> Any:
        dtype = result(operands[0].dtype) if _of_one_type(operands) else None
        return NotImplemented if dtype is None else allocated(operands, dtype)

    return rule


_loop_of_floats = _loop(lambda dtype: dtype if dtype.is_floating_point else None)
_loop_of_integers = _loop(lambda dtype: dtype if dtype in _INTEGERS else None)
_loop_of_one_type = _loop(lambda dtype: None if dtype.is_complex else dtype)
_complex_of_two = _loop(_COMPLEX.get)


def _like_with_floats(x: Any) -> Any:
    if x.dtype.is_complex:
        return NotImplemented
    return laid_like(x, x.dtype if x.dtype.is_floating_point else torch.get_default_dtype())


def _polygamma(order: Any, x: Any) -> Any:
    like = _like_with_floats(x)
    return like if like is NotImplemented else allocated([like], like.dtype)


def _cross_entropy(x: Any, target: Any, weight: Any = None, reduction: int = 1) -> Any:
    """Losses of elements, one by one, into memory like that of the probabilities."""
    told = reduction == 0 and x.dtype.is_floating_point and x.shape == target.shape
    return laid_like(x, x.dtype) if told else NotImplemented


def _fraction_and_exponent(x: Any) -> Any:
    return (laid_like(x, x.dtype), laid_like(x, torch.int32)) if x.dtype.is_floating_point else NotImplemented


def _prelu(x: Any, weight: Any) -> Any:
    if not x.dtype.is_floating_point or weight.dtype is not x.dtype:
        return NotImplemented
    return laid_like(x, x.dtype) if fits_into(weight.shape, x.shape) else NotImplemented


def _renorm(x: Any, p: Any, dim: int, maxnorm: Any) -> Any:
    known = all(type(n) in (int, float) for n in (p, maxnorm)) and p > 0 and maxnorm >= 0
    if not known or x.dim() < 2 or not -x.dim() <= dim < x.dim() or not x.dtype.is_floating_point:
        return NotImplemented
    return row_major(x.shape, x.dtype)


def _normal(mean: Any, std: Any, *, generator: Any = None) -> Any:
    if not mean.dtype.is_floating_point or std.dtype is not mean.dtype:
        return NotImplemented
    return row_major(broadcast([mean.shape, std.shape]), mean.dtype)


def _drawn(x: Any, generator: Any = None) -> Any:
    """Numbers drawn by others, in the usual order whatever theirs."""
    return row_major(x.shape, x.dtype) if x.dtype.is_floating_point else NotImplemented


def _drawn_around(mean: Any, std: Any, *, generator: Any = None) -> Any:
    return _drawn(std)


def _diag_embed(x: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    rank = x.dim() + 1
    if x.dim() < 1 or not all(-rank <= d < rank for d in (dim1, dim2)) or (dim1 - dim2) % rank == 0:
        return NotImplemented
    *shape, size = x.shape
    for d in sorted((dim1 % rank, dim2 % rank)):
        shape.insert(d, size + abs(offset))
    return row_major(shape, x.dtype)


def _rot90(x: Any, k: int = 1, dims: Sequence[int] = (0, 1)) -> Any:
    """A flip, which lies as what it flips, and a view that swaps the two dims."""
    rank = x.dim()
    if len(dims) != 2 or not all(-rank <= d < rank for d in dims) or (dims[0] - dims[1]) % rank == 0:
        return NotImplemented
    if k % 4 == 0:
        return row_major(x.shape, x.dtype)
    flipped = laid_like(x, x.dtype)
    if k % 2 == 0:
        return flipped
    if isinstance(flipped, Tensor):
        return flipped.transpose(*dims)
    first, second = (d % rank for d in dims)
    order = [second if d == first else first if d == second else d for d in range(rank)]
    return Geometry(x.dtype, [flipped.shape[d] for d in order], [flipped.strides[d] for d in order])


def _dropped_gradient(gradient: Any, mask: Any, scale: Any) -> Any:
    """A product of two, and one with a number."""
    if not gradient.dtype.is_floating_point or mask.dtype is not torch.bool:
        return NotImplemented
    product = allocated([gradient, laid_like(mask, gradient.dtype)], gradient.dtype)
    return allocated([product, scale], gradient.dtype)


def _loss_of_pictures(x: Any, target: Any, weight: Any, reduction: int, ignore_index: Any) -> Any:
    """Losses of places, one by one."""
    if reduction != 0 or x.dim() != 4 or target.dim() != 3 or not x.dtype.is_floating_point:
        return NotImplemented
    sizes = [x.shape[0], *x.shape[2:]]
    if target.dtype is not torch.int64 or list(target.shape) != sizes:
        return NotImplemented
    if weight is not None and (weight.dtype is not x.dtype or list(weight.shape) != [x.shape[1]]):
        return NotImplemented
    return row_major(sizes, x.dtype), row_major((), x.dtype)


def _interpolated(x: Any, size: Sequence[Any], *rest: Any) -> Any:
    """With the channels innermost where strides tell so, also of one channel."""
    if x.dim() != len(size) + 2 or not x.dtype.is_floating_point or 0 in x.shape:
        return NotImplemented
    if any(type(n) is int and n <= 0 for n in size):
        return NotImplemented
    return (channels_last if suggests_channels_last(x) else row_major)([*x.shape[:2], *size], x.dtype)


ALLOCATIONS: dict[Any, Callable[..., Any]] = {
    aten.heaviside.default: _loop_of_one_type,
    aten.polygamma.default: _polygamma,
    aten.nextafter.default: _loop_of_floats,
    aten.igamma.default: _loop_of_floats,
    aten.igammac.default: _loop_of_floats,
    aten.gcd.default: _loop_of_integers,
    aten.lcm.default: _loop_of_integers,
    aten.bitwise_left_shift.Tensor: _loop_of_integers,
    aten.bitwise_right_shift.Tensor: _loop_of_integers,
    aten.complex.default: _complex_of_two,
    aten.polar.default: _complex_of_two,
    aten.deg2rad.default: _like_with_floats,
    aten.rad2deg.default: _like_with_floats,
    aten.binary_cross_entropy.default: _cross_entropy,
    aten.frexp.Tensor: _fraction_and_exponent,
    aten._prelu_kernel.default: _prelu,
    aten.renorm.default: _renorm,
    aten.normal.Tensor_Tensor: _normal,
    aten.normal.float_Tensor: _drawn_around,
    aten.poisson.default: _drawn,
    aten._standard_gamma.default: _drawn,
    aten.diag_embed.default: _diag_embed,
    aten.rot90.default: _rot90,
    aten.native_dropout_backward.default: _dropped_gradient,
    aten.nll_loss2d_forward.default: _loss_of_pictures,
    aten.upsample_bilinear2d.default: _interpolated,
    aten.upsample_bicubic2d.default: _interpolated,
    aten.upsample_trilinear3d.default: _interpolated,
}
