"""How the matrix product's template is cut into programs: the ways there are, those worth a measurement, and the one that a rule takes."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator

from braze.schedule.gpu.tile_sizes import power
from braze.support.record import record

#: rows that the tensor cores take at least
CORE_ROWS = 16
#: rows that are multiplied without tensor cores
MULTIPLIED = 8
#: elements of the right-hand matrices that a thread has at once: enough that memory is kept busy, few enough for its registers
LEAST, HELD = 16, 128
#: results of a program that each thread has a part of
SUMS = 32
#: programs that keep a GPU's memory busy
PROGRAMS = 100
#: bytes of tiles that a program may have on their way
SHARED = 160 << 10
#: rows that are few
FEW = 64


class Means(enum.Enum):
    """How a program multiplies."""

    MULTIPLY = "multiply"  # products and sums of numbers: of few rows the matrix streams through, and nothing is padded
    CORES = "cores"  # tensor cores, rows padded to 16


@record
class Tiles:
    """One program has ``rows`` x ``columns`` results and walks the sum in steps of ``inner``, in ``slices`` at once, each by warps of
    its own, which are added at the end. ``band``: blocks of rows whose programs stand side by side."""

    means: Means
    rows: int
    columns: int
    inner: int
    slices: int = 1
    warps: int = 4
    stages: int = 1
    band: int = 1

    def text(self) -> str:
        """A name, by which a choice is kept."""
        return f"{self.means.value} {self.rows}x{self.columns}x{self.inner} s{self.slices} w{self.warps} p{self.stages} b{self.band}"


def parsed(text: str) -> Tiles:
    """The tiles of a name.

    >>> t = Tiles(Means.CORES, 16, 32, 256, 4, 4, 2)
    >>> parsed(t.text()) == t
    True
    """
    means, sizes, *rest = text.split()
    rows, columns, inner = map(int, sizes.split("x"))
    slices, warps, stages, band = (int(part[1:]) for part in rest)
    return Tiles(Means(means), rows, columns, inner, slices, warps, stages, band)


def by_rule(rows: int, inner: int, columns: int, rights: int, itemsize: int) -> Tiles:
    """The tiles that a product gets without a measurement: ``rights`` right-hand matrices of ``columns`` columns each.

    What was quickest on an H200 for the layers of models of 0.6 and 1 billion parameters, within a few percent.
    """
    streams = rows == 1 or (rows == 2 and columns * rights < 16384)
    if rows <= MULTIPLIED and (streams or itemsize > 2):
        found = _rule_multiplied(rows, inner, columns, rights)
    elif rows <= CORE_ROWS:
        found = _rule_fewest(inner, columns)
    elif rows <= FEW:
        found = _rule_few(rows, inner, columns, rights)
    else:
        found = _rule_many(rows, inner, columns, rights)
    return _no_longer(found, inner)


def _rule_multiplied(rows: int, inner: int, columns: int, rights: int) -> Tiles:
    # in registers before the kernel ahead has ended: an H100 had a layer done 1.3 us sooner
    if rows == 1 and 6144 < inner <= 8192:
        return Tiles(Means.MULTIPLY, 1, 1, 8192, 1, 16, 1)
    # room for the kernel behind: 1.2 us
    if rows == 1 and 512 < inner <= 1024 and columns >= 4096 and rights == 1:
        return Tiles(Means.MULTIPLY, 1, 8, 1024, 1, 4, 1)
    if inner > 8192:
        return Tiles(Means.MULTIPLY, power(rows), 1, 4096, 1, 8, 1)
    step = power(inner) if inner <= 4096 else 2048
    if inner > 4096 or (step >= 2048 and columns <= 1024):
        side = 2 if rows == 2 and inner > 2048 else 1
    elif rows == 2 and step <= 1024:
        side = 4
    else:
        side = 4 if step == 2048 and columns * rights >= 3072 else 2
    return Tiles(Means.MULTIPLY, power(rows), side, step, 1, 4 if step <= 2048 else 8, 1)


def _rule_fewest(inner: int, columns: int) -> Tiles:
    for least, side, step, slices, warps, stages in (
        (32768, 128, 128, 1, 4, 4), (8192, 32, 256, 1, 4, 3), (4096, 32 if inner <= 1024 else 16, 256, 1 if inner <= 1024 else 4, 4, 3),
        (3072, 8, 256, 4, 4, 3),
    ):  # fmt: skip
        if columns >= least:
            return Tiles(Means.CORES, CORE_ROWS, side, step, slices, warps, stages)
    if inner >= 4096 or (columns <= 1024 and inner > 1024):
        return Tiles(Means.CORES, CORE_ROWS, 8, 512, 8, 8, 3)
    return Tiles(Means.CORES, CORE_ROWS, 8, 256, 4, 4, 3)


def _rule_few(rows: int, inner: int, columns: int, rights: int) -> Tiles:
    x = power(rows)
    if x <= 32 and 8192 < columns * rights < 32768:
        return Tiles(Means.CORES, x, 128 // rights, 128, 1, 4, 4)
    if x <= 32 and inner >= 2048 and (columns <= 1024 or inner > 4096):
        return Tiles(Means.CORES, x, 8 if columns <= 1024 else 16, 512, 8, 8, 3)
    if columns * rights > 8192:
        return Tiles(Means.CORES, 64, 128 // rights, 64, 1, 4, 4, 8)
    if columns <= 1024:
        return Tiles(Means.CORES, x, 8, 256, 1, 4, 3)
    return Tiles(Means.CORES, x, 32 if columns >= 4096 else 16, 128, 1, 4, 4)


def _rule_many(rows: int, inner: int, columns: int, rights: int) -> Tiles:
    tiles = -(-rows // 128) * -(-columns * rights // 128)
    wide = -(-rows // 128) * -(-columns * rights // 256)
    if wide >= 200 or 100 <= wide <= 132:
        return Tiles(Means.CORES, 128, 256 // rights, 64, 1, 8, 3, 8)
    if tiles <= 64 or (tiles <= 132 and inner < 1024):
        return Tiles(Means.CORES, 64, 128 // rights, 64, 1, 4, 4, 8)
    if tiles <= 132:
        return Tiles(Means.CORES, 128, 128 // rights, 64, 1, 4, 4, 8)
    return Tiles(Means.CORES, 128, 128 // rights, 64, 1, 8, 3, 8)


def candidates(rows: int, inner: int, columns: int, rights: int, itemsize: int) -> tuple[Tiles, ...]:
    """The ways worth a measurement, the rule's first: forms of which each was within 3% of the best for some product."""
    found = [by_rule(rows, inner, columns, rights, itemsize)]
    if rows <= (2 if itemsize <= 2 else MULTIPLIED):
        found += _multiplied(rows, columns, rights)
    if itemsize <= 2 and 1 < rows <= FEW:
        found += _few(rows, columns, rights)
    if itemsize <= 2 and rows > FEW // 2:
        found += _many(rows, rights)
    return tuple(dict.fromkeys(_no_longer(t, inner) for t in found))


def batch_candidates(rows: int, inner: int, columns: int, itemsize: int) -> tuple[Tiles, ...]:
    """The ways worth a measurement for each product of a batch, the rule's first: there are programs enough without small tiles."""
    if itemsize > 2 or rows == 1:
        x = min(power(rows), MULTIPLIED)
        found = [
            Tiles(Means.MULTIPLY, x, side, step, 1, 4, 1)
            for side, step in ((4, 512), (8, 256), (16, 128), (64 // x, 64), (2, 1024))
        ]
    else:
        x = max(CORE_ROWS, min(128, power(rows)))
        found = [
            Tiles(Means.CORES, min(x, most), y, step, 1, warps, stages, band)
            for most, y, step, warps, stages, band in (
                (64, 64, 64, 4, 3, 1), (128, 128, 64, 8, 3, 8), (128, 64, 64, 4, 3, 8), (64, 128, 64, 4, 3, 8), (32, 64, 128, 4, 3, 1), (16, 32, 128, 4, 4, 1),
                (64, 32, 64, 4, 4, 1),
            )
        ]  # fmt: skip
    made = (dataclasses.replace(t, columns=min(t.columns, max(power(columns), CORE_ROWS))) for t in found)
    return tuple(dict.fromkeys(_no_longer(t, inner) for t in made))


def _no_longer(t: Tiles, inner: int) -> Tiles:
    """The tiles with steps that are not longer than the sum, and for the tensor cores not shorter than they take."""
    least = CORE_ROWS * t.slices if t.means is Means.CORES else 1
    return dataclasses.replace(t, inner=min(t.inner, max(power(inner), least)))


def _multiplied(rows: int, columns: int, rights: int) -> Iterator[Tiles]:
    x = power(rows)
    for step, side, warps in (
        (1024, 2, 4), (1024, 4, 4), (1024, 4, 8), (1024, 8, 4), (2048, 1, 4), (2048, 2, 4), (2048, 4, 4), (4096, 1, 8), (4096, 2, 8),
    ):  # fmt: skip
        each = step * side * rights // (32 * warps)
        # beside them a thread has as many elements of each row
        most = HELD if x <= 2 else HELD // 2
        if LEAST <= each <= most and side * x * rights <= SUMS and -(-columns // side) >= PROGRAMS:
            yield Tiles(Means.MULTIPLY, x, side, step, 1, warps, 1)


def _few(rows: int, columns: int, rights: int) -> Iterator[Tiles]:
    x = max(CORE_ROWS, power(rows))
    fewest = (
        (8, 256, 4, 4, 3), (8, 512, 8, 8, 3), (16, 256, 4, 4, 3), (16, 512, 8, 8, 3), (32, 128, 1, 4, 4), (32, 256, 1, 4, 3),
        (64, 256, 1, 4, 3), (128, 128, 1, 4, 4),
    )  # fmt: skip
    more = (
        (8, 128, 1, 4, 4), (8, 256, 1, 4, 3), (8, 256, 4, 4, 3), (8, 512, 8, 8, 3), (16, 512, 8, 8, 3), (64, 128, 1, 4, 4), (16, 128, 1, 4, 4), (16, 256, 1, 4, 3), (32, 128, 1, 4, 4),
    )  # fmt: skip
    for side, step, slices, warps, stages in fewest if x == CORE_ROWS else more:
        shared = stages * step * (side * rights + x) * 2
        programs = -(-columns // side)
        if shared <= SHARED and min(columns // 16, PROGRAMS) <= programs <= 16 * PROGRAMS:
            yield Tiles(Means.CORES, x, side, step, slices, warps, stages)


def _many(rows: int, rights: int) -> Iterator[Tiles]:
    for x, y, step, warps, stages in (
        (64, 128, 64, 4, 4), (128, 128, 64, 8, 3), (128, 128, 64, 4, 4), (128, 256, 64, 8, 3),
    ):  # fmt: skip
        if x <= max(64, power(rows)):
            yield Tiles(Means.CORES, x, y // rights, step, 1, warps, stages, 8)
