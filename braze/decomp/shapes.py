"""Operators that move elements: by views, cat, where on indices, and copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from braze.decomp.numbers import constant
from braze.decomp.registry import decompose

aten = torch.ops.aten
Tensor = torch.Tensor

#: no loop computes in these, nor does ATen's `where` before PyTorch 2.13
WIDE_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


@decompose(aten.stack.default)
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """cat of the tensors with a new dim each."""
    return aten.cat.default([aten.unsqueeze.default(t, dim) for t in tensors], dim % (tensors[0].dim() + 1))


@decompose(aten.repeat.default)
def repeat(x: Tensor, repeats: Sequence[int]) -> Any:
    """Copies side by side: expand a new dim before each, then merge it."""
    if any(type(n) is not int for n in (*repeats, *x.shape)):
        return NotImplemented
    lead = len(repeats) - x.dim()
    sizes = [1] * lead + list(x.shape)
    split = [n for size in sizes for n in (1, size)]
    spread = [n for count, size in zip(repeats, sizes) for n in (count, size)]
    copies = aten.expand.default(aten.reshape.default(x, split), spread)
    whole = aten.clone.default(copies, memory_format=torch.contiguous_format)
    return aten.view.default(whole, [count * size for count, size in zip(repeats, sizes)])


@decompose(aten.view_copy.default)
def view_copy(x: Tensor, size: Sequence[int]) -> Tensor:
    """A copy in other sizes, packed."""
    return aten.clone.default(aten.reshape.default(x, size), memory_format=torch.contiguous_format)


def _offsets(x: Tensor) -> Tensor:
    """column - row of each element of the last two dims."""
    rows = aten.arange.start_step(0, x.shape[-2], 1, dtype=torch.int64, device=x.device)
    columns = aten.arange.start_step(0, x.shape[-1], 1, dtype=torch.int64, device=x.device)
    return aten.sub.Tensor(columns, aten.unsqueeze.default(rows, -1))


@decompose(aten.tril.default)
def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    """Zero above a diagonal."""
    return aten.where.self(aten.le.Scalar(_offsets(x), diagonal), x, constant(0, x))


@decompose(aten.triu.default)
def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    """Zero below a diagonal."""
    return aten.where.self(aten.ge.Scalar(_offsets(x), diagonal), x, constant(0, x))


@decompose(aten.masked_fill.Scalar)
def masked_fill(x: Tensor, mask: Tensor, value: Any) -> Any:
    """``value`` where the mask is true."""
    if mask.dtype is not torch.bool:
        return NotImplemented
    return aten.where.self(mask, constant(value, x), x)


@decompose(aten.masked_fill.Tensor)
def masked_fill_tensor(x: Tensor, mask: Tensor, value: Tensor) -> Any:
    """``value`` where the mask is true."""
    if mask.dtype is not torch.bool or value.device != x.device:
        return NotImplemented
    return aten.where.self(
        mask, value if value.dtype is x.dtype else aten._to_copy.default(value, dtype=x.dtype), x
    )


@decompose(aten.one_hot.default)
def one_hot(x: Tensor, num_classes: int = -1) -> Any:
    """1 at the place that each index names."""
    if num_classes <= 0:
        return NotImplemented
    classes = aten.arange.start_step(0, num_classes, 1, dtype=x.dtype, device=x.device)
    return aten._to_copy.default(aten.eq.Tensor(aten.unsqueeze.default(x, -1), classes), dtype=torch.int64)


@decompose(aten.channel_shuffle.default)
def channel_shuffle(x: Tensor, groups: int) -> Any:
    """Channels of each group in turn, in memory of its own; a GPU's kernel gives back what has no elements, and what lies row by row and stays so."""
    if x.dim() < 3 or groups <= 0 or x.shape[1] % groups:
        return NotImplemented
    stays = x.device.type != "cpu" and (groups == 1 or groups == x.shape[1])
    if x.numel() == 0 or (stays and x.is_contiguous()):
        return aten.view.default(x, x.shape)
    lead, channels, *places = x.shape
    parts = aten.reshape.default(x, [lead, groups, channels // groups, *places])
    turned = aten.transpose.int(parts, 1, 2)
    return aten.view.default(aten.clone.default(turned, memory_format=torch.contiguous_format), x.shape)


@decompose(aten.pixel_shuffle.default)
def pixel_shuffle(x: Tensor, factor: int) -> Any:
    """Channels to space."""
    *lead, channels, height, width = x.shape
    if channels % (factor * factor):
        return NotImplemented
    n = len(lead)
    parts = aten.reshape.default(x, [*lead, channels // (factor * factor), factor, factor, height, width])
    moved = aten.permute.default(parts, [*range(n), n, n + 3, n + 1, n + 4, n + 2])
    return aten.reshape.default(
        moved, [*lead, channels // (factor * factor), height * factor, width * factor]
    )


@decompose(aten.pixel_unshuffle.default)
def pixel_unshuffle(x: Tensor, factor: int) -> Any:
    """Space to channels; a CPU's kernel copies what has no elements as it is."""
    *lead, channels, height, width = x.shape
    if height % factor or width % factor or (x.device.type == "cpu" and 0 in x.shape):
        return NotImplemented
    n = len(lead)
    parts = aten.reshape.default(x, [*lead, channels, height // factor, factor, width // factor, factor])
    moved = aten.permute.default(parts, [*range(n), n, n + 2, n + 4, n + 1, n + 3])
    return aten.reshape.default(moved, [*lead, channels * factor * factor, height // factor, width // factor])


@decompose(aten.rot90.default)
def rot90(x: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Any:
    """Quarter turns by flips and a transpose."""
    first, second = dims
    match k % 4:
        case 1:
            return aten.transpose.int(aten.flip.default(x, [second]), first, second)
        case 2:
            return aten.flip.default(x, [first, second])
        case 3:
            return aten.flip.default(aten.transpose.int(x, first, second), [second])
    return aten.clone.default(x, memory_format=torch.contiguous_format)


@decompose(aten.diag_embed.default)
def diag_embed(x: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    """The last dim on a diagonal of two new ones, zero elsewhere."""
    rank = x.dim() + 1
    if (dim1 % rank, dim2 % rank) != (rank - 2, rank - 1) or type(x.shape[-1]) is not int:
        return NotImplemented
    if x.dtype in WIDE_UNSIGNED:
        return NotImplemented
    size = x.shape[-1] + abs(offset)
    index = aten.arange.start_step(0, size, 1, dtype=torch.int64, device=x.device)
    on_diagonal = aten.eq.Scalar(aten.sub.Tensor(index, aten.unsqueeze.default(index, -1)), offset)
    spread = aten.constant_pad_nd.default(x, [max(offset, 0), max(-offset, 0)])
    return aten.where.self(on_diagonal, aten.unsqueeze.default(spread, -2), constant(0, x))
