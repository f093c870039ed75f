"""Gathers: reading at computed positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from braze.loops import build
from braze.loops.ir import DType, Node, Op
from braze.lower.values.lazy import Index, Lazy, numel
from braze.lower.values.pointwise_core import broadcast_index, broadcast_sizes, computed
from braze.lower.values.realize import COSTLY, ProgramBuilder
from braze.lower.values.registry import aten, lowering
from braze.support.record import record
from braze.symbolic.expr import Expr

#: fewer elements than this at each position read: finding the position is what costs
SHORT_ROW = 16


def position(g: ProgramBuilder, index: Node, extent: Expr, wrap: bool = True) -> Expr:
    """An index value as an index expression; negative ones count from the end where ``wrap``."""
    i = build.cast(index, DType.I64)
    low = i.attr.bounds()[0] if i.op is Op.INDEX else None
    if wrap and (low is None or low < 0):
        i = build.wrapped(i, g.index_node(extent))
    return g.indirect(i, extent)


def is_index(x: Any) -> bool:
    """Whether a value is a tensor of integers."""
    return isinstance(x, Lazy) and x.dtype in (DType.I64, DType.I32, DType.I16, DType.I8, DType.U8)


@lowering(aten.embedding.default)
def embedding(g: ProgramBuilder, weight: Lazy, indices: Lazy, *_: Any, **__: Any) -> Any:
    """Rows of a table."""
    if not weight.dtype.is_computable or weight.device != indices.device:
        return NotImplemented
    return _slices(g, weight, 0, indices)


@lowering(aten.index_select.default)
def index_select(g: ProgramBuilder, x: Lazy, dim: int, indices: Lazy) -> Any:
    """Slices of a dimension in any order."""
    if not x.rank or not x.dtype.is_computable or indices.rank != 1 or x.device != indices.device:
        return NotImplemented
    if indices.dtype not in (DType.I64, DType.I32):
        return NotImplemented
    return _slices(g, x, dim % x.rank, indices)


def _slices(g: ProgramBuilder, x: Lazy, dim: int, indices: Lazy) -> Lazy:
    """The slices at places along a dimension, in whose stead the places' dimensions stand."""
    g.realize_if_costly(indices)
    behind = dim + indices.rank

    def inner(index: Index) -> Node:
        at = position(g, indices.load(index[dim:behind]), x.sizes[dim], wrap=False)
        return x.load([*index[:dim], at, *index[behind:]])

    after = x.sizes[dim + 1 :]
    return _gathered(g, x, [indices], (*x.sizes[:dim], *indices.sizes, *after), inner, after)


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
    tensors = [i for i in indices if i is not None]
    if not tensors or not x.dtype.is_computable:
        return NotImplemented
    if not all(is_index(i) and i.device == x.device and i.dtype is not DType.U8 for i in tensors):
        return NotImplemented
    found = looked_up(x, indices)
    for i in tensors:
        g.realize_if_costly(i)

    def inner(index: Index) -> Node:
        positions = [
            position(g, tensor.load(where(index)), x.sizes[d])
            for d, tensor, where in zip(found.dims, tensors, found.where, strict=True)
        ]
        return x.load(found.at(index, positions))

    return _gathered(g, x, tensors, found.sizes, inner, found.row)


@record
class LookedUp:
    """What ``x[i, :, j]`` sees of ``x``: its sizes, those of what lies in one piece, and the dims that indices stand for.

    ``shape``: the indices', broadcast together; ``where``: of a point of the whole, that in each index.
    """

    sizes: tuple[Expr, ...]
    row: tuple[Expr, ...]
    dims: tuple[int, ...]
    shape: tuple[Expr, ...]
    start: int
    where: tuple[Callable[[Index], Index], ...]

    def at(self, index: Index, positions: Sequence[Expr]) -> list[Expr]:
        """The index in ``x`` of a point, given what the indices hold there."""
        outside = iter([*index[: self.start], *index[self.start + len(self.shape) :]])
        known = dict(zip(self.dims, positions, strict=True))
        rank = len(index) - len(self.shape) + len(self.dims)
        return [known[d] if d in known else next(outside) for d in range(rank)]


def looked_up(x: Lazy, indices: Sequence[Lazy | None]) -> LookedUp:
    """How integer tensors, with full slices between, index a value."""
    tensors = [i for i in indices if i is not None]
    shape = broadcast_sizes(tensors)
    dims = tuple(d for d, i in enumerate(indices) if i is not None)
    # the broadcast shape stands where the indices stood if they were neighbours, else first
    start = dims[0] if dims == tuple(range(dims[0], dims[-1] + 1)) else 0
    kept = [x.sizes[d] for d in range(x.rank) if d not in dims]

    def inside(tensor: Lazy) -> Callable[[Index], Index]:
        place = broadcast_index(tensor, len(shape), shape)
        return lambda index: place(index[start : start + len(shape)])

    sizes = (*kept[:start], *shape, *kept[start:])
    return LookedUp(sizes, tuple(kept[start:]), dims, shape, start, tuple(map(inside, tensors)))


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
    # an index read for every few elements is dear: a table of biases is looked up once, not for every window of a picture
    short = (length := numel(row).value) is not None and length < SHORT_ROW
    return computed(g, [x, *indices], inner, sizes, x.dtype, COSTLY if short else 2)
