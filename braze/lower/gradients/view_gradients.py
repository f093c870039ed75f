"""Gradients of views: zeros with the gradient in the window that the view showed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from braze.loops import build
from braze.loops.ir import Node, Op
from braze.lower.values.lazy import Index, Lazy
from braze.lower.values.pointwise_core import computed
from braze.lower.values.realize import ProgramBuilder
from braze.lower.values.registry import aten, lowering
from braze.lower.views.views import Place, in_slice, on_diagonal
from braze.symbolic.expr import ZERO, as_expr


def placed(g: ProgramBuilder, grad: Lazy, sizes: Sequence[Any], place: Place) -> Any:
    """Zeros of ``sizes`` with ``grad`` in a window."""
    if not grad.dtype.is_computable:
        return NotImplemented
    g.realize_if_costly(grad)

    def inner(index: Index) -> Node:
        inside, at = place(index)
        return build.masked(inside, grad.load(at), build.const(0, grad.dtype))

    return computed(g, [grad], inner, g.symbols.exprs(sizes), grad.dtype, 2)


@lowering(aten.slice_backward.default)
def slice_backward(
    g: ProgramBuilder, grad: Lazy, sizes: Sequence[Any], dim: int, start: Any, end: Any, step: Any
) -> Any:
    """Zeros around, and between where the step is more than one."""
    dim = dim % len(sizes)
    size = g.symbols.expr(sizes[dim])
    if size.value is None or not all(isinstance(v, int) for v in (start, end, step)):
        return NotImplemented
    first, stop = map(as_expr, slice(start, end, step).indices(size.value)[:2])
    return placed(g, grad, sizes, lambda index: in_slice(g, index, dim, size, first, stop, step))


@lowering(aten.select_backward.default)
def select_backward(g: ProgramBuilder, grad: Lazy, sizes: Sequence[Any], dim: int, at: Any) -> Any:
    """Zeros but at one index of a dimension."""
    dim = dim % len(sizes)
    where = g.symbols.expr(at)
    if where.value is None:
        return NotImplemented
    if where.value < 0:
        where = where + g.symbols.expr(sizes[dim])

    def place(index: Index) -> tuple[Node, Index]:
        here = build.binary(Op.EQ, g.index_node(index[dim]), g.index_node(where))
        return here, [*index[:dim], *index[dim + 1 :]]

    return placed(g, grad, sizes, place)


@lowering(aten.diagonal_backward.default)
def diagonal_backward(
    g: ProgramBuilder, grad: Lazy, sizes: Sequence[Any], offset: int, dim1: int, dim2: int
) -> Any:
    """Zeros but on a diagonal."""
    return placed(g, grad, sizes, on_diagonal(g, len(sizes), offset, dim1, dim2))


@lowering(aten.unfold_backward.default)
def unfold_backward(
    g: ProgramBuilder, grad: Lazy, sizes: Sequence[Any], dim: int, size: Any, step: Any
) -> Any:
    """Each element of its window, where windows do not overlap."""
    if not sizes or not isinstance(size, int) or not isinstance(step, int) or size > step or size == 0:
        return NotImplemented
    dim = dim % len(sizes)
    windows = grad.sizes[dim]

    def place(index: Index) -> tuple[Node, Index]:
        i = index[dim]
        window, within = i // step, i % step
        inside = build.lt(g.index_node(window), g.index_node(windows))
        if size < step:
            inside = build.both(inside, build.lt(g.index_node(within), build.index(size)))
        at = list(index)
        at[dim] = window
        return inside, [*at, within if size > 1 else ZERO]

    return placed(g, grad, sizes, place)
