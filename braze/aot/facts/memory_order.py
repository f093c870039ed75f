"""What ATen's operators ask of the strides of what they are given.

Where writes are removed, a tensor may have other strides than the program's had: the value that was copied into it, say, or one
number that is repeated. Most operators compute the same of any strides. Some views exist for some strides alone; and some
kernels read memory in order, or take what is repeated for what is laid out, since what calls them in PyTorch (a composite operator, a
derivative's formula) has made it so: traced, that left no node where the tensor lay in order anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from braze.graph.private import torch_compat, torch_symbols
from braze.graph.rules.layout_rules import CHANNELS_LAST, suggests_channels_last

aten = torch.ops.aten

#: views that ask something of the strides
CONTIGUOUS_VIEWS = frozenset(
    {aten.view.default, aten._unsafe_view.default, aten.view.dtype, aten.view_as_complex.default}
)

#: kernels that read some of their arguments in order -> the places of these
READ_IN_ORDER: dict[Any, tuple[int, ...]] = {
    aten.median.dim: (0,),
    aten.nanmedian.dim: (0,),
    aten.native_group_norm.default: (0, 1, 2),
    aten.native_group_norm_backward.default: (1, 0, 2, 3, 4),
    aten.native_layer_norm_backward.default: (3, 4),
    aten.nll_loss2d_backward.default: (1,),
    aten.adaptive_max_pool3d_backward.default: (2,),
    aten.fractional_max_pool2d_backward.default: (4,),
    aten.fractional_max_pool3d_backward.default: (4,),
    aten._pdist_forward.default: (0,),
    aten._pdist_backward.default: (1, 3),
    aten._embedding_bag.default: (0, 1, 2, 6),
    aten._embedding_bag_forward_only.default: (0, 1, 2, 6),
    aten._embedding_bag_backward.default: (1, 2, 3, 4),
    aten._embedding_bag_per_sample_weights_backward.default: (2, 3, 4),
    aten._weight_norm_interface.default: (0, 1),
    aten._weight_norm_interface_backward.default: (0, 1, 2, 3),
}
#: of these, those that on the CPU read pictures with their channels innermost where the first of the places says so
_BY_CHANNELS = frozenset({aten.native_group_norm.default, aten.native_group_norm_backward.default})
#: the same of arguments whose rows may lie anywhere, each in one piece
READ_ALONG_ROWS: dict[Any, tuple[int, ...]] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: (0, 1, 2),
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: (0, 1, 2, 3, 4),
    aten._scaled_dot_product_flash_attention.default: (0, 1, 2),
    aten._scaled_dot_product_flash_attention_backward.default: (1, 2, 3),
    aten._scaled_dot_product_efficient_attention.default: (0, 1, 2, 3),
    aten._scaled_dot_product_efficient_attention_backward.default: (1, 2, 3, 4),
    aten._scaled_dot_product_cudnn_attention.default: (0, 1, 2),
    aten._scaled_dot_product_cudnn_attention_backward.default: (1, 2, 3),
}

#: kernels that factor the turned matrix where it lies in order, of which derivatives ask once more whether it does
FACTORED = frozenset({aten._linalg_det.default, aten._linalg_slogdet.default, aten._linalg_solve_ex.default})


def laid_out(matrix: torch.Tensor) -> torch.Tensor:
    """A copy that lies as a matrix does now, whatever is made of what it is copied from."""
    form = torch.contiguous_format
    if matrix.is_contiguous():
        return matrix.clone(memory_format=form)
    return matrix.mT.clone(memory_format=form).mT


def asks_for_an_order(op: Any) -> bool:
    """Whether an operator cannot take arguments of all strides."""
    return op in CONTIGUOUS_VIEWS or op in READ_IN_ORDER or op in READ_ALONG_ROWS


def out_of_order(op: Any, args: Sequence[Any]) -> Iterator[tuple[int, torch.memory_format]]:
    """The places of arguments that an operator cannot read as they lie, and the layout in which it gets copies of these."""
    if op in CONTIGUOUS_VIEWS and not _viewable(args, op):
        yield 0, torch.contiguous_format
    places = READ_IN_ORDER.get(op, ())
    turned = op in _BY_CHANNELS and _has_channels_last(args[places[0]])
    for place in places:
        value = args[place] if place < len(args) else None
        if isinstance(value, torch.Tensor):
            whole = turned and value.dim() in CHANNELS_LAST
            form = CHANNELS_LAST[value.dim()] if whole else torch.contiguous_format
            if _is_unbacked(value) or not value.is_contiguous(memory_format=form):
                yield place, form
    for place in READ_ALONG_ROWS.get(op, ()):
        value = args[place]
        if isinstance(value, torch.Tensor) and (
            _is_unbacked(value) or not (value.stride(-1) == 1 or value.shape[-1] == 1)
        ):
            yield place, torch.contiguous_format


def _has_channels_last(picture: torch.Tensor) -> bool:
    return picture.device.type == "cpu" and not _is_unbacked(picture) and suggests_channels_last(picture)


def _is_unbacked(x: torch.Tensor) -> bool:
    """Whether only the data tell the sizes, and so how it lies."""
    return any(isinstance(n, torch.SymInt) and torch_symbols.is_unbacked(n) for n in (*x.shape, *x.stride()))


def _viewable(args: Sequence[Any], target: Any) -> bool:
    """Whether what is to be viewed lies so that it can be; of sizes that only the data tell that is not known."""
    source = args[0]
    if target is aten.view_as_complex.default:
        return source.stride(-1) == 1 and all(s % 2 == 0 for s in source.stride()[:-1])
    if target is aten.view.dtype:
        return source.dtype.itemsize == args[1].itemsize or source.is_contiguous()
    if _is_unbacked(source):
        return False
    try:
        if any(isinstance(n, torch.SymInt) for n in (*source.shape, *source.stride())):
            source.view(args[1])  # by the fakes' rules: the plain kernel of empty tensors takes numbers alone
        else:
            with torch_compat.outside_modes():
                torch.empty_strided(source.shape, source.stride(), device="meta").view(args[1])
    except (RuntimeError, ValueError):
        return False
    return True
