"""Long rows of few points, as several kernels: parts of the rows first, then what the parts make together.

A sum over 65,536 rows, or over everything, has too few points for the programs that keep a GPU busy. Each row is cut in parts,
and each part is a point of the first kernel; the second one reduces over the parts in their order, so that results are the same
each time, and does what follows at the points. All are loops of the usual kind: memory, proofs and generators know nothing of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

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
from braze.schedule.facts.choices import Choices
from braze.schedule.facts.passes import Pass, flat, over_row, passes_of, writes_what_it_reads
from braze.schedule.facts.records import Group, GroupKind
from braze.schedule.fusion.canonical import borders, part_of
from braze.schedule.gpu.beside import columns_beside
from braze.schedule.gpu.cuts import Cut, cut_of
from braze.schedule.gpu.kernels import limit_of, plan_kernel
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


def split_group(
    group: Group, buffers: Mapping[str, Buffer], choices: Choices, cores: int
) -> tuple[list[Group], list[Buffer]] | None:
    """The kernels that do what a group does, and their own buffers; None where it keeps the GPU busy as it is."""
    if not any(step.reductions for step in group.steps):
        return None
    if writes_what_it_reads(group):
        return _with_sums_apart(group, buffers, choices, cores)
    cut = cut_of(group, plan_kernel(group, dict(buffers)), buffers, cores)
    if cut is None:
        return None
    groups, made = Splitter(group, buffers, choices, cut).run()
    if not cut.apart:
        return groups, made
    # what stands at one place of each stretch may be long rows of few points
    known = {**buffers, **{b.name: b for b in made}}
    first = columns_beside(groups[0], known)
    again = split_group(first, known, choices, cores) or ([first], [])
    return [*again[0], *groups[1:]], [*made, *again[1]]


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
        self.part, self.within = self._axis("part", count), self._axis("within", cut.size)
        self.points = (self.part, *group.axes) if cut.down else (*group.axes, self.part)
        self.rows = tuple(self.within if a is cut.axis else a for a in group.row_axes)
        if cut.apart:
            self.rows = tuple(a for a in self.rows if a is not self.within)
        self.begin = self.part.symbol * cut.size
        place = self.begin + (self.within.symbol if self.within in self.rows else 0)
        self.substitution = Substitution({cut.axis.symbol: place})
        self.here = self._place(self.part.symbol)
        self.other = product([a.extent for a in group.row_axes if a is not cut.axis])
        #: of a part, as its kernel has them: its first row, of those that lie side by side the one among all, and the number of that in the whole row
        self.first, self.number, self.begin_here = self.begin, self.begin * self.other, self.begin
        if cut.fold > 1:
            self._lay_side_by_side()

    def _axis(self, name: str, extent: Expr) -> Axis:
        """An axis of the kernels, by a name that none of the group's has, which may be a part itself."""
        taken = {a.symbol.name for a in (*self.group.axes, *self.group.row_axes)}
        while name in taken:
            name += "s"
        return Axis(axis_symbol(name, extent), extent)

    def _lay_side_by_side(self) -> None:
        """The first kernel's points: folded rows, whose columns are those of so many parts."""
        cut, (*others, column) = self.cut, self.group.axes
        count, width = Integer(cut.count // cut.fold), column.extent * cut.fold
        outer, wide = self._axis("outer", count), self._axis("wide", width)
        beside, at = floor_div(wide.symbol, column.extent), modulo(wide.symbol, column.extent)
        self.points = (outer, *others, wide)
        self.first = outer.symbol * cut.size
        self.number = self.begin_here = self.first * cut.fold + beside
        self.substitution = Substitution(
            {
                cut.axis.symbol: (self.first + self.within.symbol) * cut.fold + beside,
                column.symbol: at,
            }
        )
        part = Substitution({column.symbol: at}).expr(self._place(outer.symbol * cut.fold + beside))
        self.here = part if others else flat(self.points)

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
                if self.cut.ragged and ending == "part":  # all but the last tile are read in whole vectors
                    kind = GroupKind.LOOPED
            groups.append(
                dataclasses.replace(
                    self.group, name=f"{self.group.name}_{ending}{len(self.kernels) - len(groups) - 1}", kind=kind,
                    steps=tuple(nests), axes=axes, row_axes=rows, internal=internal, reads=reads, writes=writes, follows=ending == "rest", alone=self.cut.alone and ending == "part",
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
            axes = in_order(along, (*group.axes, *group.row_axes))
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
        cut, row = self.cut, self.first + self.within.symbol
        if cut.ragged:  # of the last row some of those side by side may be none
            return build.index_condition(
                Op.LT, self.begin_here + self.within.symbol * cut.fold, cut.axis.extent
            )
        return build.index_condition(Op.LT, row, floor_div(cut.axis.extent, Integer(cut.fold)))

    def _fold(self, step: LoopNest, reductions: list[Reduction]) -> list[str]:
        """A nest over the parts that stores its results, and the buffers that hold them."""
        dtypes = [dtype for r in reductions for dtype in r.results]
        names = [self._parts(dtype) for dtype in dtypes]
        place = self.here
        values = [build.reduced(k, dtype) for k, dtype in enumerate(dtypes)]
        if reductions[-1].kind.finds_place:
            within = build.mul(values[-1], build.const(self.cut.fold, DType.I64))
            values[-1] = build.add(within, build.index(self.number))
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
        count = build.index(self._length(self._start()) * self.other, dtype)
        if self.cut.exact:
            means, spread = self._fold(step, [Reduction(ReduceKind.WELFORD, dtype, value)])
            mean = self._load(means)
            total = build.mul(mean, count)
        else:
            (sums,) = self._fold(step, [self._reduction(Reduction(ReduceKind.SUM, dtype, value), value)])
            total = self._load(sums)
            mean = build.div(total, self._divisor(self._start(), dtype))
            own = build.load(sums, self.buffers[sums].dtype.stored, self.here)
            away = build.sub(value, build.div(own, self._divisor(self.begin_here, dtype)))
            square = Reduction(ReduceKind.SUM, dtype, build.mul(away, away))
            (spread,) = self._fold(step, [self._reduction(square, square.value)])
        (whole,) = self._gather(step, [Reduction(ReduceKind.SUM, dtype, total)])
        length = product([a.extent for a in self.group.row_axes])
        middle = build.div(whole, build.index(length, dtype))
        gap = build.sub(mean, middle)
        moved = build.add(self._load(spread), build.mul(count, build.mul(gap, gap)))
        return [middle, *self._gather(step, [Reduction(ReduceKind.SUM, dtype, moved)])]

    def _start(self) -> Expr:
        """The first row of a part, as the second kernel knows it."""
        cut, part = self.cut, self.part.symbol
        if cut.fold == 1:
            return self.begin
        fold = Integer(cut.fold)
        return floor_div(part, fold) * cut.size * cut.fold + modulo(part, fold)

    def _length(self, start: Expr) -> Expr:
        """How many rows a part has that begins there."""
        cut = self.cut
        if cut.exact:
            return cut.size
        left = floor_div(cut.axis.extent - start + (cut.fold - 1), Integer(cut.fold))
        return maximum(minimum(cut.size, left), 0)

    def _divisor(self, start: Expr, dtype: DType) -> Node:
        return build.index(maximum(self._length(start) * self.other, 1), dtype)

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
        if self.cut.fold > 1:
            return self._first_place(
                step, Reduction(best, value.dtype, self._load(values)), self._load(places)
            )
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

    def _first_place(self, step: LoopNest, extreme: Reduction, place: Node) -> Node:
        """The least of the places at which parts have the extreme; of parts whose rows lie among each other's, none comes first."""
        (best,) = self._gather(step, [extreme])
        own = extreme.value
        has = build.either(build.binary(Op.EQ, own, best), build.binary(Op.NE, own, own))
        nowhere = build.const(neutral(ReduceKind.MIN, DType.I64), DType.I64)
        return self._gather(step, [Reduction(ReduceKind.MIN, DType.I64, build.where(has, place, nowhere))])[0]


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
