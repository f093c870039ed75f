"""How grouped products are cut into programs: the ways worth a measurement, and the one that a rule takes."""

from __future__ import annotations

from braze.codegen.triton.gemm_tiles import CORE_ROWS, Means, Tiles
from braze.schedule.gpu.tile_sizes import power

#: (rows of a program, columns, places of the sum, warps, stages, blocks of rows side by side)
_FORMS = (
    (16, 128, 128, 4, 4, 1), (16, 64, 128, 4, 4, 1), (16, 64, 256, 4, 4, 1), (32, 128, 128, 4, 3, 8), (64, 128, 64, 4, 4, 8), (64, 256, 64, 4, 4, 8),
    (128, 128, 64, 8, 3, 8), (128, 256, 64, 8, 4, 8), (128, 256, 64, 8, 3, 4),
)  # fmt: skip
#: rows of a group that fill a tile of so many: on the whole half of each group's last tile is left empty
_FILLED = 4


def grouped_candidates(rows: int, groups: int, inner: int, columns: int, rights: int) -> tuple[Tiles, ...]:
    """The tiles worth a measurement, the rule's first: ``rights`` right-hand matrices of ``columns`` columns for each group."""
    each = -(-rows // min(groups, max(rows, 1)))
    found = [by_rule(each)]
    for x, y, step, warps, stages, band in _FORMS:
        if x <= max(CORE_ROWS, _FILLED * power(each)) and each <= _FILLED * x:
            found.append((x, y, step, warps, stages, band))
    made = (
        Tiles(Means.CORES, x, _side(y // rights, columns), _side(step, inner), 1, warps, stages, band)
        for x, y, step, warps, stages, band in found
    )
    return tuple(dict.fromkeys(made))


def by_rule(each: int) -> tuple[int, int, int, int, int, int]:
    """What a group of so many rows gets without a measurement: within a few percent of the quickest of twenty on an H200."""
    if each <= CORE_ROWS:
        return 16, 128, 128, 4, 4, 1
    if each <= 48:
        return 64, 128, 64, 4, 4, 8
    return 128, 256, 64, 8, 4, 8


def _side(block: int, extent: int) -> int:
    """A block that is not longer than what it is of, and not shorter than the tensor cores take."""
    return max(CORE_ROWS, min(block, power(extent)))
