"""How a group becomes a kernel of a processor: where its vectors lie, what one task takes, in which phases, and what it costs.

A vector's lanes lie along the axis that takes the fewest operations on memory. A task has one point of each other axis, and all of
the vectors' axis or a block of it. Few long rows, and few columns of many rows, are cut in parts, so that each thread has some.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from braze.loops.build import nodes_of
from braze.loops.ir import Axis, Buffer, LoopNest, Node, Op, StoreMode
from braze.loops.ranges import Ranges, Varying
from braze.loops.rewrite import roots, walk
from braze.loops.scalars import cost
from braze.schedule.cpu.phases import Phase, Phases, phases_of
from braze.schedule.facts.passes import Access, accesses_of, arguments, size_symbols, stride, touched
from braze.schedule.facts.plans import Form, TaskPlan, Tile
from braze.schedule.facts.records import Group
from braze.support.record import record
from braze.symbolic.expr import ONE, Expr, Integer, Symbol, floor_div, product
from braze.symbolic.guess import likely_size
from braze.target import Target

#: elements of the vectors' axis in one task, where that axis is cut since there are fewer other points than these
_BLOCK, _FEW = 4096, 64
#: arithmetic of a point that counts where vectors' axis is chosen, at most: memory counts too
_DEAR = 64
#: an axis shorter than this is not worth squares
_LEAST = 8
#: vectors of columns in one strip, at most; twice as many of 32 bytes each (of bfloat16 half of that is read: a strip of four is one line of
#: memory, and all lie a row apart), where they have one accumulator each and little is computed
_STRIP, _LIGHT = 4, 20
#: parts of one row, about, and elements of a row that is worth sharing
_ROW_PARTS, _LONG = 64, 1 << 15
#: parts of the rows of columns, rows of a part that are worth a task, and bytes of their results that may lie on the stack
_COLUMN_PARTS, _ROWS, _STACK = 16, 32, 128 << 10
#: bytes from which columns are walked by blocks (what is less stays in the second cache), rows that are added at a time to what is held of a block,
#: bytes of that at most (half of the first cache), and of the shortest stretches of rows that are worth it
_FAR, _HELD_ROWS, _HELD, _STRETCH = 1 << 20, 16, 16 << 10, 512


@record
class Work:
    """What a kernel costs in bytes of memory traffic, arithmetic counted as bytes: so many for each point of some loops, and ``static``."""

    counts: tuple[tuple[Expr, int], ...]
    static: int


@record
class Cut:
    """A row axis that is walked in so many parts, each of ``size`` elements but the last."""

    axis: Axis
    parts: int
    size: Expr


@record
class ProcessorPlan(TaskPlan):
    """One kernel of a processor.

    ``vector``: the axis that the lanes lie along, ``lanes`` of them; a task walks it whole where it is not in ``points``. ``turned``: of
    the form TILED, the loads that run along the axis of ``points``, and are turned in registers. ``phases``: of a kernel with rows, what
    is done along the row and between, with what is kept. ``copies``: of each phase, how many vectors are folded side by side. ``strip``:
    vectors of columns that a task walks down together. ``held``: so many rows at a time, after which the results of a block of columns are held
    in memory; 0: each strip is walked to its end, in registers. ``parts``: the rows are cut in so many, whose results one thread combines in
    their order (so that they do not depend on the number of threads); 0: they are not cut. ``cuts``: of rows, along which axes,
    the outermost first. ``serial``: one thread does all.
    ``status``: an index may be out of bounds, which is told. ``gathers``: lanes that lie anywhere are read by one instruction.
    """

    vector: Axis | None
    lanes: int
    work: Work
    serial: bool
    status: bool
    turned: tuple[Node, ...] = ()
    phases: Phases | None = None
    copies: tuple[int, ...] = ()
    strip: int = 1
    held: int = 0
    parts: int = 0
    cuts: tuple[Cut, ...] = ()
    gathers: bool = False


def plan_kernel(group: Group, buffers: dict[str, Buffer], target: Target) -> ProcessorPlan:
    """The plan of one group of loop nests."""
    phases = phases_of(group.steps, group.row_axes, group.internal) if group.row_axes else None
    evaluated = phases.roots() if phases else (n for step in group.steps for n in roots(step))
    nodes = list(nodes_of(*evaluated))
    spent = min(_DEAR, sum(cost(n.op) for n in nodes))
    found = list(accesses_of(group, buffers))
    vector = vector_axis(group, found, target.vector_bytes // 4, spent)
    lanes = lanes_of(nodes, varying_of(group, vector, phases), Ranges(), target.vector_bytes)
    plan = ProcessorPlan(
        Form.FLAT, arguments(group), size_symbols(group), tuple(a for a in group.axes if a is not vector), (), None,
        vector, lanes, work_of(group.steps, buffers),
        serial=any(s.mode is not StoreMode.PLAIN for step in group.steps for s in step.stores),
        status=any(n.op is Op.CHECK_INDEX for n in nodes), gathers="gather" in target.features,
    )  # fmt: skip
    if phases is None:
        return _of_points(plan, group, nodes)
    return _of_rows(plan, group, phases, buffers, target, found)


def _of_points(plan: ProcessorPlan, group: Group, nodes: Sequence[Node]) -> ProcessorPlan:
    """The plan of a group without rows: in squares, or along the vectors' axis."""
    across, turned = _squares(group.axes, plan.vector, nodes)
    if across is None:
        return dataclasses.replace(plan, points=_blocks(plan.vector, plan.outer))
    outer = tuple(a for a in plan.outer if a is not across)
    squares = (Tile("y", (across,), plan.lanes),)
    return dataclasses.replace(plan, form=Form.TILED, outer=outer, points=squares, turned=turned)


def _of_rows(
    plan: ProcessorPlan,
    group: Group,
    phases: Phases,
    buffers: dict[str, Buffer],
    target: Target,
    found: Sequence[Access],
) -> ProcessorPlan:
    """The plan of a group with rows: vectors lie along these, or along columns, of which a task has a strip."""
    vector, lanes = plan.vector, plan.lanes
    order = row_order(group.row_axes, vector)
    row = Tile("r", order, max(1, likely_size(product([a.extent for a in order]))))
    plan = dataclasses.replace(plan, form=Form.ROWS, row=row, phases=phases)
    if vector is None or vector in group.row_axes:
        copies = tuple(_copies(phase, vector, lanes) for phase in phases.phases)
        shared = not plan.serial and _few_long_rows(group, vector, phases, target.cores)
        cuts = _cuts(order, vector, lanes, found) if shared else ()
        parts = math.prod(cut.parts for cut in cuts) if cuts else 0
        return dataclasses.replace(plan, copies=copies, parts=parts, cuts=cuts)
    blocks = None if plan.serial else _column_blocks(plan, group, buffers, target)
    if blocks is not None:
        return blocks
    strip = 0 if plan.serial else _shared_strip(group, vector, lanes, phases, target)
    parts = _COLUMN_PARTS if strip else 0
    strip = strip or _strip(group, lanes, phases, target.cores, target.vector_bytes)
    tile, copies = Tile("x", (vector,), lanes * strip), (1,) * len(phases.phases)
    return dataclasses.replace(
        plan, form=Form.COLUMNS, points=(tile,), copies=copies, strip=strip, parts=parts
    )


def row_order(row_axes: tuple[Axis, ...], vector: Axis | None) -> tuple[Axis, ...]:
    """The axes of a row as they are walked: vectors lie along the innermost."""
    if vector not in row_axes or vector is None:
        return row_axes
    return (*(a for a in row_axes if a is not vector), vector)


# -- vectors ----------------------------------------------------------------------------------------------------


def vector_axis(group: Group, found: Iterable[Access], lanes: int, arithmetic: int) -> Axis | None:
    """The axis whose vectors make the fewest operations, of memory and of ``arithmetic``, which idle lanes take too; None where there is none to choose."""
    best: tuple[float, int] | None = None
    chosen = None
    listed = list(found)
    for rank, axis in enumerate(reversed((*group.axes, *group.row_axes))):
        extent = likely_size(axis.extent)
        if extent <= 1:
            continue
        padding = -(-extent // lanes) * lanes / extent
        spent = sum(_access_cost(a, axis.symbol, lanes) for a in listed) + 0.25 + arithmetic
        key = (spent * padding, rank)
        if best is None or key < best:
            best, chosen = key, axis
    return chosen


def _access_cost(a: Access, symbol: Symbol, lanes: int) -> float:
    step = stride(a.index, symbol)
    if step == 0:
        return 0.1 if not a.store else 4.0
    if step == 1:
        return 1.0
    if isinstance(step, int) and abs(step) <= 4 and not a.store:
        return lanes / 4
    if step is None:
        return lanes * 1.5
    return lanes * (
        1.25 if a.store else 1.0
    )  # loads that run across may be turned in registers, stores are scattered


def varying_of(group: Group, vector: Axis | None, phases: Phases | None) -> Varying:
    """Which nodes of a kernel differ between lanes: results of reductions where these lie along the points."""
    along_points = phases is not None and vector not in group.row_axes
    registers = [name for name, _ in phases.registers] if along_points and phases is not None else ()
    return Varying(vector.symbol if vector is not None else None, registers)


def lanes_of(nodes: Iterable[Node], varying: Varying, ranges: Ranges, vector_bytes: int) -> int:
    """Lanes of the group's vectors: the widest value that differs by lane fills a register."""
    widest = max((ranges.bytes_of(node) for node in nodes if varying(node)), default=4)
    return max(vector_bytes // widest, 2)


# -- tasks of points --------------------------------------------------------------------------------------------


def _blocks(vector: Axis | None, outer: Sequence[Axis]) -> tuple[Tile, ...]:
    """The vectors' axis in blocks, where its other axes have too few points for all threads."""
    few = likely_size(product([a.extent for a in outer]) if outer else ONE) < _FEW
    if not few or vector is None or (vector.extent.value is not None and vector.extent.value <= _BLOCK):
        return ()  # what is no longer than a block stays whole, and may be cut where a condition on it changes
    return (Tile("x", (vector,), _BLOCK),)


def _squares(
    axes: tuple[Axis, ...], vector: Axis | None, nodes: Sequence[Node]
) -> tuple[Axis | None, tuple[Node, ...]]:
    """The axis that most loads are contiguous along that are not so along the vectors, and these loads; (None, ()) where none is."""
    if vector is None or _short(vector):
        return None, ()
    found: dict[Axis, list[Node]] = {}
    # loads inside the values of MASKED nodes may not be moved out
    guarded = set(walk(*(n.args[1] for n in nodes if n.op is Op.MASKED)))
    for node in nodes:
        if node.op is not Op.LOAD or node.args or node in guarded:
            continue
        if stride(node.attr[1], vector.symbol) in (0, 1, None):
            continue
        for axis in axes:
            if axis is not vector and not _short(axis) and stride(node.attr[1], axis.symbol) == 1:
                found.setdefault(axis, []).append(node)
    if not found:
        return None, ()
    across = max(found, key=lambda a: len(found[a]))
    return across, tuple(found[across])


def _short(axis: Axis) -> bool:
    return axis.extent.value is not None and axis.extent.value < _LEAST


# -- tasks of rows and columns ----------------------------------------------------------------------------------


def _copies(phase: Phase, vector: Axis | None, lanes: int) -> int:
    """How many vectors along the row are folded side by side: several where a pass does little else."""
    if vector is None or not phase.folds:
        return 1
    weight = sum(1 + cost(n.op) for n in set(nodes_of(*phase.roots())))
    copies = 4 if weight <= 6 else 2 if weight <= 20 else 1
    extent = likely_size(vector.extent)
    while copies > 1 and extent < 2 * copies * lanes:
        copies //= 2
    return copies


def _strip(group: Group, lanes: int, phases: Phases, cores: int, vector_bytes: int) -> int:
    """How many vectors of columns one task takes: a row of them is a stretch of memory, which is read ahead.

    One where rows are kept, where accumulators would be too many, and where cores would be left idle.
    """
    if phases.kept:
        return 1
    folds = max((len(p.folds) for p in phases.phases), default=0)
    weight = sum(cost(n.op) for p in phases.phases for n in set(nodes_of(*p.roots())))
    strip = _STRIP if folds <= 3 and weight <= 40 else 2 if folds <= 6 else 1
    if folds == 1 and weight <= _LIGHT and vector_bytes == 32:
        strip = 2 * _STRIP
    points = 1
    for a in group.axes:
        points *= likely_size(a.extent)
    while strip > 1 and points < 2 * cores * strip * lanes:
        strip //= 2
    return strip


def _few_long_rows(group: Group, vector: Axis | None, phases: Phases, cores: int) -> bool:
    """Whether there are fewer points than cores, each with a long row that is walked once."""
    points = (product([a.extent for a in group.axes]) if group.axes else ONE).value
    length = product([a.extent for a in group.row_axes]).value
    if points is None or points >= cores or vector not in group.row_axes:
        return False
    first, *rest = phases.phases
    one_pass = first.over_row and not any(p.over_row for p in rest) and not phases.kept
    return one_pass and (length is None or length >= _LONG)


def _cuts(order: Sequence[Axis], vector: Axis | None, lanes: int, found: Iterable[Access]) -> tuple[Cut, ...]:
    """How a long row is cut: along its outer axes, whose parts are stretches of memory, and as many of these as give enough parts.

    Along the vectors first where something lies across them: the next row of a part finds the lines that this one has read. Of unknown
    sizes along the longest axis.
    """
    if any(axis.extent.value is None for axis in order):
        axis = max(order, key=lambda a: (likely_size(a.extent), a is vector))
        return (_cut(axis, _ROW_PARTS, vector, lanes),)
    cuts: list[Cut] = []
    left = _ROW_PARTS
    across = vector is not None and any(stride(a.index, vector.symbol) not in (0, 1) for a in found)
    for axis in sorted(order, key=lambda a: a is not vector) if across else order:
        cut = _cut(axis, left, vector, lanes)
        if cut.parts > 1:
            cuts.append(cut)
            left = -(-left // cut.parts)
    return tuple(cuts)


def _cut(axis: Axis, parts: int, vector: Axis | None, lanes: int) -> Cut:
    """An axis in at most so many parts, none of which is empty where its size is known; along vectors each is some whole ones."""
    unit = 4 * lanes if axis is vector else 1
    size = floor_div(axis.extent + (unit * parts - 1), Integer(unit * parts)) * unit
    if axis.extent.value is not None and size.value:
        parts = -(-axis.extent.value // size.value)
    return Cut(axis, parts, size)


def _shared_strip(group: Group, vector: Axis, lanes: int, phases: Phases, target: Target) -> int:
    """The strip of columns whose rows are cut in parts; 0 where columns alone keep the cores busy.

    For groups whose only points are the columns, with one pass over the rows.
    """
    points, first = vector.extent.value, phases.phases[0]
    if points is None or not _may_share(group, vector, phases, target, _COLUMN_PARTS):
        return 0
    strip = _strip(group, lanes, phases, 0, target.vector_bytes)
    while strip > 1 and strip * lanes > points:
        strip //= 2
    padded = -(-points // lanes) * lanes
    enough = points >= 2 * target.cores * strip * lanes
    return 0 if enough or len(first.folds) * 8 * padded * _COLUMN_PARTS > _STACK else strip


def _may_share(group: Group, vector: Axis, phases: Phases, target: Target, parts: int) -> bool:
    """Whether the rows of columns may be cut in so many parts: one pass over them, whose results are added in the parts' order."""
    rows = product([a.extent for a in group.row_axes]).value
    if group.axes != (vector,) or target.cores < 2 or (rows is not None and rows < _ROWS * parts):
        return False
    first = phases.phases[0]
    return (
        _one_pass(phases)
        and not any(i.stores for i in first.items)
        and all(
            f.dtype.label in ("f32", "f64") and f.kind.value in ("sum", "prod", "max", "min")
            for f in first.folds
        )
    )


def _one_pass(phases: Phases) -> bool:
    first, *rest = phases.phases
    return first.over_row and not any(p.over_row for p in rest) and not phases.kept


def _column_blocks(
    plan: ProcessorPlan, group: Group, buffers: dict[str, Buffer], target: Target
) -> ProcessorPlan | None:
    """The plan that walks blocks of columns in the order of memory; None where one strip is all columns, where the cache has these, or of few rows.

    Blocks are as wide as the first cache holds; where that leaves cores idle, the rows are cut in parts, or blocks are narrower.
    """
    vector, phases, lanes = plan.vector, plan.phases, plan.lanes
    assert vector is not None and phases is not None and plan.row is not None
    columns, rows = likely_size(vector.extent), plan.row.block
    passes = [phase for phase in phases.phases if phase.over_row]
    few = rows < _ROWS or likely_size(plan.row.axes[-1].extent) < _HELD_ROWS
    if few or columns <= lanes or phases.kept or not phases.phases[0].over_row:
        return None
    if columns in (
        lanes * 2**k for k in range(_strip(group, lanes, phases, 0, target.vector_bytes).bit_length())
    ):
        return None
    walked = _walked_bytes(plan, passes[0], buffers)
    if walked < _FAR:
        return None
    strip = min(_STRIP, columns // lanes)
    bytes = sum(2 * max(f.dtype.itemsize, 4) for phase in passes for f in phase.folds)
    unit = lanes * strip
    count = max(1, -(-columns * bytes // _HELD))
    others = product([a.extent for a in plan.outer])
    tasks, wanted = likely_size(others) * count, 2 * target.cores if target.cores > 1 else 1
    parts = (
        min(_COLUMN_PARTS, -(-wanted // tasks), _STACK // (bytes * (columns + lanes)))
        if tasks < wanted
        else 0
    )
    known = vector.extent.value is not None
    if parts < 2 or not known or not _may_share(group, vector, phases, target, parts):
        parts = 0
        least = max(unit, _STRETCH * columns * rows * likely_size(others) // walked)
        while tasks < wanted and columns // (2 * count) >= least:
            count, tasks = 2 * count, 2 * tasks
    block = -(-columns // (count * unit)) * unit
    tile, copies = Tile("x", (vector,), block), (1,) * len(phases.phases)
    return dataclasses.replace(
        plan, form=Form.COLUMNS, points=(tile,), copies=copies, strip=strip, held=_HELD_ROWS, parts=parts
    )


def _walked_bytes(plan: ProcessorPlan, phase: Phase, buffers: dict[str, Buffer]) -> int:
    """Bytes of what the vectors of columns read along the rows."""
    assert plan.row is not None
    axes = (*plan.outer, plan.vector, *plan.row.axes)
    total = 0
    for name, e in {n.attr for n in nodes_of(*phase.roots()) if n.op is Op.LOAD and not n.args}:
        used = [a.extent for a in axes if a is not None and a.symbol in e.symbols()]
        total += likely_size(product(used)) * buffers[name].dtype.itemsize if name in buffers else 0
    return total


# -- cost -------------------------------------------------------------------------------------------------------


def work_of(nests: Iterable[LoopNest], buffers: dict[str, Buffer]) -> Work:
    """What some loop nests cost."""
    static = 0
    counts: list[tuple[Expr, int]] = []
    for nest in nests:
        axes = (*nest.axes, *nest.reduce_axes)
        each: list[tuple[Expr, int]] = []
        for buffer, index, _, indirect in dict.fromkeys(touched(nest)):
            used = [x.extent for x in axes if x.symbol in index.symbols() or indirect]
            each.append((product(used), buffers[buffer].dtype.itemsize if buffer in buffers else 4))
        spent = sum(cost(n.op) for n in nodes_of(*roots(nest)))
        if spent:
            each.append((product([x.extent for x in axes]), max(spent // 2, 1)))
        static += sum(count.value * size for count, size in each if count.value is not None)
        counts += [(count, size) for count, size in each if count.value is None]
    return Work(tuple(counts), static)
