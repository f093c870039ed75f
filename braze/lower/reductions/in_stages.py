"""Rows on a processor: in the order of memory, and, where elements lie side by side only a few at a time, in two stages, across memory first.

Of a picture in channels-last a group's channels are few numbers beside each other, then come other groups'. Vectors along those few would
be filled in part. In the first stage each place of that short run is a point of its own, so that they and their neighbours fill
vectors; the second one reduces the run, of which little is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from braze.loops import build
from braze.loops.ir import Axis, Node, Op, ReduceKind, Reduction
from braze.symbolic.expr import ONE, Expr

#: numbers in a vector, and so many beside each other that what the last one lacks does not count
LANES, MANY = 16, 64
#: elements of a row for each of such a run, at least, of which the second stage is one
WORTH = 8
#: what two stages reduce as one does
KINDS = (ReduceKind.SUM, ReduceKind.WELFORD)


def short_run(
    reductions: Sequence[Reduction], axes: Sequence[Axis], reduce_axes: Sequence[Axis]
) -> Axis | None:
    """The reduced axis along which all that is read of whole rows lies side by side, if it is a short one, and its neighbours are other rows'."""
    if len(reduce_axes) < 2 or any(r.kind not in KINDS for r in reductions):
        return None
    wanted = {a.symbol for a in reduce_axes}
    read = [n for n in build.nodes_of(*(r.value for r in reductions)) if n.op is Op.LOAD]
    whole = [n for n in read if wanted <= n.attr[1].symbols()]
    found = {_run_of(n, axes, reduce_axes) for n in whole}
    return found.pop() if len(found) == 1 else None


def in_memory_order(reductions: Sequence[Reduction], reduce_axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """The axes of a row in the order in which all that is read of whole rows lies, if that is one: such axes are one axis where nothing lies between."""
    wanted = {a.symbol for a in reduce_axes}
    read = [n for n in build.nodes_of(*(r.value for r in reductions)) if n.op is Op.LOAD]
    orders = {_order_of(n.attr[1], reduce_axes) for n in read if wanted <= n.attr[1].symbols()}
    found = orders.pop() if len(orders) == 1 else None
    return reduce_axes if found is None else found


def _order_of(index: Expr, reduce_axes: tuple[Axis, ...]) -> tuple[Axis, ...] | None:
    """The axes, those of the longest strides first; None where a stride is not known."""
    strides = {}
    for axis in reduce_axes:
        step = index.coefficient(axis.symbol)
        if step is None or step.value is None:
            return None
        strides[axis] = abs(step.value)
    return tuple(sorted(reduce_axes, key=lambda a: -strides[a]))


def _run_of(load: Node, axes: Sequence[Axis], reduce_axes: Sequence[Axis]) -> Axis | None:
    index = load.attr[1]
    for run in reduce_axes:
        length, others = run.extent.value, [a.extent.value for a in reduce_axes if a is not run]
        if length is None or not 1 < length < MANY or length % LANES == 0:
            continue
        if prod(n or 0 for n in others) < WORTH:
            continue
        beside = any(index.coefficient(a.symbol) == run.extent for a in axes)
        if index.coefficient(run.symbol) is ONE and beside:
            return run
    return None
