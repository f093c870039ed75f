"""Writes at computed positions as a loop: which elements of a window ``index_copy`` and ``index_put`` store, and where.

Positions are looked at by a loop before the one that stores, so that where one does not exist nothing is written. Of values
for one position twice the last one stays, as in ATen's kernels, which holds only where a single thread stores them all:
more than it should do is ATen's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from braze.loops import build
from braze.loops.ir import BufferView, DType, Node, Store, StoreMode
from braze.lower.values.lazy import Index, Lazy
from braze.lower.values.realize import ProgramBuilder
from braze.lower.values.registry import aten
from braze.lower.views.indexing import looked_up
from braze.support.record import record
from braze.symbolic.expr import ZERO, Expr, indirect, linear

#: elements that one thread stores at most (``bz_run`` takes a second one from 128 KiB of work on)
ALONE = 4096


@record
class Placed:
    """The elements that a scatter stores.

    ``sizes``: their loops; ``at``: of a point of these, the index in the window, whose symbols `indirect(k)` are the values of ``looked_up[k]``
    at that point; ``value``: what is stored.
    """

    sizes: tuple[Expr, ...]
    at: Callable[[Index], Index]
    looked_up: tuple[tuple[Lazy, Callable[[Index], Index]], ...]
    value: Lazy

    def store(
        self,
        view: BufferView,
        value: Lazy,
        index: Index,
        mode: StoreMode = StoreMode.PLAIN,
        more: Expr = ZERO,
    ) -> Store:
        """The store at a point, ``more`` elements further on."""
        args = tuple(places.load(where(index)) for places, where in self.looked_up)
        at = linear(self.at(index), view.strides, view.offset) + more
        return Store(view.buffer, at, value.load(index), mode, args)


def placed(g: ProgramBuilder, target: Any, part: Lazy, args: Sequence[Any]) -> Placed | None:
    """A scatter with ``args`` into the window ``part``; None for one that is ATen's."""
    if target is aten.index_copy.default:
        return _rows(g, part, *args)
    if target is aten.index_put.default:
        return _elements(g, part, *args)
    return None


def _rows(g: ProgramBuilder, part: Lazy, dim: int, index: Any, source: Any) -> Placed | None:
    """``index_copy``: slices of one dimension."""
    if not part.rank or source.rank != part.rank or index.rank != 1 or index.dtype is not DType.I64:
        return None
    dim = dim % part.rank
    sizes = (*part.sizes[:dim], index.sizes[0], *part.sizes[dim + 1 :])
    if source.dtype is not part.dtype or tuple(source.sizes) != sizes:
        return None
    if not _alone(sizes, index.sizes) or index.device != part.device:
        return None
    known = _known(g, index, part.sizes[dim], wrap=False)
    place = place_of(0, part.sizes[dim])

    def at(i: Index) -> Index:
        return [*i[:dim], place, *i[dim + 1 :]]

    return Placed(sizes, at, ((known, lambda i: [i[dim]]),), source)


def _elements(
    g: ProgramBuilder, part: Lazy, indices: Sequence[Any], values: Any, accumulate: bool = False
) -> Placed | None:
    """``index_put``: integer tensors, broadcast together, with full slices between."""
    tensors = [i for i in indices if i is not None]
    fine = all(i.dtype in (DType.I64, DType.I32) and i.device == part.device for i in tensors)
    if accumulate or not tensors or not fine or values.dtype is not part.dtype:
        return None
    found = looked_up(part, indices)
    if not _alone(found.sizes, found.shape) or not spreads(values.sizes, found.sizes):
        return None
    extents = [part.sizes[d] for d in found.dims]
    places = [place_of(k, extent) for k, extent in enumerate(extents)]
    known = [_known(g, i, extent, wrap=True) for i, extent in zip(tensors, extents, strict=True)]
    looked = tuple(zip(known, found.where, strict=True))
    return Placed(found.sizes, lambda i: found.at(i, places), looked, values)


def spreads(sizes: Sequence[Expr], over: Sequence[Expr]) -> bool:
    """Whether a value of some sizes is known to be broadcast over others; ATen tells what is not."""
    lead = len(over) - len(sizes)
    return lead >= 0 and all(n.value == 1 or n == m for n, m in zip(sizes, over[lead:], strict=True))


def _alone(sizes: Sequence[Expr], positions: Sequence[Expr]) -> bool:
    """Whether the order of the stores is known, and there are any: without, ATen does not look at positions either."""
    if any(size.value == 0 for size in sizes):
        return False
    count = 1
    for size in sizes:
        if size.value is None:
            return all(n.value == 1 for n in positions)
        count *= size.value
    return count <= ALONE or all(n.value == 1 for n in positions)


def place_of(k: int, extent: Expr) -> Expr:
    """The index symbol of the k-th tensor of positions."""
    if extent.value is not None:
        return ZERO + indirect(k, 0, max(extent.value - 1, 0))
    return ZERO + indirect(k, 0, None, extent)


def _known(g: ProgramBuilder, index: Lazy, extent: Expr, *, wrap: bool) -> Lazy:
    """Positions that were looked at, in memory; negative ones count from the end where ``wrap``."""
    return g.lazy(g.copy(positions(g, index, extent, wrap=wrap)).buffer)


def positions(g: ProgramBuilder, index: Lazy, extent: Expr, *, wrap: bool) -> Lazy:
    """Positions that are looked at where they are read; negative ones count from the end where ``wrap``."""

    def inner(at: Index) -> Node:
        i = build.cast(index.load(at), DType.I64)
        if wrap:
            i = build.wrapped(i, g.index_node(extent))
        return build.check_index(i, extent)

    return Lazy(index.sizes, DType.I64, index.device, inner, ops=(*index.pending_ops, "positions"))
