"""Metadata rules of operators that are not elementwise, as functions of plain meta tensors.

Each gives new meta tensors with the sizes, strides and type that the CPU kernel gives, or NotImplemented
where it does not know; it may raise where the call is wrong (PyTorch then says what is wrong).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from braze.graph.nodes.specs import HALVES
from braze.graph.rules.allocations import ALLOCATIONS
from braze.graph.rules.elementwise import allocated, broadcast, fits_into, laid_like, where
from braze.graph.rules.fourier_rules import TRANSFORMS
from braze.graph.rules.gradient_rules import GRADIENTS
from braze.graph.rules.layout_rules import (
    LAYOUTS,
    LAYOUTS_OF_CPU,
    channels_last,
    convolved,
    fills_channels_last,
    joined,
    row_major,
    suggests_channels_last,
    windows,
)
from braze.graph.sizes.extents import TENSORS, Extent, Geometry, is_symbolic

aten = torch.ops.aten
Tensor = torch.Tensor


def _layer_norm(x: Tensor, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Any:
    lead = x.dim() - len(shape)
    if list(x.shape[lead:]) != list(shape) or not shape:
        return NotImplemented
    parameters = [p for p in (weight, bias) if p is not None]
    if any(p.dtype is not x.dtype or list(p.shape) != list(shape) for p in parameters):
        return NotImplemented
    statistics = [*x.shape[:lead], *[1] * len(shape)]
    return row_major(x.shape, x.dtype), row_major(statistics, x.dtype), row_major(statistics, x.dtype)


def _embedding(weight: Tensor, indices: Tensor, *rest: Any) -> Any:
    if weight.dim() != 2 or indices.dtype not in (torch.int64, torch.int32):
        return NotImplemented
    return row_major([*indices.shape, weight.shape[1]], weight.dtype)


def _softmax(x: Tensor, dim: int, half_to_float: bool) -> Any:
    if half_to_float or not x.is_contiguous() or not -max(x.dim(), 1) <= dim < max(x.dim(), 1):
        return NotImplemented
    return row_major(x.shape, x.dtype)


def _var_mean(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    if not x.dtype.is_floating_point:
        return NotImplemented
    mean = _reduced(x, dim, keepdim, x.dtype)
    return row_major(mean.shape, x.dtype), mean


def _variance(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    made = _var_mean(x, dim, correction=correction, keepdim=keepdim)
    return made if made is NotImplemented else made[0]


def _convolution(
    x: Tensor,
    weight: Tensor,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    extra: Any,
    groups: int,
) -> Any:
    rank, of_two = weight.dim() - 2, x.dtype is not weight.dtype
    if transposed or x.dim() != weight.dim() or rank not in (1, 2, 3):
        return NotImplemented
    if x.shape[1] != weight.shape[1] * groups or weight.shape[0] % groups or (x.numel() == 0 and not of_two):
        return NotImplemented
    # two types are multiplied where there are no channels, into the input's by PyTorch's rule before 2.13
    if of_two and (x.shape[1] != 0 or bias is not None):
        return NotImplemented
    stride, padding, dilation = (list(v) * (rank if len(v) == 1 else 1) for v in (stride, padding, dilation))
    sizes = windows(x, weight.shape[2:], stride, padding, dilation)
    if any(n <= 0 for n in sizes) or (bias is not None and list(bias.shape) != [weight.shape[0]]):
        return NotImplemented
    if of_two:
        return row_major([x.shape[0], 0, *sizes], torch.promote_types(x.dtype, weight.dtype))
    return convolved(x, weight, [x.shape[0], weight.shape[0], *sizes])


def _max_pool2d(
    x: Tensor,
    kernel: Any,
    stride: Any = (),
    padding: Any = (0,),
    dilation: Any = (1,),
    ceil_mode: bool = False,
) -> Any:
    if x.dim() != 4 or ceil_mode or not x.is_contiguous() or suggests_channels_last(x) or 0 in x.shape:
        return NotImplemented
    kernel, padding, dilation = (list(v) * (2 if len(v) == 1 else 1) for v in (kernel, padding, dilation))
    stride = list(stride) * (2 if len(stride) == 1 else 1) or kernel
    sizes = windows(x, kernel, stride, padding, dilation)
    if any(n <= 0 for n in sizes) or any(2 * p > k for p, k in zip(padding, kernel)):
        return NotImplemented
    made = [*x.shape[:2], *sizes]
    return row_major(made, x.dtype), row_major(made, torch.int64)


def _max_unpool2d(x: Tensor, indices: Tensor, size: Sequence[int]) -> Any:
    if x.dim() != 4 or x.shape != indices.shape or len(size) != 2 or not x.numel() or min(size) <= 0:
        return NotImplemented
    if not suggests_channels_last(x):
        return NotImplemented
    made = [*x.shape[:2], *size]
    return torch.empty(made, dtype=x.dtype, device="meta", memory_format=torch.channels_last)


def _batch_norm(
    x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> Any:
    if x.dim() < 2 or (weight is not None and weight.dtype is not x.dtype):
        return NotImplemented
    saved = [x.shape[1] if training else 0]
    statistics = row_major(saved, x.dtype), row_major(saved, x.dtype)
    if x.is_contiguous():
        return NotImplemented if training else (row_major(x.shape, x.dtype), *statistics)
    if not suggests_channels_last(x):
        made = channels_last if fills_channels_last(x) else row_major
        return made(x.shape, x.dtype), *statistics
    if isinstance(x, Geometry):
        return NotImplemented
    return channels_last(x.shape, x.dtype), *statistics


def _batch_norm_functional(
    x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> Any:
    """As the form that writes the running statistics, which are results here."""
    made = _batch_norm(x, weight, bias, mean, var, training, momentum, eps)
    if made is NotImplemented:
        return NotImplemented
    return *made, row_major(mean.shape, mean.dtype), row_major(var.shape, var.dtype)


def _adaptive_avg_pool2d(x: Tensor, size: Sequence[int]) -> Any:
    if not x.is_contiguous() or x.dim() not in (3, 4) or x.is_contiguous(memory_format=torch.channels_last):
        return NotImplemented
    return row_major([*x.shape[:-2], *size], x.dtype)


def _flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    attn_mask: Any = None,
    scale: Any = None,
) -> Any:
    """The CPU kernel: its result is laid out as the query is."""
    if q.dim() != 4 or q.shape[-1] != v.shape[-1]:
        return NotImplemented
    batch, heads, length, _ = q.shape
    if is_symbolic(q.shape) and attn_mask is not None:
        whole = (batch, heads, length, k.shape[2])
        given = attn_mask.shape
        if any(n != 1 and n != m for n, m in zip(reversed(given), reversed(whole))):
            return NotImplemented
    narrow = q.dtype in HALVES
    statistics = row_major([batch, length, heads], torch.float32 if narrow else q.dtype)
    return laid_like(q, q.dtype), statistics.transpose(1, 2)


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Any = None,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    attn_mask: Any = None,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Any:
    """A GPU's fused kernels: the result lies as the query does. PyTorch's fakes take the composition for what runs."""
    if q.dim() != 4 or v.dim() != 4 or q.shape[-1] != v.shape[-1]:
        return NotImplemented
    return laid_like(q, q.dtype)


def _like(x: Tensor, *value: Any, **options: Any) -> Any:
    """A copy, a cast, or another tensor of the same sizes; keeps the order of the dims unless told otherwise."""
    dtype = options.pop("dtype", None) or x.dtype
    form = options.pop("memory_format", None)
    options.pop("non_blocking", None)
    if any(v not in (None, False, torch.strided) for v in options.values()) or form not in (
        None,
        torch.preserve_format,
        torch.contiguous_format,
    ):
        return NotImplemented
    return row_major(x.shape, dtype) if form is torch.contiguous_format else laid_like(x, dtype)


def _like_floats(x: Tensor, **options: Any) -> Any:
    """Random numbers for another tensor's places."""
    return _like(x, **options) if (options.get("dtype") or x.dtype).is_floating_point else NotImplemented


def _filled(x: Tensor, value: Any) -> Any:
    return laid_like(x, x.dtype) if _fits(value, x.dtype) else NotImplemented


def _index_put(x: Tensor, indices: Sequence[Any], values: Tensor, accumulate: bool = False) -> Any:
    """A copy, in which places are written."""
    places = LAYOUTS[aten.index.Tensor](x, indices)
    if places is NotImplemented or values.dtype is not x.dtype:
        return NotImplemented
    return laid_like(x, x.dtype) if fits_into(values.shape, places.shape) else NotImplemented


def _product(rank: int, a: Tensor, b: Tensor) -> Any:
    """Of matrices, or of a batch of them."""
    if a.dim() != rank or b.dim() != rank or a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        return NotImplemented
    return row_major([*a.shape[:-1], b.shape[-1]], a.dtype) if a.dtype is b.dtype else NotImplemented


def _added(rank: int, c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """The product's metadata, if ``c`` can be broadcast to it."""
    product = _product(rank, a, b)
    if product is NotImplemented or c.dtype is not product.dtype or c.dim() > product.dim():
        return NotImplemented
    fits = all(n in (1, m) for n, m in zip(reversed(c.shape), reversed(product.shape)))
    return product if fits else NotImplemented


def _by_vector(a: Tensor, x: Tensor, y: Any = None) -> Any:
    """A matrix times a vector, which gives the type: of several types PyTorch takes, before 2.13, what has no elements."""
    fits = a.dim() == 2 and x.dim() == 1 and a.shape[1] == x.shape[0]
    added = y is None or fits_into(y.shape, a.shape[:1])
    return row_major(a.shape[:1], x.dtype) if fits and added else NotImplemented


def _added_by_vector(y: Tensor, a: Tensor, x: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """A processor's kernel gives a single number as it is, beside a matrix without elements."""
    made = _by_vector(a, x, y)
    alone = made is not NotImplemented and all(n == 1 for n in y.shape) and beta != 0
    return row_major(y.shape, x.dtype) if alone and 0 in (*a.shape,) else made


def _linear(x: Tensor, weight: Tensor, bias: Any = None) -> Any:
    if x.dim() < 2 or weight.dim() != 2 or x.shape[-1] != weight.shape[1] or x.dtype is not weight.dtype:
        return NotImplemented
    if bias is not None and (bias.dtype is not x.dtype or list(bias.shape) != [weight.shape[0]]):
        return NotImplemented
    # a batch that is no single run of rows is multiplied in its own order: leave it to PyTorch
    return (
        row_major([*x.shape[:-1], weight.shape[0]], x.dtype)
        if x.is_contiguous() or x.dim() == 2
        else NotImplemented
    )


# -- reductions ------------------------------------------------------------------------------------


def _kept_dims(x: Tensor, dim: Any) -> set[int]:
    """The dims that a reduction over ``dim`` goes over; None and an empty list mean all."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return set(range(x.dim()))
    dims = [dim] if isinstance(dim, int) else dim
    rank = max(x.dim(), 1)
    if any(not -rank <= d < rank for d in dims):
        raise IndexError("no such dim")
    over = {d % rank for d in dims}
    if len(over) < len(dims):
        raise RuntimeError("a dim twice")
    return over


def _reduced(x: Tensor, dim: Any, keepdim: bool, dtype: torch.dtype) -> Tensor:
    over = _kept_dims(x, dim)
    sizes = [1 if d in over else n for d, n in enumerate(x.shape) if keepdim or d not in over]
    return row_major(sizes, dtype)


def _summed(x: Tensor) -> torch.dtype:
    return x.dtype if x.dtype.is_floating_point or x.dtype.is_complex else torch.int64


def _sum(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return _reduced(x, dim, keepdim, dtype or _summed(x))


def _mean(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    wanted = dtype or x.dtype
    return _reduced(x, dim, keepdim, wanted) if wanted.is_floating_point else NotImplemented


def _extreme(x: Tensor, dim: Any = (), keepdim: bool = False) -> Any:
    return _reduced(x, dim, keepdim, x.dtype) if x.numel() and not x.is_complex() else NotImplemented


def _soft_margin_loss(x: Tensor, target: Tensor, reduction: int = 1) -> Any:
    """In the type of x, whatever the target's; PyTorch's rule promotes."""
    if not (x.dtype.is_floating_point and target.dtype.is_floating_point) or x.shape != target.shape:
        return NotImplemented
    return row_major((), x.dtype) if reduction else allocated([x], x.dtype)


def _huber_loss(x: Tensor, target: Tensor, reduction: int = 1, delta: float = 1.0) -> Any:
    """In the type of x and laid out as it, into which eager writes where it has the result's shape; PyTorch's rule promotes."""
    if not x.dtype.is_floating_point or target.dtype.is_complex or not delta > 0:
        return NotImplemented
    if reduction:
        return row_major((), x.dtype)
    return laid_like(x, x.dtype) if fits_into(target.shape, x.shape) else allocated([x, target], x.dtype)


def _cross_entropy_with_logits(
    x: Tensor, target: Tensor, weight: Any = None, pos_weight: Any = None, reduction: int = 1
) -> Any:
    """In the type and order of the target, into which eager writes; PyTorch's rule promotes numbers without dims before 2.13."""
    if not (x.dtype.is_floating_point and target.dtype.is_floating_point) or x.shape != target.shape:
        return NotImplemented
    return row_major((), target.dtype) if reduction else laid_like(target, target.dtype)


def _position(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    if not x.numel() or x.is_complex() or x.dtype is torch.bool:  # eager's errors are the kernels' to word
        return NotImplemented
    return _reduced(x, dim, keepdim, torch.int64)


def _vector_norm(
    x: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """PyTorch's own keeps dims of one element on 2.11, whether asked to or not."""
    empty = any(x.shape[d] == 0 for d in _kept_dims(x, dim)) if x.dim() else False
    # what has no least or greatest eager refuses
    if not x.dtype.is_floating_point or (empty and not 0 <= ord < math.inf):
        return NotImplemented
    return _reduced(x, dim, keepdim, dtype or x.dtype)


def _truth(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    if x.dtype is torch.uint8 or (isinstance(dim, (list, tuple)) and not dim):
        return NotImplemented
    return _reduced(x, dim, keepdim, torch.bool)


def _running(x: Tensor, dim: int, *, dtype: Any = None) -> Any:
    _kept_dims(x, dim)
    return row_major(x.shape, dtype or _summed(x)) if x.is_contiguous() else NotImplemented


# -- moves -------------------------------------------------------------------------------------------


def _with_part(x: Tensor, *others: Any, **words: Any) -> Any:
    """A copy of what is repeated in memory has places of its own, which PyTorch's fake on 2.11 has not."""
    repeated = any(
        type(step) is int and step == 0 and n > 1 for step, n in zip(x.stride(), x.shape, strict=True)
    )
    return _like(x) if repeated else NotImplemented


def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Any:
    first = tensors[0]
    if any(t.dim() != first.dim() or t.dtype is not first.dtype for t in tensors):
        return NotImplemented
    if first.dim() == 0 or not -first.dim() <= dim < first.dim() or any(0 in t.shape for t in tensors):
        return NotImplemented
    dim %= first.dim()
    if any(n != m for t in tensors[1:] for d, (n, m) in enumerate(zip(t.shape, first.shape)) if d != dim):
        return NotImplemented
    return joined(tensors, dim)


def _masked_fill(x: Tensor, mask: Tensor, value: Any) -> Any:
    """A row-major copy that is then written to."""
    if mask.dtype is not torch.bool or not _fits(value, x.dtype):
        return NotImplemented
    return row_major(broadcast([x.shape, mask.shape]), x.dtype)


def _fits(value: Any, dtype: torch.dtype) -> bool:
    """Whether a number, or the one in a tensor, is surely one that a tensor can hold; PyTorch refuses what overflows."""
    if isinstance(value, TENSORS):
        return value.dim() == 0 and torch.can_cast(value.dtype, dtype)
    if dtype.is_complex or dtype is torch.bool:
        return type(value) in (bool, int, float)
    if type(value) not in (bool, int, float):
        return False
    if dtype.is_floating_point:
        return not math.isfinite(value) or abs(value) <= torch.finfo(dtype).max
    return math.isfinite(value) and torch.iinfo(dtype).min <= value <= torch.iinfo(dtype).max


def _gather(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Any:
    if index.dtype is not torch.int64 or index.dim() != x.dim() or x.dim() == 0:
        return NotImplemented
    dim %= x.dim()
    if any(d != dim and n > m for d, (n, m) in enumerate(zip(index.shape, x.shape))):
        return NotImplemented
    return row_major(index.shape, x.dtype)


def _index_select(x: Tensor, dim: int, index: Tensor) -> Any:
    if (
        index.dim() != 1
        or index.dtype not in (torch.int64, torch.int32)
        or x.dim() == 0
        or not x.is_contiguous()
    ):
        return NotImplemented
    sizes = list(x.shape)
    sizes[dim] = index.shape[0]
    return row_major(sizes, x.dtype)


def _multilabel_margin(x: Tensor, target: Tensor, reduction: int) -> Any:
    """The one loss of what is no batch has no dimensions, where PyTorch's own meta function gives it one."""
    if reduction or x.dim() != 1 or not x.numel() or not x.is_floating_point():
        return NotImplemented
    if target.shape != x.shape or target.dtype is not torch.int64:
        return NotImplemented
    return row_major([], x.dtype), row_major(x.shape, x.dtype)


# -- new tensors -------------------------------------------------------------------------------------


def _sized(x: Tensor, size: Sequence[int], *value: Any, dtype: Any = None, **options: Any) -> Any:
    if any(v not in (None, False, torch.strided) for v in options.values()) or any(n < 0 for n in size):
        return NotImplemented
    return row_major(size, dtype or x.dtype)


def _default(size: Sequence[int], *, dtype: Any = None, memory_format: Any = None, **options: Any) -> Any:
    if memory_format not in (None, torch.contiguous_format) or any(n < 0 for n in size):
        return NotImplemented
    return row_major(size, dtype or torch.get_default_dtype())


def _full(size: Sequence[int], value: Any, *, dtype: Any = None, **options: Any) -> Any:
    if dtype is None:
        dtype = {bool: torch.bool, int: torch.int64, float: torch.get_default_dtype()}.get(type(value))
    return _default(size, dtype=dtype) if dtype is not None else NotImplemented


def _arange(*limits: Any, dtype: Any = None, **options: Any) -> Any:
    start, end, step = {1: (0, *limits, 1), 2: (*limits, 1), 3: limits}[len(limits)]
    if type(end) is Extent and (start, step) == (0, 1) and end >= 0:
        return row_major([end], dtype or torch.int64)
    if any(type(n) is not int for n in (start, end, step)) or step == 0 or (end - start) * step < 0:
        return NotImplemented
    return row_major([-((start - end) // step)], dtype or torch.int64)


#: factories: functions of sizes, without the device
FACTORIES: dict[Any, Callable[..., Any]] = {
    aten.zeros.default: _default,
    aten.ones.default: _default,
    aten.empty.memory_format: _default,
    aten.full.default: _full,
    aten.scalar_tensor.default: lambda value, *, dtype=None, **options: _default([], dtype=dtype),
    aten.arange.default: _arange,
    aten.arange.start: _arange,
    aten.arange.start_step: _arange,
}


#: rules that tell what the CPU's kernels give, which a GPU's do not: statistics of another dtype, other layouts
CPU_ONLY = {
    *LAYOUTS_OF_CPU,
    *TRANSFORMS,
    aten.native_layer_norm.default,
    aten.native_batch_norm.default,
    aten._native_batch_norm_legit_functional.default,
    aten._native_batch_norm_legit.no_stats,
    aten.convolution.default,
    aten.convolution_backward.default,
    aten.max_unpool2d.default,
    aten.addmv.default,
}

#: rules that tell what a GPU's kernels give
GPU_ONLY = {aten.scaled_dot_product_attention.default}

RULES: dict[Any, Callable[..., Any]] = {
    aten.scaled_dot_product_attention.default: _attention,
    **LAYOUTS,
    **TRANSFORMS,
    **ALLOCATIONS,
    **GRADIENTS,
    aten.where.self: where,
    aten.clone.default: _like,
    aten._to_copy.default: _like,
    aten.empty_like.default: _like,
    aten.zeros_like.default: _like,
    aten.ones_like.default: _like,
    aten.full_like.default: _like,
    aten.rand_like.default: _like_floats,
    aten.randn_like.default: _like_floats,
    aten.index_put.default: _index_put,
    aten.fill.Scalar: _filled,
    aten.mm.default: partial(_product, 2),
    aten.addmm.default: partial(_added, 2),
    aten.mv.default: _by_vector,
    aten.addmv.default: _added_by_vector,
    aten.bmm.default: partial(_product, 3),
    aten.baddbmm.default: partial(_added, 3),
    aten.linear.default: _linear,
    aten.native_layer_norm.default: _layer_norm,
    aten.embedding.default: _embedding,
    aten._softmax.default: _softmax,
    aten._log_softmax.default: _softmax,
    aten.var_mean.correction: _var_mean,
    aten.var.correction: _variance,
    aten.std.correction: _variance,
    aten.convolution.default: _convolution,
    aten.native_batch_norm.default: _batch_norm,
    aten._native_batch_norm_legit_functional.default: _batch_norm_functional,
    aten._native_batch_norm_legit.no_stats: lambda x, weight, bias, *rest: _batch_norm(
        x, weight, bias, None, None, *rest
    ),
    aten._adaptive_avg_pool2d.default: _adaptive_avg_pool2d,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _flash_attention,
    aten.soft_margin_loss.default: _soft_margin_loss,
    aten.huber_loss.default: _huber_loss,
    aten.binary_cross_entropy_with_logits.default: _cross_entropy_with_logits,
    aten.sum.default: _sum,
    aten.sum.dim_IntList: _sum,
    aten.mean.default: _mean,
    aten.mean.dim: _mean,
    aten.amax.default: _extreme,
    aten.amin.default: _extreme,
    aten.argmax.default: _position,
    aten.argmin.default: _position,
    aten.linalg_vector_norm.default: _vector_norm,
    aten.any.default: _truth,
    aten.any.dim: _truth,
    aten.all.default: _truth,
    aten.all.dim: _truth,
    aten.cumsum.default: _running,
    aten.cat.default: _cat,
    aten.select_scatter.default: _with_part,
    aten.slice_scatter.default: _with_part,
    aten.diagonal_scatter.default: _with_part,
    aten.max_pool2d_with_indices.default: _max_pool2d,
    aten.max_unpool2d.default: _max_unpool2d,
    aten.masked_fill.Scalar: _masked_fill,
    aten.masked_fill.Tensor: _masked_fill,
    aten.gather.default: _gather,
    aten.multilabel_margin_loss_forward.default: _multilabel_margin,
    aten.index_select.default: _index_select,
    aten.new_zeros.default: _sized,
    aten.new_ones.default: _sized,
    aten.new_empty.default: _sized,
    aten.new_full.default: _sized,
}
