"""Tile sizes and warps of Triton kernels: every heuristic of this generator."""

from __future__ import annotations

from braze.schedule.records import Group, GroupKind
from braze.support.record import record
from braze.symbolic.expr import ONE, Expr

POINTWISE_BLOCK = 1024
#: elements of a reduction tile that keep about 16 registers a thread busy
TILE_ELEMENTS = 4096
LOOP_BLOCK = 2048
MAX_PERSISTENT = 16384


@record
class Tile:
    """``x`` points by ``row`` elements (0: no row); ``persistent``: the tile holds the whole row."""

    x: int
    row: int
    persistent: bool
    warps: int
    stages: int = 1


def choose_tile(group: Group) -> Tile:
    """One good configuration for a group."""
    points = _static(tuple(a.extent for a in group.axes))
    if group.kind is GroupKind.POINTWISE:
        block = POINTWISE_BLOCK if points is None else max(32, min(POINTWISE_BLOCK, _power(points)))
        return Tile(block, 0, False, max(1, min(8, block // 128)))
    row = _static(tuple(a.extent for a in group.row_axes))
    if group.kind is GroupKind.PERSISTENT and row is not None and row <= MAX_PERSISTENT:
        width = _power(max(row, 1))
        rows = max(1, min(64, TILE_ELEMENTS // width // 4))
        if points is not None:
            rows = max(1, min(rows, _power(max(points, 1))))
        return Tile(rows, width, True, _warps(rows * width))
    width = LOOP_BLOCK if row is None else min(LOOP_BLOCK, _power(max(row, 1)))
    return Tile(1, width, False, _warps(width), 2)


def _warps(elements: int) -> int:
    return max(1, min(16, elements // 256))


def _power(n: int) -> int:
    """The least power of two not below n."""
    return 1 << max(0, n - 1).bit_length()


def _static(extents: tuple[Expr, ...]) -> int | None:
    total: Expr = ONE
    for e in extents:
        total = total * e
    return total.value
