"""Nearest-neighbour upsampling: by whole factors elements are repeated, else each is looked up; other interpolations stay ATen's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from braze.decomp.registry import decompose
from braze.graph.fakes import torch_composites

aten = torch.ops.aten
Tensor = torch.Tensor


def _source(size: int, wanted: int, scale: float | None, device: torch.device) -> Tensor:
    """For each wanted position, the position that it copies: floor(i · size / wanted), in float32 as eager."""
    step = 1.0 / scale if scale is not None and scale > 0 else size / wanted
    index = aten.arange.start_step(0, wanted, 1, dtype=torch.float32, device=device)
    place = aten.floor.default(aten.mul.Scalar(index, step))
    return aten.clamp_max.default(aten._to_copy.default(place, dtype=torch.int64), size - 1)


def _nearest(x: Tensor, sizes: Sequence[int], scales: Sequence[float | None]) -> Any:
    if x.numel() == 0 or any(type(n) is not int for n in (*sizes, *x.shape)):
        return NotImplemented
    if x.dtype is torch.float64 and x.device.type == "cpu":  # whose places eager computes in doubles
        return NotImplemented
    n = len(sizes)
    indices: list[Tensor | None] = [None, None]
    for k, (wanted, scale) in enumerate(zip(sizes, scales)):
        place = _source(x.shape[2 + k], wanted, scale, x.device)
        indices.append(aten.view.default(place, [wanted, *[1] * (n - 1 - k)]))
    return aten.index.Tensor(x, indices)


def _repeated(x: Tensor, sizes: Sequence[int], scales: Sequence[float | None]) -> Any:
    """Each element of the last dims so many times in a row: nothing is looked up, which a processor does one element after another.

    NotImplemented where that is not known to be what eager looks up.
    """
    lines = x.shape[2:]
    if not _repeats(x, lines, sizes, scales):
        return NotImplemented
    layout = torch_composites.layout_of(x)
    # a line's result lies plainly, whatever the line does
    by_places = len(lines) > 1 and layout is not torch.contiguous_format
    if by_places and layout is None:
        return NotImplemented
    batch, channels = x.shape[:2]
    first, last = ([batch], [channels]) if by_places else ([batch, channels], [])
    apart = [n for size in lines for n in (size, 1)]
    spread = [n for size, wanted in zip(lines, sizes, strict=True) for n in (size, wanted // size)]
    parts = aten.view.default(_places_first(x) if by_places else x, [*first, *apart, *last])
    wide = aten.expand.default(parts, [*first, *spread, *last])
    copy = aten.clone.default(wide, memory_format=torch.contiguous_format)
    made = aten.view.default(copy, [*first, *sizes, *last])
    return _channels_first(made) if by_places else made


def _places_first(x: Tensor) -> Tensor:
    return aten.permute.default(x, [0, *range(2, x.dim()), 1])


def _channels_first(x: Tensor) -> Tensor:
    return aten.permute.default(x, [0, x.dim() - 1, *range(1, x.dim() - 1)])


def _repeats(x: Tensor, lines: Sequence[int], sizes: Sequence[int], scales: Sequence[float | None]) -> bool:
    """Whether on a processor all of a dim's elements are repeated so many times."""
    if x.device.type != "cpu" or any(type(n) is not int or not n for n in (*sizes, *lines)):
        return False
    return all(torch_composites.repeats(*line) for line in zip(lines, sizes, scales, strict=True))


@decompose(aten.upsample_nearest1d.default)
def upsample_nearest1d(x: Tensor, output_size: Sequence[int], scales: float | None = None) -> Any:
    made = _repeated(x, output_size, [scales])
    return _nearest(x, output_size, [scales]) if made is NotImplemented else made


@decompose(aten.upsample_nearest2d.default)
def upsample_nearest2d(
    x: Tensor, output_size: Sequence[int], scales_h: float | None = None, scales_w: float | None = None
) -> Any:
    scales = [scales_h, scales_w]
    made = _repeated(x, output_size, scales)
    if made is not NotImplemented or not x.is_contiguous():  # channels-last comes out channels-last
        return made
    return _nearest(x, output_size, scales)


@decompose(
    aten.upsample_nearest3d.default,
    aten._upsample_nearest_exact1d.default,
    aten._upsample_nearest_exact2d.default,
    aten._upsample_nearest_exact3d.default,
)
def upsample_nearest(x: Tensor, output_size: Sequence[int], *scales: float | None) -> Any:
    return _repeated(x, output_size, scales or [None] * len(output_size))


@decompose(
    aten.upsample_nearest1d_backward.default,
    aten.upsample_nearest2d_backward.default,
    aten.upsample_nearest3d_backward.default,
    aten._upsample_nearest_exact1d_backward.default,
    aten._upsample_nearest_exact2d_backward.default,
    aten._upsample_nearest_exact3d_backward.default,
)
def upsample_nearest_backward(
    gradient: Tensor, output_size: Sequence[int], input_size: Sequence[Any], *scales: float | None
) -> Any:
    """The sums of what each element was repeated to."""
    (batch, channels), lines = input_size[:2], input_size[2:]
    if not _repeats(gradient, lines, output_size, scales or [None] * len(lines)):
        return NotImplemented
    layout = torch_composites.layout_of(gradient)
    # one number for all is that of a sum
    plain = layout is torch.contiguous_format or not any(gradient.stride())
    if layout is None and not plain:
        return NotImplemented
    windows = [n for size, wanted in zip(lines, output_size, strict=True) for n in (size, wanted // size)]
    first, last = ([batch, channels], []) if plain else ([batch], [channels])
    parts = aten.view.default(gradient if plain else _places_first(gradient), [*first, *windows, *last])
    made = aten.sum.dim_IntList(parts, [len(first) + 1 + 2 * k for k in range(len(lines))])
    return made if plain else _channels_first(made)
