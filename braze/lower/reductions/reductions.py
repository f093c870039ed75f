"""Reductions: one nest each, with the arithmetic after the reduction in its stores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from braze.loops import build
from braze.loops.dtypes import compute_type
from braze.loops.ir import Axis, DType, Node, Op, ReduceKind, Reduction, Store
from braze.lower.reductions.in_stages import in_memory_order, short_run
from braze.lower.values import unbacked
from braze.lower.values.lazy import Lazy, dense_order, numel
from braze.lower.values.pointwise_core import merge_ops
from braze.lower.values.realize import ProgramBuilder
from braze.lower.values.registry import aten, lowering
from braze.symbolic.expr import ONE, ZERO, Expr, contiguous_strides, linear

#: from the element (of the computation type) to the reductions over it
Reducer = Callable[[Node], tuple[Reduction, ...]]
#: from the reductions' results to the stored value
Finish = Callable[..., Node]


def reduced_dims(x: Lazy, dims: Any) -> list[int]:
    """Which dimensions a dim argument means: all for None and for an empty list."""
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return list(range(x.rank))
    given = dims if isinstance(dims, (list, tuple)) else [dims]
    return sorted({d % x.rank if x.rank else 0 for d in given}) if x.rank else []


def reduce(
    g: ProgramBuilder,
    x: Lazy,
    dims: Sequence[int],
    keepdim: bool,
    element: Callable[[Node], Node],
    reducer: Reducer,
    outputs: Sequence[tuple[DType, Finish]],
    hints: Sequence[Any] = (),
) -> Any:
    """Reduce ``dims`` of ``element(x)``; one result per entry of ``outputs``: its type and final arithmetic.

    ``hints``: the fake results, whose strides the buffers take.
    """
    if not x.dtype.is_computable or not all(dtype.is_computable for dtype, _ in outputs):
        return NotImplemented
    kept = [d for d in range(x.rank) if d not in dims]
    axes, outer = g.axes([x.sizes[d] for d in kept])
    reduce_axes, inner = g.axes([x.sizes[d] for d in dims], "r")
    index: list[Expr] = [ZERO] * x.rank
    for d, i in zip([*kept, *dims], [*outer, *inner], strict=True):
        index[d] = i
    reductions = reducer(element(x.load(index)))
    run = short_run(reductions, axes, reduce_axes) if x.device == "cpu" else None
    if run is not None and g.ctx.target.kind == "cpu":
        at = next(d for d in dims if index[d] is run.symbol)
        return _in_stages(g, x, dims, at, keepdim, element, reducer, outputs, hints)
    if x.device == "cpu" and not any(r.kind.finds_place for r in reductions):
        reduce_axes = in_memory_order(reductions, reduce_axes)
    # of no elements there is none; a mean asks for one besides, and is nan
    if not keepdim and reductions[0].kind.extreme:
        for d in dims:
            unbacked.require_some(g, x.sizes[d])
    return _reduced(g, x, dims, keepdim, axes, reduce_axes, index, reductions, outputs, hints)


def _reduced(
    g: ProgramBuilder,
    x: Lazy,
    dims: Sequence[int],
    keepdim: bool,
    axes: tuple[Axis, ...],
    reduce_axes: tuple[Axis, ...],
    index: Sequence[Expr],
    reductions: Sequence[Reduction],
    outputs: Sequence[tuple[DType, Finish]],
    hints: Sequence[Any],
) -> tuple[Lazy, ...]:
    """The nest of a reduction of ``dims`` of what is as large as ``x``, at ``index``, and its results."""
    results = [
        build.reduced(k, dtype) for k, dtype in enumerate(dtype for r in reductions for dtype in r.results)
    ]
    left = [d for d in range(x.rank) if keepdim or d not in dims]
    sizes = tuple(ONE if d in dims else x.sizes[d] for d in left)
    place = [ZERO if d in dims else index[d] for d in left]
    stores = []
    for k, (dtype, finish) in enumerate(outputs):
        strides = g.symbols.exprs(hints[k].stride()) if k < len(hints) else None
        if strides is None or len(strides) != len(sizes) or dense_order(sizes, strides) is None:
            strides = contiguous_strides(sizes)
        buffer = g.new_buffer(dtype, sizes, strides, x.device)
        stores.append(Store(buffer, linear(place, strides, ZERO), g.rounded(finish(*results), dtype)))
    ops = merge_ops([x], g.op_name)
    g.nest(axes, tuple(stores), x.device, ops, over=reduce_axes, reductions=tuple(reductions))
    return tuple(g.lazy(s.buffer) for s in stores)


def _in_stages(
    g: ProgramBuilder,
    x: Lazy,
    dims: Sequence[int],
    run: int,
    keepdim: bool,
    element: Callable[[Node], Node],
    reducer: Reducer,
    outputs: Sequence[tuple[DType, Finish]],
    hints: Sequence[Any],
) -> tuple[Lazy, ...]:
    """``reduce`` over all dims but the dim ``run``, then over that: sums of sums, and moments of means and the sums of what is within."""
    others = [d for d in dims if d != run]
    (first,) = reducer(element(x.load([ZERO] * x.rank)))
    kept = [(dtype, _nth(k)) for k, dtype in enumerate(first.results)]
    parts = reduce(g, x, others, True, element, reducer, kept)
    small = parts[0]
    axes, outer = g.axes([small.sizes[d] for d in range(x.rank) if d != run])
    reduce_axes, (inner,) = g.axes([small.sizes[run]], "r")
    index = [*outer[:run], inner, *outer[run:]]
    reductions = [Reduction(first.kind, first.dtype, parts[0].load(index))]
    if first.kind is ReduceKind.WELFORD:
        reductions.append(Reduction(ReduceKind.SUM, first.dtype, parts[1].load(index)))
        each = count(g, x, others, first.dtype)
        outputs = [(dtype, _of_parts(finish, each)) for dtype, finish in outputs]
    return _reduced(g, small, dims, keepdim, axes, reduce_axes, index, reductions, outputs, hints)


def _nth(k: int) -> Finish:
    return lambda *results: results[k]


def _of_parts(finish: Finish, each: Node) -> Finish:
    """What is made of the mean and the squares of all, of the means' mean and squares, and the squares within parts of ``each`` elements."""
    return lambda mean, between, within: finish(mean, build.add(within, build.mul(between, each)))


def count(g: ProgramBuilder, x: Lazy, dims: Sequence[int], dtype: DType) -> Node:
    """How many elements each result is reduced from."""
    return g.index_node(numel([x.sizes[d] for d in dims]), dtype)


def one(
    g: ProgramBuilder,
    x: Lazy,
    dims: Sequence[int],
    keepdim: bool,
    kind: ReduceKind,
    accumulate: DType,
    out: DType,
    element: Callable[[Node], Node] | None = None,
    finish: Finish | None = None,
) -> Any:
    """A reduction of one kind with one result."""
    to = element or (lambda v: build.cast(v, accumulate))
    results = reduce(
        g,
        x,
        dims,
        keepdim,
        to,
        lambda v: (Reduction(kind, accumulate, v),),
        [(out, finish or (lambda r: r))],
        [g.val],
    )
    return results if results is NotImplemented else results[0]


# -- sums and products

_SMALL_INTEGERS = frozenset({DType.U8, DType.I8, DType.I16})


def _summed_type(g: ProgramBuilder, x: Lazy, dtype: Any) -> DType:
    if dtype is not None:
        return g.dtype_of(dtype)
    return DType.I64 if x.dtype.is_integer or x.dtype is DType.BOOL else x.dtype


def accumulated(
    kind: ReduceKind,
    g: ProgramBuilder,
    x: Lazy,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Any:
    """Sum or product; integers and bools in int64, half types in float32."""
    out = _summed_type(g, x, dtype)
    if out is DType.BOOL or not out.is_computable or not x.dtype.is_computable:
        return NotImplemented
    # a sum of small integers is kept in a wider register, and is one of theirs for what is fused with it, too
    acc = DType.I32 if out in _SMALL_INTEGERS else compute_type(out)
    dims = reduced_dims(x, dim)
    finish = _of_a_sum(g, x, dims, acc) if kind is ReduceKind.SUM else lambda r: r
    return one(
        g, x, dims, keepdim, kind, acc, out,
        (lambda v: build.cast(build.cast(v, out), acc)) if x.dtype is not out else None,
        lambda r: build.cast(r, out) if acc is DType.I32 else finish(r),
    )  # fmt: skip


def _of_a_sum(g: ProgramBuilder, x: Lazy, dims: Sequence[int], acc: DType) -> Finish:
    """What is made of a sum: of one element a GPU's is 0 plus it, which is another number where that is -0."""
    alone = g.ctx.target.kind == "cuda" and acc.is_float and numel([x.sizes[d] for d in dims]).value == 1
    return lambda r: build.add(r, build.const(0.0, acc)) if alone else r


lowering(aten.sum.default, aten.sum.dim_IntList)(partial(accumulated, ReduceKind.SUM))
lowering(aten.prod.default, aten.prod.dim_int)(partial(accumulated, ReduceKind.PROD))


@lowering(aten.mean.default, aten.mean.dim)
def mean(g: ProgramBuilder, x: Lazy, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Arithmetic mean, accumulated as a sum is."""
    out = _summed_type(g, x, dtype)
    if not out.is_float or not x.dtype.is_computable:
        return NotImplemented
    acc = compute_type(out)
    dims = reduced_dims(x, dim)
    n, finish = count(g, x, dims, acc), _of_a_sum(g, x, dims, acc)
    return one(g, x, dims, keepdim, ReduceKind.SUM, acc, out, finish=lambda r: build.div(finish(r), n))


# -- extrema and tests


def extremum(kind: ReduceKind, g: ProgramBuilder, x: Lazy, dim: Any = None, keepdim: bool = False) -> Any:
    """The greatest or the least; nan wins."""
    if x.dtype is DType.BOOL:
        kind = ReduceKind.ANY if kind is ReduceKind.MAX else ReduceKind.ALL
    return one(g, x, reduced_dims(x, dim), keepdim, kind, compute_type(x.dtype), x.dtype)


def with_index(
    kinds: tuple[ReduceKind, ReduceKind], g: ProgramBuilder, x: Lazy, dim: int, keepdim: bool = False
) -> Any:
    """(extremum, its first index) along a dimension."""
    if x.dtype is DType.BOOL or not x.dtype.is_computable:
        return NotImplemented
    acc = compute_type(x.dtype)
    return reduce(
        g,
        x,
        reduced_dims(x, dim),
        keepdim,
        lambda v: build.cast(v, acc),
        lambda v: tuple(Reduction(kind, acc, v) for kind in kinds),
        [(x.dtype, lambda value, at: value), (DType.I64, lambda value, at: at)],
        list(g.val),
    )


def index(kind: ReduceKind, g: ProgramBuilder, x: Lazy, dim: Any = None, keepdim: bool = False) -> Any:
    """The first index of the extremum, of the flattened tensor where no dimension is given."""
    if x.dtype is DType.BOOL or not x.dtype.is_computable:
        return NotImplemented
    return one(g, x, reduced_dims(x, dim), keepdim, kind, compute_type(x.dtype), DType.I64)


def truth(kind: ReduceKind, g: ProgramBuilder, x: Lazy, dim: Any = None, keepdim: bool = False) -> Any:
    """Whether any element, or each one, is not 0. An empty list of dimensions is none here, where it is all of them elsewhere."""
    dims = [] if isinstance(dim, (list, tuple)) and not dim else reduced_dims(x, dim)
    return one(g, x, dims, keepdim, kind, DType.BOOL, g.dtype_of(g.val.dtype))


lowering(aten.amax.default, aten.max.default)(partial(extremum, ReduceKind.MAX))
lowering(aten.amin.default, aten.min.default)(partial(extremum, ReduceKind.MIN))
lowering(aten.max.dim)(partial(with_index, (ReduceKind.MAX, ReduceKind.ARGMAX)))
lowering(aten.min.dim)(partial(with_index, (ReduceKind.MIN, ReduceKind.ARGMIN)))
lowering(aten.argmax.default)(partial(index, ReduceKind.ARGMAX))
lowering(aten.argmin.default)(partial(index, ReduceKind.ARGMIN))
lowering(aten.any.default, aten.any.dim, aten.any.dims)(partial(truth, ReduceKind.ANY))
lowering(aten.all.default, aten.all.dim, aten.all.dims)(partial(truth, ReduceKind.ALL))


# -- variance


def moments(
    results: tuple[str, ...],
    g: ProgramBuilder,
    x: Lazy,
    dim: Any = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
) -> Any:
    """Any of "var", "std", "mean", from one pass, with ``correction`` degrees of freedom taken off.

    On the CPU eager sums in double, but in norms: they give a float correction.
    """
    dims = reduced_dims(x, dim)
    taken = 1 if correction is None else correction
    if not x.dtype.is_float or isinstance(taken, Lazy):
        return NotImplemented
    wide = x.device == "cpu" and not isinstance(taken, float)
    acc = DType.F64 if wide else compute_type(x.dtype)
    n = count(g, x, dims, acc)
    freedom = build.sub(n, build.index(taken, acc) if isinstance(taken, Expr) else build.const(taken, acc))
    divisor = build.binary(Op.MAXIMUM, freedom, build.const(0.0, acc))
    finish: dict[str, Finish] = {
        "mean": (lambda mean, m2, *more: _running_mean(mean, n, *more)) if wide else lambda mean, m2: mean,
        "var": lambda mean, m2, *more: build.div(m2, divisor),
        "std": lambda mean, m2, *more: build.unary(Op.SQRT, build.div(m2, divisor)),
    }

    def reductions(v: Node) -> tuple[Reduction, ...]:
        first_two = Reduction(ReduceKind.WELFORD, acc, v)
        if not wide or "mean" not in results:
            return (first_two,)
        infinite = build.cast(build.unary(Op.ISINF, v), acc)
        return first_two, Reduction(ReduceKind.ARGMAX, acc, infinite)

    made = reduce(
        g,
        x,
        dims,
        keepdim,
        lambda v: build.cast(v, acc),
        reductions,
        [(x.dtype, finish[name]) for name in results],
        list(g.val) if len(results) > 1 else [g.val],
    )
    return made if made is NotImplemented or len(results) > 1 else made[0]


lowering(aten.var.correction)(partial(moments, ("var",)))
lowering(aten.std.correction)(partial(moments, ("std",)))
lowering(aten.var_mean.correction)(partial(moments, ("var", "mean")))
lowering(aten.std_mean.correction)(partial(moments, ("std", "mean")))


def _running_mean(mean: Node, n: Node, first: Node) -> Node:
    """The mean as eager keeps it from element to element: an infinite one (``first``) ends as nan with whatever comes after it."""
    followed = build.lt(build.cast(first, n.dtype), build.sub(n, build.const(1, n.dtype)))
    lost = build.both(build.unary(Op.ISINF, mean), followed)
    return build.where(lost, build.const(math.nan, mean.dtype), mean)


# -- norms


@lowering(aten.linalg_vector_norm.default)
def vector_norm(
    g: ProgramBuilder, x: Lazy, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """(sum |x|^p)^(1/p) for p of 1, 2 and the infinities; |x| of a single number, whose square may have no place."""
    out = x.dtype if dtype is None else g.dtype_of(dtype)
    if not out.is_float or not x.dtype.is_float or ord not in (1, 2, float("inf"), float("-inf")):
        return NotImplemented
    acc = compute_type(out)
    dims = reduced_dims(x, dim)
    squared = ord == 2 and any(x.sizes[d] is not ONE for d in dims)

    def element(v: Node) -> Node:
        v = build.cast(build.cast(v, out), acc)
        return build.mul(v, v) if squared else build.unary(Op.ABS, v)

    kind = {1: ReduceKind.SUM, 2: ReduceKind.SUM, float("inf"): ReduceKind.MAX}.get(ord, ReduceKind.MIN)
    finish: Finish | None = (lambda r: build.unary(Op.SQRT, r)) if squared else None
    return one(g, x, dims, keepdim, kind, acc, out, element, finish)
