"""Split axes until indices hold no divisions of them.

A reshaped and permuted access shows up as ``i // 12`` and ``i % 12`` of a merged axis. Where the divisor divides
the axis' extent, the axis becomes two, and the index a plain sum again.
"""

from __future__ import annotations

import itertools

from braze.loops.ir import Axis, LoopNest
from braze.loops.rewrite import Substitution, index_exprs
from braze.symbolic.expr import ZERO, Expr, FloorDiv, Mod, Symbol, axis_symbol, modulo
from braze.symbolic.flat import parts_of

#: splits per nest at most
_LIMIT = 8


def with_linear_indices(nest: LoopNest) -> LoopNest:
    """The nest with axes split where that makes indices linear."""
    fresh = itertools.count()
    for _ in range(_LIMIT):
        found = _a_split(nest)
        if found is None:
            return nest
        axis, divisor = found
        k = next(fresh)
        outer_extent = axis.extent // divisor
        outer = Axis(axis_symbol(f"{axis.symbol.name}_o{k}", outer_extent), outer_extent)
        inner = Axis(axis_symbol(f"{axis.symbol.name}_n{k}", divisor), divisor)
        nest = _split(nest, axis, outer, inner)
    return nest


def _a_split(nest: LoopNest) -> tuple[Axis, Expr] | None:
    """An axis and the largest divisor that some index divides it by, if it comes out even."""
    by_symbol = {a.symbol: a for a in (*nest.axes, *nest.reduce_axes)}
    found: dict[tuple[Axis, Expr], None] = {}
    for e in set(index_exprs(nest)):
        for part in parts_of(e):
            if not isinstance(part, (FloorDiv, Mod)):
                continue
            numerator, divisor = part.numerator, part.divisor
            axis = by_symbol.get(numerator) if isinstance(numerator, Symbol) else None
            if (
                axis is not None
                and not divisor.symbols() & by_symbol.keys()
                and modulo(axis.extent, divisor) is ZERO
            ):
                found[axis, divisor] = None
    # the largest first: smaller divisors of the inner part are found in the next round
    return max(found, key=lambda item: (item[1].value or 0, str(item[1]), item[0].symbol.name), default=None)


def _split(nest: LoopNest, axis: Axis, outer: Axis, inner: Axis) -> LoopNest:
    change = Substitution({axis.symbol: outer.symbol * inner.extent + inner.symbol})

    def cut(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(part for a in axes for part in ((outer, inner) if a is axis else (a,)))

    return change.nest(nest, cut(nest.axes), cut(nest.reduce_axes))
