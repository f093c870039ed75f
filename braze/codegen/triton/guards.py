"""Where a part of a tile is computed: the condition as a variable, and what it says of the axes.

What is written part by part (``for p in v.split(1): p.mul_(2)``) is a choice within a choice within a choice. A value that is asked for under each
combination of their conditions would be written as often, twice as often with each part. Few combinations differ: within one part no other one lies
(``decided``), and a condition that follows from another adds nothing to it (:meth:`Guard.within`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from braze.loops.ir import Node, Op
from braze.schedule.fusion.flat_conditions import difference, line
from braze.support.record import record
from braze.symbolic.expr import Expr, Symbol

#: the values that an axis has, the last one included
Span = tuple[Symbol, int, int]
#: whether a comparison with 0 holds, of the least and the greatest that the other side may be; None where both may be
_COMPARED: dict[Op, Callable[[int, int], bool | None]] = {
    Op.LT: lambda low, high: True if high < 0 else False if low >= 0 else None,
    Op.LE: lambda low, high: True if high <= 0 else False if low > 0 else None,
    Op.GT: lambda low, high: True if low > 0 else False if high <= 0 else None,
    Op.GE: lambda low, high: True if low >= 0 else False if high < 0 else None,
    Op.EQ: lambda low, high: True if low == high == 0 else False if low > 0 or high < 0 else None,
    Op.NE: lambda low, high: False if low == high == 0 else True if low > 0 or high < 0 else None,
}


@record
class Guard:
    """A condition: the variable that holds it, the axes its tile spans, and where it holds. ``exact``: it holds wherever the axes are in ``spans``."""

    name: str
    deps: frozenset[str]
    spans: tuple[Span, ...] = ()
    exact: bool = False

    def within(self, outer: Guard) -> Guard:
        """Both conditions: the inner one alone where it implies the other."""
        spans = _both(self.spans, outer.spans)
        if outer.exact and spans == self.spans:
            return self
        return Guard(
            f"({outer.name} & {self.name})", outer.deps | self.deps, spans, self.exact and outer.exact
        )

    def decided(self, condition: Node) -> bool | None:
        """Whether another condition holds wherever this one does; None where that depends."""
        return _decided(condition, {symbol: (low, high) for symbol, low, high in self.spans})


def guarding(condition: Node, name: str, deps: frozenset[str]) -> Guard:
    """The guard of a condition that a variable holds."""
    parts = list(_conjuncts(condition))
    found = [_span(part) for part in parts]
    spans = _both(*([span] if span is not None else [] for span in found))
    return Guard(name, deps, spans, None not in found)


def _conjuncts(condition: Node) -> Iterable[Node]:
    if condition.op is Op.AND:
        for part in condition.args:
            yield from _conjuncts(part)
    else:
        yield condition


def _both(*several: Iterable[Span]) -> tuple[Span, ...]:
    """What is in all of them."""
    found: dict[Symbol, tuple[int, int]] = {}
    for symbol, low, high in (span for spans in several for span in spans):
        least, most = found.get(symbol, (low, high))
        found[symbol] = max(low, least), min(high, most)
    return tuple(sorted(((s, *span) for s, span in found.items()), key=lambda span: span[0].name))


def _span(comparison: Node) -> Span | None:
    """Where a comparison of one axis holds; None where that is no span, or not known."""
    found = line(comparison)
    if found is None:
        return None
    symbol, op, step, start = found
    low, high = symbol.bounds()
    if step != 1 or low is None or high is None:
        return None
    equal = -start  # there both sides are
    match op:
        case Op.LT:
            return symbol, low, min(high, equal - 1)
        case Op.LE:
            return symbol, low, min(high, equal)
        case Op.GT:
            return symbol, max(low, equal + 1), high
        case Op.GE:
            return symbol, max(low, equal), high
        case Op.EQ:
            return symbol, equal, equal
    return None


def _holds(
    holds: Callable[[int, int], bool | None], d: Expr, spans: dict[Symbol, tuple[int, int]]
) -> bool | None:
    asked = d.symbols() & spans.keys()
    low, high = d.subs({s: Symbol(s.name, *spans[s]) for s in asked}).bounds()
    return None if low is None or high is None else holds(low, high)


def _decided(condition: Node, spans: dict[Symbol, tuple[int, int]]) -> bool | None:
    if condition.op in (Op.AND, Op.OR):
        found = [_decided(part, spans) for part in condition.args]
        final = condition.op is Op.OR  # one such part decides
        return final if final in found else None if None in found else not final
    d = difference(condition) if condition.op in _COMPARED else None
    return None if d is None else _holds(_COMPARED[condition.op], d, spans)
