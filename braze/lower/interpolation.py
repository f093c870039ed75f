"""Pictures interpolated between their elements on a GPU, where ATen's kernel takes one element of the result after another."""

from __future__ import annotations

from typing import Any

from braze.loops import build
from braze.loops.dtypes import compute_type
from braze.loops.ir import DType, Node
from braze.lower.lazy import Index, Lazy
from braze.lower.realize import ProgramBuilder
from braze.lower.registry import aten, lowering
from braze.support.record import record
from braze.symbolic.expr import Expr, maximum, minimum


@record
class _Line:
    """Where the elements of a dim come from: element ``i`` from ``(i * factor + shift) / parts``, or the first."""

    factor: int
    shift: int
    parts: int
    size: int  # how many elements there are to come from

    def neighbours(self, g: ProgramBuilder, i: Expr, dtype: DType) -> tuple[Expr, Expr, Node]:
        """The two elements around a place, and how near the second one is, from 0 to 1."""
        place = maximum(i * self.factor + self.shift, 0)
        first = place // self.parts
        near = build.div(
            build.cast(g.index_node(place % self.parts), dtype), build.const(float(self.parts), dtype)
        )
        return first, minimum(first + 1, self.size - 1), near


def _line(size: Any, into: Any, align_corners: bool, scale: float | None) -> _Line | None:
    """How a dim of ``size`` elements becomes one of ``into``; None where their ratio is not the scale that was asked for."""
    if type(size) is not int or type(into) is not int:
        return None
    if align_corners:  # the corners of both are the centres of their last elements
        return _Line(size - 1, 0, into - 1, size) if into > 1 else _Line(0, 0, 1, size)
    if scale is not None and scale > 0 and scale * size != into:
        return None
    return _Line(2 * size, size - into, 2 * into, size)


@lowering(aten.upsample_bilinear2d.default, aten.upsample_bilinear2d.vec)
def bilinear(g: ProgramBuilder, x: Lazy, output_size: Any, align_corners: bool, *scales: Any) -> Any:
    """Each element from the four around its place, which is told in whole numbers.

    Eager's floats may take the place before it, with a weight of nearly one for the next.
    """
    if not g.is_for_loops(x):
        return NotImplemented
    # one list of both scales, or each by itself; none where the size was given
    both = scales[0] if scales and isinstance(scales[0], (list, tuple)) else scales
    both = (*both, None, None)
    down = _line(x.sizes[-2].value, g.val.shape[-2], align_corners, both[0])
    across = _line(x.sizes[-1].value, g.val.shape[-1], align_corners, both[1])
    if down is None or across is None:
        return NotImplemented
    wide = compute_type(x.dtype)
    one = build.const(1.0, wide)
    g.realize(x)

    def between(a: Node, b: Node, near: Node) -> Node:
        return build.add(build.mul(build.sub(one, near), a), build.mul(near, b))

    def interpolated(index: Index) -> Node:
        *before, row, column = index
        top, bottom, low = down.neighbours(g, row, wide)
        left, right, far = across.neighbours(g, column, wide)

        def at(r: Expr, c: Expr) -> Node:
            return build.cast(x.load((*before, r, c)), wide)

        above = between(at(top, left), at(top, right), far)
        below = between(at(bottom, left), at(bottom, right), far)
        return build.cast(between(above, below, low), x.dtype)

    return Lazy(g.symbols.exprs(g.val.shape), x.dtype, x.device, interpolated, cost=24, ops=(g.op_name,))
