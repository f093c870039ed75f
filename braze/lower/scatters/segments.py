"""Sums of rows that share a number, on a GPU: the gradient of an embedding's table, or of a tensor of which rows were taken by number.

The numbers are sorted, so that the rows of each lie in one segment of places, and each row of the table is the sum of its
segment: one read of the gradient and one write of the table, always in the same order. A number that very many rows share would
keep one program busy alone: blocks of places that lie in one segment are summed first, and count as one row each.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Any

from braze.loops import build
from braze.loops.dtypes import compute_type
from braze.loops.ir import BufferView, DType, Node, Op, ReduceKind, Reduction, Store
from braze.lower.scatters.placed import spreads
from braze.lower.values.fallback import device_of, target_name
from braze.lower.values.lazy import Index, Lazy, numel
from braze.lower.values.pointwise_core import broadcast_index, broadcast_sizes, computed
from braze.lower.values.realize import ProgramBuilder, constant_of
from braze.lower.values.registry import aten, lowering
from braze.lower.views.views import expand_value, reshape_value
from braze.runtime.gpu.groups import GROUPS, MOST
from braze.runtime.gpu.table_sums import FEW, TABLE_SUMS, TABLE_SUMS_OUT
from braze.support.record import record
from braze.symbolic.expr import ONE, ZERO, Expr, Integer, contiguous_strides, floor_div
from braze.symbolic.guess import likely_size

#: places of a block, at least and at most
SHORT, LONG = 32, 256
#: columns of a table, and places for each of its rows, from which and up to which rows that get nothing are filled for themselves
NARROW, EACH = 128, 1
#: elements of a table that is small
SMALL = 1 << 20
SUMMED = (DType.F32, DType.F16, DType.BF16)
I32, I64 = DType.I32, DType.I64


@lowering(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    g: ProgramBuilder, grad: Lazy, indices: Lazy, rows: Any, padding: int, by_frequency: bool
) -> Any:
    """The table's gradient: row ``v`` is the sum of the rows of ``grad`` where ``indices`` is ``v``; that of ``padding`` is zero."""
    count = numel(indices.sizes)
    length = rows if isinstance(rows, int) else rows.value
    if g.ctx.target.kind != "cuda" or grad.device == "cpu" or by_frequency or not length:
        return NotImplemented
    if not grad.dtype.is_float or count.value == 0 or not isinstance(padding, int) or length >= 2**31:
        return NotImplemented
    return _table(g, grad, indices, length, padding)


def rows_added(
    g: ProgramBuilder, x: Lazy, indices: Sequence[Lazy | None], values: Lazy, least: int = NARROW
) -> Any:
    """``values`` added to zeros at whole rows of ``least`` elements or more: what ``x[i, j]`` has as the gradient of ``x``; NotImplemented for what is
    no such sum."""
    tensors = [i for i in indices if i is not None]
    count = len(tensors)
    if g.ctx.target.kind != "cuda" or values.device == "cpu" or values.dtype is not x.dtype or not count:
        return NotImplemented
    fine = all(i.dtype in (I32, I64) and i.device == x.device for i in tensors)
    if not fine or any(i is None for i in indices[:count]):
        return NotImplemented
    zero = constant_of(x)
    row, length = numel(x.sizes[count:]).value, numel(x.sizes[:count]).value
    if zero is None or zero.attr != 0 or x.dtype not in SUMMED or not row or not length or length >= 2**31:
        return NotImplemented
    shape = broadcast_sizes(tensors)
    places = numel(shape)
    sizes = (*shape, *x.sizes[count:])
    if row < least or places.value == 0 or not spreads(values.sizes, sizes):
        return NotImplemented
    given = reshape_value(g, expand_value(g, values, sizes), (places, Integer(row)))
    made = _table(g, given, _flat_numbers(g, x, tensors, shape), length, padding=-1)
    return reshape_value(g, made, tuple(x.sizes))


def _flat_numbers(g: ProgramBuilder, x: Lazy, tensors: Sequence[Lazy], shape: tuple[Expr, ...]) -> Lazy:
    """The number of the row that indices name, one after another as rows lie; negative ones count from the end."""
    spread = [broadcast_index(i, len(shape), shape) for i in tensors]

    def inner(at: Index) -> Node:
        number = build.const(0, I64)
        for tensor, place, size in zip(tensors, spread, x.sizes, strict=False):
            extent = g.index_node(size)
            i = build.wrapped(build.cast(tensor.load(place(at)), I64), extent)
            number = build.add(build.mul(number, extent), build.check_index(i, size))
        return number

    return computed(g, tensors, inner, shape, I64, 2 * len(tensors))


def _table(g: ProgramBuilder, grad: Lazy, indices: Lazy, length: int, padding: int) -> Lazy:
    """A table of so many rows, each the sum of the rows of ``grad`` of its number."""
    count = numel(indices.sizes)
    # a table that is worked on is summed by loops, which do that on their way
    if _is_small(grad, count, length) or (g.last and _leaves_rows(grad, count, length)):
        out = g.new_buffer(grad.dtype, (Integer(length), grad.sizes[-1]), (grad.sizes[-1], ONE), device_of(g))
        args = g.realize(grad), g.realize(indices), length, padding
        into = target_name(TABLE_SUMS_OUT)  # where the graph's results lie, also while its calls are recorded
        g.call(target_name(TABLE_SUMS), args, (out,), device=device_of(g), out_variant=into)
        return g.lazy(out)
    given = _rows_of(g, grad, count)
    return _Sums(g, given, _segments(g, indices, count, length), length, padding).run()


def _is_small(grad: Lazy, count: Expr, length: int) -> bool:
    """Whether one small kernel has all places, and what follows reads a small table again."""
    size = length * likely_size(grad.sizes[-1])
    return grad.dtype in SUMMED and likely_size(count) <= FEW and size <= SMALL


def _leaves_rows(grad: Lazy, count: Expr, length: int) -> bool:
    """Whether many rows of a table are likely to get nothing, and are worth a kernel of their own."""
    width, likely = grad.sizes[-1].value, likely_size(count)
    return (
        grad.dtype in SUMMED and width is not None and width >= NARROW and likely <= min(MOST, EACH * length)
    )


def _rows_of(g: ProgramBuilder, x: Lazy, count: Expr) -> BufferView:
    """A value in memory, as so many rows one after the other."""
    view = g.realize(x)
    if view.strides != contiguous_strides(x.sizes):
        view = g.copy(x)
    width = x.sizes[-1]
    return BufferView(view.buffer, (count, width), (width, ONE), view.offset, view.dtype)


@record
class _Segments:
    """``found``: the numbers in order; ``order``: their places, equal ones in their own order; ``starts``: where each number's begin."""

    found: BufferView
    order: BufferView
    starts: BufferView


def _segments(g: ProgramBuilder, indices: Lazy, count: Expr, length: int) -> _Segments:
    """The numbers from zero to a length, in order; one that is no row's comes after all."""
    view = g.realize(indices)
    if view.strides != contiguous_strides(indices.sizes):
        view = g.copy(indices)
    flat = BufferView(view.buffer, (count,), (ONE,), view.offset, view.dtype)
    sizes = (count, count, Integer(length + 1))
    outputs = tuple(g.new_buffer(I32, (size,), (ONE,), device_of(g)) for size in sizes)
    g.call(str(GROUPS), (flat, length), outputs, device=device_of(g))
    return _Segments(*map(g.whole, outputs))


class _Sums:
    """Writes the loops that sum blocks of places, and then segments.

    A segment from ``begin`` to ``end`` is the places before its first whole block, its whole blocks, and the places after them.
    """

    def __init__(
        self, g: ProgramBuilder, given: BufferView, segments: _Segments, length: int, padding: int
    ) -> None:
        self.g, self.given, self.segments, self.padding = g, given, segments, padding
        self.length, (self.count, self.width) = length, given.sizes
        share = likely_size(self.count) // length
        self.shift = (max(SHORT, min(LONG, isqrt(share))) - 1).bit_length()
        self.block = 1 << self.shift
        self.wide = compute_type(given.dtype)
        self.blocks = floor_div(self.count, Integer(self.block))
        self.device = device_of(g)
        self.zero = build.const(0.0, self.wide)

    def run(self) -> Lazy:
        """The table of sums."""
        g, wide = self.g, self.wide
        partial = None if self.blocks is ZERO else self._partial()
        (rows, columns), (v, c) = self._axes(Integer(self.length))
        counts = self._counts(v)
        row_axes, (q,) = g.axes([self.count], "q") if self.count is not ONE else ((), (ZERO,))
        at = g.index_node(q)
        before, blocks, begin, after = self._parts(v)
        direct = build.either(
            build.lt(at, before), build.unary(Op.NOT, build.lt(at, build.add(before, blocks)))
        )
        place = build.where(
            build.lt(at, before),
            build.add(begin, at),
            build.add(build.sub(build.sub(at, before), blocks), after),
        )
        value = build.masked(direct, self._row(place, c), self.zero)
        if partial is not None:
            first = build.add(build.sub(at, before), self._next_block(begin))
            held = g.load(g.whole(partial), (g.known(first, self.blocks), c))
            value = build.masked(
                direct, self._row(place, c), build.masked(build.unary(Op.NOT, direct), held, self.zero)
            )
        inside = build.lt(at, counts)
        total = Reduction(ReduceKind.SUM, wide, build.masked(inside, value, self.zero))
        out = g.new_buffer(
            self.given.dtype, (Integer(self.length), self.width), (self.width, ONE), self.device
        )
        store = Store(out, v * self.width + c, build.cast(build.reduced(0, wide), self.given.dtype))
        self._nest((*rows, *columns), row_axes, (total,), store)
        return g.lazy(out)

    def _axes(self, size: Expr) -> Any:
        """((axes of rows, of columns), (a row, a column))."""
        axes, index = self.g.axes([size, self.width])
        cut = 0 if size is ONE else 1
        return (axes[:cut], axes[cut:]), index

    def _nest(self, axes: Any, rows: Any, reductions: tuple[Reduction, ...], store: Store) -> None:
        self.g.nest(axes, (store,), self.device, (self.g.op_name,), over=rows, reductions=reductions)

    def _row(self, place: Node, column: Expr) -> Node:
        """The element of a column of the row at a place of the sorted order."""
        g = self.g
        at = build.cast(g.load(self.segments.order, (g.known(place, self.count),)), I64)
        return build.cast(g.load(self.given, (g.known(at, self.count), column)), self.wide)

    def _partial(self) -> str:
        """The sums of blocks of places that share one number; zeros of others."""
        g, block = self.g, Integer(self.block)
        (rows, columns), (b, c) = self._axes(self.blocks)
        row_axes, (j,) = g.axes([block], "r")
        inside = build.lt(g.index_node(j), self._length(b))
        value = build.masked(inside, self._row(g.index_node(b * block + j), c), self.zero)
        out = g.new_buffer(self.wide, (self.blocks, self.width), (self.width, ONE), self.device)
        store = Store(out, b * self.width + c, build.reduced(0, self.wide))
        self._nest((*rows, *columns), row_axes, (Reduction(ReduceKind.SUM, self.wide, value),), store)
        return out

    def _length(self, b: Expr) -> Node:
        """How many places of a block are summed: all, or none where it holds several numbers."""
        found, first = self.segments.found, b * Integer(self.block)
        ends = [self.g.load(found, (first + k,)) for k in (0, self.block - 1)]
        return build.where(build.binary(Op.EQ, *ends), build.const(self.block, I64), build.const(0, I64))

    def _next_block(self, place: Node) -> Node:
        """The first block that begins at a place or after it."""
        return self._block_of(build.add(place, build.const(self.block - 1, I64)))

    def _block_of(self, place: Node) -> Node:
        return build.binary(Op.SHR, place, build.const(self.shift, I64))

    def _ends(self, v: Expr) -> tuple[Node, Node]:
        """Where the segment of a number begins, and where it ends."""
        begin, end = (build.cast(self.g.load(self.segments.starts, (e,)), I64) for e in (v, v + 1))
        return begin, end

    def _parts(self, v: Expr) -> tuple[Node, Node, Node, Node]:
        """(places before the whole blocks of a segment, these blocks, where it begins, where what is after them does)."""
        begin, end = self._ends(v)
        size = build.const(self.block, I64)
        first, last = self._next_block(begin), self._block_of(end)
        rest = build.binary(Op.MINIMUM, end, build.mul(first, size))
        after = build.binary(Op.MAXIMUM, rest, build.mul(last, size))
        blocks = build.binary(Op.MAXIMUM, build.sub(last, first), build.const(0, I64))
        return build.sub(rest, begin), blocks, begin, after

    def _counts(self, v: Expr) -> Node:
        """How many rows are summed for a number: places and blocks; none for the padding."""
        before, blocks, _, after = self._parts(v)
        count = build.add(build.add(before, blocks), build.sub(self._ends(v)[1], after))
        if 0 <= self.padding < self.length:
            other = build.binary(Op.NE, self.g.index_node(v), build.const(self.padding, I64))
            count = build.where(other, count, build.const(0, I64))
        return count
