"""Reductions: one nest each, with the arithmetic after the reduction in its stores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from braze.loops import build
from braze.loops.dtypes import compute_type
from braze.loops.ir import DType, LoopNest, Node, Op, ReduceKind, Reduction, Store
from braze.lower import unbacked
from braze.lower.lazy import Lazy, contiguous_strides, dense_order, numel
from braze.lower.pointwise_core import merge_ops
from braze.lower.realize import ProgramBuilder
from braze.lower.registry import aten, lowering
from braze.symbolic.expr import ONE, ZERO, Expr, linear

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
    if not keepdim and any(r.kind.extreme for r in reductions):  # of no elements there is none
        for d in dims:
            unbacked.require_some(g, x.sizes[d])
    results = [
        build.reduced(k, dtype) for k, dtype in enumerate(dtype for r in reductions for dtype in r.results)
    ]
    sizes = tuple(ONE if d in dims else x.sizes[d] for d in range(x.rank) if keepdim or d in kept)
    place = [ZERO if d in dims else index[d] for d in range(x.rank) if keepdim or d in kept]
    stores = []
    for k, (dtype, finish) in enumerate(outputs):
        strides = g.symbols.exprs(hints[k].stride()) if k < len(hints) else None
        if strides is None or len(strides) != len(sizes) or dense_order(sizes, strides) is None:
            strides = contiguous_strides(sizes)
        buffer = g.new_buffer(dtype, sizes, strides, x.device)
        stores.append(Store(buffer, linear(place, strides, ZERO), g.rounded(finish(*results), dtype)))
    ops = merge_ops([x], g.op_name)
    g.add(LoopNest(g.name_step(ops), axes, reduce_axes, reductions, tuple(stores), x.device, ops, g.origin))
    return tuple(g.lazy(s.buffer) for s in stores)


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


def _summed_type(g: ProgramBuilder, x: Lazy, dtype: Any) -> DType:
    if dtype is not None:
        return g.dtype_of(dtype)
    return DType.I64 if x.dtype.is_integer or x.dtype is DType.BOOL else x.dtype


@lowering(aten.sum.default, aten.sum.dim_IntList)
def sum(g: ProgramBuilder, x: Lazy, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Sum; integers and bools in int64, half types in float32."""
    return _accumulate(g, ReduceKind.SUM, x, dim, keepdim, dtype)


@lowering(aten.prod.default, aten.prod.dim_int)
def prod(g: ProgramBuilder, x: Lazy, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Product, with the types of a sum."""
    return _accumulate(g, ReduceKind.PROD, x, dim, keepdim, dtype)


def _accumulate(g: ProgramBuilder, kind: ReduceKind, x: Lazy, dim: Any, keepdim: bool, dtype: Any) -> Any:
    out = _summed_type(g, x, dtype)
    if out is DType.BOOL or not out.is_computable or not x.dtype.is_computable:
        return NotImplemented
    acc = compute_type(out)
    return one(
        g, x, reduced_dims(x, dim), keepdim, kind, acc, out, lambda v: build.cast(build.cast(v, out), acc)
        if x.dtype is not out else build.cast(v, acc),
    )  # fmt: skip


@lowering(aten.mean.default, aten.mean.dim)
def mean(g: ProgramBuilder, x: Lazy, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Arithmetic mean, accumulated as a sum is."""
    out = _summed_type(g, x, dtype)
    if not out.is_float or not x.dtype.is_computable:
        return NotImplemented
    acc = compute_type(out)
    dims = reduced_dims(x, dim)
    n = count(g, x, dims, acc)
    return one(g, x, dims, keepdim, ReduceKind.SUM, acc, out, finish=lambda r: build.div(r, n))


# -- extrema


def _extremum(g: ProgramBuilder, greatest: bool, x: Lazy, dims: list[int], keepdim: bool) -> Any:
    if x.dtype is DType.BOOL:
        kind = ReduceKind.ANY if greatest else ReduceKind.ALL
    else:
        kind = ReduceKind.MAX if greatest else ReduceKind.MIN
    return one(g, x, dims, keepdim, kind, compute_type(x.dtype), x.dtype)


@lowering(aten.amax.default)
def amax(g: ProgramBuilder, x: Lazy, dim: Any = (), keepdim: bool = False) -> Any:
    """Maximum; nan wins."""
    return _extremum(g, True, x, reduced_dims(x, dim), keepdim)


@lowering(aten.amin.default)
def amin(g: ProgramBuilder, x: Lazy, dim: Any = (), keepdim: bool = False) -> Any:
    """Minimum; nan wins."""
    return _extremum(g, False, x, reduced_dims(x, dim), keepdim)


@lowering(aten.max.default)
def max_all(g: ProgramBuilder, x: Lazy) -> Any:
    """Maximum of all elements."""
    return _extremum(g, True, x, list(range(x.rank)), False)


@lowering(aten.min.default)
def min_all(g: ProgramBuilder, x: Lazy) -> Any:
    """Minimum of all elements."""
    return _extremum(g, False, x, list(range(x.rank)), False)


@lowering(aten.max.dim)
def max_dim(g: ProgramBuilder, x: Lazy, dim: int, keepdim: bool = False) -> Any:
    """(maximum, its first index) along a dimension."""
    return _extremum_with_index(g, True, x, dim, keepdim)


@lowering(aten.min.dim)
def min_dim(g: ProgramBuilder, x: Lazy, dim: int, keepdim: bool = False) -> Any:
    """(minimum, its first index) along a dimension."""
    return _extremum_with_index(g, False, x, dim, keepdim)


def _extremum_with_index(g: ProgramBuilder, greatest: bool, x: Lazy, dim: int, keepdim: bool) -> Any:
    if x.dtype is DType.BOOL or not x.dtype.is_computable:
        return NotImplemented
    kinds = (ReduceKind.MAX, ReduceKind.ARGMAX) if greatest else (ReduceKind.MIN, ReduceKind.ARGMIN)
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


@lowering(aten.argmax.default)
def argmax(g: ProgramBuilder, x: Lazy, dim: Any = None, keepdim: bool = False) -> Any:
    """First index of the maximum, of the flattened tensor where no dimension is given."""
    return _arg(g, ReduceKind.ARGMAX, x, dim, keepdim)


@lowering(aten.argmin.default)
def argmin(g: ProgramBuilder, x: Lazy, dim: Any = None, keepdim: bool = False) -> Any:
    """First index of the minimum."""
    return _arg(g, ReduceKind.ARGMIN, x, dim, keepdim)


def _arg(g: ProgramBuilder, kind: ReduceKind, x: Lazy, dim: Any, keepdim: bool) -> Any:
    if x.dtype is DType.BOOL or not x.dtype.is_computable:
        return NotImplemented
    acc = compute_type(x.dtype)
    return one(g, x, reduced_dims(x, dim), keepdim, kind, acc, DType.I64, lambda v: build.cast(v, acc))


# -- tests


@lowering(aten.any.default, aten.any.dim, aten.any.dims)
def any_(g: ProgramBuilder, x: Lazy, dim: Any = None, keepdim: bool = False) -> Any:
    """Whether any element is not 0."""
    return _test(g, ReduceKind.ANY, x, dim, keepdim)


@lowering(aten.all.default, aten.all.dim, aten.all.dims)
def all_(g: ProgramBuilder, x: Lazy, dim: Any = None, keepdim: bool = False) -> Any:
    """Whether no element is 0."""
    return _test(g, ReduceKind.ALL, x, dim, keepdim)


def _test(g: ProgramBuilder, kind: ReduceKind, x: Lazy, dim: Any, keepdim: bool) -> Any:
    return one(g, x, reduced_dims(x, dim), keepdim, kind, DType.BOOL, g.dtype_of(g.val.dtype))


# -- variance


def variance(
    g: ProgramBuilder,
    x: Lazy,
    dims: list[int],
    correction: Any,
    keepdim: bool,
    hints: Sequence[Any],
    *results: str,
) -> Any:
    """Any of "var", "std", "mean", from one pass. On the CPU eager sums in double, but in norms: they give a float correction."""
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
        moments = Reduction(ReduceKind.WELFORD, acc, v)
        if not wide or "mean" not in results:
            return (moments,)
        infinite = build.cast(build.unary(Op.ISINF, v), acc)
        return moments, Reduction(ReduceKind.ARGMAX, acc, infinite)

    return reduce(
        g,
        x,
        dims,
        keepdim,
        lambda v: build.cast(v, acc),
        reductions,
        [(x.dtype, finish[name]) for name in results],
        hints,
    )


def _running_mean(mean: Node, n: Node, first: Node) -> Node:
    """The mean as eager keeps it from element to element: an infinite one (``first``) ends as nan with whatever comes after it."""
    followed = build.lt(build.cast(first, n.dtype), build.sub(n, build.const(1, n.dtype)))
    lost = build.both(build.unary(Op.ISINF, mean), followed)
    return build.where(lost, build.const(math.nan, mean.dtype), mean)


@lowering(aten.var.correction)
def var(g: ProgramBuilder, x: Lazy, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """Variance with ``correction`` degrees of freedom taken off."""
    return _single(variance(g, x, reduced_dims(x, dim), correction, keepdim, [g.val], "var"))


@lowering(aten.std.correction)
def std(g: ProgramBuilder, x: Lazy, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """Standard deviation."""
    return _single(variance(g, x, reduced_dims(x, dim), correction, keepdim, [g.val], "std"))


@lowering(aten.var_mean.correction)
def var_mean(
    g: ProgramBuilder, x: Lazy, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Any:
    """(variance, mean)."""
    return variance(g, x, reduced_dims(x, dim), correction, keepdim, list(g.val), "var", "mean")


@lowering(aten.std_mean.correction)
def std_mean(
    g: ProgramBuilder, x: Lazy, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Any:
    """(standard deviation, mean)."""
    return variance(g, x, reduced_dims(x, dim), correction, keepdim, list(g.val), "std", "mean")


def _single(results: Any) -> Any:
    return results if results is NotImplemented else results[0]


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
