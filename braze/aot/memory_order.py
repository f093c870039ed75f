"""What ATen's operators ask of the strides of what they are given.

Where writes are removed, a tensor may have other strides than the program's had: the value that was copied into it, say, or one
number that is repeated. Most operators compute the same of any strides. Some views exist for some strides alone; and some
kernels read memory in order, since what calls them in PyTorch (a composite operator, a derivative's formula) has
made it so: traced, that left no node where the tensor lay in order anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from braze.graph import torch_compat

aten = torch.ops.aten

#: views that ask something of the strides
CONTIGUOUS_VIEWS = frozenset(
    {aten.view.default, aten._unsafe_view.default, aten.view.dtype, aten.view_as_complex.default}
)

#: kernels that read some of their arguments in order -> the places of these
READ_IN_ORDER: dict[Any, tuple[int, ...]] = {
    aten.native_group_norm.default: (0, 1, 2),
    aten.native_group_norm_backward.default: (0, 1, 2, 3, 4),
    aten.native_layer_norm_backward.default: (3, 4),
    aten._pdist_forward.default: (0,),
    aten._pdist_backward.default: (1, 3),
}


def out_of_order(op: Any, args: Sequence[Any]) -> Iterator[int]:
    """The places of arguments that an operator cannot read as they lie: it gets contiguous copies of these."""
    if op in CONTIGUOUS_VIEWS:
        if not _viewable(args, op):
            yield 0
    for place in READ_IN_ORDER.get(op, ()):
        if place < len(args) and isinstance(args[place], torch.Tensor) and not _in_order(args[place]):
            yield place


def _in_order(value: torch.Tensor) -> bool:
    """Whether a tensor is contiguous, or its channels lie last, which kernels that read in order know."""
    return value.is_contiguous() or (
        value.dim() == 4 and value.is_contiguous(memory_format=torch.channels_last)
    )


def _viewable(args: Sequence[Any], target: Any) -> bool:
    source = args[0]
    if target is aten.view_as_complex.default:
        return source.stride(-1) == 1 and all(s % 2 == 0 for s in source.stride()[:-1])
    if target is aten.view.dtype:
        return source.dtype.itemsize == args[1].itemsize or source.is_contiguous()
    try:
        with torch_compat.outside_modes():
            torch.empty_strided(source.shape, source.stride(), device="meta").view(args[1])
    except RuntimeError:
        return False
    return True
