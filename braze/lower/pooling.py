"""Maxima over windows on a GPU, where nobody asks where they were found: ATen's kernel writes eight bytes for each to say so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from braze.loops import build
from braze.loops.dtypes import compute_type
from braze.loops.ir import Node, Op
from braze.lower.lazy import Index, Lazy
from braze.lower.realize import ProgramBuilder
from braze.lower.registry import aten, lowering
from braze.symbolic.expr import Expr

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
    if 1 in g.wanted or g.ctx.target.kind != "cuda" or x.device == "cpu" or not x.dtype.is_float:
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


def _pair(values: Sequence[Any]) -> Sequence[Any]:
    return list(values) * (2 if len(values) == 1 else 1)


def _within(g: ProgramBuilder, place: Expr, size: Expr) -> Node:
    """Whether a place is one of a dim of so many."""
    at = g.index_node(place)
    return build.both(build.binary(Op.GE, at, build.index(0)), build.lt(at, g.index_node(size)))
