"""Long rows of few points, as several kernels: parts of the rows first, then what the parts make together.

A sum over 65,536 rows, or over everything, has too few points for the programs that keep a GPU busy. Each row is cut in parts,
and each part is a point of the first kernel; the second one reduces over the parts in their order, so that results are the same
each time, and does what follows at the points. All are loops of the usual kind: memory, proofs and generators know nothing of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from math import gcd

from braze.loops import build
from braze.loops.dtypes import neutral
from braze.loops.ir import (
    Axis,
    Buffer,
    BufferKind,
    DType,
    LoopNest,
    Node,
    Op,
    ReduceKind,
    Reduction,
    Store,
    StoreMode,
)  # fmt: skip
from braze.loops.rewrite import (
    Substitution,
    loads,
    nest_with_nodes,
    reading,
    roots,
    walk,
    with_results,
)
from braze.schedule.canonical import borders, part_of
from braze.schedule.choices import Choices
from braze.schedule.column_tiles import COLUMNS
from braze.schedule.kernel_plan import KernelPlan
from braze.schedule.kernels import limit_of, plan_kernel
from braze.schedule.passes import (
    Pass,
    accesses_of,
    counts_positions,
    flat,
    kinds_of,
    over_row,
    passes_of,
    writes_what_it_reads,
)
from braze.schedule.plans import Form
from braze.schedule.records import Group, GroupKind
from braze.schedule.tile_sizes import PLAIN
from braze.symbolic.expr import (
    ONE,
    Expr,
    Integer,
    axis_symbol,
    contiguous_strides,
    floor_div,
    indirect,
    maximum,
    minimum,
    modulo,
    product,
)
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


@dataclasses.dataclass(frozen=True, slots=True)
class Cut:
    """A row axis in ``count`` parts of ``size``; ``exact``: the last is as long as the others. ``down``: parts lie above each other.

    ``fold``: so many rows after each other lie side by side, as one row of so many parts.
    """

    axis: Axis
    count: int
    size: Expr
    exact: bool
    down: bool
    fold: int = 1


def split_group(
    group: Group, buffers: Mapping[str, Buffer], choices: Choices, cores: int
) -> tuple[list[Group], list[Buffer]] | None:
    """The kernels that do what a group does, and their own buffers; None where it keeps the GPU busy as it is."""
    if not any(step.reductions for step in group.steps):
        return None
    if writes_what_it_reads(group):
        return _with_sums_apart(group, buffers, choices, cores)
    plan = plan_kernel(group, dict(buffers))
    cut = _folded(group, plan, buffers, cores) or _cut(group, plan, cores)
    return None if cut is None else Splitter(group, buffers, choices, cut).run()


def _with_sums_apart(
    group: Group, buffers: Mapping[str, Buffer], choices: Choices, cores: int
) -> tuple[list[Group], list[Buffer]] | None:
    """The same of a group that adds at computed places, what its reductions give or what lies along its rows: kernels behind the others do that."""
    rest, behind = _behind(group)
    along = [step for step in behind if over_row(step, group.row_axes)]
    points = [step for step in behind if step not in along]
    if not behind or (along and points and (_meet(along, points) or _meet(points, along))):
        return None
    needed, why = set(group.writes), "added by a kernel of its own"
    after: list[Group] = []
    for ending, steps in (("added", points), ("scattered", along)):
        if steps:
            axes = _as_it_lies(steps, (*group.axes, *group.row_axes)) if steps is along else group.axes
            after.append(part_of(group, ending, GroupKind.POINTWISE, steps, axes, (), needed, why))
    written = {name for each in after for name in each.writes}
    needed = (needed - written).union(*(each.reads for each in after))
    before = part_of(group, "sums", group.kind, rest, group.axes, group.row_axes, needed, why)
    found = split_group(before, buffers, choices, cores)
    return None if found is None else ([*found[0], *after], found[1])


def _behind(group: Group) -> tuple[list[LoopNest], list[LoopNest]]:
    """The steps of a group that stay, and those that add at computed places, with what only they read along its rows; none where they cannot wait."""
    rest: list[LoopNest] = []
    behind: list[LoopNest] = []
    for step in reversed(group.steps):
        adds = any(s.mode is not StoreMode.PLAIN for s in step.stores)
        for_them = over_row(step, group.row_axes) and _meet([step], behind)
        if (adds or for_them) and not step.reductions:
            touched = loads(*roots(step))
            if not _meet([step], rest) and not any(s.buffer in touched for x in rest for s in x.stores):
                behind.append(step)
                continue
        if adds:
            return list(group.steps), []
        rest.append(step)
    return rest[::-1], behind[::-1]


def _meet(before: Iterable[LoopNest], after: Iterable[LoopNest]) -> bool:
    """Whether some steps read or write what others before them store."""
    stored = {s.buffer for step in before for s in step.stores}
    return any(stored & (loads(*roots(step)) | {s.buffer for s in step.stores}) for step in after)


def _as_it_lies(steps: Iterable[LoopNest], axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Axes in the order in which what steps read lies in memory."""
    symbols = {a.symbol for a in axes}
    read = [
        n.attr[1] for n in walk(*(r for step in steps for r in roots(step))) if n.op is Op.LOAD and not n.args
    ]
    index = max(read, key=lambda e: len(e.symbols() & symbols), default=ONE)
    return tuple(sorted(axes, key=lambda a: -likely_size(index.coefficient(a.symbol) or ONE)))


def _cut(group: Group, plan: KernelPlan, cores: int) -> Cut | None:
    programs = likely_size(plan.programs)
    busy = FEW_DOWN if plan.form is Form.COLUMNS and plan.stages == 1 else FEW
    if programs >= busy * cores or programs < 1:
        return None
    if plan.form is Form.ROWS and plan.row is not None and plan.points[-1].block > 1 and not plan.whole:
        return _cut_side_by_side(group, plan, cores)
    down = plan.form is Form.COLUMNS
    length = likely_size(product([a.extent for a in group.row_axes]))
    least = LEAST_COLUMN if down else LEAST_ROW
    # all parts run at once: what does not fit would run alone at the end
    many = FEW if down and plan.stages > 1 else HEAVY if _is_heavy(plan, group) else MANY
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
    # of full parts mean and variance come from one walk, of others from two
    units = (unit, VECTORS) if ReduceKind.WELFORD in kinds_of(group.steps) and unit > VECTORS else (unit,)
    for each in units:
        for count in (*range(fine, max(want, fine // 2), -1), *range(want, want // 2, -1)):
            if extent % count == 0 and extent // count % each == 0:
                return Cut(axis, count, Integer(extent // count), True, down)
    size = _up(_up(extent, want) // want, unit)
    count = -(-extent // size)
    return Cut(axis, count, Integer(size), count * size == extent, down) if count > 1 else None


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


def _folded(group: Group, plan: KernelPlan, buffers: Mapping[str, Buffer], cores: int) -> Cut | None:
    """The rows of a matrix of few columns, which fill no tiles, laid side by side until they do; None where that cannot be."""
    if plan.form is not Form.COLUMNS or len(group.axes) != 1 or len(group.row_axes) != 1:
        return None
    (column,), (row,) = group.axes, group.row_axes
    width, length = column.extent.value or 0, row.extent.value or 0
    fold = COLUMNS // gcd(width, COLUMNS)
    plain = kinds_of(group.steps) <= PLAIN
    if fold == 1 or not width or length % fold or not plain or not _one_matrix(group, buffers, column, row):
        return None
    length //= fold
    want = min(HEAVY * cores * COLUMNS // (fold * width), MOST // fold, length // LEAST_COLUMN)
    if want < 1 or length < WORTH * LEAST_COLUMN:
        return None
    count = next((n for n in range(want, want // 2, -1) if length % n == 0), 0)
    return Cut(row, count * fold, Integer(length // count), True, True, fold) if count else None


def _one_matrix(group: Group, buffers: Mapping[str, Buffer], column: Axis, row: Axis) -> bool:
    """Whether all that is read for each element lies row after row, with nothing between them."""
    for a in accesses_of(group, dict(buffers)):
        known = a.index.symbols() & {column.symbol, row.symbol}
        if a.store or not known:
            continue
        steps = a.index.coefficient(column.symbol), a.index.coefficient(row.symbol)
        if a.indirect or steps != (ONE, column.extent):
            return False
    return True


def _is_heavy(plan: KernelPlan, group: Group) -> bool:
    """Whether a program keeps several numbers an element, or a tile of whole sectors of columns."""
    if plan.form is Form.COLUMNS:
        return plan.points[-1].divides and plan.points[-1].block >= COLUMNS
    return counts_positions(group.steps)


def _up(n: int, unit: int) -> int:
    """The least multiple of a number that is not below n."""
    return -(-n // unit) * unit


class Splitter:
    """Writes the kernels of one group."""

    def __init__(self, group: Group, buffers: Mapping[str, Buffer], choices: Choices, cut: Cut) -> None:
        self.group, self.buffers, self.choices, self.cut = group, dict(buffers), choices, cut
        self.made: list[Buffer] = []
        #: per kernel: its name's ending, points, row and steps
        self.kernels: list[tuple[str, tuple[Axis, ...], tuple[Axis, ...], list[LoopNest]]] = []
        #: of the walk at hand: the nests over parts of its rows, and those that reduce over the parts
        self.partial: list[LoopNest] = []
        self.finish: list[LoopNest] = []
        count = Integer(cut.count)
        self.part = Axis(axis_symbol("part", count), count)
        self.within = Axis(axis_symbol("within", cut.size), cut.size)
        self.points = (self.part, *group.axes) if cut.down else (*group.axes, self.part)
        self.rows = tuple(self.within if a is cut.axis else a for a in group.row_axes)
        begin = self.part.symbol * cut.size
        self.substitution = Substitution({cut.axis.symbol: begin + self.within.symbol})
        self.here = self._place(self.part.symbol)
        if cut.fold > 1:
            self._lay_side_by_side()
        self.other = product([a.extent for a in group.row_axes if a is not cut.axis])
        self.begin = begin

    def _lay_side_by_side(self) -> None:
        """The first kernel's points: folded rows, whose columns are those of so many parts."""
        cut, (column,) = self.cut, self.group.axes
        count, width = Integer(cut.count // cut.fold), column.extent * cut.fold
        outer, wide = Axis(axis_symbol("outer", count), count), Axis(axis_symbol("wide", width), width)
        row = (outer.symbol * cut.size + self.within.symbol) * cut.fold
        self.points = (outer, wide)
        self.substitution = Substitution(
            {
                cut.axis.symbol: row + floor_div(wide.symbol, column.extent),
                column.symbol: modulo(wide.symbol, column.extent),
            }
        )
        self.here = flat(self.points)

    def run(self) -> tuple[list[Group], list[Buffer]]:
        """The kernels in order, and the buffers between them."""
        steps = inlined(self.group, self.buffers)
        for each in passes_of(steps, self.group.row_axes):
            self._walk(each)
        groups: list[Group] = []
        needed = set(self.group.writes)
        for ending, axes, rows, nests in reversed(self.kernels):
            internal, reads, writes = borders(tuple(nests), needed)
            needed |= set(reads)
            kind = GroupKind.POINTWISE
            if any(n.reductions for n in nests):
                widest = max(r.dtype.itemsize for n in nests for r in n.reductions)
                kind = self.choices.reduction_kind([a.extent for a in rows], widest)
            groups.append(
                dataclasses.replace(
                    self.group, name=f"{self.group.name}_{ending}{len(self.kernels) - len(groups) - 1}", kind=kind,
                    steps=tuple(nests), axes=axes, row_axes=rows, internal=internal, reads=reads, writes=writes, follows=ending == "rest",
                    reason="; ".join(filter(None, (self.group.reason, f"rows in {self.cut.count} parts"))),
                )
            )  # fmt: skip
        return groups[::-1], self.made

    def _walk(self, walk: Pass) -> None:
        """The kernels of one walk over the row: what is stored along it, parts, and what follows at the points."""
        group = self.group
        along = [s for s in walk.along if not s.reductions]
        reducing = [s for s in walk.along if s.reductions]
        if along and not (reducing and self.cut.exact):
            axes = (*group.axes, *group.row_axes)
            axes = in_order(along, axes) if self.cut.down else axes
            along = [dataclasses.replace(s, axes=axes) for s in along]
            self.kernels.append(("row", axes, (), along))
            along = []
        if reducing:
            self.partial = [self.substitution.nest(s, (*self.points, *self.rows), ()) for s in along]
            self.finish = []
            for step in reducing:
                self._reduce(step)
            self.kernels.append(("part", self.points, self.rows, self.partial))
            self.kernels.append(("rest", group.axes, (self.part,), [*self.finish, *walk.behind]))
        elif walk.behind:
            self.kernels.append(("points", group.axes, (), list(walk.behind)))

    # -- buffers ----------------------------------------------------------------------------------

    def _buffer(self, dtype: DType, sizes: tuple[Expr, ...]) -> str:
        name = f"{self.group.name}_{len(self.made)}"
        strides, kind = contiguous_strides(sizes), BufferKind.TEMPORARY
        self.made.append(Buffer(name, dtype, sizes, strides, self.group.device, kind))
        self.buffers[name] = self.made[-1]
        return name

    def _parts(self, dtype: DType) -> str:
        """A buffer with one number for each part."""
        return self._buffer(dtype, tuple(a.extent for a in self.points))

    def _place(self, part: Expr) -> Expr:
        """Where the number of a part lies."""
        axes = self.group.axes
        if self.cut.down:
            return part * product([a.extent for a in axes]) + flat(axes)
        return flat(axes) * self.cut.count + part

    # -- reductions -------------------------------------------------------------------------------

    def _reduce(self, step: LoopNest) -> None:
        """The nests of both kernels for one step: each result gets a buffer at the points, which the step's stores then read."""
        results: list[Node] = []
        for reduction in step.reductions:
            value = self.substitution.node(reduction.value)
            if reduction.kind is ReduceKind.WELFORD:
                made = self._moments(step, reduction.dtype, build.cast(value, reduction.dtype))
            elif reduction.kind is ReduceKind.ONLINE_SOFTMAX:
                made = self._softmax(step, reduction, value)
            elif reduction.kind.finds_place:
                made = [self._position(step, reduction, value)]
            else:
                (name,) = self._fold(step, [self._reduction(reduction, value)])
                made = self._gather(step, [Reduction(reduction.kind, reduction.dtype, self._load(name))])
            results += made
        stores = tuple(with_results(s, lambda n: results[n.attr]) for s in step.stores)
        self.finish.append(dataclasses.replace(step, reduce_axes=(), reductions=(), stores=stores))

    def _reduction(self, reduction: Reduction, value: Node) -> Reduction:
        """A reduction over a part; what lies past the row's end does not count."""
        if not self.cut.exact:
            value = build.masked(
                self._inside(), value, build.const(neutral(reduction.kind, value.dtype), value.dtype)
            )
        return Reduction(reduction.kind, reduction.dtype, value)

    def _inside(self) -> Node:
        return inside(self.begin + self.within.symbol, self.cut.axis)

    def _fold(self, step: LoopNest, reductions: list[Reduction]) -> list[str]:
        """A nest over the parts that stores its results, and the buffers that hold them."""
        dtypes = [dtype for r in reductions for dtype in r.results]
        names = [self._parts(dtype) for dtype in dtypes]
        place = self.here
        values = [build.reduced(k, dtype) for k, dtype in enumerate(dtypes)]
        if reductions[-1].kind.finds_place:
            values[-1] = build.add(values[-1], build.index(self.begin * self.other))
        stores = tuple(Store(name, place, value) for name, value in zip(names, values, strict=True))
        self.partial.append(
            dataclasses.replace(step, axes=self.points, reduce_axes=self.rows, reductions=tuple(reductions), stores=stores)
        )  # fmt: skip
        return names

    def _load(self, name: str) -> Node:
        """What a part has left in a buffer."""
        return build.load(name, self.buffers[name].dtype.stored, self._place(self.part.symbol))

    def _gather(self, step: LoopNest, reductions: list[Reduction]) -> list[Node]:
        """A nest that reduces over the parts; its results at the points."""
        axes = self.group.axes
        found: list[Node] = []
        stores: list[Store] = []
        for reduction in reductions:
            for _ in range(reduction.kind.results):
                name = self._buffer(reduction.dtype, tuple(a.extent for a in axes))
                stores.append(Store(name, flat(axes), build.reduced(len(stores), reduction.dtype)))
                found.append(build.load(name, reduction.dtype, flat(axes)))
        self.finish.append(
            dataclasses.replace(
                step, reduce_axes=(self.part,), reductions=tuple(reductions), stores=tuple(stores)
            )
        )
        return found

    def _moments(self, step: LoopNest, dtype: DType, value: Node) -> list[Node]:
        """Mean and squared deviations: each part's about its own mean, then these about the whole's.

        Where every part is full, both come from one walk; else a sum comes first, since what lies past the end must not count.
        """
        size: Expr = self.cut.size
        if not self.cut.exact:
            size = maximum(minimum(size, self.cut.axis.extent - self.begin), 0)
        count = build.index(size * self.other, dtype)
        divisor = build.index(maximum(size * self.other, 1), dtype)
        if self.cut.exact:
            means, spread = self._fold(step, [Reduction(ReduceKind.WELFORD, dtype, value)])
            mean = self._load(means)
            total = build.mul(mean, count)
        else:
            (sums,) = self._fold(step, [self._reduction(Reduction(ReduceKind.SUM, dtype, value), value)])
            total = self._load(sums)
            mean = build.div(total, divisor)
            away = build.sub(value, mean)
            square = Reduction(ReduceKind.SUM, dtype, build.mul(away, away))
            (spread,) = self._fold(step, [self._reduction(square, square.value)])
        (whole,) = self._gather(step, [Reduction(ReduceKind.SUM, dtype, total)])
        length = product([a.extent for a in self.group.row_axes])
        middle = build.div(whole, build.index(length, dtype))
        gap = build.sub(mean, middle)
        moved = build.add(self._load(spread), build.mul(count, build.mul(gap, gap)))
        return [middle, *self._gather(step, [Reduction(ReduceKind.SUM, dtype, moved)])]

    def _softmax(
        self,
        step: LoopNest,
        reduction: Reduction,
        value: Node,
    ) -> list[Node]:
        """The maximum, and the sum of powers of what lies below it."""
        dtype = reduction.dtype
        tops, sums = self._fold(step, [self._reduction(reduction, value)])
        (top,) = self._gather(step, [Reduction(ReduceKind.MAX, dtype, self._load(tops))])
        own, lowest = self._load(tops), build.const(float("-inf"), dtype)
        scaled = build.mul(self._load(sums), build.unary(Op.EXP, build.sub(own, top)))
        # a part that is minus infinity throughout has no sum of its own
        empty = build.both(build.binary(Op.EQ, own, lowest), build.binary(Op.NE, top, lowest))
        scaled = build.where(empty, build.const(0.0, dtype), scaled)
        return [top, *self._gather(step, [Reduction(ReduceKind.SUM, dtype, scaled)])]

    def _position(
        self,
        step: LoopNest,
        reduction: Reduction,
        value: Node,
    ) -> Node:
        """The place of the extreme: that of the first part which has it."""
        best = reduction.kind.extreme
        assert best is not None
        extreme = Reduction(best, value.dtype, value)
        over = [self._reduction(extreme, value), self._reduction(reduction, value)]
        values, places = self._fold(step, over)
        axes = self.group.axes
        name = self._buffer(DType.I64, tuple(a.extent for a in axes))
        chosen = build.load(places, DType.I64, self._place(indirect(0)), (build.reduced(0, DType.I64),))
        self.finish.append(
            dataclasses.replace(
                step, reduce_axes=(self.part,), stores=(Store(name, flat(axes), chosen),),
                reductions=(Reduction(reduction.kind, reduction.dtype, self._load(values)),),
            )
        )  # fmt: skip
        return build.load(name, DType.I64, flat(axes))


def in_order(steps: Sequence[LoopNest], axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """Axes in the order in which what some steps store lies in memory, the one that it is contiguous along the last."""
    index = steps[0].stores[0].index
    return tuple(sorted(axes, key=lambda a: -likely_size(index.coefficient(a.symbol) or ONE)))


def inside(row: Expr, axis: Axis) -> Node:
    """Whether a row of the last part, which may be shorter than others, is one."""
    return build.index_condition(Op.LT, row, axis.extent)


def inlined(group: Group, buffers: Mapping[str, Buffer]) -> list[LoopNest]:
    """The steps with the values that are kept inside, along the row, in place of loads of them."""
    known: dict[tuple[str, Expr], Node] = {}
    out: list[LoopNest] = []
    for step in group.steps:
        step = nest_with_nodes(step, reading(known))
        if not step.reductions and over_row(step, group.row_axes):
            for s in step.stores:
                if not s.args:
                    known[s.buffer, s.index] = build.cast(s.value, buffers[s.buffer].dtype.stored)
            kept = tuple(s for s in step.stores if s.buffer not in group.internal)
            step = dataclasses.replace(step, stores=kept)
        if step.stores:
            out.append(step)
    return out


def split_groups(
    groups: Iterable[Group], buffers: Mapping[str, Buffer], choices: Choices, cores: int
) -> tuple[list[Group], list[Buffer]]:
    """Groups of GPUs with those of few points and long rows split; and the buffers that this takes."""
    out: list[Group] = []
    made: list[Buffer] = []
    for group in groups:
        found = None
        if (
            group.device != "cpu"
            and group.kind in (GroupKind.PERSISTENT, GroupKind.LOOPED)
            and not group.whole
            and limit_of(group) is None
        ):
            found = split_group(group, buffers, choices, cores)
        if found is None:
            out.append(group)
        else:
            out += found[0]
            made += found[1]
    return out, made
