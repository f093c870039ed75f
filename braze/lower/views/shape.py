"""Values made from nothing, joined, padded, copied and converted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from braze.loops import build
from braze.loops.ir import DType, Node, Op, Store
from braze.lower.elementwise.eights import FORMATS, from_eight, to_eight
from braze.lower.elementwise.pointwise import convert, narrowed
from braze.lower.values.lazy import Index, Lazy, dense_order, flatten, known_apart, numel
from braze.lower.values.pointwise_core import computed, merge_ops, usable
from braze.lower.values.promote import promote
from braze.lower.values.realize import COSTLY, ProgramBuilder
from braze.lower.values.registry import aten, lowering
from braze.lower.views.views import (
    choose_part,
    clamp_start,
    counted_from_start,
    expand_value,
    fresh,
    in_slice,
    on_diagonal,
    slice_value,
    unsqueeze,
)
from braze.runtime.operators.philox import UNIFORM
from braze.symbolic.expr import ZERO, Expr, as_expr, known_le, linear

# -- from nothing


def filled(g: ProgramBuilder, value: Any) -> Any:
    """A tensor like the node's result with one value everywhere."""
    dtype = g.dtype_of(g.val.dtype)
    if isinstance(value, Lazy) and value.weak and dtype.is_computable:
        number = value
        return Lazy(
            g.symbols.exprs(g.val.shape),
            dtype,
            str(g.val.device),
            lambda index: build.cast(number.load(()), dtype),
            cost=value.pending_cost,
        )
    if not dtype.is_computable or not isinstance(value, (bool, int, float, Expr)):
        return NotImplemented
    node = build.index(value, dtype) if isinstance(value, Expr) else build.const(value, dtype)
    return Lazy(g.symbols.exprs(g.val.shape), dtype, str(g.val.device), lambda index: node)


@lowering(
    aten.full.default,
    aten.full_like.default,
    aten.new_full.default,
    aten.fill.Scalar,
    aten.scalar_tensor.default,
)
def full(g: ProgramBuilder, *args: Any, **_: Any) -> Any:
    """One value everywhere: the last that is given."""
    return filled(g, args[-1])


@lowering(aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)
def zeros(g: ProgramBuilder, *_: Any, **__: Any) -> Any:
    """Zeros."""
    return filled(g, 0)


@lowering(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def ones(g: ProgramBuilder, *_: Any, **__: Any) -> Any:
    """Ones."""
    return filled(g, 1)


@lowering(aten.arange.default, aten.arange.start, aten.arange.start_step)
def arange(g: ProgramBuilder, *args: Any, **_: Any) -> Any:
    """start, start + step, ..."""
    dtype = g.dtype_of(g.val.dtype)
    start, step = (args[0], args[2] if len(args) > 2 else 1) if len(args) > 1 else (0, 1)
    if not dtype.is_computable:
        return NotImplemented
    device, sizes = str(g.val.device), g.symbols.exprs(g.val.shape)
    if isinstance(start, (int, Expr)) and isinstance(step, (int, Expr)):
        return Lazy(sizes, dtype, device, lambda index: g.index_node(as_expr(start) + index[0] * step, dtype))
    if dtype not in (DType.F32, DType.F64) or isinstance(start, Expr) or isinstance(step, Expr):
        return NotImplemented

    def inner(index: Index) -> Node:
        # eager computes start + i * step in double for float results
        steps = build.mul(g.index_node(index[0], DType.F64), build.const(step, DType.F64))
        return build.cast(build.add(build.const(start, DType.F64), steps), dtype)

    return Lazy(sizes, dtype, device, inner)


#: what one random number costs, in additions
_RANDOM_COST = 60
#: tensors that one loop on a GPU stacks, of so many numbers each: its kernel has two pointers or more for each of them
MOST_STACKED, FEW_NUMBERS = 256, 32


@lowering(UNIFORM)
def uniform(g: ProgramBuilder, seed: Lazy, size: Sequence[Any]) -> Any:
    """A random number in [0, 1) for each element, computed where it is used: a function of a seed and the element's place."""
    sizes = g.symbols.exprs(size)
    g.realize(seed)

    def inner(index: Index) -> Node:
        place = g.index_node(flatten(index, sizes))
        return Node(Op.RANDOM, DType.F32, (seed.load([]), place), "uniform")

    return Lazy(sizes, DType.F32, seed.device, inner, cost=_RANDOM_COST, ops=(g.op_name,))


# -- triangles


@lowering(aten.tril.default)
def tril(g: ProgramBuilder, x: Lazy, diagonal: int = 0) -> Any:
    """Zero above a diagonal."""
    return _triangle(g, x, lambda row, column: (row + diagonal, column))


@lowering(aten.triu.default)
def triu(g: ProgramBuilder, x: Lazy, diagonal: int = 0) -> Any:
    """Zero below a diagonal."""
    return _triangle(g, x, lambda row, column: (column, row + diagonal))


def _triangle(g: ProgramBuilder, x: Lazy, sides: Any) -> Any:
    """Keep the elements where the first side is at least the second."""
    if not x.dtype.is_computable:
        return NotImplemented

    def inner(index: Index) -> Node:
        a, b = sides(index[-2], index[-1])
        keep = build.binary(Op.GE, g.index_node(a), g.index_node(b))
        return build.where(keep, x.load(index), build.const(0, x.dtype))

    return computed(g, [x], inner, x.sizes, x.dtype, 1)


# -- joined and padded


@lowering(aten.cat.default)
def cat(g: ProgramBuilder, tensors: Sequence[Lazy], dim: int = 0) -> Any:
    """Join along a dimension: each point loads from the one tensor that holds it."""
    # a one-dimensional empty tensor joins with anything
    parts = [t for t in tensors if not (t.rank == 1 and t.sizes[0] is ZERO)]
    dtype = g.dtype_of(g.val.dtype)
    if not parts:
        return fresh(g, convert(g, tensors[0], dtype)) if dtype.is_computable else NotImplemented
    if not usable(parts) or not dtype.is_computable:
        return NotImplemented
    for t in tensors:
        if promote(t.dtype, dtype) is not dtype:
            return NotImplemented
    dim = dim % parts[0].rank
    starts: list[Expr] = [ZERO]
    for t in parts:
        starts.append(starts[-1] + t.sizes[dim])
    strides = g.symbols.exprs(g.val.stride())
    if len(parts) > 8:
        return _side_by_side(g, parts, dim, dtype, strides) if _are_small(g, parts) else NotImplemented
    if _worth_one_loop(g, parts) and dense_order(g.symbols.exprs(g.val.shape), strides) is not None:
        return _side_by_side(g, parts, dim, dtype, strides)
    for t in parts:
        g.realize_if_costly(t)

    def part(k: int, index: Index) -> Node:
        at = list(index)
        at[dim] = at[dim] - starts[k]
        return build.cast(parts[k].load(at), dtype)

    def inner(index: Index) -> Node:
        out = part(len(parts) - 1, index)
        for k in reversed(range(len(parts) - 1)):
            here = build.lt(g.index_node(index[dim]), g.index_node(starts[k + 1]))
            out = choose_part(here, part(k, index), out)
        return out

    return computed(g, parts, inner, g.symbols.exprs(g.val.shape), dtype, len(parts))


def _worth_one_loop(g: ProgramBuilder, parts: Sequence[Lazy]) -> bool:
    """Whether all parts are dear to compute, of the same sizes, and on a GPU: stored by themselves they would be read again to be joined."""
    dear = all(t.view is None and t.pending_cost >= COSTLY for t in parts)
    alike = len({tuple(t.sizes) for t in parts}) == 1 < len(parts)
    if not dear or not alike or numel(parts[0].sizes).value == 0:
        return False
    return g.ctx.target.kind == "cuda" and parts[0].device != "cpu"


def _are_small(g: ProgramBuilder, parts: Sequence[Lazy]) -> bool:
    """Whether many parts are a number or few each, and on a GPU: norms of a list of gradients, stacked."""
    if g.ctx.target.kind != "cuda" or parts[0].device == "cpu" or len(parts) > MOST_STACKED:
        return False
    alike = len({tuple(t.sizes) for t in parts}) == 1
    return alike and 0 < (numel(parts[0].sizes).value or 0) <= FEW_NUMBERS


def _side_by_side(
    g: ProgramBuilder, parts: Sequence[Lazy], dim: int, dtype: DType, strides: tuple[Expr, ...]
) -> Lazy:
    """Parts of the same sizes, each computed into its place by one loop, which reads once what they have in common."""
    out = g.new_buffer(dtype, g.symbols.exprs(g.val.shape), strides, parts[0].device)
    axes, index = g.axes(parts[0].sizes)
    stores = []
    for k, t in enumerate(parts):
        at = linear(index, strides, k * t.sizes[dim] * strides[dim])
        stores.append(Store(out, at, build.cast(t.load(index), dtype)))
    g.nest(axes, tuple(stores), parts[0].device, merge_ops(parts, g.op_name))
    return g.lazy(out)


@lowering(aten.stack.default)
def stack(g: ProgramBuilder, tensors: Sequence[Lazy], dim: int = 0) -> Any:
    """Join along a new dimension."""
    return cat(g, [unsqueeze(g, t, dim % (t.rank + 1)) for t in tensors], dim % (tensors[0].rank + 1))


@lowering(aten.constant_pad_nd.default)
def constant_pad(g: ProgramBuilder, x: Lazy, pad: Sequence[Any], value: Any = 0) -> Any:
    """A border of one value; negative widths cut."""
    border = filled(g, value)
    if not x.dtype.is_computable or border is NotImplemented:
        return NotImplemented
    before: dict[int, Expr] = {}
    after: dict[int, Expr] = {}
    for k in range(len(pad) // 2):
        d = x.rank - 1 - k
        before[d], after[d] = g.symbols.expr(pad[2 * k]), g.symbols.expr(pad[2 * k + 1])
    padded = [d for d in before if before[d] is not ZERO or after[d] is not ZERO]
    if not all(known_le(0, x.sizes[d] + border) for d in padded for border in (before[d], after[d])):
        return NotImplemented  # eager refuses to cut off more than there is
    g.realize_if_costly(x)

    def inner(index: Index) -> Node:
        inside = build.const(True, DType.BOOL)
        at = list(index)
        for d in padded:
            i = at[d] = index[d] - before[d]
            if before[d] is not ZERO:
                inside = build.both(inside, build.binary(Op.GE, g.index_node(i), build.index(0)))
            if after[d] is not ZERO:
                inside = build.both(inside, build.lt(g.index_node(i), g.index_node(x.sizes[d])))
        return build.masked(inside, x.load(at), border.load(index))

    return computed(g, [x], inner, g.symbols.exprs(g.val.shape), x.dtype, 2)


@lowering(aten.slice_scatter.default)
def slice_scatter(
    g: ProgramBuilder, x: Lazy, src: Lazy, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    """``x`` with a slice replaced."""
    dim = dim % x.rank
    if not usable((x, src)):
        return NotImplemented
    first = clamp_start(g, start, end, x.sizes[dim], src.sizes[dim], step)
    if first is None:
        return NotImplemented
    stop = first + src.sizes[dim] * step

    def inner(index: Index) -> Node:
        inside, at = in_slice(g, index, dim, x.sizes[dim], first, stop, step)
        return build.masked(inside, build.cast(src.load(at), x.dtype), x.load(index))

    return _replaced(g, x, src, inner)


@lowering(aten.select_scatter.default)
def select_scatter(g: ProgramBuilder, x: Lazy, src: Lazy, dim: int, at: Any) -> Any:
    """``x`` with one index of a dimension replaced."""
    dim = dim % x.rank
    place = counted_from_start(g.symbols.expr(at), x.sizes[dim])
    if place is None or not usable((x, src)):
        return NotImplemented
    if not (known_le(0, place) and known_le(place + 1, x.sizes[dim])):
        return NotImplemented  # the fake has not asked, as it has for select

    def inner(index: Index) -> Node:
        here = build.binary(Op.EQ, g.index_node(index[dim]), g.index_node(place))
        rest = [*index[:dim], *index[dim + 1 :]]
        return build.where(here, build.cast(src.load(rest), x.dtype), x.load(index))

    return _replaced(g, x, src, inner)


@lowering(aten.diagonal_scatter.default)
def diagonal_scatter(
    g: ProgramBuilder, x: Lazy, src: Lazy, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Any:
    """``x`` with a diagonal replaced."""
    if not usable((x, src)):
        return NotImplemented
    place = on_diagonal(g, x.rank, offset, dim1, dim2)

    def inner(index: Index) -> Node:
        here, at = place(index)
        return build.masked(here, build.cast(src.load(at), x.dtype), x.load(index))

    return _replaced(g, x, src, inner)


def _replaced(g: ProgramBuilder, x: Lazy, src: Lazy, inner: Any) -> Any:
    """The copy keeps the strides: where elements share memory, what is written shows in all that see its place."""
    if not known_apart(x.sizes, g.symbols.exprs(g.val.stride())):
        return NotImplemented
    g.realize_if_costly(src)
    g.realize_if_costly(x)
    return computed(g, [x, src], inner, x.sizes, x.dtype, 2)


# -- copies and conversions


@lowering(aten.clone.default, aten.lift_fresh_copy.default)
def clone(g: ProgramBuilder, x: Lazy, **_: Any) -> Any:
    """The value in memory of its own; the layout is the fake result's."""
    return fresh(g, x) if x.dtype.is_computable else NotImplemented


@lowering(aten._to_copy.default)
def to_copy(g: ProgramBuilder, x: Lazy, **_: Any) -> Any:
    """The value in another type, in memory of its own."""
    dtype = g.dtype_of(g.val.dtype)
    if str(g.val.device) != x.device or g.val.layout is not torch.strided:
        return NotImplemented
    if dtype in FORMATS and x.dtype.is_computable:
        return to_eight(g, x, dtype)
    if x.dtype in FORMATS and dtype.is_computable and dtype is not DType.BOOL:
        return from_eight(g, x, dtype)
    if not dtype.is_computable or not x.dtype.is_computable:
        return NotImplemented
    if dtype is x.dtype:
        return fresh(g, x)
    return narrowed(g, x, dtype) if g.rounding else convert(g, x, dtype)


@lowering(aten.copy.default)
def copy(g: ProgramBuilder, x: Lazy, src: Lazy, non_blocking: bool = False) -> Any:
    """``src`` broadcast to the shape and in the type of ``x``."""
    if src.device != x.device or not usable((x, src)):
        return NotImplemented
    return fresh(g, expand_value(g, convert(g, src, x.dtype), x.sizes))


@lowering(aten.repeat.default)
def repeat(g: ProgramBuilder, x: Lazy, repeats: Sequence[Any]) -> Any:
    """Tile every dimension."""
    lead = len(repeats) - x.rank

    def inner(index: Index) -> Node:
        return x.load([index[lead + d] % x.sizes[d] for d in range(x.rank)])

    if not x.dtype.is_computable or ZERO in x.sizes:
        return NotImplemented
    g.realize_if_costly(x)
    return computed(g, [x], inner, g.symbols.exprs(g.val.shape), x.dtype, 1)


@lowering(aten.narrow_copy.default)
def narrow_copy(g: ProgramBuilder, x: Lazy, dim: int, start: Any, length: Any) -> Any:
    """A slice in memory of its own."""
    first = g.symbols.expr(start)
    if first.value is None or first.value < 0:
        return NotImplemented
    return fresh(g, slice_value(g, x, dim, first, g.symbols.expr(length)))
