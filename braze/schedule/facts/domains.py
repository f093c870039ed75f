"""Lay two iteration domains over each other: split axes until both are products of the same pieces.

``lay_over([4096 p, 768 r], [8, 512, 768])`` splits 4096 into 8 x 512 and maps the axes of both onto the three
pieces. Extents may be symbolic: an axis is split where the other side's extent divides it by form.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from braze.loops.ir import Axis
from braze.support.record import record
from braze.symbolic.expr import ONE, ZERO, Expr, FloorDiv, Integer, Mod, Symbol, axis_symbol, modulo
from braze.symbolic.guess import likely

_fresh = itertools.count()


@record
class Place:
    """An axis with its role: ``row`` True or False, or None where either will do."""

    axis: Axis
    row: bool | None = None


@record
class Overlay:
    """Common axes of two domains, and how each domain's symbols are written in them."""

    axes: tuple[Axis, ...]
    row_axes: tuple[Axis, ...]
    left: dict[Symbol, Expr]
    right: dict[Symbol, Expr]


def lay_over(left: Sequence[Place], right: Sequence[Place], listing: Sequence[Axis]) -> Overlay | None:
    """The common refinement of two sequences of axes (outermost first), or None.

    ``listing`` is the order of the left axes in the result.
    """
    stack = [(p, p.axis.extent) for p in left if p.axis.extent is not ONE]
    other = [(p, p.axis.extent) for p in right if p.axis.extent is not ONE]
    pieces: dict[Axis, list[Axis]] = {p.axis: [] for p in left}
    others: dict[Axis, list[Axis]] = {p.axis: [] for p in right}
    rows: set[Axis] = set()
    while stack and other:
        (a, ea), (b, eb) = stack.pop(), other.pop()
        extent = _common(ea, eb)
        if extent is None or (a.row is not None and b.row is not None and a.row != b.row):
            return None
        whole = extent is a.axis.extent
        piece = a.axis if whole else Axis(axis_symbol(f"p{next(_fresh)}", extent), extent)
        pieces[a.axis].append(piece)
        others[b.axis].append(piece)
        if a.row or b.row:
            rows.add(piece)
        if ea is not extent:
            stack.append((a, ea // extent))
        if eb is not extent:
            other.append((b, eb // extent))
    if stack or other:
        return None
    ordered = [piece for axis in listing for piece in reversed(pieces.get(axis, ()))]
    return Overlay(
        tuple(p for p in ordered if p not in rows),
        tuple(p for p in ordered if p in rows),
        {axis.symbol: _composed(parts) for axis, parts in pieces.items()},
        {axis.symbol: _composed(parts) for axis, parts in others.items()},
    )


def _common(a: Expr, b: Expr) -> Expr | None:
    """The extent of the piece that both axes end with."""
    if a is b:
        return a
    if a is ZERO or b is ZERO:
        return None
    if modulo(a, b) is ZERO:
        return b
    return a if modulo(b, a) is ZERO else None


def _composed(parts: list[Axis]) -> Expr:
    """The value of an axis from its pieces, innermost first."""
    total: Expr = ZERO
    stride: Expr = ONE
    for part in parts:
        total = total + part.symbol * stride
        stride = stride * part.extent
    return total


def decomposed(
    overlay_map: dict[Symbol, Expr], axes: Sequence[Axis], whole: Sequence[Axis]
) -> dict[Symbol, Expr]:
    """Write the pieces of ``axes`` in terms of the unsplit axes ``whole`` (m -> m // s, m % s)."""
    out: dict[Symbol, Expr] = {}
    for axis in whole:
        composed = overlay_map[axis.symbol]
        inside = [p for p in axes if p.symbol in composed.symbols()]
        if inside == [axis]:
            continue
        stride: Expr = ONE
        for piece in reversed(inside):
            out[piece.symbol] = (axis.symbol // stride) % piece.extent
            stride = stride * piece.extent
    return out


def ordered_by(places: Sequence[Place], index: Expr) -> list[Place] | None:
    """The axes that ``index`` holds by decreasing stride, then the others as listed; None if not linear."""
    inside: list[tuple[int, int, Place]] = []
    outside: list[Place] = []
    for k, place in enumerate(places):
        c = index.coefficient(place.axis.symbol)
        if c is None:
            return None
        if c is ZERO:
            outside.append(place)
        else:
            inside.append((-abs(likely(c)), k, place))
    inside.sort(key=lambda item: item[:2])
    return [p for _, _, p in inside] + outside


def injective(index: Expr, axes: Sequence[Axis]) -> bool:
    """Whether different points of ``axes`` provably have different indices; quotients and remainders of an axis count as axes of their own."""
    places = ordered_by([Place(a) for a in axes if a.extent is not ONE], index)
    if places is None:
        parted = _parted(index, axes)
        return parted is not None and injective(*parted)
    span: Expr = ONE
    for place in reversed(places):
        c = index.coefficient(place.axis.symbol)
        if c is None or c is ZERO or not _covers(c, span):
            return False
        span = c * place.axis.extent
    return True


def _parted(index: Expr, axes: Sequence[Axis]) -> tuple[Expr, list[Axis]] | None:
    """An index over the parts of one axis of which it has quotients or remainders by a number that divides its extent."""
    for k, axis in enumerate(axes):
        extent = axis.extent.value
        if extent is None or index.coefficient(axis.symbol) is not None:
            continue
        for divisor in _divisors(index, axis.symbol):
            if 1 < divisor < extent and extent % divisor == 0:
                number = next(_fresh)
                outer, inner = (
                    Axis(axis_symbol(f"{letter}{number}", Integer(n)), Integer(n))
                    for letter, n in (("quotient", extent // divisor), ("remainder", divisor))
                )
                whole = outer.symbol * divisor + inner.symbol
                return index.subs({axis.symbol: whole}), [*axes[:k], outer, inner, *axes[k + 1 :]]
    return None


def _divisors(e: Expr, symbol: Symbol) -> set[int]:
    """The numbers by which a symbol itself is divided in an expression."""
    if isinstance(e, (FloorDiv, Mod)) and e.numerator is symbol:
        return {e.divisor.value} if e.divisor.value is not None else set()
    return set().union(*(_divisors(child, symbol) for child in e.children()))


def _covers(stride: Expr, span: Expr) -> bool:
    low = (stride - span).bounds()[0]
    return stride is span or (low is not None and low >= 0)
