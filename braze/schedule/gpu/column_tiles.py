"""Tiles of kernels that reduce down columns: threads lie along the points, and each walks down its rows or has them whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from braze.loops.ir import Axis, Op, ReduceKind
from braze.schedule.facts.passes import Access, counts_positions, kinds_of
from braze.schedule.facts.plans import Tile, Tiles, blocks
from braze.schedule.facts.records import Group, GroupKind
from braze.schedule.gpu.along_threads import SECTOR, step_along
from braze.schedule.gpu.beside import as_they_lie, axes_beside
from braze.schedule.gpu.held import VECTOR, WORD
from braze.schedule.gpu.tile_sizes import (
    EACH,
    EACH_ROW,
    ENOUGH_PROGRAMS,
    FEW_PROGRAMS,
    ON_THE_WAY,
    PLAIN,
    STAGES,
    WALK,
    draws,
    power,
    static_size,
    walk_of,
    warps_of,
)
from braze.symbolic.divides import multiple
from braze.symbolic.expr import Expr, product
from braze.symbolic.guess import likely_size

#: columns that programs take side by side: a few sectors of each row
COLUMNS = 64
#: columns of numbers of so many bytes, bytes of each in all rows, and warps, of a tile that is on its way while others are summed
WIDE_COLUMNS, WIDE_SIZES, WIDE_BYTES, WIDE_WARPS = 1024, (2, 4), 16, 4
#: such tiles that are on their way where programs are alone on their multiprocessors (on an H200 sums of 8,192 rows of 8,192 of bfloat16 34.2 us, 35.3 by two of each with three; of 16,384 x 1,024
#: 11.7 and 12.9, by one with three 12.9; of floats 19.9, 21.2 and 22.0)
ALONE_STAGES = 5
#: bytes that a thread may have of all rows of its columns, and warps of programs whose threads have whole columns
OF_COLUMNS, COLUMN_WARPS = 256, 4
#: words that a thread may have of more rows (where it looks for places), and columns of these, or half as many (8 x C x 65,536 numbers on an H200: sums of powers of 21 of float32
#: 11 us, shared by threads 80, softmaxes 31 and 80; of 48 28 and 82, 75 and 87; of 19 of bfloat16 7 and 85, 11 and 83; of 48 21 and 87, 30 and 85;
#: softmaxes of 85 and 64 rows by half as many columns 76 us, 252 and 430 shared; argmax of 49 37 and 94, of 20 rows of 100 columns 26 and 316)
DEEP_COLUMNS, DEEP_PLACES, DEEP_EACH = 192, 128, 4
#: columns of a block, read one by one and more than once, that are too few for a program (softmaxes of 16 rows of 13 349 us with those of other blocks and 610, of 49 155 and 103)
FEW_APART = 32
#: rows of columns of which there are many, and elements of theirs that a thread has: programs of fewer warps, of which more are on their way (softmaxes of 100 rows 216 us, 76 by twice as many
#: each; sums of 100 rows of 12 columns 110 and 36; of more rows, and of numbers of four bytes, nothing or less)
SHORT_WALK, EACH_SHORT = 512, 32
#: rows that are worth it, and so many that they will be cut where programs are few
LEAST_WIDE, LONG_WIDE = 64, 8192
#: rows of a tile that keeps several numbers an element, its warps at most, and how many of them are on their way, where vectors divide its rows (variance of 11 million rows of three of bfloat16 on
#: an H200 29 us, 56 by 16 rows that are loaded as they are reduced; with three on their way 33); rows and warps of other tiles of COLUMNS (sums of powers of 958,698 rows of 35 floats 83, 180 by 32 rows of 16
#: elements a thread; variance of 136,953 rows of 245 of bfloat16 84 and 103)
STAGED_ROWS, STAGED_WARPS, DEEP_STAGES = 32, 4, 4
#: (of parts of which some end early, and columns that tiles do not divide, sums of 60,013 rows of 257 floats 19.4, 23.8 by eight warps, of 120,013 of bfloat16 21.6 and 23.4, maxima 19.9 and
#: 29.2; but of 60,000 rows, where none does, 23.7 and 19.5)
ODD_ROWS, ODD_WARPS = 64, 2
#: rows, as the next power of two, that are all on their way at once, by bytes of their numbers, elements of a thread, and warps at least (sums of 200 rows of 200 floats on an H200 19 us, 27 by four turns of 64 rows;
#: of 400 of 100 19 and 24; of 200 of bfloat16 22 and 29); three numbers an element are kept of half as many columns
AT_ONCE, AT_ONCE_EACH, AT_ONCE_WARPS = {2: (128, 256), 4: (128, 256, 512)}, 256, 2
#: the same of parts of rows of which some end early, so that each load asks whether there is such a row (on an H200 parts of 21,851 rows of 768 floats 22.8 us at once, 20.6 in turns; of 20,011 of 800 of bfloat16
#: 16.0 and 13.3; of 8,009 of 2,000 floats, 256 rows each, 19.3 and 23.1)
AT_ONCE_CUT = {4: (128, 256)}
#: columns that are so few that each is a program's, of any kernel and of parts that are walked once, and rows of such a one at once (on an H200 4,096 parts of 7 columns: 6 us less than by one program; of 25 columns, which
#: 1,536 parts leave, 30 less; sums of 48 columns are as quick by few, variances of 32 slower by 1)
FEW_AGAIN, FEW_COLUMNS, LONG_COLUMN = 16, 48, 4096
#: rows that are few beside the time that a program takes to begin
SHORT_COLUMN = 1024


def column_tiles(group: Group, found: Sequence[Access], inner: Axis, *, again: bool) -> Tiles:
    """The tiles of a kernel whose threads lie along the points, of the ``inner`` axis; ``again``: it walks its rows more than once."""
    row = static_size(group.row_axes)
    outer = tuple(a for a in group.axes if a is not inner)
    x = power(likely_size(inner.extent))
    length = power(likely_size(product([a.extent for a in group.row_axes])))
    if x > 2 * COLUMNS:
        x = COLUMNS
    fitting = _whole_columns(group, found, inner, again=again)
    fitting = fitting or _whole_rows(group, found, inner, length, again=again)
    fitting = fitting or _at_once(group, found, inner, length, again=again)
    fitting = fitting or _one_by_one(group, found, inner, length, again=again)
    if fitting is not None:
        return dataclasses.replace(fitting, outer=tuple(a for a in outer if a not in fitting.points[0].axes))
    beside = axes_beside(group, found, inner)
    if len(beside) > 1:
        x, outer = min(COLUMNS, power(likely_size(product([a.extent for a in beside])))), ()
    # what a first kernel left of few columns is read by many programs, each by few steps
    while length <= SHORT_COLUMN and x > 16 and likely_size(_count(outer, beside, x)) < FEW_PROGRAMS:
        x //= 2
    # fewer columns than these side by side are fewer sectors than memory gives at a time; who walks twice pays for that instead
    least = min(x, 16 if again else COLUMNS)
    most = (4 if again else 1) * WALK
    whole = row is not None and group.kind is GroupKind.PERSISTENT and power(row or 1) * least <= most
    while whole and x > 16 and power(row or 1) * x > most:
        x //= 2
    few = length <= SHORT_COLUMN and likely_size(_count(outer, beside, x)) < FEW_PROGRAMS
    if few and x == 16 and not whole and all(a.itemsize >= 4 for a in found if not a.store):
        x = SECTOR // 4  # a sector of each row (4.1 us where 16 took 5.5, of 1,024 columns on an H100)
    r = length if whole else max(1, min(walk_of(group) // x, length))
    programs = likely_size(_count(outer, beside, x))
    if not (whole or again or kinds_of(group.steps) <= PLAIN):
        return dataclasses.replace(_of_several(group, found, inner, beside, x, length), outer=outer)
    warps = warps_of(x * r, _each(group, found, inner, length, programs, whole=whole, again=again))
    left_over = not multiple(product([a.extent for a in beside]), x)
    if not (whole or again) and x == COLUMNS and left_over and _ends_early(group):
        warps = min(warps, ODD_WARPS)
    return Tiles(outer, (Tile("x", beside, x),), warps, Tile("r", group.row_axes, r), whole)


def _ends_early(group: Group) -> bool:
    """Whether rows are parts of which some end before the others, so that each load asks whether there is such a row."""
    return any(r.value.op is Op.MASKED for step in group.steps for r in step.reductions)


def _each(
    group: Group,
    found: Sequence[Access],
    inner: Axis,
    length: int,
    programs: int,
    *,
    whole: bool,
    again: bool,
) -> int:
    """Elements that a thread has of a tile of columns: of short rows, where programs are many, more, so that more of these are on their way."""
    if programs >= ENOUGH_PROGRAMS and length <= SHORT_WALK:
        narrow = all(a.itemsize <= 2 for a in found if not a.store)
        if whole and _in_vectors(_walked(group, found), inner):
            return EACH_SHORT * 2 if again and narrow and length < SHORT_WALK else EACH_SHORT
        if not whole and narrow and kinds_of(group.steps) <= PLAIN:
            return EACH_SHORT
    return EACH if whole else EACH_ROW


def _of_several(
    group: Group, found: Sequence[Access], inner: Axis, beside: tuple[Axis, ...], x: int, length: int
) -> Tiles:
    """The tiles of so many columns that walk down their rows and keep several numbers an element: on their way through shared memory where vectors divide rows."""
    read = _walked(group, found)
    vectors = all(
        a.itemsize in WIDE_SIZES and multiple(a.index - inner.symbol, VECTOR // a.itemsize) for a in read
    )
    rows, warps = max(WALK // x, STAGED_ROWS), STAGED_WARPS
    taken = sum(a.itemsize for a in read) * x * rows * (DEEP_STAGES - 1)
    stages = DEEP_STAGES if vectors and not any(a.indirect for a in read) and taken <= ON_THE_WAY else 1
    if stages == 1:
        rows = max(1, walk_of(group) // x)
        if not vectors and x == COLUMNS:
            rows, warps = ODD_ROWS, ODD_WARPS
    rows = min(rows, length)
    warps = min(warps, warps_of(x * rows, EACH_ROW))
    return Tiles((), (Tile("x", beside, x),), warps, Tile("r", group.row_axes, rows), stages=stages)


def _at_once(group: Group, found: Sequence[Access], inner: Axis, length: int, *, again: bool) -> Tiles | None:
    """The tiles of some hundred rows, all of which is on its way at once, by few threads; None elsewhere."""
    row, read, kinds = static_size(group.row_axes), _walked(group, found), kinds_of(group.steps)
    if again or row is None or group.kind is not GroupKind.PERSISTENT or draws(group) or len(read) != 1:
        return None
    (a,), plain = read, kinds <= PLAIN
    spread = kinds == {ReduceKind.WELFORD} and a.itemsize == WORD and length < max(AT_ONCE[WORD])
    lengths = AT_ONCE_CUT if _ends_early(group) else AT_ONCE
    fits = length in lengths.get(a.itemsize, ()) and (a.itemsize == WORD or _in_vectors(read, inner))
    if not (plain or spread) or not fits or a.indirect or step_along(a, inner) != 1:
        return None
    x = min(COLUMNS if plain else COLUMNS // 2, power(likely_size(inner.extent)))
    programs = likely_size(_count([o for o in group.axes if o is not inner], [inner], x))
    if programs < ENOUGH_PROGRAMS:
        return None
    warps = max(AT_ONCE_WARPS, warps_of(x * length, AT_ONCE_EACH))
    return Tiles((), (Tile("x", (inner,), x),), warps, Tile("r", group.row_axes, length), whole=True)


def _one_by_one(
    group: Group, found: Sequence[Access], inner: Axis, length: int, *, again: bool
) -> Tiles | None:
    """The tiles of very few columns of many rows, as first kernels leave them: a program has one; None elsewhere."""
    columns = likely_size(product([a.extent for a in group.axes]))
    narrow = any(a.itemsize < WORD for a in _walked(group, found))
    few = FEW_COLUMNS if group.follows and not again else FEW_AGAIN
    if columns > few or narrow or not SHORT_WALK < length <= LONG_WIDE or draws(group):
        return None
    r = min(length, LONG_COLUMN)
    return Tiles((), (Tile("x", (inner,), 1),), warps_of(r, EACH), Tile("r", group.row_axes, r))


def _in_vectors(read: Iterable[Access], inner: Axis) -> bool:
    """Whether several columns are read at once, wherever a row begins."""
    return all(multiple(a.index - inner.symbol * (step_along(a, inner) or 0), 2) for a in read)


def _walked(group: Group, found: Iterable[Access]) -> list[Access]:
    """What is read of each row."""
    down = {a.symbol for a in group.row_axes}
    return [a for a in found if not a.store and a.index.symbols() & down]


def _whole_columns(group: Group, found: Sequence[Access], inner: Axis, *, again: bool) -> Tiles | None:
    """The tiles of so few rows that each thread has whole columns of them, as many side by side as it reads at once: nothing passes between threads. None elsewhere.

    Where blocks are short, they are columns of several.
    """
    row, read = static_size(group.row_axes), _walked(group, found)
    if row is None or group.kind is not GroupKind.PERSISTENT or draws(group):
        return None
    plain = all(not a.indirect and step_along(a, inner) in (0, 1) for a in read)
    length = power(max(row, 1))
    shallow = length * EACH * sum(a.itemsize for a in read) <= OF_COLUMNS
    each, warps, least = (EACH, COLUMN_WARPS, FEW_PROGRAMS) if shallow else (DEEP_EACH, 1, ENOUGH_PROGRAMS)
    words = row * sum(max(1, a.itemsize // WORD) for a in read)
    room = DEEP_PLACES if counts_positions(group.steps) else DEEP_COLUMNS
    apart = again and not _in_vectors(read, inner)
    if not shallow:
        if words * each > room and not apart:
            each //= 2
        if words * each > room:
            return None
    x = 32 * each * warps
    of_several = read and likely_size(inner.extent) < (FEW_APART if apart else x)
    axes = as_they_lie(group, read[0].index, inner) if of_several else (inner,)
    programs = likely_size(_count([a for a in group.axes if a not in axes], axes, x))
    if not plain or programs < least or likely_size(product([a.extent for a in axes])) < x:
        return None
    return Tiles((), (Tile("x", axes, x),), warps, Tile("r", group.row_axes, length), whole=True)


def _whole_rows(
    group: Group, found: Sequence[Access], inner: Axis, length: int, *, again: bool
) -> Tiles | None:
    """The tiles of sums down so many columns that whole rows, or long parts of them, are on their way through shared memory; None elsewhere."""
    if again or not kinds_of(group.steps) <= PLAIN or (inner.extent.value or 1) % WIDE_COLUMNS:
        return None
    read = _walked(group, found)
    rows = WIDE_BYTES // max((a.itemsize for a in read), default=WIDE_BYTES)
    taken = sum(a.itemsize for a in read) * WIDE_COLUMNS * rows
    plain = all(a.itemsize in WIDE_SIZES and not a.indirect and step_along(a, inner) == 1 for a in read)
    programs = likely_size(_count([a for a in group.axes if a is not inner], [inner], WIDE_COLUMNS))
    few = length < LEAST_WIDE or (programs < FEW_PROGRAMS and length < LONG_WIDE)
    if few or not read or not plain or taken * (STAGES - 1) > ON_THE_WAY:
        return None
    row = Tile("r", group.row_axes, rows)
    stages = ALONE_STAGES if group.alone else STAGES
    return Tiles((), (Tile("x", (inner,), WIDE_COLUMNS),), WIDE_WARPS, row, stages=stages)


def _count(outer: Sequence[Axis], inner: Sequence[Axis], x: int) -> Expr:
    """Programs that take so many points of the inner axes and one of the outer ones."""
    return product([*(a.extent for a in outer), blocks(product([a.extent for a in inner]), x)])
