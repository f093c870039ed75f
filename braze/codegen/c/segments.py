"""Loops cut where a condition on the vector axis changes.

Concatenations and padding are conditions such as ``j < 32``, one column's gradient is ``j == 3``. Between the places where they change, each is
known, so the steps of that part have neither the test nor the loads of the other side.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable

from braze.loops import build
from braze.loops.build import nodes_of
from braze.loops.ir import Axis, DType, LoopNest, Node, Op
from braze.loops.rewrite import rewriter, roots, with_nodes
from braze.schedule.fusion.flat_conditions import difference
from braze.support.record import record
from braze.symbolic.expr import Integer, Symbol

#: parts of one loop at most
_MOST = 4
_ORDERED = {Op.LT: operator.lt, Op.LE: operator.le, Op.GT: operator.gt, Op.GE: operator.ge}
#: what holds, or not, at one place alone
_SINGLE = {Op.EQ: operator.eq, Op.NE: operator.ne}
_COMPARED = {**_ORDERED, **_SINGLE}


@record
class Segment:
    """``low <= axis < high``, and the steps as they are there."""

    low: int
    high: int
    steps: tuple[LoopNest, ...]


def segments(steps: tuple[LoopNest, ...], axis: Axis | None) -> tuple[Segment, ...]:
    """The parts of the loop over ``axis``; one, or none where its extent is not known."""
    if axis is None or axis.extent.value is None:
        return ()
    extent = axis.extent.value
    nodes = [n for n in nodes_of(*(r for s in steps for r in roots(s))) if n.op in _COMPARED]
    found = {turn for n in nodes for turn in _turns(n, axis.symbol) if 0 < turn < extent}
    if not found or len(found) >= _MOST:
        return (Segment(0, extent, steps),)
    edges = [0, *sorted(found), extent]
    return tuple(
        Segment(low, high, tuple(_within(s, axis.symbol, low, high) for s in steps))
        for low, high in itertools.pairwise(edges)
    )


def _turns(n: Node, symbol: Symbol) -> tuple[int, ...]:
    """The first values of the symbol at which the comparison has changed, whatever other symbols are; () where that is not known."""
    found = _line(n, symbol)
    if found is None:
        return ()
    step, starts = found
    if n.op in _SINGLE:
        at, rest = divmod(-starts[0], step)
        return () if rest or starts[0] != starts[1] else (at, at + 1)
    turns = {_change(_ORDERED[n.op], step, start) for start in starts}
    turn = turns.pop()
    return () if turns or turn is None else (turn,)


def _line(n: Node, symbol: Symbol) -> tuple[int, tuple[int, int]] | None:
    """How fast the difference of a comparison's sides grows with the symbol, and the least and most that it is where that is 0."""
    d = difference(n)
    if d is None or symbol not in d.symbols():
        return None
    c = d.coefficient(symbol)
    step = None if c is None else c.value
    low, high = d.subs({symbol: Integer(0)}).bounds()
    return None if not step or low is None or high is None else (step, (low, high))


def _change(holds: Callable[[int, int], bool], step: int, start: int) -> int | None:
    zero = -start // step
    turns = (
        at for at in (zero, zero + 1) if holds(start + step * (at - 1), 0) != holds(start + step * at, 0)
    )
    return next(turns, None)


def _within(step: LoopNest, symbol: Symbol, low: int, high: int) -> LoopNest:
    """The step with every comparison decided that is the same from ``low`` to ``high``: one of a choice's numbers may be another once that is decided."""

    def change(n: Node) -> Node:
        turns = _turns(n, symbol) if n.op in _COMPARED else ()
        if turns and not any(low < turn < high for turn in turns):
            found = _line(n, symbol)
            assert found is not None
            step, (start, _) = found
            return build.const(_COMPARED[n.op](start + step * low, 0), DType.BOOL)
        if n.op is Op.MASKED:
            return build.masked(*n.args)
        if n.op is Op.WHERE:
            return build.where(*n.args)
        if n.dtype is DType.BOOL and n.op in (Op.AND, Op.OR, Op.XOR):
            return build.binary(n.op, *n.args)
        if n.dtype is DType.BOOL and n.op is Op.NOT:
            return build.invert(*n.args)
        return n

    stores = tuple(with_nodes(s, rewriter(change)) for s in step.stores)
    return LoopNest(step.name, step.axes, (), (), stores, step.device, step.ops, step.origin)
