"""Maxima and means over windows, and their gradients.

ATen's kernels read and write number by number. On a GPU maxima are ours where nobody asks where they were found, of which ATen's kernel writes
eight bytes for each; on a processor all of them, but their gradients, which are ATen's.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from braze.loops import build
from braze.loops.dtypes import compute_type
from braze.loops.ir import DType, Node, Op, ReduceKind, Reduction, Store
from braze.lower.values.lazy import Index, Lazy, dense_order
from braze.lower.values.realize import ProgramBuilder
from braze.lower.values.registry import aten, lowering
from braze.support.record import record
from braze.symbolic.expr import ZERO, Expr, as_expr, contiguous_strides, linear, maximum, minimum

#: a window of more places than this is ATen's
MOST_PLACES = 25


@lowering(aten.max_pool2d_with_indices.default)
def max_pool2d(
    g: ProgramBuilder,
    x: Lazy,
    kernel: Sequence[Any],
    stride: Sequence[Any] = (),
    padding: Sequence[Any] = (0,),
    dilation: Sequence[Any] = (1,),
    ceil_mode: bool = False,
) -> Any:
    """The largest element of each window, or nan; of equal ones the first, as eager has it (which tells zeros of two signs).

    And where it was found, on a processor, for which ATen goes number by number.
    """
    kernel, padding, dilation = (_pair(v) for v in (kernel, padding, dilation))
    stride = _pair(stride) if stride else kernel
    numbers = (*kernel, *stride, *padding, *dilation)
    if any(type(n) is not int for n in numbers) or kernel[0] * kernel[1] > MOST_PLACES:
        return NotImplemented
    if not _is_for_loops(g, x) or (1 in g.wanted and not _has_places(g, x, dilation)):
        return NotImplemented
    wide = compute_type(x.dtype)
    outside = build.const(float("-inf"), wide)
    height, width = x.sizes[-2:]
    g.realize(x)

    def found(index: Index) -> tuple[Node, Callable[[], Node]]:
        """A window's largest element, and what tells its place in the picture."""
        *before, row, column = index
        top, left = row * stride[0] - padding[0], column * stride[1] - padding[1]
        best, steps = None, []
        for i, j in itertools.product(range(kernel[0]), range(kernel[1])):
            r, c = top + i * dilation[0], left + j * dilation[1]
            inside = build.both(_within(g, r, height), _within(g, c, width))
            value = build.masked(inside, build.cast(x.load((*before, r, c)), wide), outside)
            if best is None:
                best = value
            else:
                better = build.either(build.lt(best, value), build.binary(Op.NE, value, value))
                best = build.where(better, value, best)
                steps.append((better, r * width + c))

        def place() -> Node:
            # of a window of which nothing is larger than what lies outside it is the first element that there is
            at = g.index_node(maximum(top, 0) * width + maximum(left, 0), DType.I32)
            for better, here in steps:
                at = build.where(better, g.index_node(here, DType.I32), at)
            return build.cast(at, DType.I64)

        assert best is not None
        return best, place

    sizes = g.symbols.exprs(g.val[0].shape)
    cost = 4 * kernel[0] * kernel[1]
    largest = Lazy(
        sizes, x.dtype, x.device, lambda at: build.cast(found(at)[0], x.dtype), cost=cost, ops=(g.op_name,)
    )
    if 1 not in g.wanted:
        return largest, None
    places = Lazy(sizes, DType.I64, x.device, lambda at: found(at)[1](), cost=2 * cost, ops=(g.op_name,))
    return largest, places


def _is_for_loops(g: ProgramBuilder, x: Lazy) -> bool:
    """Whether floats have windows that loops of ours go over: on a processor ATen goes number by number, but for channels-last."""
    return g.is_for_loops(x) or (x.device == "cpu" and x.dtype.is_float and x.dtype.is_computable)


def _has_places(g: ProgramBuilder, x: Lazy, dilation: Sequence[int]) -> bool:
    """Whether places of a picture's elements are what our loops have: numbers of 32 bits, in windows without holes, on a processor."""
    height, width = (size.value for size in x.sizes[-2:])
    small = height is not None and width is not None and height * width < 2**31
    return x.device == "cpu" and small and list(dilation) == [1, 1]


@record
class _Windows:
    """The windows of means along two dims: ``over`` the sizes of what is averaged, ``count`` how many there are."""

    kernel: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    over: Sequence[Expr]
    count: Sequence[Expr]
    padded: bool  # elements outside count
    divisor: int | None

    def elements(self, dim: int, window: Expr) -> Expr:
        """By how many elements of a dim a window's sum is divided; the last windows may end behind the padding."""
        begin = window * self.stride[dim] - self.padding[dim]
        if self.padded:
            return minimum(begin + self.kernel[dim], self.over[dim] + self.padding[dim]) - begin
        return minimum(begin + self.kernel[dim], self.over[dim]) - maximum(begin, 0)

    def holding(self, g: ProgramBuilder, row: Expr, column: Expr) -> Iterator[tuple[tuple[Expr, Expr], Node]]:
        """The windows that may hold an element, the last of them first known, and whether each does."""
        place = row + self.padding[0], column + self.padding[1]
        most = [range(-(-k // s)) for k, s in zip(self.kernel, self.stride, strict=True)]
        for back in itertools.product(*map(reversed, most)):
            r, c = (at // step - k for at, step, k in zip(place, self.stride, back, strict=True))
            yield (r, c), build.both(self._holds(g, 0, r, place[0]), self._holds(g, 1, c, place[1]))

    def _holds(self, g: ProgramBuilder, dim: int, window: Expr, place: Expr) -> Node:
        reaches = build.lt(g.index_node(place - window * self.stride[dim]), build.index(self.kernel[dim]))
        return build.both(reaches, _within(g, window, self.count[dim]))

    def divide(self, g: ProgramBuilder, value: Node, row: Expr, column: Expr) -> Node:
        """What a window's sum, or its gradient, is for each element."""
        if self.divisor is not None:
            return build.div(value, build.const(float(self.divisor), value.dtype))
        elements = build.mul(g.index_node(self.elements(0, row)), g.index_node(self.elements(1, column)))
        return build.div(value, build.cast(elements, value.dtype))


def _windows(g: ProgramBuilder, whole: Lazy, means: Sequence[Any], words: Sequence[Any]) -> _Windows | None:
    """The windows that an operator's words tell, over ``whole``; None where they are ATen's."""
    kernel, stride, padding, ceil_mode, padded, divisor = words
    kernel, padding = _pair(kernel), _pair(padding)
    stride = _pair(stride) if stride else kernel
    if any(type(n) is not int for n in (*kernel, *stride, *padding)) or kernel[0] * kernel[1] > MOST_PLACES:
        return None
    if divisor is None and not ceil_mode and (padded or not any(padding)):
        divisor = kernel[0] * kernel[1]  # all are whole
    count = g.symbols.exprs(means[-2:])
    return _Windows(kernel, stride, padding, whole.sizes[-2:], count, padded, divisor)


@lowering(aten.avg_pool2d.default)
def avg_pool2d(
    g: ProgramBuilder,
    x: Lazy,
    kernel: Sequence[Any],
    stride: Sequence[Any] = (),
    padding: Sequence[Any] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """The mean of each window."""
    words = (kernel, stride, padding, ceil_mode, count_include_pad, divisor_override)
    found = _windows(g, x, g.val.shape, words) if _is_for_loops(g, x) else None
    if found is None:
        return NotImplemented
    wide = compute_type(x.dtype)
    nothing = build.const(0.0, wide)
    g.realize(x)

    def mean(index: Index) -> Node:
        *before, row, column = index
        total = nothing
        for i in range(found.kernel[0]):
            for j in range(found.kernel[1]):
                r = row * found.stride[0] + (i - found.padding[0])
                c = column * found.stride[1] + (j - found.padding[1])
                inside = build.both(_within(g, r, x.sizes[-2]), _within(g, c, x.sizes[-1]))
                value = build.masked(inside, build.cast(x.load((*before, r, c)), wide), nothing)
                total = build.add(total, value)
        return build.cast(found.divide(g, total, row, column), x.dtype)

    cost = 3 * found.kernel[0] * found.kernel[1]
    return Lazy(g.symbols.exprs(g.val.shape), x.dtype, x.device, mean, cost=cost, ops=(g.op_name,))


@lowering(aten.avg_pool2d_backward.default)
def avg_pool2d_backward(g: ProgramBuilder, gradient: Lazy, x: Lazy, *words: Any) -> Any:
    """What each element has a part in: the windows that hold it are a few in a row, of which the last is known."""
    found = _windows(g, x, gradient.sizes, words) if _is_for_loops(g, gradient) else None
    if found is None:
        return NotImplemented
    wide = compute_type(x.dtype)
    nothing = build.const(0.0, wide)
    g.realize(gradient)

    def gathered(index: Index) -> Node:
        *before, row, column = index
        total = nothing
        for (r, c), held in found.holding(g, row, column):
            value = build.cast(gradient.load((*before, r, c)), wide)
            total = build.add(total, build.masked(held, found.divide(g, value, r, c), nothing))
        return build.cast(total, x.dtype)

    return Lazy(g.symbols.exprs(g.val.shape), x.dtype, x.device, gathered, cost=16, ops=(g.op_name,))


@lowering(aten.max_pool2d_with_indices_backward.default)
def max_pool2d_backward(
    g: ProgramBuilder, gradient: Lazy, x: Lazy, kernel: Any, stride: Any, padding: Any, dilation: Any,
    ceil_mode: bool, places: Lazy,
) -> Any:  # fmt: skip
    """What each element is the largest of: of the few windows that hold it those that were found to have it."""
    found = None
    if g.is_for_loops(gradient, x) and list(_pair(dilation)) == [1, 1]:
        found = _windows(g, x, gradient.sizes, (kernel, stride, padding, ceil_mode, True, 1))
    if found is None:
        return NotImplemented
    wide = compute_type(x.dtype)
    nothing = build.const(0.0, wide)
    width = x.sizes[-1]
    g.realize(gradient)
    g.realize(places)

    def gathered(index: Index) -> Node:
        *before, row, column = index
        own = g.index_node(row * width + column)
        total = nothing
        for (r, c), held in found.holding(g, row, column):
            at = (*before, r, c)
            here = build.binary(Op.EQ, build.masked(held, places.load(at), build.const(-1, DType.I64)), own)
            value = build.masked(build.both(held, here), build.cast(gradient.load(at), wide), nothing)
            total = build.add(total, value)
        return build.cast(total, x.dtype)

    return Lazy(g.symbols.exprs(g.val.shape), x.dtype, x.device, gathered, cost=20, ops=(g.op_name,))


@record
class _Shares:
    """A dim of ``size`` elements cut in ``count`` windows as even as can be, which may have an element at their ends in common."""

    size: int
    count: int

    def first(self, window: Expr) -> Expr:
        """A window's first element."""
        return window * self.size // self.count

    def past(self, window: Expr) -> Expr:
        """What follows its last one."""
        return ((window + 1) * self.size + (self.count - 1)) // self.count

    @property
    def longest(self) -> int:
        """Elements of a window, at most."""
        return max(
            -(-(w + 1) * self.size // self.count) - w * self.size // self.count for w in range(self.count)
        )

    def turned(self) -> _Shares:
        """The same seen from an element: the windows that have it are those that it would have."""
        return _Shares(self.count, self.size)


def _shares(whole: Lazy, parts: Sequence[Expr]) -> list[_Shares] | None:
    """How the last two dims of a picture are cut; None where that is not known."""
    pairs = [(a.value, b.value) for a, b in zip(whole.sizes[-2:], parts[-2:], strict=True)]
    return None if any(not a or not b for a, b in pairs) else [_Shares(a or 0, b or 0) for a, b in pairs]


@lowering(aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool2d(g: ProgramBuilder, x: Lazy, output_size: Sequence[Any]) -> Any:
    """The mean of each of so many windows: of few elements with what follows, of many by a reduction."""
    sizes = g.symbols.exprs(g.val.shape)
    shares = _shares(x, sizes) if _is_for_loops(g, x) else None
    if shares is None:
        return NotImplemented
    wide = compute_type(x.dtype)
    g.realize(x)

    def element(index: Index, i: Expr, j: Expr) -> Node:
        """The element of a window at a place in it."""
        *before, row, column = index
        at = shares[0].first(row) + i, shares[1].first(column) + j
        value = build.cast(x.load((*before, *at)), wide)
        return build.masked(_before_ends(g, shares, at, (row, column)), value, build.const(0.0, wide))

    def mean(index: Index, total: Node) -> Node:
        return build.cast(_shared(g, shares, total, index), x.dtype)

    rows, columns = (s.longest for s in shares)
    if rows * columns > MOST_PLACES:
        return _of_large_windows(g, x, sizes, (rows, columns), element, mean)

    def unrolled(index: Index) -> Node:
        places = itertools.product(range(rows), range(columns))
        values = [element(index, as_expr(i), as_expr(j)) for i, j in places]
        return mean(index, _total(values, wide))

    return Lazy(sizes, x.dtype, x.device, unrolled, cost=4 * rows * columns, ops=(g.op_name,))


def _of_large_windows(
    g: ProgramBuilder,
    x: Lazy,
    sizes: tuple[Expr, ...],
    window: tuple[int, int],
    element: Callable[[Index, Expr, Expr], Node],
    mean: Callable[[Index, Node], Node],
) -> Lazy:
    """The means of windows by one reduction."""
    wide = compute_type(x.dtype)
    axes, index = g.axes(sizes)
    over, (i, j) = g.axes([as_expr(n) for n in window], "r")
    strides = g.symbols.exprs(g.val.stride())
    if dense_order(sizes, strides) is None:
        strides = contiguous_strides(sizes)
    out = g.new_buffer(x.dtype, sizes, strides, x.device)
    store = Store(out, linear(index, strides, ZERO), mean(index, build.reduced(0, wide)))
    total = Reduction(ReduceKind.SUM, wide, element(index, i, j))
    g.nest(axes, (store,), x.device, (g.op_name,), over=over, reductions=(total,))
    return g.lazy(out)


def _before_ends(
    g: ProgramBuilder, shares: Sequence[_Shares], places: Sequence[Expr], windows: Sequence[Expr]
) -> Node:
    """Whether places along two dims lie before the ends of windows."""
    down, across = (
        build.lt(g.index_node(at), g.index_node(s.past(window)))
        for s, at, window in zip(shares, places, windows, strict=True)
    )
    return build.both(down, across)


def _total(values: Sequence[Node], wide: DType) -> Node:
    """The sum of values, as ATen's kernels begin it: of nothing but ``-0.0`` it is ``0.0``."""
    return functools.reduce(build.add, values, build.const(0.0, wide))


def _shared(g: ProgramBuilder, shares: Sequence[_Shares], value: Node, index: Index) -> Node:
    """A value divided by the elements of a window."""
    for s, window in zip(shares, index[-2:], strict=True):
        value = build.div(value, build.cast(g.index_node(s.past(window) - s.first(window)), value.dtype))
    return value


@lowering(aten._adaptive_avg_pool2d_backward.default)
def adaptive_avg_pool2d_backward(g: ProgramBuilder, gradient: Lazy, x: Lazy) -> Any:
    """The shares of each element: of one window, where windows divide the picture, or of the few that have it."""
    shares = _shares(x, gradient.sizes) if _is_for_loops(g, gradient) else None
    if shares is None:
        return NotImplemented
    turned = [s.turned() for s in shares]
    most = [s.longest for s in turned]
    if math.prod(most) > MOST_PLACES:
        return NotImplemented
    wide = compute_type(x.dtype)
    nothing = build.const(0.0, wide)
    given = gradient

    def share(window: Index) -> Node:
        return _shared(g, shares, build.cast(given.load(window), wide), window)

    # where several windows are read each is divided before, once
    gradient = Lazy(given.sizes, wide, given.device, share, cost=8 + given.pending_cost, ops=(g.op_name,))
    if most == [1, 1]:
        g.realize_if_costly(given)
    else:
        g.realize(gradient)

    def gathered(index: Index) -> Node:
        *before, row, column = index
        values = []
        for i, j in itertools.product(*map(range, most)):
            at = [s.first(e) + k for s, e, k in zip(turned, (row, column), (i, j), strict=True)]
            has = _before_ends(g, turned, at, (row, column))
            values.append(build.masked(has, gradient.load((*before, *at)), nothing))
        return build.cast(_total(values, wide), x.dtype)

    cost = 8 * math.prod(most)
    return Lazy(g.symbols.exprs(g.val.shape), x.dtype, x.device, gathered, cost=cost, ops=(g.op_name,))


def _pair(values: Sequence[Any]) -> Sequence[Any]:
    return list(values) * (2 if len(values) == 1 else 1)


def _within(g: ProgramBuilder, place: Expr, size: Expr) -> Node:
    """Whether a place is one of a dim of so many."""
    at = g.index_node(place)
    return build.both(build.binary(Op.GE, at, build.index(0)), build.lt(at, g.index_node(size)))
