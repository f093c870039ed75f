"""Maxima and means over windows on a GPU, and the gradients of means.

Maxima where nobody asks where they were found: ATen's kernel writes eight bytes for each to say so. ATen's kernels of means read
and write number by number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from braze.loops import build
from braze.loops.dtypes import compute_type
from braze.loops.ir import Node, Op
from braze.lower.lazy import Index, Lazy
from braze.lower.realize import ProgramBuilder
from braze.lower.registry import aten, lowering
from braze.support.record import record
from braze.symbolic.expr import Expr, maximum, minimum

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
    """The largest element of each window, or nan; of equal ones the first, as eager has it (which tells zeros of two signs)."""
    if 1 in g.wanted or not g.is_for_loops(x):
        return NotImplemented
    kernel, padding, dilation = (_pair(v) for v in (kernel, padding, dilation))
    stride = _pair(stride) if stride else kernel
    numbers = (*kernel, *stride, *padding, *dilation)
    if any(type(n) is not int for n in numbers) or kernel[0] * kernel[1] > MOST_PLACES:
        return NotImplemented
    wide = compute_type(x.dtype)
    outside = build.const(float("-inf"), wide)
    g.realize(x)

    def largest(index: Index) -> Node:
        *before, row, column = index
        best = outside
        for i in range(kernel[0]):
            for j in range(kernel[1]):
                r = row * stride[0] + (i * dilation[0] - padding[0])
                c = column * stride[1] + (j * dilation[1] - padding[1])
                inside = build.both(_within(g, r, x.sizes[-2]), _within(g, c, x.sizes[-1]))
                value = build.masked(inside, build.cast(x.load((*before, r, c)), wide), outside)
                better = build.either(build.lt(best, value), build.binary(Op.NE, value, value))
                best = build.where(better, value, best)
        return build.cast(best, x.dtype)

    sizes = g.symbols.exprs(g.val[0].shape)
    cost = 4 * kernel[0] * kernel[1]
    return Lazy(sizes, x.dtype, x.device, largest, cost=cost, ops=(g.op_name,)), None


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
    found = _windows(g, x, g.val.shape, words) if g.is_for_loops(x) else None
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
    found = _windows(g, x, gradient.sizes, words) if g.is_for_loops(gradient, x) else None
    if found is None:
        return NotImplemented
    wide = compute_type(x.dtype)
    nothing = build.const(0.0, wide)
    g.realize(gradient)
    most = [-(-k // s) for k, s in zip(found.kernel, found.stride, strict=True)]

    def holds(dim: int, window: Expr, place: Expr) -> Node:
        reaches = build.lt(g.index_node(place - window * found.stride[dim]), build.index(found.kernel[dim]))
        return build.both(reaches, _within(g, window, found.count[dim]))

    def gathered(index: Index) -> Node:
        *before, row, column = index
        rows, columns = row + found.padding[0], column + found.padding[1]
        total = nothing
        for i in reversed(range(most[0])):
            for j in reversed(range(most[1])):
                r, c = rows // found.stride[0] - i, columns // found.stride[1] - j
                held = build.both(holds(0, r, rows), holds(1, c, columns))
                value = build.cast(gradient.load((*before, r, c)), wide)
                total = build.add(total, build.masked(held, found.divide(g, value, r, c), nothing))
        return build.cast(total, x.dtype)

    return Lazy(
        g.symbols.exprs(g.val.shape),
        x.dtype,
        x.device,
        gathered,
        cost=4 * most[0] * most[1],
        ops=(g.op_name,),
    )


@lowering(aten._adaptive_avg_pool2d_backward.default)
def adaptive_avg_pool2d_backward(g: ProgramBuilder, gradient: Lazy, x: Lazy) -> Any:
    """Where windows divide the picture each element lies in one."""
    if not g.is_for_loops(gradient, x):
        return NotImplemented
    whole, count = (tuple(size.value for size in each.sizes[-2:]) for each in (x, gradient))
    if None in whole or any(not n or m is None or m % n for m, n in zip(whole, count, strict=True)):
        return NotImplemented
    height, width = (m // n for m, n in zip(whole, count, strict=True))  # type: ignore[operator]
    wide = compute_type(x.dtype)
    g.realize_if_costly(gradient)

    def shared(index: Index) -> Node:
        *before, row, column = index
        value = build.cast(gradient.load((*before, row // height, column // width)), wide)
        for elements in (width, height):
            value = build.div(value, build.const(float(elements), wide))
        return build.cast(value, x.dtype)

    return Lazy(g.symbols.exprs(g.val.shape), x.dtype, x.device, shared, cost=8, ops=(g.op_name,))


def _pair(values: Sequence[Any]) -> Sequence[Any]:
    return list(values) * (2 if len(values) == 1 else 1)


def _within(g: ProgramBuilder, place: Expr, size: Expr) -> Node:
    """Whether a place is one of a dim of so many."""
    at = g.index_node(place)
    return build.both(build.binary(Op.GE, at, build.index(0)), build.lt(at, g.index_node(size)))
