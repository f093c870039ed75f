"""Nearest-neighbour upsampling by an index along each dim; other interpolations stay ATen's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from braze.decomp.registry import decompose
from braze.graph import torch_composites

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
    n = len(sizes)
    indices: list[Tensor | None] = [None, None]
    for k, (wanted, scale) in enumerate(zip(sizes, scales)):
        place = _source(x.shape[2 + k], wanted, scale, x.device)
        indices.append(aten.view.default(place, [wanted, *[1] * (n - 1 - k)]))
    return aten.index.Tensor(x, indices)


def _repeated(x: Tensor, *times: int) -> Tensor:
    """Each element of the last dims so many times in a row: nothing is looked up, which a processor does one element after another."""
    outer, lines = x.shape[: x.dim() - len(times)], x.shape[x.dim() - len(times) :]
    apart = [n for size in lines for n in (size, 1)]
    spread = [n for size, many in zip(lines, times, strict=True) for n in (size, many)]
    wide = aten.expand.default(aten.view.default(x, [*outer, *apart]), [*outer, *spread])
    made = [size * many for size, many in zip(lines, times, strict=True)]
    return aten.view.default(aten.clone.default(wide, memory_format=torch.contiguous_format), [*outer, *made])


@decompose(aten.upsample_nearest1d.default)
def upsample_nearest1d(x: Tensor, output_size: Sequence[int], scales: float | None = None) -> Any:
    (wanted,) = output_size
    known = x.numel() != 0 and all(type(n) is int for n in (wanted, *x.shape))
    if known and x.device.type == "cpu" and torch_composites.repeats(x.shape[-1], wanted, scales):
        return _repeated(x, wanted // x.shape[-1])
    return _nearest(x, output_size, [scales])


@decompose(aten.upsample_nearest2d.default)
def upsample_nearest2d(
    x: Tensor, output_size: Sequence[int], scales_h: float | None = None, scales_w: float | None = None
) -> Any:
    if not x.is_contiguous():  # channels-last comes out channels-last
        return NotImplemented
    known = x.numel() != 0 and all(type(n) is int for n in (*output_size, *x.shape))
    if known and x.device.type == "cpu":
        lines = zip(x.shape[2:], output_size, (scales_h, scales_w), strict=True)
        if all(torch_composites.repeats(*line) for line in lines):
            return _repeated(
                x, *(wanted // size for size, wanted in zip(x.shape[2:], output_size, strict=True))
            )
    return _nearest(x, output_size, [scales_h, scales_w])
