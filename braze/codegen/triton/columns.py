"""Rows that begin anywhere and are summed down their columns, too: the backward of a norm of 4,097 elements.

A program takes rows that lie a vector's elements apart, which begin at the same place in a vector each: so their whole vectors have the same columns, and what is summed down these stays in
one thread. Each row is read along its vectors and held in registers to its end, as in ``walks``; what all rows share is read once, before them.
"""

from __future__ import annotations

from collections.abc import Sequence

from braze.codegen.triton.accumulate import Accumulator, R, collapsed, combine, identity
from braze.codegen.triton.emit import Scope, Value
from braze.codegen.triton.ops import TYPES
from braze.codegen.triton.walks import Part, Taken, Walker
from braze.loops.build import nodes_of
from braze.loops.ir import DType, LoopNest, Node, Op, ReduceKind, Reduction
from braze.loops.rewrite import roots
from braze.schedule.kernels import KernelPlan
from braze.schedule.mixed import down_columns
from braze.schedule.passes import Pass, read_again
from braze.schedule.records import Group
from braze.symbolic.expr import Expr


class RowsAndColumns(Walker):
    """Writes the body of a kernel that reduces rows which begin anywhere both ways."""

    def __init__(self, group: Group, plan: KernelPlan) -> None:
        super().__init__(group, plan)
        self.columns = down_columns(group)
        self.again = read_again(group, (*plan.passes, Pass(self.columns, ())))
        #: of each tile of a row (those held, the last, what lies around the vectors), what each reduction down the columns keeps
        self.sums: list[dict[Reduction, str]] = [{} for _ in self.kept]
        self.opened: list[str] = []
        #: whether the walk is the last: what its tiles hold is taken in down the columns
        self.downwards = False

    def write(self) -> list[str]:
        """The lines of the body."""
        plan, base = self.plan, self.base
        assert plan.row is not None and plan.walked is not None
        self._points()
        self._row_numbers(plan.row)
        self.emitter.masks["x"] = self._ragged(plan.points[0], plan.walked)
        begin = self._rows_begin(plan.walked)
        self._shared()
        before = len(base.lines)
        self._row(begin)
        inside, base.lines[before:] = base.lines[before:], []
        base.lines += self.opened
        stages = f", num_stages={plan.stages}" if plan.stages > 1 else ""
        turns = f"{'tl.' if stages else ''}range(0, {self.emitter.text(plan.walked)}, 1{stages})"
        base.lines += [f"    for turn in {turns}:", *(f"    {line}" for line in inside)]
        self._stored_down()
        return base.lines

    def _rows_begin(self, size: Expr) -> str:
        """Where the program's row of a turn is, as text of that; and where its vectors begin, which is the same in all turns."""
        assert self.group.walked is not None
        part, vector = self.emitter.symbols[self.group.walked.part.symbol].name, self.plan.vector
        row = f"(({part}) // {vector} * ({self.emitter.text(size)}) + {{}}) * {vector} + ({part}) % {vector}"
        self._row_number(row.format(0))
        self._vectors()
        return row

    def _row_number(self, text: str) -> None:
        self.base.lines.append(f"    xoffset = {text}")
        self._tile(self.plan.points[0], self.base)

    def _row(self, begin: str) -> None:
        """One turn: a row, in as many walks over what registers hold of it as its reductions want."""
        self._row_number(begin.format("turn"))
        self.base.lines.append(self._first_vector())
        self._of_the_row()
        passes = self.plan.passes
        for number, each in enumerate(passes):
            self.downwards = number == len(passes) - 1 and not each.reduces
            self._pass(number)
        if self.columns and not self.downwards:
            self.downwards = True
            self._loop((), False, "")

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

    def _of_the_row(self) -> None:
        """Load once what is one number a row."""
        along = {a.symbol for a in self.group.row_axes}
        for node in self._loads():
            if not node.attr[1].symbols() & along:
                self.emitter.value(node, self.base)

    def _parts(self) -> list[Part]:
        """What lies around the vectors is too little to be asked for rows ahead: it is waited for when the rest is done."""
        return [self._ahead, self._tail, self._held, self._edges]

    # -- tiles ------------------------------------------------------------------------------------

    def _needed(self, steps: Sequence[LoopNest]) -> set[Node]:
        return super()._needed((*steps, *self.columns) if self.downwards else steps)

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
        if emit.masks["x"]:
            value = f"tl.where(xmask, {value}, {identity(kind, reduction.value.dtype)})"
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
            self.base.lines += [line[4:] for line in scope.lines]
            if number == len(tiles) - 1:
                self._small(begin)

    def _sum_down(self, reduction: Reduction, name: str, scope: Scope) -> Value:
        if reduction.kind not in (ReduceKind.ANY, ReduceKind.ALL):
            return Value(name, R)
        return self.emitter.assign(collapsed(reduction.kind, name, 0, "[None, :]"), R, scope)

    def _own(self, line: str, number: int) -> str:
        """A line in the names of a tile."""
        return self._in_small_names(line) if number == len(self.kept) - 1 else line
