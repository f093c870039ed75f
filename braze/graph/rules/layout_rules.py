"""Rules of operators whose kernels on the CPU pick a layout that the operand's does not tell, and PyTorch's fakes pick another.

As in ``rules.py``: functions of plain meta tensors, which give new ones, or NotImplemented.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze.graph.private import torch_compat
from braze.graph.rules.elementwise import allocated, broadcast, laid_like, points_elsewhere
from braze.graph.sizes.extents import TENSORS, Extent, Geometry, is_symbolic

aten = torch.ops.aten
Tensor = torch.Tensor

#: dims of a picture -> the layout with its channels innermost
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def row_major(sizes: Sequence[Any], dtype: torch.dtype) -> Any:
    """A new tensor in the usual order."""
    if is_symbolic(sizes):
        return Geometry(dtype, sizes, None)
    return torch.empty(list(sizes), dtype=dtype, device="meta")


def channels_last(sizes: Sequence[Any], dtype: torch.dtype) -> Any:
    """A new tensor with its channels innermost."""
    if not is_symbolic(sizes):
        return torch.empty(list(sizes), dtype=dtype, device="meta", memory_format=CHANNELS_LAST[len(sizes)])
    steps: list[Any] = [sizes[1]]
    for n in reversed(sizes[2:]):
        steps.append(steps[-1] * n)
    return Geometry(dtype, sizes, (steps.pop(), 1, *reversed(steps)))


def suggests_channels_last(t: Tensor) -> bool:
    """Whether eager takes a tensor's strides for channels-last; not where one channel makes both orders possible."""
    return _channels_innermost(t.shape, t.stride())


def _channels_innermost(sizes: Sequence[Any], strides: Sequence[Any]) -> bool:
    if len(sizes) not in CHANNELS_LAST or strides[1] == 0:
        return False
    least = 0
    for d in (1, *range(len(sizes) - 1, 1, -1), 0):
        if sizes[d] == 0 or strides[d] < least or (d == 0 and least == strides[1]):
            return False
        least = strides[d] * max(sizes[d], 1)
    return True


def fills_channels_last(t: Tensor) -> bool:
    """Whether a picture lies row by row with its channels innermost, wherever strides of single rows, pictures or channels point."""
    step: Any = 1
    if t.dim() not in CHANNELS_LAST:
        return False
    for d in (1, *range(t.dim() - 1, 1, -1), 0):
        if t.shape[d] != 1 and t.stride(d) != step:
            return False
        step = step * t.shape[d]
    return True


def windows(x: Tensor, kernel: Any, stride: list[int], padding: list[int], dilation: list[int]) -> list[int]:
    """How many windows there are along each dim behind those of the batch and the channels."""
    each = zip(x.shape[2:], kernel, stride, padding, dilation, strict=True)
    return [(n + 2 * around - gap * (k - 1) - 1) // step + 1 for n, k, step, around, gap in each]


def convolved(x: Tensor, weight: Tensor, sizes: Sequence[Any]) -> Any:
    """A convolution's result: channels-last if an operand is. Of sequences, pictures one row high, the weight alone tells."""
    if weight.dim() == 3:
        (out, channels, width), (far, near, step) = weight.shape, weight.stride()
        if not _channels_innermost((out, channels, 1, width), (far, near, width * step, step)):
            return row_major(sizes, x.dtype)
        made: Any = torch.empty((sizes[0], sizes[2], sizes[1]), dtype=x.dtype, device="meta")
        return made.transpose(1, 2)
    if suggests_channels_last(x) or suggests_channels_last(weight):
        return channels_last(sizes, x.dtype)
    return row_major(sizes, x.dtype)


def _power_of_number(base: Any, exponent: Tensor) -> Any:
    if type(base) is Extent:
        return NotImplemented
    typed = exponent.stand_in() if isinstance(exponent, Geometry) else exponent
    return row_major(exponent.shape, torch.result_type(base, typed))


def _power_by_truth(x: Tensor, exponent: Any) -> Any:
    """Of truth values one: PyTorch's fakes count the exponent as an integer, its kernels do not."""
    return allocated([x], torch.bool) if type(exponent) is bool and x.dtype is torch.bool else NotImplemented


def _ldexp(x: Tensor, exponent: Tensor) -> Any:
    """A product with a power of 2, which lies row by row; before 2.13 it has the type of such a product, too."""
    one, other = (t.stand_in() if isinstance(t, Geometry) else t for t in (x, exponent))
    dtype = torch.result_type(one, other)
    if torch_compat.has_composite_kernel(aten.ldexp.Tensor):
        dtype = torch.result_type(
            one, torch.empty(other.shape, dtype=torch.result_type(2.0, other), device="meta")
        )
    power = row_major(exponent.shape, dtype)
    known = dtype.is_floating_point or dtype.is_complex
    return allocated([x, power], dtype if known else torch.get_default_dtype())


def _loss(x: Tensor, target: Tensor, reduction: int = 1, *numbers: float) -> Any:
    """One loop over both, of which PyTorch's fakes say what parts of it would be laid out as."""
    if reduction or x.dtype is not target.dtype or not x.dtype.is_floating_point:
        return NotImplemented
    return allocated([x, target], x.dtype)


def _is_in(elements: Any, tested: Any, **options: Any) -> Any:
    return row_major(elements.shape if isinstance(elements, TENSORS) else (), torch.bool)


def _truth_of_each(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """Of no dimensions: a truth value for each element."""
    if dim is None or len(dim):
        return NotImplemented
    return row_major(x.shape, torch.uint8 if x.dtype is torch.uint8 else torch.bool)


def _log_sigmoid(x: Tensor) -> Any:
    if not x.dtype.is_floating_point:
        return NotImplemented
    return row_major(x.shape, x.dtype), row_major(x.shape, x.dtype)


def _glu(x: Any, dim: int = -1) -> Any:
    """One loop over two halves, whose dims of equal strides it orders by their sizes."""
    size = x.shape[dim] if -x.dim() <= dim < x.dim() else None
    if size is None or size % 2 != 0 or not x.dtype.is_floating_point:
        return NotImplemented
    half = _narrowed(x, dim, size // 2)
    return allocated([half, half], x.dtype)


def _glu_backward(grad: Any, x: Any, dim: int) -> Any:
    """As large as the operand, of which PyTorch's fake says twice a half of it: of sizes that vary that is another formula."""
    if not x.dtype.is_floating_point or grad.dtype is not x.dtype:
        return NotImplemented
    return row_major(x.shape, x.dtype)


def _has_groups(x: Tensor, groups: int) -> bool:
    """Whether pictures have channels of so many groups of a size."""
    return x.dim() >= 3 and type(groups) is int and groups >= 1 and x.shape[1] % groups == 0


def _channel_shuffle(x: Tensor, groups: int) -> Any:
    """Memory of its own, where the views that it could be made of would give back the operand's; of what has no elements as that lies."""
    if not _has_groups(x, groups):
        return NotImplemented
    if 0 in x.shape:
        return laid_like(x, x.dtype)
    if suggests_channels_last(x):
        return channels_last(x.shape, x.dtype)
    return row_major(x.shape, x.dtype)


def _channel_shuffle_on_gpu(x: Tensor, groups: int) -> Any:
    """Row by row; what lies so and keeps its channels' order is the operand's memory, as PyTorch's fake has it of any."""
    if not _has_groups(x, groups) or x.numel() == 0:
        return NotImplemented
    stays = groups == 1 or x.shape[1] == groups
    return NotImplemented if stays and x.is_contiguous() else row_major(x.shape, x.dtype)


def _pixel_unshuffle(x: Any, factor: int) -> Any:
    """Of what has no elements a copy of that, in its sizes."""
    if x.dim() < 3 or factor <= 0 or 0 not in x.shape or any(n % factor for n in x.shape[-2:]):
        return NotImplemented
    return laid_like(x, x.dtype)


def _group_norm(
    x: Any, weight: Any, bias: Any, samples: Any, channels: Any, spread: Any, groups: int, eps: float
) -> Any:
    """Channels-last as the picture, also of one picture alone, where PyTorch's fake copies the strides of its channels."""
    if any(p is not None and p.dtype is not x.dtype for p in (weight, bias)) or not x.dtype.is_floating_point:
        return NotImplemented
    made = (channels_last if suggests_channels_last(x) else row_major)(x.shape, x.dtype)
    return made, row_major([samples, groups], x.dtype), row_major([samples, groups], x.dtype)


def _bags(
    weight: Any, indices: Any, offsets: Any, by_counts: bool = False, mode: int = 0, sparse: bool = False,
    scales: Any = None, ends: bool = False, padding: int = -1,
) -> Any:  # fmt: skip
    """Of sums of bfloat16 that leave nothing out the kernel does not say which bag a row is in; PyTorch's fake knows that of wider types."""
    sums = mode == 0 and padding < 0 and weight.dtype is torch.bfloat16
    if not sums or weight.dim() != 2 or indices.dim() != 1 or offsets.dim() != 1:
        return NotImplemented
    count = offsets.shape[0] - 1 if ends else offsets.shape[0]
    of_bags = [row_major(sizes, offsets.dtype) for sizes in ([0], [count], [count])]
    return row_major([count, weight.shape[1]], weight.dtype), *of_bags


def _interpolation_gradient(gradient: Tensor, size: Sequence[Any], of: Sequence[Any], *rest: Any) -> Any:
    return row_major(of, gradient.dtype)


def _interpolation_gradient_as_laid_out(
    gradient: Tensor, size: Sequence[Any], of: Sequence[Any], *rest: Any
) -> Any:
    """Channels-last as the gradient that comes in."""
    return (channels_last if suggests_channels_last(gradient) else row_major)(of, gradient.dtype)


def _interpolated_sequence(x: Tensor, size: Sequence[Any], *rest: Any) -> Any:
    return row_major([*x.shape[:2], *size], x.dtype) if x.dim() == 3 and len(size) == 1 else NotImplemented


def joined(parts: Sequence[Any], dim: int) -> Any:
    """What ``cat`` makes of tensors that fit: channels-last where all of them are, also those without elements."""
    sizes = list(parts[0].shape)
    sizes[dim] = sum(t.shape[dim] for t in parts)
    return (channels_last if all(map(suggests_channels_last, parts)) else row_major)(sizes, parts[0].dtype)


def _roll(x: Any, shifts: Any, dims: Any = ()) -> Any:
    """Dimension by dimension two parts are put together, as ``cat`` lays them out."""
    known = all(-x.dim() <= dim < x.dim() for dim in dims)
    if not dims or not known or 0 in x.shape or len(dims) != len(shifts):
        return NotImplemented
    if x.dim() not in CHANNELS_LAST or (x.is_contiguous() and not suggests_channels_last(x)):
        return row_major(x.shape, x.dtype)
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[dim]
        start = (size - shift) % size
        x = joined([_narrowed(x, dim, n) for n in (size - start, start)], dim)
    return x


def _narrowed(x: Any, dim: int, size: Any) -> Any:
    """A part of a tensor, from wherever in a dim."""
    shape = list(x.shape)
    shape[dim] = size
    return _laid(x, shape, x.stride())


def _index(x: Any, indices: Sequence[Any]) -> Any:
    """Looked up by one loop over what is indexed, which has strides of 0 along the indices' dims, and the indices beside it."""
    places = [d for d, i in enumerate(indices) if i is not None]
    given = [i for i in indices if i is not None]
    if not places or len(indices) > x.dim() or any(i.dtype is not torch.int64 for i in given) or 0 in x.shape:
        return NotImplemented
    if len(given) > 1 and not all(i.is_contiguous() for i in given):
        return NotImplemented  # a GPU copies those whose strides differ
    middle = list(broadcast([i.shape for i in given]))
    neighbours = places == list(range(places[0], places[-1] + 1))
    first = places[0] if neighbours else 0
    rest = [d for d in range(x.dim()) if d not in places]
    before, after = rest[:first], rest[first:]
    shape = [*(x.shape[d] for d in before), *middle, *(x.shape[d] for d in after)]
    if isinstance(x, Geometry):
        in_rows = not rest or (x.is_contiguous() and not points_elsewhere(x, x.shape))
        contiguous = neighbours and in_rows and all(i.is_contiguous() for i in given)
        if contiguous and not (first and len(middle) != 1):
            return row_major(shape, x.dtype)
        if len(given) > 1 or not (given[0].is_contiguous() or all(n > 1 for n in middle)):
            return NotImplemented
    strides = [*(x.stride(d) for d in before), *[0] * len(middle), *(x.stride(d) for d in after)]
    window: Any = _laid(x, shape, strides)
    beside = [_beside(i, middle, len(before), len(after)) for i in given]
    return allocated([window, *beside], x.dtype)


def _laid(x: Any, shape: Sequence[Any], strides: Sequence[Any]) -> Any:
    if isinstance(x, Geometry):
        return Geometry(x.dtype, shape, strides)
    return torch.empty_strided(shape, strides, dtype=x.dtype, device="meta")


def _beside(index: Any, shape: Sequence[Any], before: int, after: int) -> Any:
    """An index among the dims that are not indexed."""
    whole = [*[1] * before, *shape, *[1] * after]
    if isinstance(index, Geometry):  # one alone, row by row or without dims of one element
        outer, inner = index.numel(), 1
        if (
            not index.is_contiguous()
        ):  # dims of one element lie as a view lays them, beside the outermost and the innermost
            outer, inner = index.shape[0] * index.strides[0], index.strides[-1]
        return Geometry(index.dtype, whole, [*[outer] * before, *index.strides, *[inner] * after])
    return index.expand(shape).reshape(whole)


def _like(x: Any, *rest: Any) -> Any:
    """Memory that is allocated like the operand's before it is filled: dims of one element keep their strides, by which others order theirs."""
    return laid_like(x, x.dtype)


def _angle(x: Any) -> Any:
    """Of complex numbers row by row, whatever these are like: memory that the kernel begins with none of."""
    if not x.dtype.is_complex:
        return NotImplemented
    return row_major(x.shape, x.dtype.to_real())


def _columns_of_windows(
    x: Any, kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> Any:
    """Row by row, where PyTorch's fake is a view that happens to have that shape: of few windows, or of few places in one."""
    plain = all(len(pair) == 2 for pair in (kernel, dilation, padding, stride))
    if x.dim() != 4 or not plain or min(*kernel, *dilation, *stride) <= 0 or min(padding) < 0 or 0 in x.shape:
        return NotImplemented
    across, down = windows(x, kernel, list(stride), list(padding), list(dilation))
    if across <= 0 or down <= 0:
        return NotImplemented
    return row_major([x.shape[0], x.shape[1] * kernel[0] * kernel[1], across * down], x.dtype)


def _sorted(x: Any, /, *rest: Any, **options: Any) -> Any:
    return laid_like(x, x.dtype), laid_like(x, torch.int64)


def _loop_of_floats(x: Any, /, *rest: Any, **options: Any) -> Any:
    """One loop over one operand: what lies row by row, as far as dims of more than one element tell, gives what does."""
    return allocated([x], x.dtype) if x.dtype.is_floating_point else NotImplemented


def _softshrink(x: Any, lambd: float = 0.5) -> Any:
    return NotImplemented if lambd < 0 else _loop_of_floats(x)


def _row_by_row(x: Any, *rest: Any) -> Any:
    """Of what lies row by row, as far as dims of more than one element tell, what does."""
    return row_major(x.shape, x.dtype) if x.is_contiguous() else NotImplemented


def _written_at(x: Any, dim: int, index: Any, source: Any, **options: Any) -> Any:
    """Row by row, whatever the operand is like; what does not fit together is an error, or a shape of its own."""
    if x.dim() != source.dim() or not -x.dim() <= dim < x.dim() or x.dtype is not source.dtype:
        return NotImplemented
    if index.dim() != 1 or index.dtype not in (torch.int32, torch.int64):
        return NotImplemented
    sizes = [*x.shape]
    sizes[dim] = index.shape[0]
    alike = all(n is m or n == m for n, m in zip(sizes, source.shape, strict=True))
    return row_major(x.shape, x.dtype) if alike else NotImplemented


def _padded(x: Any, pad: Sequence[Any], value: Any = 0) -> Any:
    """Row by row; what nothing is added to is cut, and copied as it lies."""
    if len(pad) % 2 or len(pad) > 2 * x.dim():
        return NotImplemented
    sizes = list(x.shape)
    for k in range(len(pad) // 2):
        sizes[-1 - k] += pad[2 * k] + pad[2 * k + 1]
    if not all(n > 0 for n in sizes):
        return NotImplemented
    if x.is_contiguous() and not suggests_channels_last(x):
        return row_major(sizes, x.dtype)
    return NotImplemented if any(n > 0 for n in pad) else laid_like(_laid(x, sizes, x.stride()), x.dtype)


def _reflected(x: Any, pad: Sequence[Any]) -> Any:
    inside = all(n < x.shape[-1 - k // 2] for k, n in enumerate(pad) if k < 2 * x.dim())
    return _padded_around(x, pad) if inside else NotImplemented


def _padded_around(x: Any, pad: Sequence[Any]) -> Any:
    """Padded with what is there: what lies with its second dim innermost stays so, as PyTorch's fakes know of a batch from 2.12 on."""
    if len(pad) > 2 * x.dim() or not suggests_channels_last(x):
        return NotImplemented
    sizes = list(x.shape)
    for k in range(len(pad) // 2):
        sizes[-1 - k] += pad[2 * k] + pad[2 * k + 1]
    return channels_last(sizes, x.dtype) if all(n > 0 for n in sizes) else NotImplemented


#: padding by what is there, of pictures
_AROUND = {
    aten.reflection_pad2d.default: _reflected,
    aten.reflection_pad3d.default: _reflected,
    aten.replication_pad2d.default: _padded_around,
    aten.replication_pad3d.default: _padded_around,
}

LAYOUTS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((aten.nan_to_num.default, aten.flip.default), _like),
    **dict.fromkeys((aten.index_fill.int_Scalar, aten.index_fill.int_Tensor), _like),
    **dict.fromkeys((aten.sort.default, aten.sort.stable), _sorted),
    **dict.fromkeys(
        (
            aten.hardshrink.default,
            aten.threshold.default,
            aten.celu.default,
            aten.round.decimals,
        ),
        _loop_of_floats,
    ),
    **dict.fromkeys((aten.tril.default, aten.triu.default), _row_by_row),
    **dict.fromkeys((aten.index_add.default, aten.index_copy.default), _written_at),
    **_AROUND,
    aten.softshrink.default: _softshrink,
    aten.pow.Scalar: _power_of_number,
    aten.pow.Tensor_Scalar: _power_by_truth,
    aten.ldexp.Tensor: _ldexp,
    **dict.fromkeys((aten.mse_loss.default, aten.smooth_l1_loss.default), _loss),
    aten.index.Tensor: _index,
    aten.angle.default: _angle,
    aten.im2col.default: _columns_of_windows,
    aten.isin.Tensor_Tensor: _is_in,
    aten.isin.Tensor_Scalar: _is_in,
    aten.any.dims: _truth_of_each,
    aten.all.dims: _truth_of_each,
    aten.log_sigmoid_forward.default: _log_sigmoid,
    aten.glu.default: _glu,
    aten.glu_backward.default: _glu_backward,
    aten.channel_shuffle.default: _channel_shuffle,
    aten.pixel_unshuffle.default: _pixel_unshuffle,
    aten.roll.default: _roll,
    aten.constant_pad_nd.default: _padded,
    aten.native_group_norm.default: _group_norm,
    aten._embedding_bag.default: _bags,
    aten.upsample_nearest1d.default: _interpolated_sequence,
    aten._upsample_nearest_exact1d.default: _interpolated_sequence,
    aten.upsample_linear1d.default: _interpolated_sequence,
    aten.upsample_nearest1d_backward.default: _interpolation_gradient,
    aten._upsample_nearest_exact1d_backward.default: _interpolation_gradient,
    aten.upsample_linear1d_backward.default: _interpolation_gradient,
    aten.upsample_bicubic2d_backward.default: _interpolation_gradient,
    aten.upsample_bilinear2d_backward.default: _interpolation_gradient_as_laid_out,
    aten.upsample_trilinear3d_backward.default: _interpolation_gradient_as_laid_out,
}

#: those of them that a GPU lays out in another way
LAYOUTS_OF_CPU = frozenset(
    {
        aten.log_sigmoid_forward.default,
        aten.pixel_unshuffle.default,
        aten.roll.default,
        aten.native_group_norm.default,
        aten._embedding_bag.default,
        *_AROUND,
    }
)

#: what tells of a GPU instead
LAYOUTS_OF_GPU: dict[Any, Callable[..., Any]] = {aten.channel_shuffle.default: _channel_shuffle_on_gpu}
