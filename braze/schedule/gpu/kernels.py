"""How a group becomes a GPU kernel: which axes lie in its tile, how much of each one program takes, in how many walks.

``plan_kernel`` decides by what memory costs: of the axes that an access may be contiguous along, the one along which all
accesses together touch the fewest sectors lies along the threads. A generator prints the plan and decides nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from braze.loops.ir import Axis, Buffer, LoopNest, Node, ReduceKind
from braze.schedule.facts.passes import (
    Access,
    Pass,
    accesses_of,
    arguments,
    covering,
    is_coarse,
    kinds_of,
    passes_of,
    read_again,
    size_symbols,
)
from braze.schedule.facts.plans import Form, Tile, Tiles
from braze.schedule.facts.ragged import common_limit, points_of
from braze.schedule.facts.records import Group, GroupKind
from braze.schedule.gpu.along_threads import FLAT, form_of, step_along
from braze.schedule.gpu.column_tiles import column_tiles
from braze.schedule.gpu.far import are_wide
from braze.schedule.gpu.held import (
    ALL_REGISTERS,
    CACHED,
    CACHED_FLOATS,
    DEEP_DOWN,
    DOWN_BLOCK,
    DOWN_SUMS,
    LEAST_DOWN,
    NARROW,
    NARROW_ROW,
    OF_A_SHORT_WARP,
    RESTS,
    SHORT,
    VECTOR,
    WORD,
    DownCut,
    cuts_of,
    down_cut,
)
from braze.schedule.gpu.kernel_plan import KernelPlan
from braze.schedule.gpu.row_ends import row_end
from braze.schedule.gpu.short_sums import SHORT_SUMS, SUM_ROWS, SUM_WARPS, sums_alone
from braze.schedule.gpu.tile_sizes import (
    EACH,
    EACH_ROW,
    ENOUGH_PROGRAMS,
    FEW_PROGRAMS,
    MOST_WARPS,
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
from braze.schedule.gpu.together import WARPS as ROW_WARPS
from braze.schedule.gpu.together import rows_together
from braze.schedule.gpu.windows import APART, APART_TILE, BESIDE, beside_rows, reads_apart
from braze.support.record import record
from braze.symbolic.divides import multiple
from braze.symbolic.expr import Expr, product
from braze.symbolic.guess import likely_size

#: stores of a kernel without rows that are many, and elements of its tile at most: threads have fewer elements of each, so that all are on their way at once (32 tensors times a
#: number plus another on an H200: of 4,096 numbers 1.9 us, 11 in kernels of 8 that store as they go; of 65,536 5.0 and 10.9; of 262,144 28 and 37)
MANY_STORES, MANY_TILE = 8, 256
#: elements of a row that one program may hold whole
MAX_PERSISTENT = 16384
#: elements of a side of a square tile
SQUARE = 64
#: rows and elements of each in a tile that walks rows of which something lies side by side, and elements of one that holds such rows whole (layer norm of 64 x 96 x 112 x
#: 112 channels-first in bfloat16 on an H200: 189 us and 488 with its backward, of 32 x 128 and 8,192 312 and 714; a sum of products across 89 and 146)
SQUARE_OF_ROWS, MOST_WHOLE = (16, 256), 4096
#: elements of a tile that holds short rows whole, and rows of it where programs would be few (softmax of 2^24 rows of two floats on an H200: 159 us by 64 rows a program, 66 by
#: 1,024; of rows of four numbers of bfloat16 80 and 33)
HELD, MOST_ROWS = 2048, 64
#: tiles on their way at once of long rows that are also summed down their columns, by few programs, and bytes of them
ROW_STAGES, ROW_ON_THE_WAY = 5, 128 << 10
#: a row of so many bytes is no longer in the cache (60 MB on an H200, 50 on an H100) when it is walked again, if four programs share a multiprocessor
FORGOTTEN = 128 << 10
#: bytes of such a row that a program has at once, alone or nearly on its multiprocessor; bytes of them that each warp has
AT_ONCE, OF_A_WARP = 64 << 10, 2 << 10
#: the same of a row of 16-bit floats, read and written; of two programs on each multiprocessor it is still there
FORGOTTEN_16 = 64 << 10
#: elements that each of the two has at once, and its warps: as many threads as four have (on an H100 747 us where four took 805, of 8,192 rows of 50,257)
TWO_WALK, TWO_WARPS = 8192, 32
#: elements of a tile that walks a row for its mean and variance, of which a thread keeps three numbers each: what fits beside others' programs
SPREAD = 1024
#: tiles of which one turn takes maxima and sums of powers: both are loaded before the first is reduced
UNROLLED = 2
#: elements that a thread has of a row, of many rows of 16-bit numbers that loads do not divide, and elements that are many (argmax of 65,472 rows of 1,025 on an H200: 46 us by two warps, 61 by four)
EACH_ODD, MANY = 32, 1 << 22
#: columns that a program takes of rows whose ends memory tells, of which it reads one after the other; few programs take a part of
#: the columns, and so many rows at once
RAGGED, RAGGED_PART, RAGGED_ROWS = 1024, 128, 16
#: reductions whose walks may begin before their rows
VECTORS = PLAIN | {ReduceKind.ONLINE_SOFTMAX, ReduceKind.WELFORD}


def plan_kernel(
    group: Group, buffers: dict[str, Buffer], longest: int = MAX_PERSISTENT, *, hold: bool = True
) -> KernelPlan:
    """The plan of one group of loop nests. ``longest``: elements of a row that is held whole, if its group wants that; ``hold``: whether rows may be
    held in part."""
    if group.kind is GroupKind.MIXED:
        return _mixed(group, buffers, hold=hold)
    limit = limit_of(group)
    if limit is not None:
        return _ragged(group, buffers, limit)
    found = tuple(accesses_of(group, buffers))
    form, inner = form_of(group, found)
    passes = passes_of(group.steps, group.row_axes) if group.row_axes else ()
    if not group.row_axes:
        tiles = _point_tiles(group, form, inner, found)
    elif form is Form.COLUMNS and inner is not None:
        tiles = column_tiles(group, found, inner, again=len(passes) > 1)
    else:
        each = EACH_ODD if _one_by_one(group, found) else EACH_ROW
        tiles = _row_tiles(group, inner, longest, each, again=walks_again(passes))
        tiles = across_rows(group, found, tiles, again=walks_again(passes)) or tiles
    names = arguments(group)
    plan = KernelPlan(
        form, names, size_symbols(group), tiles.outer, tiles.points, tiles.row, tiles.whole, passes, tiles.warps, tiles.stages,
        are_wide(group, buffers, names), is_coarse(group, buffers),
    )  # fmt: skip
    if form is Form.COLUMNS and _ends_early(plan, group, found):
        return dataclasses.replace(plan, unrolled=UNROLLED)
    if form is not Form.ROWS or plan.row is None:
        return plan
    if not plan.whole:
        return _for_long_rows(plan, group, found, hold=hold)
    return plan if plan.outer else _together(plan, group, found)


def _ends_early(plan: KernelPlan, group: Group, found: Sequence[Access]) -> bool:
    """Whether programs walk down parts of 16-bit columns of which some end early: the compiler, which does not know where, keeps one turn's loads on their way
    (sums of 40,013 rows of 768 numbers of bfloat16 on an H200 23.8 us, 20.1 by two turns; of floats no quicker)."""
    narrow = all(a.itemsize <= 2 for a in found if not a.store)
    return plan.stages == 1 and narrow and kinds_of(group.steps) <= PLAIN and row_end(plan) is not None


def _together(plan: KernelPlan, group: Group, found: Sequence[Access]) -> KernelPlan:
    """A plan whose programs hold short rows whole, and read them as one block of memory where that is shorter."""
    assert plan.row is not None
    rows = rows_together(group, found, plan.row.block)
    if rows is None:
        return plan
    points = (dataclasses.replace(plan.points[0], block=rows),)
    return dataclasses.replace(plan, points=points, warps=ROW_WARPS, together=True)


def _for_long_rows(plan: KernelPlan, group: Group, found: Sequence[Access], *, hold: bool) -> KernelPlan:
    """A plan whose programs walk along rows, with what their kind of reductions and a second walk want of the loop."""
    kinds = kinds_of(group.steps)
    row, length = plan.row, static_size(group.row_axes)
    assert row is not None
    plan = _of_vectors(plan, group, found)
    widest = max((a.itemsize for a in found), default=1)
    held = _held_in_part(plan, group, widest) if hold else None
    if held is not None:
        return held
    if ReduceKind.WELFORD in kinds:
        plan = dataclasses.replace(plan, begin=None, vector=1)
    walked_again = length * widest if length is not None and walks_again(plan.passes) else 0  # bytes
    if kinds == {ReduceKind.ONLINE_SOFTMAX}:
        if walked_again >= FORGOTTEN * group.kept:
            # Of float32, 8,192 numbers at once reach 74% of copy bandwidth where 16,384 reach 65
            return few_at_once(
                plan,
                widest,
                AT_ONCE if walked_again > FORGOTTEN * group.kept and widest < 4 else AT_ONCE // 2,
            )
        if walked_again >= FORGOTTEN_16 * group.kept and widest <= 2:
            plan = _in_tiles(plan, TWO_WALK, TWO_WARPS)
        return dataclasses.replace(plan, unrolled=UNROLLED)
    if ReduceKind.WELFORD in kinds and row.block > SPREAD:
        return _in_tiles(plan, SPREAD, warps_of(SPREAD, EACH))
    return plan


def _held_in_part(plan: KernelPlan, group: Group, widest: int) -> KernelPlan | None:
    """A plan of programs that keep a part of their rows in registers and read the rest again; None where nothing is read again, or that is not known to pay."""
    length, kinds = static_size(group.row_axes), kinds_of(group.steps)
    if length is None or len(group.row_axes) != 1:
        return None
    again = [n.dtype.itemsize for n in read_again(group, plan.passes)]
    each, spread, anywhere = sum(again), ReduceKind.WELFORD in kinds, plan.begin is not None
    if not {*again} <= {2, 4} or not kinds <= VECTORS or draws(group):
        return None
    if anywhere and length in SHORT and widest in (2, 4):
        few = spread and widest > 2 and length * (each or widest) >= NARROW_ROW
        one = _held_to_its_end(plan, length, each or VECTOR // plan.vector, registers=NARROW if few else 0)
        return one and _several_rows(one, group)
    if anywhere and length in SHORT_SUMS and plan.vector == EACH and kinds <= PLAIN:
        one = _held_to_its_end(plan, length, VECTOR // plan.vector, registers=0)
        several = one and _several_rows(one, group)
        if several is not one:
            return several
    if not again:
        return None
    powers = kinds == {ReduceKind.ONLINE_SOFTMAX}
    if powers and widest > 2 and length * widest <= CACHED_FLOATS * group.kept:
        return None
    most = RESTS if not powers or widest > 2 else int(CACHED * group.kept)
    for cut in cuts_of(length, again, spread=spread, anywhere=anywhere):
        block = EACH * 32 * cut.warps
        held = min(4 * cut.words // (EACH * each), whole_tiles(plan, length, block))
        rest = (length - held * block) * each
        if held and rest <= min(cut.rest, most):
            return _in_tiles(
                plan, block, cut.warps, held=held, registers=cut.registers, unrolled=UNROLLED, streamed=True
            )
    return None


def whole_tiles(plan: KernelPlan, length: int, block: int) -> int:
    """How many tiles a row fills, wherever it begins."""
    return (length - plan.vector + 1) // block


def _in_tiles(plan: KernelPlan, block: int, warps: int, **more: Any) -> KernelPlan:
    """A plan that walks its rows in tiles of so many elements."""
    assert plan.row is not None
    return dataclasses.replace(plan, row=dataclasses.replace(plan.row, block=block), warps=warps, **more)


def _held_to_its_end(plan: KernelPlan, length: int, itemsize: int, *, registers: int) -> KernelPlan | None:
    """A plan of programs that have all of a short row in registers, of whose elements those that are read again have so many bytes together."""
    warps = min(MOST_WARPS, max(1, power(length * itemsize // OF_A_SHORT_WARP + 1) // 2))
    filled = power(length - plan.vector + 2) // 2  # wherever the row begins
    block = min(EACH * 32 * warps, filled)
    held = whole_tiles(plan, length, block)
    if itemsize > WORD or not held:
        return None
    return _in_tiles(plan, block, warps, held=held, registers=registers, stages=1, streamed=True)


def _several_rows(plan: KernelPlan, group: Group) -> KernelPlan:
    """A plan of programs that have a short row by one warp or less; where that is only summed, of as many warps as may be, whose lanes have two each."""
    assert plan.row is not None
    rows = SUM_ROWS * SUM_WARPS * EACH * 32 // plan.row.block
    enough = likely_size(plan.points[0].extent) >= rows * FEW_PROGRAMS
    if plan.warps > 1 or plan.vector != EACH or not enough or not kinds_of(group.steps) <= PLAIN:
        return plan
    if plan.begin is None or not sums_alone(group, plan.begin):
        return plan
    points = (dataclasses.replace(plan.points[0], block=rows),)
    return dataclasses.replace(plan, points=points, warps=SUM_WARPS)


def few_at_once(plan: KernelPlan, itemsize: int, held: int) -> KernelPlan:
    """A plan of programs that have so many bytes of their rows at once: there is room for one on a multiprocessor, or two, and all their rows
    stay in the cache until they are walked again."""
    return _in_tiles(plan, held // itemsize, max(1, held // OF_A_WARP), streamed=True, unrolled=1)


def _of_vectors(plan: KernelPlan, group: Group, found: Sequence[Access]) -> KernelPlan:
    """A plan that reads whole vectors of rows which begin anywhere, as those of 50,257 numbers do."""
    begin = begins_anywhere(group, found)
    if (
        begin is None or plan.row is None or plan.row.block < begin[1]
    ):  # a row begins in its walk's first tile
        return plan
    return dataclasses.replace(plan, begin=begin[0], vector=begin[1])


def begins_anywhere(group: Group, found: Iterable[Access]) -> tuple[Expr, int] | None:
    """Where rows begin that vectors of so many elements do not divide; None where they do, or that is not one place for all that lies along them."""
    if (
        len(group.row_axes) != 1
        or static_size(group.row_axes) is None
        or not kinds_of(group.steps) <= VECTORS
    ):
        return None
    row = group.row_axes[0].symbol
    if draws(group):
        return None
    copies = dict(group.shifted)
    along = [
        a
        for a in found
        if not a.indirect and a.buffer not in copies and step_along(a, group.row_axes[0]) == 1
    ]
    vector = VECTOR // min((a.itemsize for a in along), default=VECTOR)
    begins = {a.index - row for a in along}
    begins = {e for e in begins if row not in e.symbols() and not multiple(e, vector)}
    return (begins.pop(), vector) if len(begins) == 1 else None


def walks_again(passes: Sequence[Pass]) -> bool:
    """Whether a later walk reduces nothing, and only stores what follows."""
    return any(not each.reduces for each in passes[1:])


def _mixed(group: Group, buffers: dict[str, Buffer], *, hold: bool) -> KernelPlan:
    """The plan of a group that reduces along its rows and down its columns."""
    assert group.walked is not None
    names = arguments(group)
    found = covering(group, accesses_of(group, buffers))
    tiles = {a.buffer: a.itemsize for a in found if not a.store}
    x, width, warps = tile_down(group, tiles.values())
    down = [step for step in group.steps if step.reduce_axes == (group.walked.within,)]
    vectors = vectors_down(group, found, down) if hold else None
    if vectors is not None and (group.walked.part.extent.value or 1) % vectors.vector == 0:
        x, width, warps = 1, (vectors.held + 1) * vectors.block, vectors.warps
    else:
        vectors = None
    filled = tiles_down(group, tiles.values()) if hold and vectors is None else None
    stages = STAGES if sum(tiles.values()) * x * width * (STAGES - 1) <= ON_THE_WAY else 1
    if filled is not None:
        x, width, warps, stages = 1, filled.block, filled.warps, filled.stages
    elif vectors is None and are_long_rows(x, width, tiles.values()):
        stages = ROW_STAGES
    plan = KernelPlan(
        Form.MIXED, names, size_symbols(group), (group.walked.part,), (Tile("x", group.axes, x),),
        Tile("r", group.row_axes, width), True, (), warps, stages,
        are_wide(group, buffers, names), is_coarse(group, buffers), group.walked.within.extent,
    )  # fmt: skip
    if vectors is None and filled is None:
        return plan
    rows = [step for step in group.steps if step.reduce_axes != (group.walked.within,)]
    plan = dataclasses.replace(plan, whole=False, passes=passes_of(rows, group.row_axes))
    if vectors is None:
        return dataclasses.replace(plan, held=filled.tiles if filled else 0)
    return dataclasses.replace(
        plan, row=Tile("r", group.row_axes, vectors.block), held=vectors.held, registers=vectors.registers,
        begin=vectors.begin, vector=vectors.vector,
    )  # fmt: skip


def tiles_down(group: Group, itemsizes: Iterable[int]) -> DownCut | None:
    """How rows are held in tiles that they fill, of which values of so many bytes are read, and which are also summed down their columns; None where one tile holds them."""
    if len(group.row_axes) != 1 or draws(group) or not kinds_of(group.steps) <= PLAIN:
        return None
    return down_cut(static_size(group.row_axes), tuple(itemsizes), likely_size(group.axes[0].extent))


@record
class VectorsDown:
    """Rows that begin anywhere, of ``vector`` elements a vector, that are also summed down their columns: held in ``held`` tiles of ``block`` and one that the row fills in part, of so many ``warps``, whose threads have ``registers``."""

    begin: Expr
    vector: int
    block: int
    held: int
    warps: int
    registers: int


def vectors_down(group: Group, found: Iterable[Access], down: Iterable[LoopNest]) -> VectorsDown | None:
    """How rows are held that begin anywhere and are also summed ``down`` their columns; None where that is as others are.

    Of rows whose numbers are alike modulo the elements of a vector each begins at the same place in one: a program takes such rows, so that its columns lie in the same lanes.
    """
    length, (point,) = static_size(group.row_axes), group.axes
    if length is None or length not in SHORT:
        return None
    begin = begins_anywhere(group, [a for a in found if point.symbol in a.index.symbols()])
    if begin is None or begin[0].coefficient(point.symbol) is None:
        return None
    quarter, deep = power(length - begin[1] + 1) // 4, begin[1] == EACH or length > DEEP_DOWN
    if begin[1] == EACH:
        block = _block_of_narrow(length, quarter, sum(len(step.reductions) for step in down))
    else:
        block = quarter if deep else 2 * quarter
    warps = max(1, block // (32 * EACH))
    if begin[1] != EACH and deep and length <= 7 * block // 2:
        block //= 2  # by as many threads, of whose lanes fewer lie past the row
    held = (length - begin[1] + 1) // block
    return VectorsDown(*begin, block, held, warps, ALL_REGISTERS if deep else 0)


def _block_of_narrow(length: int, quarter: int, sums: int) -> int:
    """Elements of the tiles of such a row of half types, of which a program has so many ``sums`` down the columns; ``quarter``: of the next power of two."""
    block = max(LEAST_DOWN, quarter // 2 if length <= 5 * quarter // 2 else quarter)
    return 2 * block if block < DOWN_BLOCK and sums > DOWN_SUMS else block


def limit_of(group: Group) -> Node | None:
    """The number, read for each point of the outer axes or made of what is, from which on nothing of a row counts in its sums."""
    return common_limit(group.axes, group.row_axes, group.steps)


def _ragged(group: Group, buffers: dict[str, Buffer], limit: Node) -> KernelPlan:
    """The plan of a group whose rows end where memory says: a program has one of them, of many columns."""
    names = arguments(group)
    outer = len(points_of(limit))
    columns = group.axes[outer:]
    width = likely_size(product([a.extent for a in columns]))
    x, r = min(RAGGED, power(width)), 1
    if likely_size(product([a.extent for a in group.axes[:outer]])) * width < FEW_PROGRAMS * RAGGED:
        x, r = min(x, RAGGED_PART), RAGGED_ROWS
    return KernelPlan(
        Form.COLUMNS, names, size_symbols(group), group.axes[:outer], (Tile("x", columns, x),),
        Tile("r", group.row_axes, r), False, passes_of(group.steps, group.row_axes), warps_of(x * r // min(r, 2), EACH_ROW), 1,
        are_wide(group, buffers, names), is_coarse(group, buffers), limit=limit,
    )  # fmt: skip


# -- tiles ----------------------------------------------------------------------------------------------------


def _point_tiles(group: Group, form: Form, across: Axis | None, found: Sequence[Access]) -> Tiles:
    """The tiles of a kernel without rows."""
    if form is Form.TILED and across is not None:
        last = group.axes[-1]
        x = min(SQUARE, power(likely_size(last.extent)))
        y = min(SQUARE * SQUARE // x, power(likely_size(across.extent)))
        x = min(SQUARE * SQUARE // y, power(likely_size(last.extent)))
        outer = tuple(a for a in group.axes[:-1] if a is not across)
        return Tiles(outer, (Tile("y", (across,), y), Tile("x", (last,), x)), warps_of(x * y, 16))
    extent = product([a.extent for a in group.axes])
    apart = reads_apart(group.axes, found)
    most, each = (APART_TILE, APART) if apart else (FLAT, EACH)
    stores = sum(len(step.stores) for step in group.steps)
    if stores >= MANY_STORES:
        each = min(each, _each_of_many(stores, found))
        most = max(32, min(MANY_TILE, power(likely_size(extent) // FEW_PROGRAMS)))
    block = most if extent.value is None else max(32, min(most, power(extent.value)))
    return Tiles((), (Tile("x", group.axes, block),), warps_of(block, each))


def _each_of_many(stores: int, found: Sequence[Access]) -> int:
    """Elements of a thread of a kernel with many stores, all of which are loaded before the first is stored."""
    width = max((a.itemsize for a in found), default=1)
    return max(1, EACH * MANY_STORES // (2 * power(stores)) * WORD // min(width, WORD))


def _one_by_one(group: Group, found: Sequence[Access]) -> bool:
    """Whether there are many rows of 16-bit numbers that loads do not divide."""
    row, symbols = static_size(group.row_axes), {a.symbol for a in group.row_axes}
    if row is None or row % 2 == 0 or row * likely_size(product([a.extent for a in group.axes])) < MANY:
        return False
    return any(a.itemsize == 2 and not a.store and a.index.symbols() & symbols for a in found)


def _row_tiles(group: Group, inner: Axis | None, longest: int, each: int, *, again: bool) -> Tiles:
    """The tiles of a kernel whose threads lie along the row, of which ``inner`` is the innermost axis then, and have so many elements ``each``;
    ``again``: it walks it again to store."""
    row, order = static_size(group.row_axes), group.row_axes
    if inner is not None and inner is not order[-1]:
        order = (*(a for a in order if a is not inner), inner)
    if row is not None and row <= longest and group.kind is GroupKind.PERSISTENT:
        x, width = _short_rows(group)
        # a thread makes four random numbers at once
        warps = warps_of(x * width, EACH_ROW * 2 if draws(group) else each)
        return Tiles((), (Tile("x", group.axes, x),), warps, Tile("r", order, width), True)
    walk = 2 * WALK if again else walk_of(group)
    width = walk if row is None else min(walk, power(max(row, 1)))
    warps = warps_of(width, EACH if again else EACH * max(1, width // WALK))
    return Tiles((), (Tile("x", group.axes, 1),), warps, Tile("r", order, width), stages=2)


def across_rows(group: Group, found: Sequence[Access], tiles: Tiles, *, again: bool) -> Tiles | None:
    """Tiles of as many rows as lie side by side in what is read across them: each read then goes along the one side of a tile or the other."""
    row = tiles.row
    axis = None if row is None else beside_rows(group.axes, row.axes[-1], found)
    if row is None or axis is None or draws(group):
        return None
    rows, width = SQUARE_OF_ROWS
    whole = tiles.whole and row.block * BESIDE <= MOST_WHOLE
    if whole:
        rows, width = min(SQUARE, MOST_WHOLE // row.block), row.block
    elif again or not kinds_of(group.steps) <= PLAIN:
        return None
    x, width = min(rows, power(likely_size(axis.extent))), min(width, row.block)
    if x * width < FLAT or (x <= tiles.points[0].block and axis is group.axes[-1]):
        return None
    outer = tuple(a for a in group.axes if a is not axis)
    row = dataclasses.replace(row, block=width)
    return Tiles(
        outer, (Tile("x", (axis,), x),), warps_of(x * width, EACH_ROW), row, whole, 1 if whole else 2
    )


def tile_of_rows(group: Group, most: int = MOST_ROWS) -> tuple[int, int]:
    """(rows that one program holds whole at once, ``most`` of them at most, elements of each with those past its end)."""
    width, points = power(max(static_size(group.row_axes) or 1, 1)), static_size(group.axes)
    x = max(1, min(most, HELD // width))
    return (x if points is None else max(1, min(x, power(max(points, 1))))), width


def _short_rows(group: Group) -> tuple[int, int]:
    """The same of rows that are many: as many of the shortest as fill a program's tile."""
    points, (x, width) = likely_size(product([a.extent for a in group.axes])), tile_of_rows(group, HELD)
    while x > MOST_ROWS and points < x * ENOUGH_PROGRAMS:
        x //= 2
    return x, width


def tile_down(group: Group, itemsizes: Iterable[int]) -> tuple[int, int, int]:
    """(rows, elements of each, warps) of a tile that is also summed down its columns, read of values of so many bytes.

    Warps lie side by side along the row, so that a thread has whole columns: a sum across threads at each tile takes four times as
    long as memory. Bytes (a dropout's mask) are read sixteen at a time, twice, by a quarter of the threads, which then have one row at once.
    """
    x, width = tile_of_rows(group)
    each = max(EACH, 16 // min(itemsizes, default=16))
    if each > EACH:
        x = max(1, min(x, HELD // 2 // width))
        each *= 2
    return x, width, min(warps_of(x * width, EACH_ROW), max(1, width // (32 * each)))


def are_long_rows(x: int, width: int, itemsizes: Iterable[int]) -> bool:
    """Whether tiles that are also summed down their columns are single rows, so long that a multiprocessor has room for few programs, of which each then has many on their way."""
    taken = sum(itemsizes) * width * (ROW_STAGES - 1)
    return x == 1 and width >= HELD and taken <= ROW_ON_THE_WAY


def has_columns(plan: KernelPlan) -> bool:
    """Whether each thread of a plan of the form MIXED has whole columns of its tile."""
    assert plan.row is not None
    return plan.row.block >= 32 * EACH * plan.warps
