"""Gathers: reading at computed positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from braze.loops import build
from braze.loops.ir import DType, Node, Op
from braze.lower.lazy import Index, Lazy, numel
from braze.lower.pointwise_core import broadcast_index, broadcast_sizes, merge_ops
from braze.lower.realize import COSTLY, ProgramBuilder
from braze.lower.registry import aten, lowering
from braze.symbolic.expr import ZERO, Expr

#: fewer elements than this at each position read: finding the position is what costs
SHORT_ROW = 16


def position(g: ProgramBuilder, index: Node, extent: Expr, wrap: bool = True) -> Expr:
    """An index value as an index expression; negative ones count from the end where ``wrap``."""
    i = build.cast(index, DType.I64)
    if i.op is Op.INDEX:
        low = i.attr.bounds()[0]
        if low is not None and low >= 0:
            return g.indirect(build.check_index(i, extent), extent)
    if wrap:
        size = g.index_node(extent)
        i = build.where(build.lt(i, build.const(0, DType.I64)), build.add(i, size), i)
    return g.indirect(i, extent)


def is_index(x: Any) -> bool:
    """Whether a value is a tensor of integers."""
    return isinstance(x, Lazy) and x.dtype in (DType.I64, DType.I32, DType.I16, DType.I8, DType.U8)


@lowering(aten.embedding.default)
def embedding(g: ProgramBuilder, weight: Lazy, indices: Lazy, *_: Any, **__: Any) -> Any:
    """Rows of a table."""
    if not weight.dtype.is_computable or weight.device != indices.device:
        return NotImplemented
    g.realize_if_costly(indices)
    lead = indices.rank

    def inner(index: Index) -> Node:
        row = position(g, indices.load(index[:lead]), weight.sizes[0], wrap=False)
        return weight.load([row, *index[lead:]])

    return _gathered(g, weight, [indices], (*indices.sizes, *weight.sizes[1:]), inner, weight.sizes[1:])


@lowering(aten.index_select.default)
def index_select(g: ProgramBuilder, x: Lazy, dim: int, indices: Lazy) -> Any:
    """Slices of a dimension in any order."""
    if not x.rank or not x.dtype.is_computable or indices.rank != 1 or x.device != indices.device:
        return NotImplemented
    if indices.dtype not in (DType.I64, DType.I32):
        return NotImplemented
    dim = dim % x.rank
    g.realize_if_costly(indices)

    def inner(index: Index) -> Node:
        at = list(index)
        at[dim] = position(g, indices.load([index[dim]]), x.sizes[dim], wrap=False)
        return x.load(at)

    after = x.sizes[dim + 1 :]
    return _gathered(g, x, [indices], (*x.sizes[:dim], indices.sizes[0], *after), inner, after)


@lowering(aten.gather.default)
def gather(g: ProgramBuilder, x: Lazy, dim: int, indices: Lazy, *, sparse_grad: bool = False) -> Any:
    """One element per index, along a dimension."""
    # an empty index may have any rank
    if not x.rank or indices.rank != x.rank or not x.dtype.is_computable:
        return NotImplemented
    dim = dim % x.rank

    def inner(index: Index) -> Node:
        at = list(index)
        at[dim] = position(g, indices.load(index), x.sizes[dim], wrap=False)
        return x.load(at)

    return _gathered(g, x, [indices], indices.sizes, inner, ())


@lowering(aten.index.Tensor, aten._unsafe_index.Tensor)
def index_tensors(g: ProgramBuilder, x: Lazy, indices: Sequence[Lazy | None]) -> Any:
    """x[i, :, j]: integer tensors, broadcast together, with full slices between."""
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    if not given or not x.dtype.is_computable:
        return NotImplemented
    if not all(is_index(i) and i.device == x.device and i.dtype is not DType.U8 for _, i in given):
        return NotImplemented
    tensors = [i for _, i in given]
    shape = broadcast_sizes(tensors)
    places = [d for d, _ in given]
    together = places == list(range(places[0], places[-1] + 1))
    # the broadcast shape stands where the indices stood if they were neighbours, else first
    start = places[0] if together else 0
    rest = [d for d in range(x.rank) if d not in places]
    kept = [x.sizes[d] for d in rest]
    loaders = [broadcast_index(i, len(shape), shape) for i in tensors]
    for i in tensors:
        g.realize_if_costly(i)

    def inner(index: Index) -> Node:
        inside = index[start : start + len(shape)]
        outside = [*index[:start], *index[start + len(shape) :]]
        at: list[Expr] = [ZERO] * x.rank
        for d, i in zip(rest, outside, strict=True):
            at[d] = i
        for (d, tensor), place in zip(given, loaders, strict=True):
            at[d] = position(g, tensor.load(place(inside)), x.sizes[d])
        return x.load(at)

    return _gathered(g, x, tensors, (*kept[:start], *shape, *kept[start:]), inner, kept[start:])


def _gathered(
    g: ProgramBuilder,
    x: Lazy,
    indices: Sequence[Lazy],
    sizes: tuple[Expr, ...],
    inner: Any,
    row: Sequence[Expr],
) -> Lazy:
    """Elements read where indices say; ``row``: the sizes of what is read in one piece."""
    g.realize_if_costly(x)
    values = [x, *indices]
    # an index read for every few elements is dear: a table of biases is looked up once, not for every window of a picture
    short = (length := numel(row).value) is not None and length < SHORT_ROW
    return Lazy(
        sizes, x.dtype, x.device, inner,
        cost=(COSTLY if short else 2) + sum(v.pending_cost for v in values), ops=merge_ops(values, g.op_name),
    )  # fmt: skip
