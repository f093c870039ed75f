"""Pictures interpolated between their elements on a GPU, and the gradients of that, where ATen's kernels go element by element, or add by atomics.

An element of the result is a weighted sum of a few elements around its place, dim by dim. Of the gradient an element is the
weighted sum of those of the result that it has a part in: a few in a row along each dim, of which the first is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch

from braze.loops import build
from braze.loops.dtypes import compute_type
from braze.loops.ir import DType, Node, Op
from braze.lower.values.lazy import Index, Lazy
from braze.lower.values.realize import ProgramBuilder
from braze.lower.values.registry import aten, lowering
from braze.support.record import record
from braze.symbolic.expr import ZERO, Expr, as_expr, maximum, minimum

#: elements of which one is summed at once; of more each dim is summed by itself, up to so many of a dim
MOST_AT_ONCE, MOST_ALONG = 36, 40

#: an element and its weight
Tap = tuple[Expr, Node]


@record
class _Line:
    """Where the elements of a dim come from: element ``i`` of ``into`` from ``(i * factor + shift) / parts`` of ``size``."""

    factor: int
    shift: int
    parts: int
    size: int
    into: int
    kind: _Kind

    def place(self, i: Expr) -> Expr:
        """In parts of an element."""
        return i * self.factor + self.shift

    def taps(self, g: ProgramBuilder, i: Expr, dtype: DType) -> list[Tap]:
        """What an element of the result is the sum of."""
        return self.kind.taps(g, self, self.place(i), dtype)

    @property
    def many(self) -> int:
        """Elements of the result that one of these has a part in, at most."""
        return -(-self.kind.reach * self.parts // self.factor) if self.factor else self.into

    def first(self, of: Expr) -> Expr:
        """The first of these."""
        if not self.factor:  # all have one element, the only one or the first
            return ZERO
        return ((of - self.kind.ahead) * self.parts + (self.factor - 1 - self.shift)) // self.factor

    def part(self, g: ProgramBuilder, i: Expr, of: Expr, dtype: DType) -> tuple[Node, Node]:
        """(whether an element of the result is one of these, the weight that it has)."""
        own = g.index_node(of)
        ends = g.index_node((of + (self.kind.reach - self.kind.ahead)) * self.parts)
        reached = build.lt(g.index_node(self.place(i)), ends)
        there = build.both(
            build.binary(Op.GE, g.index_node(i), build.index(0)),
            build.lt(g.index_node(i), build.index(self.into)),
        )
        nothing = build.const(0.0, dtype)
        weight = nothing
        for at, w in self.taps(g, i, dtype):
            mine = build.where(build.binary(Op.EQ, g.index_node(at), own), w, nothing)
            weight = mine if weight is nothing else build.add(weight, mine)
        return build.both(there, reached), weight


@record
class _Kind:
    """How elements are weighted. Element ``k`` has a part in what lies from ``k - ahead`` on, over ``reach`` elements."""

    taps: Callable[[ProgramBuilder, _Line, Expr, DType], list[Tap]]
    ahead: int
    reach: int


def _nearest(g: ProgramBuilder, line: _Line, place: Expr, dtype: DType) -> list[Tap]:
    return [(place // line.parts, build.const(1.0, dtype))]


def _linear(g: ProgramBuilder, line: _Line, place: Expr, dtype: DType) -> list[Tap]:
    """The two elements around a place; before the first is the first."""
    place = maximum(place, 0)
    first = place // line.parts
    near = _near(g, line, place, dtype)
    far = build.sub(build.const(1.0, dtype), near)
    return [(first, far), (minimum(first + 1, line.size - 1), near)]


def _cubic(g: ProgramBuilder, line: _Line, place: Expr, dtype: DType) -> list[Tap]:
    """The four elements around a place, those at the ends standing for what is beyond."""
    first = place // line.parts
    near = _near(g, line, place, dtype)
    one, two = (build.const(n, dtype) for n in (1.0, 2.0))
    far = build.sub(one, near)
    weights = [
        _outer(build.add(near, one)),
        _inner(near),
        _inner(far),
        _outer(build.sub(two, near)),
    ]
    return [(minimum(maximum(first + (k - 1), 0), line.size - 1), weight) for k, weight in enumerate(weights)]


def _near(g: ProgramBuilder, line: _Line, place: Expr, dtype: DType) -> Node:
    """How near a place is to the element behind it, from 0 to 1."""
    return build.div(
        build.cast(g.index_node(place % line.parts), dtype), build.const(float(line.parts), dtype)
    )


#: how sharp a cubic is, in PyTorch
SHARP = -0.75


def _inner(x: Node) -> Node:
    """The weight of an element no more than one away."""
    return _polynomial(x, SHARP + 2, -(SHARP + 3), 0.0, 1.0)


def _outer(x: Node) -> Node:
    """Of one that is from one to two away."""
    return _polynomial(x, SHARP, -5 * SHARP, 8 * SHARP, -4 * SHARP)


def _polynomial(x: Node, *factors: float) -> Node:
    value = build.const(factors[0], x.dtype)
    for factor in factors[1:]:
        value = build.add(build.mul(value, x), build.const(factor, x.dtype))
    return value


NEAREST = _Kind(_nearest, 0, 1)
LINEAR = _Kind(_linear, 1, 2)
CUBIC = _Kind(_cubic, 2, 4)


def _between(size: Any, into: Any, align_corners: bool, scale: float | None, kind: _Kind) -> _Line | None:
    """How a dim of ``size`` elements becomes one of ``into``; None where their ratio is not the scale that was asked for."""
    if type(size) is not int or type(into) is not int or not size or not into:
        return None
    if align_corners:  # the corners of both are the centres of their last elements
        factor, parts = (size - 1, into - 1) if into > 1 else (0, 1)
        return _Line(factor, 0, parts, size, into, kind)
    if scale is not None and scale > 0 and scale * size != into:
        return None
    return _Line(2 * size, size - into, 2 * into, size, into, kind)


def _repeated(size: Any, into: Any, scale: float | None, *, exact: bool) -> _Line | None:
    """The same of elements that are repeated; None where eager's floats come to other places."""
    if type(size) is not int or type(into) is not int or not size or not into:
        return None
    line = (
        _Line(2 * size, size, 2 * into, size, into, NEAREST)
        if exact
        else _Line(size, 0, into, size, into, NEAREST)
    )
    i = torch.arange(into)
    step = torch.tensor(1.0 / scale) if scale is not None and scale > 0 else torch.tensor(float(size)) / into
    eager = ((i + 0.5 if exact else i) * step).floor().long().clamp(max=size - 1)
    return line if torch.equal(eager, (i * line.factor + line.shift) // line.parts) else None


def _lines(
    sizes: Sequence[Any], into: Sequence[Any], kind: str, align_corners: bool, scales: Sequence[Any]
) -> list[_Line] | None:
    """How each dim of a picture is interpolated; None where that is ATen's."""
    # one list of all scales, or each by itself; none where the size was given
    given = scales[0] if scales and isinstance(scales[0], (list, tuple)) else scales
    given = [*given, *[None] * (len(sizes) - len(given))]
    found = []
    for size, to, scale in zip(sizes, into, given, strict=True):
        if kind in SMOOTH:
            found.append(_between(size, to, align_corners, scale, SMOOTH[kind]))
        else:
            found.append(_repeated(size, to, scale, exact=kind == "exact"))
    return None if any(line is None for line in found) else [line for line in found if line is not None]


SMOOTH = {"linear": LINEAR, "cubic": CUBIC}


def _interpolated(g: ProgramBuilder, x: Lazy, kind: str, align_corners: bool, scales: Sequence[Any]) -> Any:
    """Each element from those around its place, which is told in whole numbers.

    Eager's floats may take the place before it, with a weight of nearly one for the next.
    """
    if not g.is_for_loops(x):
        return NotImplemented
    dims = x.rank - 2
    sizes = [size.value for size in x.sizes[2:]]
    lines = _lines(sizes, g.val.shape[2:], kind, align_corners, scales)
    if lines is None:
        return NotImplemented
    wide = compute_type(x.dtype)
    g.realize(x)

    def interpolated(index: Index) -> Node:
        taps = [line.taps(g, i, wide) for line, i in zip(lines, index[-dims:], strict=True)]

        def summed(at: tuple[Expr, ...], rest: list[list[Tap]]) -> Node:
            if not rest:
                return build.cast(x.load(at), wide)
            return _sum([build.mul(weight, summed((*at, i), rest[1:])) for i, weight in rest[0]])

        return build.cast(summed(tuple(index[:-dims]), taps), x.dtype)

    cost = 6 * math.prod(line.kind.reach for line in lines)
    return Lazy(g.symbols.exprs(g.val.shape), x.dtype, x.device, interpolated, cost=cost, ops=(g.op_name,))


def _gathered(
    g: ProgramBuilder,
    gradient: Lazy,
    sizes: Sequence[Any],
    kind: str,
    align_corners: bool,
    scales: Sequence[Any],
) -> Any:
    """What each element has a part in, by its weights there."""
    if not g.is_for_loops(gradient):
        return NotImplemented
    into = [size.value for size in gradient.sizes[2:]]
    lines = _lines(sizes[2:], into, kind, align_corners, scales)
    if lines is None or any(line.many > MOST_ALONG for line in lines):
        return NotImplemented
    if math.prod(line.many for line in lines) <= MOST_AT_ONCE:
        return _gathered_along(g, gradient, dict(enumerate(lines, 2)), gradient.dtype)
    wide = compute_type(gradient.dtype)
    made = gradient
    for dim in reversed(range(2, gradient.rank)):
        made = _gathered_along(g, made, {dim: lines[dim - 2]}, wide if dim > 2 else gradient.dtype)
    return made


def _gathered_along(g: ProgramBuilder, gradient: Lazy, lines: dict[int, _Line], dtype: DType) -> Lazy:
    """The same along some dims."""
    wide = compute_type(dtype)
    nothing = build.const(0.0, wide)
    g.realize(gradient)

    def gathered(index: Index) -> Node:
        def summed(at: tuple[Expr, ...], inside: Node) -> Node:
            dim = len(at)
            if dim == gradient.rank:
                return build.masked(inside, build.cast(gradient.load(at), wide), nothing)
            line = lines.get(dim)
            if line is None:
                return summed((*at, index[dim]), inside)
            first = line.first(index[dim])
            parts = []
            for k in range(line.many):
                there, weight = line.part(g, first + k, index[dim], wide)
                parts.append(build.mul(weight, summed((*at, first + k), build.both(inside, there))))
            return _sum(parts)

        return build.cast(summed((), build.const(True, DType.BOOL)), dtype)

    sizes = list(gradient.sizes)
    for dim, line in lines.items():
        sizes[dim] = as_expr(line.size)
    cost = 6 * math.prod(line.many for line in lines.values())
    return Lazy(tuple(sizes), dtype, gradient.device, gathered, cost=cost, ops=(g.op_name,))


def _sum(values: Sequence[Node]) -> Node:
    return reduce(build.add, values)


def _register(forward: Any, backward: Any, kind: str, *, aligned: bool) -> None:
    """The rows of an interpolation and its gradient; ``aligned``: they are told whether corners are aligned."""

    def corners_and_scales(words: Sequence[Any]) -> tuple[bool, Sequence[Any]]:
        return (words[0], words[1:]) if aligned else (False, words)

    # others that are told of a list of scales are taken apart before
    kept = (forward.vec,) if kind == "linear" else ()

    @lowering(forward.default, *kept)
    def interpolated(g: ProgramBuilder, x: Lazy, output_size: Any, *words: Any) -> Any:
        return _interpolated(g, x, kind, *corners_and_scales(words))

    @lowering(backward.default)
    def gathered(
        g: ProgramBuilder, gradient: Lazy, output_size: Any, input_size: Sequence[Any], *words: Any
    ) -> Any:
        return _gathered(g, gradient, input_size, kind, *corners_and_scales(words))


for _forward, _backward, _name in (
    (aten.upsample_linear1d, aten.upsample_linear1d_backward, "linear"),
    (aten.upsample_bilinear2d, aten.upsample_bilinear2d_backward, "linear"),
    (aten.upsample_trilinear3d, aten.upsample_trilinear3d_backward, "linear"),
    (aten.upsample_bicubic2d, aten.upsample_bicubic2d_backward, "cubic"),
    (aten.upsample_nearest1d, aten.upsample_nearest1d_backward, "nearest"),
    (aten.upsample_nearest2d, aten.upsample_nearest2d_backward, "nearest"),
    (aten.upsample_nearest3d, aten.upsample_nearest3d_backward, "nearest"),
    (aten._upsample_nearest_exact1d, aten._upsample_nearest_exact1d_backward, "exact"),
    (aten._upsample_nearest_exact2d, aten._upsample_nearest_exact2d_backward, "exact"),
    (aten._upsample_nearest_exact3d, aten._upsample_nearest_exact3d_backward, "exact"),
):
    _register(_forward, _backward, _name, aligned=_name in SMOOTH)
