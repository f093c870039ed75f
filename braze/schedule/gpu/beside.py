"""Columns that lie side by side in what is reduced are one axis of points, whatever is read or stored beside that.

Axes merge where all accesses of a kernel step over both as over one. A few numbers that are the same for three columns each, or a result that is
turned, then leave rows of 384 numbers as 128 times 3, and a program has a tile of three. What is walked down decides
here, and the others find their places by a division, of which there is one for each column.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from braze.loops.ir import Axis, Buffer
from braze.loops.rewrite import Substitution
from braze.schedule.facts.passes import Access, accesses_of
from braze.schedule.facts.plans import Form
from braze.schedule.facts.ragged import common_limit
from braze.schedule.facts.records import Group, GroupKind
from braze.schedule.gpu.along_threads import form_of
from braze.symbolic.expr import ONE, Expr, axis_symbol, floor_div, modulo, product
from braze.symbolic.guess import likely_size

#: columns that are enough for the tile of a program
ENOUGH = 64
#: numbers in the columns of a program's own that fill its tile (products on an H200: of 28 rows of 28 80 us, 170 with columns of others; sums of 14 rows of 42 gain by them)
FILLED = 768


def columns_beside(group: Group, buffers: Mapping[str, Buffer]) -> Group:
    """A group with short columns laid side by side as far as they lie so."""
    if group.kind not in (GroupKind.PERSISTENT, GroupKind.LOOPED) or _ends_by_memory(group):
        return group
    while True:
        found = _pair(group, buffers)
        if found is None:
            return group
        group = _merged(group, *found)


def _pair(group: Group, buffers: Mapping[str, Buffer]) -> tuple[Axis, Axis] | None:
    """An axis of few columns, behind the one over which they follow on in all that is walked down; None where there is none."""
    accesses = tuple(accesses_of(group, dict(buffers)))
    form, inner = form_of(group, accesses)
    if form is not Form.COLUMNS or inner is None or not 1 < (inner.extent.value or ENOUGH) < ENOUGH:
        return None
    down = {a.symbol for a in group.row_axes}
    walked = [a.index for a in accesses if a.indirect or a.index.symbols() & down]
    for outer in group.axes:
        known = outer is not inner and (outer.extent.value or 1) > 1
        in_all = all((inner in step.axes) and (outer in step.axes) for step in group.steps)
        if (
            known
            and in_all
            and all(
                e.coefficient(inner.symbol) is ONE and e.coefficient(outer.symbol) is inner.extent
                for e in walked
            )
        ):
            return outer, inner
    return None


def _merged(group: Group, outer: Axis, inner: Axis) -> Group:
    """The same group over one axis in place of two."""
    extent = outer.extent * inner.extent
    wide = Axis(axis_symbol(f"{inner.symbol.name}_wide", extent), extent)
    change = Substitution(
        {
            outer.symbol: floor_div(wide.symbol, inner.extent),
            inner.symbol: modulo(wide.symbol, inner.extent),
        }
    )

    def over(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(wide if a is inner else a for a in axes if a is not outer)

    steps = tuple(change.nest(step, over(step.axes), step.reduce_axes) for step in group.steps)
    return dataclasses.replace(group, steps=steps, axes=over(group.axes))


def _ends_by_memory(group: Group) -> bool:
    return common_limit(group.axes, group.row_axes, group.steps) is not None


def axes_beside(group: Group, found: Sequence[Access], inner: Axis) -> tuple[Axis, ...]:
    """The axes of points whose columns a program takes side by side: the inner one, where it is short all of them, as they lie in what is walked down.

    By two columns that follow on in all that is read Triton sees along which axis of the tile threads are to lie; of odd ones it does not.
    """
    down = {a.symbol for a in group.row_axes}
    walked = [a.index for a in found if a.index.symbols() & down]
    others = [a for a in group.axes if a is not inner]
    steps = [e.coefficient(a.symbol) for e in walked for a in others]
    even = all(n is not None and n.value is not None and n.value % 2 == 0 for n in (inner.extent, *steps))
    if not walked or not even or (inner.extent.value or ENOUGH) >= ENOUGH:
        return (inner,)
    numbers = likely_size(product([inner.extent, *(a.extent for a in group.row_axes)]))
    if numbers >= FILLED:
        return (inner,)
    return as_they_lie(group, walked[0], inner)


def as_they_lie(group: Group, index: Expr, inner: Axis) -> tuple[Axis, ...]:
    """All axes of points, those first over which the index steps furthest, the ``inner`` one last."""
    others = [a for a in group.axes if a is not inner]
    return (*sorted(others, key=lambda a: -likely_size(index.coefficient(a.symbol) or ONE)), inner)
