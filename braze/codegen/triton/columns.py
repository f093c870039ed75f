"""Rows that are held in several tiles and summed down their columns, too: the backward of a norm of 3,072 elements, or of 4,097.

Of 4,097 each begins anywhere. A program takes rows that lie so many vectors' elements apart as there are programs, which begin at the same place in a vector each: so their whole vectors have the same columns, and what is summed down these stays in
one thread. Each row is read along its vectors and held in registers to its end, as in ``walks``; what all rows share is read once, before them.
"""

from __future__ import annotations

from collections.abc import Sequence

from braze.codegen.triton.accumulate import Accumulator, R, X, collapsed, combine
from braze.codegen.triton.emit import Scope, Value
from braze.codegen.triton.ops import TYPES
from braze.codegen.triton.walks import Part, Taken, Walker
from braze.loops.build import nodes_of
from braze.loops.ir import DType, LoopNest, Node, Op, ReduceKind, Reduction
from braze.loops.rewrite import roots
from braze.schedule.facts.passes import Pass, read_again
from braze.schedule.facts.records import Group
from braze.schedule.forms.mixed import down_columns
from braze.schedule.gpu.kernel_plan import KernelPlan


class RowsAndColumns(Walker):
    """Writes the body of a kernel that reduces rows both ways, each in several tiles."""

    def __init__(self, group: Group, plan: KernelPlan) -> None:
        super().__init__(group, plan)
        self.columns = down_columns(group)
        self.again = read_again(group, (*plan.passes, Pass(self.columns, ())))
        #: of each tile of a row (those held, the last, what lies around the vectors), what each reduction down the columns keeps
        self.sums: list[dict[Reduction, str]] = [{} for _ in self.kept]
        self.opened: list[str] = []
        #: what this turn has that was read in the one before, and what it reads for the next
        self.now: list[Value] = []
        self.coming: list[tuple[str, str]] = []
        #: whether the walk is the last: what its tiles hold is taken in down the columns
        self.downwards = False

    def write(self) -> list[str]:
        """The lines of the body."""
        plan, base = self.plan, self.base
        assert plan.row is not None and plan.walked is not None
        self._points()
        self._row_numbers(plan.row)
        self.emitter.masks["x"] = False
        begin = self._rows_begin()
        self._shared()
        if plan.begin is not None:
            self._ahead_of_rows()
        before = len(base.lines)
        self._row(begin)
        inside, base.lines[before:] = base.lines[before:], []
        base.lines += self.opened
        stages = f", num_stages={plan.stages}" if plan.stages > 1 else ""
        base.lines += [f"    for turn in {'tl.' if stages else ''}range(0, turns, 1{stages}):"]
        base.lines += [f"    {line}" for line in inside]
        self._stored_down()
        return base.lines

    def _rows_begin(self) -> str:
        """Where the program's row of a turn is, as text of that; how many there are; and where their vectors begin, which is the same in all turns."""
        rows = self.plan.points[0].extent
        part, count = self._take_turns(rows)
        row = f"{part} + ({{}}) * ({count})"
        if self.plan.begin is not None:
            last = f"({self.emitter.text(rows)}) - 1"
            self._row_number(f"tl.minimum({row.format(0)}, {last})")  # a program may have none
            self._vectors()
        return row

    def _row_number(self, text: str) -> None:
        self.base.lines.append(f"    xoffset = {text}")
        self._tile(self.plan.points[0], self.base)

    def _row(self, begin: str) -> None:
        """One turn: a row, in as many walks over what registers hold of it as its reductions want."""
        if self.plan.begin is None:
            self._row_number(begin.format("turn"))
            for node in self._numbers_of_row(self._own_loads()):
                self.emitter.value(node, self.base)
        else:
            self._row_number(begin.format("tl.minimum(turn + 1, turns - 1)"))
            self._lines_of_next()
            self._row_number(begin.format("turn"))
            self.base.lines.append(self._first_vector())
        passes = self.plan.passes
        for number, each in enumerate(passes):
            self.downwards = number == len(passes) - 1 and not each.reduces
            self._pass(number)
        if self.columns and not self.downwards:
            self.downwards = True
            self._loop((), False, "")
        self.base.lines += [f"    {now} = {coming}" for now, coming in self.coming]

    def _own_loads(self) -> list[Node]:
        """What is read of each row: its numbers, and what is one number a row."""
        points = {a.symbol for a in self.group.axes}
        return [n for n in self._loads() if n.attr[1].symbols() & points]

    def _numbers_of_row(self, loads: Sequence[Node]) -> list[Node]:
        """Those that read one number a row."""
        along = {a.symbol for a in self.group.row_axes}
        return [n for n in loads if not n.attr[1].symbols() & along]

    def _read_ahead(self) -> list[Value]:
        """Load what lies around a row's vectors, and what is one number a row: too little to be on its way through shared memory."""
        along, last = {a.symbol for a in self.group.row_axes}, len(self.kept) - 1
        loads = self._own_loads()
        points = self._numbers_of_row(loads)
        for node in points:
            self.base.known.pop(node, None)
        found = [self.emitter.value(node, self.base) for node in points]
        around = [n for n in loads if n.attr[1].symbols() & along]
        begin = len(self.base.lines)
        self._asked_for(around, last, self._edge_tile())
        self._small(begin)
        return [*found, *(self.kept[last][n] for n in around)]

    def _ahead_of_rows(self) -> None:
        """What the first turn has of that."""
        self.now = self._read_ahead()

    def _lines_of_next(self) -> None:
        """Load that of the next turn, while this one goes on with its own."""
        known, kept = dict(self.base.known), dict(self.kept[-1])
        coming = self._read_ahead()
        self.coming = [(a.name, b.name) for a, b in zip(self.now, coming, strict=True)]
        self.base.known, self.kept[-1] = known, kept

    def _ahead(self, steps: Sequence[LoopNest], opened: list[Taken], back: bool) -> None:
        needed = self._needed(steps)
        again = [n for n in self.again if n in needed and n not in self.kept[0]]
        tiles = self._every_tile() if self.plan.begin is None else self._every_tile()[:-1]
        for number, tile in enumerate(tiles if again else ()):
            self._asked_for(again, number, tile())

    def _kept(self, node: Node, number: int, body: Scope) -> Value:
        """Of rows between vectors as it is: what was made of it for the row's sums is there for what follows from them."""
        between = self.plan.begin is not None
        return self.kept[number][node] if between else super()._kept(node, number, body)

    def _loads(self) -> list[Node]:
        """What the kernel reads of no place that it writes, nor through a number that it reads."""
        steps = [s for s in self.group.steps if s.reduce_axes != self._down_axes()]
        written = {s.buffer for step in self.group.steps for s in step.stores}
        found = nodes_of(*(r for step in (*steps, *self.columns) for r in roots(step)))
        return [n for n in found if n.op is Op.LOAD and not n.args and n.attr[0] not in written]

    def _down_axes(self) -> tuple[object, ...]:
        assert self.group.walked is not None
        return (self.group.walked.within,)

    def _shared(self) -> None:
        """Load before all rows what they share."""
        points = {a.symbol for a in self.group.axes}
        along = {a.symbol for a in self.group.row_axes}
        shared = [n for n in self._loads() if not n.attr[1].symbols() & points]
        for node in shared:
            if not node.attr[1].symbols() & along:
                self.emitter.value(node, self.base)
        self._asked_for_all([n for n in shared if n.attr[1].symbols() & along])

    def _parts(self) -> list[Part]:
        """What lies around the vectors is too little to be asked for rows ahead: it is waited for when the rest is done."""
        if self.plan.begin is None:
            return [self._ahead, self._held]
        return [self._ahead, self._tail, self._held, self._edges]

    # -- tiles ------------------------------------------------------------------------------------

    def _needed(self, steps: Sequence[LoopNest]) -> set[Node]:
        return super()._needed((*steps, *self.columns) if self.downwards else steps)

    def _results_of_all(self, opened: Sequence[Taken]) -> None:
        """The two sums of a row: threads wait for each other once."""
        sums = [a for _, accumulators in opened for a in accumulators]
        if len(sums) != 2 or not all(a.reduction.kind is ReduceKind.SUM for a in sums):
            return
        if sums[0].reduction.dtype is not sums[1].reduction.dtype:
            return
        names = ", ".join(a.lanes_of_threads() for a in sums)
        along, spread = ("None", "") if self.around else ("1", "[:, None]")
        pair = self.emitter.assign(f"tl.reduce(({names}), {along}, bz_two_sums)", X, self.base)
        for number, a in enumerate(sums):
            a.found = f"{pair.name}[{number}]{spread}"

    def _body(
        self, steps: Sequence[LoopNest], body: Scope, opened: list[Taken], number: int, *, first: bool = False
    ) -> None:
        super()._body(steps, body, opened, number, first=first)
        if self.downwards:
            for step in self.columns:
                for reduction in step.reductions:
                    self._taken_down(reduction, body, number)

    def _taken_down(self, reduction: Reduction, body: Scope, number: int) -> None:
        """Take a row's tile into what is kept down its columns."""
        emit, kind = self.emitter, reduction.kind
        value = self.full(emit.value(reduction.value, body), body).name
        name = f"down{emit.count}"
        emit.count += 1
        self.sums[number][reduction] = name
        lines: list[str] = []
        Accumulator(reduction, name, rows="1").open(lines)
        self.opened += [self._own(line, number) for line in lines]
        kept = TYPES[DType.I32 if kind in (ReduceKind.ANY, ReduceKind.ALL) else reduction.dtype]
        body.lines.append(f"        {name} = {combine(kind, name, f'({value}).to({kept})')}")

    def _stored_down(self) -> None:
        """What a program leaves of its rows: one number a column."""
        emit, tiles = self.emitter, self._every_tile()
        for number, tile in enumerate(tiles):
            begin = len(self.base.lines)
            scope = tile()
            scope.outer = None
            for step in self.columns:
                emit.reduced = {
                    k: self._sum_down(r, self.sums[number][r], scope) for k, r in enumerate(step.reductions)
                }
                self._forget_reduced(scope)
                self._columns_stored(step, scope)
            emit.end(scope)
            self.base.lines += [line[4:] for line in scope.lines]
            if self.plan.begin is not None and number == len(tiles) - 1:
                self._small(begin)

    def _sum_down(self, reduction: Reduction, name: str, scope: Scope) -> Value:
        if reduction.kind not in (ReduceKind.ANY, ReduceKind.ALL):
            return Value(name, R)
        return self.emitter.assign(collapsed(reduction.kind, name, 0, "[None, :]"), R, scope)

    def _own(self, line: str, number: int) -> str:
        """A line in the names of a tile."""
        return self._in_small_names(line) if number == len(self.kept) - 1 else line
