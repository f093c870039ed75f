"""Which kernels read windows, and how few elements a thread of them has; which read across their rows."""

from __future__ import annotations

from collections.abc import Sequence

from braze.loops.ir import Axis
from braze.schedule.facts.passes import Access
from braze.symbolic.expr import ONE, Expr
from braze.symbolic.guess import likely_size

#: elements of a thread, and of a tile: of each load the threads side by side then share sectors
APART, APART_TILE = 2, 256
#: so many rows side by side are a sector of what is read across them
BESIDE = 16


def reads_apart(axes: Sequence[Axis], found: Sequence[Access]) -> bool:
    """Whether windows are read: several places of a buffer for each point, which lie apart from point to point.

    Where they lie side by side a thread takes eight by one load; here each of its elements takes one, and eight of
    them would spread a load of a warp over eight times the sectors. Places that neighbours share are not such: where
    these are divided down to one the sums for it are most of the time (bilinear upsampling 60 us, by two elements a thread 83).
    """
    if not axes:
        return False
    read = [a for a in found if not a.store and not a.indirect and _is_apart(a.index, axes[-1])]
    return len(read) > len({a.buffer for a in read})


def _is_apart(index: Expr, axis: Axis) -> bool:
    step = index.coefficient(axis.symbol)
    return step is not None and likely_size(step) > 1


def beside_rows(axes: Sequence[Axis], row: Axis, found: Sequence[Access]) -> Axis | None:
    """The axis of points along which something lies side by side that is read with all of a row, and lies apart along that."""
    for a in found:
        known = a.index.symbols()
        step = a.index.coefficient(row.symbol)
        if a.store or a.indirect or row.symbol not in known or step is None or likely_size(step) < 2:
            continue
        for axis in axes:
            if a.index.coefficient(axis.symbol) is ONE and likely_size(axis.extent) >= BESIDE:
                return axis
    return None
