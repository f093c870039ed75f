"""The plan of a kernel, as far as it is the same on every device: a generator prints it and decides nothing.

What a GPU adds stands in ``kernels.py``, what a processor adds in ``processors.py``.
"""

from __future__ import annotations

import enum

from braze.loops.ir import Axis
from braze.support.record import record
from braze.symbolic.expr import Expr, Integer, Symbol, floor_div, product


class Form(enum.Enum):
    FLAT = "flat"  # points by one number
    TILED = "tiled"  # points in squares: some accesses run along one axis, some along another
    ROWS = "rows"  # threads, or lanes of vectors, lie along the row
    COLUMNS = "columns"  # threads or lanes lie along the points, each walks down its row
    MIXED = "mixed"  # threads lie along the row; a program has many rows, and sums down their columns too


@record
class Tile:
    """One dimension of a task's tile: the axes that its number runs over, and how many of them one task takes."""

    letter: str
    axes: tuple[Axis, ...]
    block: int

    @property
    def extent(self) -> Expr:
        return product([a.extent for a in self.axes])

    @property
    def divides(self) -> bool:
        """Whether every task has a whole tile, of which there is one at least."""
        return bool(self.extent.value) and (self.extent.value or 0) % self.block == 0


@record
class TaskPlan:
    """How a kernel is cut into tasks that run at once: programs of a GPU, shares of a processor's threads.

    ``arguments``: the buffers that it touches in memory. ``sizes``: those it needs at run time. ``outer``: axes of which a task has one
    point each. ``points``: dimensions over the parallel points of which a task has a tile, outermost first. ``row``: the dimension over
    the reduced row.
    """

    form: Form
    arguments: tuple[str, ...]
    sizes: tuple[Symbol, ...]
    outer: tuple[Axis, ...]
    points: tuple[Tile, ...]
    row: Tile | None

    @property
    def tasks(self) -> Expr:
        """How many tasks there are."""
        counts = [blocks(tile.extent, tile.block) for tile in self.points]
        return product([*(a.extent for a in self.outer), *counts])


def blocks(extent: Expr, block: int) -> Expr:
    """Tiles of an extent, the last one perhaps not full."""
    return extent if block == 1 else floor_div(extent + (block - 1), Integer(block))


@record
class Tiles:
    """What one program takes: a point of each of the ``outer`` axes, a tile of the others, of a row all of it (``whole``) or tile after tile."""

    outer: tuple[Axis, ...]
    points: tuple[Tile, ...]
    warps: int
    row: Tile | None = None
    whole: bool = False
    stages: int = 1
