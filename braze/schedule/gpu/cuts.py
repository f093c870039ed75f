"""Where long rows of few points are cut, and which rows are laid side by side first."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from braze.loops.ir import Axis, Buffer, ReduceKind
from braze.schedule.facts.passes import Access, accesses_of, counts_positions, kinds_of
from braze.schedule.facts.plans import Form
from braze.schedule.facts.records import Group
from braze.schedule.gpu.column_tiles import ALONE_STAGES, COLUMNS
from braze.schedule.gpu.held import VECTOR, WORD
from braze.schedule.gpu.kernel_plan import KernelPlan
from braze.schedule.gpu.tile_sizes import FEW_PROGRAMS, ON_THE_WAY, PLAIN, power
from braze.symbolic.expr import ONE, Expr, Integer, floor_div, product
from braze.symbolic.guess import likely_size

#: programs that each multiprocessor of a busy GPU has, at least; those that are aimed at, and as many where their registers leave
#: no room for more at once: a second wave of few runs alone
FEW, MANY, HEAVY = 2, 8, 4
#: the first of tiles of columns, whose programs have less on their way (on an H200 sums of 1,536 rows of 21,845 numbers of bfloat16 45 us, 130 by 342 programs)
FEW_DOWN = 3
#: the same of sums and their like along a row, whose parts end cheaply, so that those of a slow memory are taken by others: programs of each multiprocessor,
#: parts of one row, elements of each at least (on an H100 2^26 numbers of bfloat16: 48.4 us where MANY take 49.3)
FINE, FINEST, LEAST_FINE = 32, 4096, 8192
#: elements of a part at least: along a row, and of rows that are walked down
LEAST_ROW, LEAST_COLUMN = 4096, 64
#: elements of which the parts of a row have a multiple, where they are full so
VECTORS = 16
#: parts that a row must give to be worth a second kernel
WORTH = 8
#: parts of one row at most: the second kernel holds them whole
MOST = 1024
#: parts of rows laid side by side at most: what fills so few columns takes many programs
MOST_FOLDED = 8192
#: rows of which parts of columns have a multiple, where no number of parts divides all: whole tiles, of which the last part alone has one that it fills in part;
#: and so many of these at least
TILE_DOWN, TILES_DOWN = 64, 4
#: the part of their tiles that rows side by side fill if none is to be left over; of means and variances, which come from two walks then; and that is enough if some are
ENOUGH, ENOUGH_SPREAD, ENOUGH_RAGGED = 0.85, 0.5, 0.98
#: programs of each multiprocessor that sum such rows, or take the like of them (maxima of 2.4 million rows of 7 floats on an H200: 21 us, 23 by four)
HEAVY_FOLDED = 6
#: folded rows that are worth it where rows of two bytes an element begin at places that loads of eight bytes do not
LEAST_ODD = 64
#: bytes of a row's innermost axis that are too few to read them at once, and rows beyond it that are worth a second kernel
NARROW, LEAST_APART = 64, 64
#: elements that are worth it
LEAST_MOVED = 1 << 23


@dataclasses.dataclass(frozen=True, slots=True)
class Cut:
    """A row axis in ``count`` parts of ``size``; ``exact``: the last is as long as the others. ``down``: parts lie above each other.

    ``fold``: so many rows after each other lie side by side, as one row of so many parts; ``ragged``: of the last of these some are none.
    ``apart``: each part is one place of the axis; ``alone``: each is a multiprocessor's.
    """

    axis: Axis
    count: int
    size: Expr
    exact: bool
    down: bool
    fold: int = 1
    apart: bool = False
    ragged: bool = False
    alone: bool = False


def cut_of(group: Group, plan: KernelPlan, buffers: Mapping[str, Buffer], cores: int) -> Cut | None:
    """How the rows of a group are cut; None where it keeps the GPU busy as it is."""
    return (
        _apart(group, plan, buffers)
        or _folded(group, plan, buffers, cores)
        or _cut(group, plan, buffers, cores)
    )


def _read(group: Group, buffers: Mapping[str, Buffer]) -> list[Access]:
    """All that a group reads."""
    return [a for a in accesses_of(group, dict(buffers)) if not a.store]


def _cut(group: Group, plan: KernelPlan, buffers: Mapping[str, Buffer], cores: int) -> Cut | None:
    programs = likely_size(plan.programs)
    # of whole rows that are on their way through shared memory few programs have much
    deep = plan.stages > 1 and kinds_of(group.steps) <= PLAIN
    busy = FEW_DOWN if plan.form is Form.COLUMNS and not deep else FEW
    if programs >= busy * cores or programs < 1:
        return None
    if plan.form is Form.ROWS and plan.row is not None and plan.points[-1].block > 1 and not plan.whole:
        return _cut_side_by_side(group, plan, cores)
    alone = _cut_alone(group, plan, _read(group, buffers), cores) if deep else None
    if alone is not None:
        return alone
    down = plan.form is Form.COLUMNS
    length = likely_size(product([a.extent for a in group.row_axes]))
    least = LEAST_COLUMN if down else LEAST_ROW
    # all parts run at once: what does not fit would run alone at the end
    many = FEW if down and deep else HEAVY if _is_heavy(plan, group) else MANY
    want = min(max(many * cores // programs, 2), MOST, length // least)
    enough = [a for a in group.row_axes if likely_size(a.extent) >= want]
    longest = max(group.row_axes, key=lambda a: likely_size(a.extent))
    axis = group.row_axes[0] if counts_positions(group.steps) else enough[0] if enough else longest
    extent = likely_size(axis.extent)
    want = min(want, extent)
    if want < 2 or length < WORTH * least:
        return None
    plain = not down and kinds_of(group.steps) <= PLAIN
    fine = min(FINE * cores // programs, FINEST, length // LEAST_FINE, extent) if plain else 0
    unit = 1 if down or axis is not group.row_axes[-1] else LEAST_ROW // 8
    if axis.extent.value is None:
        return Cut(axis, want, floor_div(axis.extent + (want - 1), Integer(want)), False, down)
    units: tuple[int, ...] = (unit,)
    if ReduceKind.WELFORD in kinds_of(group.steps) and unit > VECTORS:
        # of full parts mean and variance come from one walk, of others from two
        units = (unit, VECTORS, VECTOR // min(a.itemsize for a in _read(group, buffers)))
    for each in units:
        for count in (*range(fine, max(want, fine // 2), -1), *range(want, want // 2, -1)):
            if extent % count == 0 and extent // count % each == 0:
                return Cut(axis, count, Integer(extent // count), True, down)
    size = _whole_tiles(_up(extent, want) // want) if down else _up(_up(extent, want) // want, unit)
    count = -(-extent // size)
    return Cut(axis, count, Integer(size), count * size == extent, down) if count > 1 else None


def _cut_alone(group: Group, plan: KernelPlan, read: Sequence[Access], cores: int) -> Cut | None:
    """A part of whole tiles for each multiprocessor, whose program has as much on its way as two have; None where that leaves some without one."""
    axis, programs, row = group.row_axes[0], likely_size(plan.programs), plan.row
    length, want = axis.extent.value, cores // programs
    if plan.form is not Form.COLUMNS or row is None or length is None or len(group.row_axes) > 1:
        return None
    taken = (
        sum(a.itemsize for a in read if axis.symbol in a.index.symbols()) * plan.points[-1].block * row.block
    )
    if taken * (ALONE_STAGES - 1) > ON_THE_WAY or want < 2 or want * LEAST_COLUMN > length:
        return None
    least = max(FEW_PROGRAMS, cores * 7 // 8)
    for unit in (row.block, 1):
        size = _up(-(-length // want), unit)
        count = -(-length // size)
        if count * programs >= least:
            return Cut(axis, count, Integer(size), count * size == length, down=True, alone=True)
    return None


def _cut_side_by_side(group: Group, plan: KernelPlan, cores: int) -> Cut | None:
    """Of rows that programs walk side by side: as many parts as are wanted at most, of the axis that has most such."""
    assert plan.row is not None
    most = min(MANY * cores // likely_size(plan.programs), MOST)
    best: Cut | None = None
    for axis in group.row_axes:
        extent, unit = axis.extent.value or 0, plan.row.block if axis is group.row_axes[-1] else 1
        fitting = (n for n in range(min(most, extent // unit), 1, -1) if extent % (n * unit) == 0)
        count = next(fitting, 1)
        if count > (best.count if best is not None else WORTH):
            best = Cut(axis, count, Integer(extent // count), True, False)
    return best


def _apart(group: Group, plan: KernelPlan, buffers: Mapping[str, Buffer]) -> Cut | None:
    """Short stretches of rows, each apart from the next: what stands at one place of each is reduced first, by threads that lie across points."""
    if plan.form is not Form.ROWS or plan.row is None or len(group.row_axes) < 2:
        return None
    if counts_positions(group.steps) or (plan.whole and len(plan.passes) > 1):
        return None
    inner, known = plan.row.axes[-1], all(a.extent.value is not None for a in group.row_axes)
    if not known and ReduceKind.WELFORD in kinds_of(group.steps):  # its parts would be walked twice
        return None
    short, length = inner.extent.value or 0, likely_size(product([a.extent for a in group.row_axes]))
    points = likely_size(product([a.extent for a in group.axes]))
    if short < 2 or length < short * LEAST_APART or length * points < LEAST_MOVED:
        return None
    read = [a for a in _read(group, buffers) if inner.symbol in a.index.symbols()]
    if not read:
        return None
    for a in read:
        beside = any(a.index.coefficient(x.symbol) is inner.extent for x in group.axes)
        if a.indirect or a.index.coefficient(inner.symbol) is not ONE or not beside:
            return None
        if short * a.itemsize >= NARROW:
            return None
    return Cut(inner, short, ONE, True, False, apart=True)


def _folded(group: Group, plan: KernelPlan, buffers: Mapping[str, Buffer], cores: int) -> Cut | None:
    """The rows of a matrix whose columns fill no tiles, or no vectors, laid side by side until they do; None where that cannot be."""
    if plan.form is not Form.COLUMNS or not group.axes or len(group.row_axes) != 1:
        return None
    column, (row,) = group.axes[-1], group.row_axes
    width, length = column.extent.value or 0, row.extent.value or 0
    if not width or not length:
        return None
    read = [a for a in _read(group, buffers) if a.index.symbols() & {column.symbol, row.symbol}]
    if not read or not _of_one_matrix(read, column, row):
        return None
    plain, points = kinds_of(group.steps) <= PLAIN, likely_size(product([a.extent for a in group.axes[:-1]]))
    long = plain and length >= COLUMNS * WORTH * LEAST_COLUMN
    if points * width * length < LEAST_MOVED and not long:
        return None
    narrow = min(a.itemsize for a in read)
    odd = width * narrow % (VECTOR // 2) > 0 and narrow < WORD
    spread = ReduceKind.WELFORD in kinds_of(group.steps)
    enough = ENOUGH_SPREAD if spread else ENOUGH
    least = LEAST_ODD if odd else WORTH * LEAST_COLUMN
    programs = (HEAVY_FOLDED if plain else HEAVY) * cores
    for fold in _beside(width, length, VECTOR // narrow, least, enough):
        tiles = points * -(-fold * width // COLUMNS)
        want = max(min(programs // tiles, MOST_FOLDED // fold, -(-length // fold) // LEAST_COLUMN), int(odd))
        found = _parts_beside(row, length, fold, want, spread=spread)
        if found is not None:
            return found
    return None


def _parts_beside(row: Axis, length: int, fold: int, want: int, *, spread: bool) -> Cut | None:
    """About so many parts of rows of which so many lie side by side; ``spread``: means and variances, which come from one walk where all are full."""
    if fold == 1 or want < 1:
        return None
    long, ragged = -(-length // fold), length % fold > 0
    count = 0 if ragged else next((n for n in range(want, want // 2, -1) if long % n == 0), 0)
    if not count and not ragged and spread:
        others = (*range(want // 2, want // 4, -1), *range(want + 1, 2 * want))
        count = next((n for n in others if long % n == 0), 0)
        if not count:
            return None
    size = long // count if count else _whole_tiles(-(-long // want))
    count = count or -(-long // size)
    if ragged and size < 2 * TILE_DOWN:  # whose only tiles would ask of each element whether it is one
        return None
    return Cut(row, count * fold, Integer(size), count * size * fold == length, True, fold, ragged=ragged)


def _beside(width: int, length: int, vector: int, least: int, enough: float) -> list[int]:
    """How many of so many rows lie side by side, the best first: the fewest that fill as much of their tiles as may be, of whole vectors, and leave so many at ``least``.

    Such a number as leaves no row over, if it fills ``enough``. Tiles that are filled to the last have no mask, by which ptxas keeps one load of a thread on its way
    (sums of 2^20 rows of 100 numbers of bfloat16 on an H200, 16 side by side: 54 us; 8, which fill 96 of 100: 84).
    """
    fills = {
        n: _filled(n * width) for n in range(1, min(COLUMNS, length // least) + 1) if n * width % vector == 0
    }
    even = max((n for n in fills if length % n == 0), key=lambda n: fills[n], default=1)
    if fills.get(even, 0.0) >= enough:
        return [even]
    best = min(max(fills.values(), default=0.0), ENOUGH_RAGGED)
    return [next((n for n, filled in fills.items() if filled >= best), even), even]


def _filled(width: int) -> float:
    """The part of their tiles that so many columns fill."""
    tile = min(COLUMNS, power(width))
    return width / (-(-width // tile) * tile)


def _of_one_matrix(read: Sequence[Access], column: Axis, row: Axis) -> bool:
    """Whether all that is read for each element lies row after row, with nothing between them."""
    return not any(
        a.indirect
        or (a.index.coefficient(column.symbol), a.index.coefficient(row.symbol)) != (ONE, column.extent)
        for a in read
    )


def _whole_tiles(size: int) -> int:
    """So many rows of a part or a few more, so that tiles fill them."""
    return _up(size, TILE_DOWN) if size >= TILES_DOWN * TILE_DOWN else size


def _is_heavy(plan: KernelPlan, group: Group) -> bool:
    """Whether a program keeps several numbers an element, or a tile of whole sectors of columns."""
    if plan.form is Form.COLUMNS:
        return plan.points[-1].divides and plan.points[-1].block >= COLUMNS
    return counts_positions(group.steps)


def _up(n: int, unit: int) -> int:
    """The least multiple of a number that is not below n."""
    return -(-n // unit) * unit
