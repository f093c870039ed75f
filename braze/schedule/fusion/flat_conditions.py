"""Conditions on an outer axis as conditions on the element, so that rows which follow each other in memory become one axis.

``i0 < c`` keeps rows apart (parts that are joined, a roll, what is padded), though all is read and written in order: of rows of three a vector then holds
three numbers. Where all else steps over both axes as over one, ``E*i0 + i1 < E*c`` says the same of rows of ``E``; the axes are merged, and the loop is cut there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from braze.loops import build
from braze.loops.ir import Axis, DType, Node, Op
from braze.loops.rewrite import attr_exprs, rewriter, walk
from braze.loops.simplify import step_as_one
from braze.symbolic.expr import ZERO, Expr, Integer, Symbol

#: a loop is cut at so many places at most
CUTS = 3
#: a comparison, and what it is with both sides negated
_TURNED = {Op.LT: Op.GT, Op.LE: Op.GE, Op.GT: Op.LT, Op.GE: Op.LE, Op.EQ: Op.EQ}

#: a comparison with 0 of a multiple of a symbol and a number: what holds below the first place at which it changes, and that place
Bound = tuple[Symbol, bool, int]


def flattened(
    axes: Sequence[Axis], values: Sequence[Node], stored: Iterable[Expr]
) -> Callable[[Node], Node] | None:
    """What rewrites the conditions of steps without rows over ``axes``; None where that merges no axes. ``stored``: where they write."""
    bounds = {n: found for n in walk(*values) if (found := _bound(n)) is not None}
    if not bounds or not axes:
        return None
    others = {*stored, *_others(values, bounds)}
    asked = {symbol for symbol, _, _ in bounds.values()}
    length = 1
    element: Expr = ZERO
    scale: dict[Symbol, tuple[Expr, int]] = {}
    for outer, inner in zip(axes[-2::-1], axes[:0:-1], strict=True):
        extent = inner.extent.value
        if extent is None or outer.extent.value is None or not step_as_one(outer, inner, others):
            break
        element += inner.symbol * length
        length *= extent
        scale[outer.symbol] = element + outer.symbol * length, length
    cuts = {place * scale[s][1] for s, _, place in bounds.values() if s in scale}
    if axes[-1].symbol in asked or not 0 < len(cuts) <= CUTS:
        return None

    def change(n: Node) -> Node:
        found = bounds.get(n)
        if found is None or found[0] not in scale:
            return n
        symbol, below, place = found
        flat, rows = scale[symbol]
        return build.index_condition(Op.LT if below else Op.GE, flat, place * rows)

    return rewriter(change)


def difference(n: Node) -> Expr | None:
    """Left minus right of a comparison of index values."""
    sides = []
    for a in n.args:
        if a.op is Op.INDEX:
            sides.append(a.attr)
        elif a.op is Op.CONST and a.dtype is DType.I64:
            sides.append(Integer(a.attr))
        else:
            return None
    return sides[0] - sides[1]


def line(n: Node) -> tuple[Symbol, Op, int, int] | None:
    """A comparison of one symbol as (the symbol, the comparison with 0, step, start) of ``step * symbol + start``, which grows."""
    d = difference(n) if n.op in _TURNED else None
    if d is None or len(d.symbols()) != 1:
        return None
    (symbol,) = d.symbols()
    c = d.coefficient(symbol)
    step, start = None if c is None else c.value, d.subs({symbol: ZERO}).value
    if not step or start is None:
        return None
    return (symbol, n.op, step, start) if step > 0 else (symbol, _TURNED[n.op], -step, -start)


def _bound(n: Node) -> Bound | None:
    """What an order says of one symbol."""
    found = line(n)
    if found is None or found[1] is Op.EQ:
        return None
    symbol, op, step, start = found
    first = -(start // step) if op in (Op.LT, Op.GE) else -start // step + 1
    return symbol, op in (Op.LT, Op.LE), first


def _others(values: Sequence[Node], bounds: dict[Node, Bound]) -> set[Expr]:
    """All expressions but those of INDEX nodes that nothing but these comparisons asks for."""
    found = {n.attr for n in values if n.op is Op.INDEX}
    for n in walk(*values):
        if n.op is not Op.INDEX:
            found |= set(attr_exprs(n.attr))
        if n not in bounds:
            found |= {a.attr for a in n.args if a.op is Op.INDEX}
    return found
