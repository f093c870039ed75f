"""Rows that end where memory says: ``sum(value where row < number[point] else 0)``, as sums of segments are.

A walk over such rows that knows the number stops there; one that does not walks the whole length for each point, thousands of
times as far. So what is fused with such a sum ends where it does.
"""

from __future__ import annotations

from collections.abc import Sequence

from braze.loops.ir import Axis, LoopNest, Node, Op, ReduceKind, Reduction
from braze.schedule.passes import over_row
from braze.symbolic.expr import Symbol


def common_limit(axes: Sequence[Axis], row_axes: Sequence[Axis], steps: Sequence[LoopNest]) -> Node | None:
    """The number at which all walks of some steps may end: read for each point of the outer axes."""
    if len(row_axes) != 1 or any(not s.reductions and over_row(s, row_axes) for s in steps):
        return None
    found = {_limit(r, row_axes[0].symbol) for step in steps for r in step.reductions}
    limit = found.pop() if len(found) == 1 else None
    if limit is None:
        return None
    outer = limit.attr[1].symbols()
    return limit if outer == {a.symbol for a in axes[: len(outer)]} else None


def _limit(r: Reduction, row: Symbol) -> Node | None:
    if r.kind is not ReduceKind.SUM or r.value.op is not Op.MASKED:
        return None
    test, _, other = r.value.args
    if test.op is not Op.LT or other.op is not Op.CONST or other.attr != 0:
        return None
    at, limit = test.args
    return limit if at.op is Op.INDEX and at.attr is row and limit.op is Op.LOAD and not limit.args else None
