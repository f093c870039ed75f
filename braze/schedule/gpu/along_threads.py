"""Which axis lies along a GPU's threads: of those that an access may be contiguous along, the one along which all accesses together touch the fewest sectors."""

from __future__ import annotations

from collections.abc import Sequence

from braze.loops.ir import Axis
from braze.schedule.facts.passes import Access, counts_positions
from braze.schedule.facts.plans import Form
from braze.schedule.facts.records import Group
from braze.symbolic.guess import likely_size

#: bytes that a GPU moves at least for one element
SECTOR = 32
#: an axis shorter than this is not worth tiles of its own
LEAST = 8
#: threads of a warp
LANES = 32
#: elements of a pointwise tile
FLAT = 1024


def form_of(group: Group, found: Sequence[Access]) -> tuple[Form, Axis | None]:
    """The form, and the axis that is special in it: the second of a square, the innermost of rows or columns."""
    axes = [a for a in (*group.axes, *group.row_axes) if likely_size(a.extent) > 1]
    if not group.row_axes:
        across = _across(group.axes, found)
        return (Form.FLAT, None) if across is None else (Form.TILED, across)
    last = group.row_axes[-1]
    rows = [last] if counts_positions(group.steps) else list(group.row_axes)
    best, chosen = sum(_cost(a, last, axes) for a in found), last
    for axis in [*reversed(rows), *reversed(group.axes)]:
        cost = sum(_cost(a, axis, axes) for a in found)
        if cost < 0.9 * best and likely_size(axis.extent) > 1:
            best, chosen = cost, axis
    if chosen in group.row_axes:
        chosen = _of_windows(group, found, chosen, best, axes) or chosen
    return (Form.ROWS if chosen in group.row_axes else Form.COLUMNS), chosen


def _of_windows(
    group: Group, found: Sequence[Access], row: Axis, cost: float, axes: Sequence[Axis]
) -> Axis | None:
    """The axis of points along which rows begin one place after another, as sliding windows do; None where there is none, or threads along it cost more.

    Threads along it each have windows of their own, and read side by side; along a window they would hand on their parts of it, and have few.
    """
    for axis in reversed(group.axes):
        slides = any(not a.store and step_along(a, axis) == 1 == step_along(a, row) for a in found)
        if slides and likely_size(axis.extent) >= LANES and sum(_cost(a, axis, axes) for a in found) <= cost:
            return axis
    return None


def _cost(a: Access, axis: Axis, axes: Sequence[Axis]) -> float:
    """Bytes that an access moves where the threads lie along an axis."""
    count = a.itemsize
    for other in axes:
        if a.indirect or other.symbol in a.index.symbols():
            count *= likely_size(other.extent)
    step = step_along(a, axis)
    if step == 0 or step == 1:
        return count
    return count * (SECTOR // a.itemsize if step is None else min(abs(step), SECTOR // a.itemsize))


def step_along(a: Access, axis: Axis) -> int | None:
    """Elements from one point of an axis to the next; None where that is not one number."""
    c = a.index.coefficient(axis.symbol)
    return None if c is None else likely_size(c)


def _across(axes: tuple[Axis, ...], found: Sequence[Access]) -> Axis | None:
    """The axis that most accesses are contiguous along that are not so along the innermost one."""
    if len(axes) < 2:
        return None
    last = axes[-1]
    moved: dict[Axis, float] = {}
    for a in found:
        if a.indirect or step_along(a, last) in (0, 1, None):
            continue
        for axis in axes[:-1]:
            if step_along(a, axis) == 1 and likely_size(axis.extent) >= LEAST:
                moved[axis] = moved.get(axis, 0) + _cost(a, axis, axes)
    if not moved or likely_size(last.extent) < LEAST:
        return None
    across = max(moved, key=lambda axis: moved[axis])
    return across if likely_size(across.extent) * likely_size(last.extent) >= FLAT else None
