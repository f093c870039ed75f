"""Operators whose kernels read an argument as if its elements lay row by row, however it lies.

PyTorch's composites lay such arguments out before they call them, by the layout that a tensor has while it is traced. In a graph
without writes it may have another: what ``w.copy_(y.t())`` or ``w.copy_(0.5)`` has written is then a transposed, or a repeated, value.
And some kernels take a repeated argument for one that is laid out, whose memory they read beyond its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from braze.graph import torch_symbols
from braze.graph.layout_rules import CHANNELS_LAST, suggests_channels_last

aten = torch.ops.aten

#: operator -> the places of the arguments that are read so
READ_BY_ROWS: dict[Any, tuple[int, ...]] = {
    aten.median.dim: (0,),
    aten.nanmedian.dim: (0,),
    aten.native_group_norm.default: (0, 1, 2),
    aten.native_group_norm_backward.default: (0, 1, 2, 3, 4),
    aten.native_layer_norm_backward.default: (3, 4),
    aten.nll_loss2d_backward.default: (1,),
    aten.fractional_max_pool2d_backward.default: (4,),
    aten.fractional_max_pool3d_backward.default: (4,),
    aten._pdist_forward.default: (0,),
    aten._pdist_backward.default: (1, 3),
    aten._embedding_bag.default: (0, 1, 2, 6),
    aten._embedding_bag_forward_only.default: (0, 1, 2, 6),
}

#: the same of arguments whose rows may lie anywhere, each in one piece
READ_ALONG_ROWS: dict[Any, tuple[int, ...]] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: (0, 1, 2),
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: (0, 1, 2, 3, 4),
    aten._scaled_dot_product_flash_attention.default: (0, 1, 2),
    aten._scaled_dot_product_efficient_attention.default: (0, 1, 2),
    aten._scaled_dot_product_cudnn_attention.default: (0, 1, 2),
}


def reads_rows(target: Any) -> bool:
    """Whether an operator reads arguments so."""
    return target in READ_BY_ROWS or target in READ_ALONG_ROWS


def out_of_rows(target: Any, args: Sequence[Any]) -> Iterator[tuple[int, torch.memory_format]]:
    """The places of arguments that lie otherwise than their operator reads them, and the layout that each wants."""
    for i in READ_BY_ROWS.get(target, ()):
        x = args[i] if i < len(args) else None
        if isinstance(x, torch.Tensor) and not _lies_in_rows(x):
            turned = not _is_unbacked(x) and suggests_channels_last(x)
            yield i, CHANNELS_LAST[x.dim()] if turned else torch.contiguous_format
    for i in READ_ALONG_ROWS.get(target, ()):
        x = args[i]
        if _is_unbacked(x) or not (x.stride(-1) == 1 or x.shape[-1] == 1):
            yield i, torch.contiguous_format


def _lies_in_rows(x: torch.Tensor) -> bool:
    """Row by row, or as a picture with its channels innermost, which such kernels know."""
    if _is_unbacked(x):
        return False
    return x.is_contiguous() or (
        x.dim() in CHANNELS_LAST and x.is_contiguous(memory_format=CHANNELS_LAST[x.dim()])
    )


def _is_unbacked(x: torch.Tensor) -> bool:
    return any(isinstance(n, torch.SymInt) and torch_symbols.is_unbacked(n) for n in (*x.shape, *x.stride()))
