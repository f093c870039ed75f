"""Rows that end where memory says: ``sum(value where row < number[point] else 0)``, as sums of segments are.

A walk over such rows that knows the number stops there; one that does not walks the whole length for each point, thousands of
times as far. So what is fused with such a sum ends where it does.
"""

from __future__ import annotations

from collections.abc import Sequence

from braze.loops.build import nodes_of
from braze.loops.ir import Axis, LoopNest, Node, Op, ReduceKind, Reduction
from braze.schedule.facts.passes import over_row
from braze.symbolic.expr import Symbol


def common_limit(axes: Sequence[Axis], row_axes: Sequence[Axis], steps: Sequence[LoopNest]) -> Node | None:
    """The number at which all walks of some steps may end: read for each point of the outer axes."""
    if len(row_axes) != 1 or any(not s.reductions and over_row(s, row_axes) for s in steps):
        return None
    found = {_limit(r, row_axes[0].symbol) for step in steps for r in step.reductions}
    limit = found.pop() if len(found) == 1 else None
    if limit is None:
        return None
    outer = points_of(limit)
    return limit if outer == {a.symbol for a in axes[: len(outer)]} else None


def points_of(limit: Node) -> set[Symbol]:
    """The axes for whose points a limit is read, or made of what is."""
    found = list(nodes_of(limit))
    read = {s for n in found if n.op is Op.LOAD for s in n.attr[1].symbols()}
    return read | {s for n in found if n.op is Op.INDEX for s in n.attr.symbols()}


def _limit(r: Reduction, row: Symbol) -> Node | None:
    if r.kind is not ReduceKind.SUM or r.value.op is not Op.MASKED:
        return None
    test, _, other = r.value.args
    if test.op is not Op.LT or other.op is not Op.CONST or other.attr != 0:
        return None
    at, limit = test.args
    return limit if at.op is Op.INDEX and at.attr is row and _is_read(limit, row) else None


def _is_read(limit: Node, row: Symbol) -> bool:
    """Whether a number is read, or made of such as are, without a walk, and is the same along the row."""
    loads = [n for n in nodes_of(limit) if n.op is Op.LOAD]
    walked = any(n.op is Op.REDUCED for n in nodes_of(limit))
    return bool(loads) and not walked and all(not n.args for n in loads) and row not in points_of(limit)
