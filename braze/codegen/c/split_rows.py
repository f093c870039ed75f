"""Few points with long rows: the row itself is shared among threads.

Each task folds one part of a row into scalars; when all are done, one thread combines the parts in their
order (so that results do not depend on the number of threads) and does what follows at the point.
Applies to groups with one pass over the row.
"""

from __future__ import annotations

from braze.codegen.c.body import Body
from braze.codegen.c.column_blocks import ColumnBlocks
from braze.codegen.c.folds import Accumulator
from braze.codegen.c.kernel import Frame, finish_parts
from braze.codegen.c.operations import Representations, Value
from braze.codegen.c.prelude import SCALAR
from braze.codegen.c.rows import Rows
from braze.codegen.c.split_columns import SplitColumns
from braze.codegen.records import KernelText
from braze.context import CompileContext
from braze.loops.ir import Buffer
from braze.loops.ranges import Varying
from braze.schedule.cpu.processors import plan_kernel
from braze.schedule.facts.plans import Form
from braze.schedule.facts.records import Group
from braze.symbolic.expr import ZERO, product


def row_kernel(group: Group, buffers: dict[str, Buffer], ctx: CompileContext) -> KernelText:
    """The C of a group with reductions."""
    plan = plan_kernel(group, buffers, ctx.target)
    way: type[Rows] = Rows
    if plan.form is Form.COLUMNS:
        way = SplitColumns if plan.parts else ColumnBlocks if plan.held else Rows
    elif plan.parts:
        way = _SplitRows
    return way(Frame(group, buffers, plan), ctx.options.threads).kernel()


class _SplitRows(Rows):
    """Writes one such kernel: ``_body`` folds a part, ``_rest`` combines."""

    def kernel(self) -> KernelText:
        plan = self.plan
        made = self._part()
        slots = sum(1 + a.is_arg for a in made)
        tasks = self._points() * plan.parts
        part, rest = self.body.scope.lines, self._rest(made)
        return finish_parts(self.frame, part, rest, str(max(tasks * slots * 8, 8)), tasks, self.threads)

    def _points(self) -> int:
        axes = self.frame.group.axes
        return (product([a.extent for a in axes]).value or 0) if axes else 1

    def _point(self, body: Body, number: str) -> None:
        """The point's coordinates from its number."""
        axes = self.frame.group.axes
        rest = number
        for k in reversed(range(len(axes))):
            extent = body.index(axes[k].extent)
            body.line(f"const int64_t {axes[k].symbol.name} = {rest}{f' % ({extent})' if k else ''};")
            rest = f"({rest}) / ({extent})"

    def _part(self) -> list[Accumulator]:
        """The function that folds one part of one row."""
        body = self.body
        symbols = {a.symbol: a.symbol.name for a in self.frame.group.axes}
        sizes = [body.index(cut.size) for cut in self.plan.cuts]
        body.open("for (int64_t task = lo; task < hi; ++task) ", symbols)
        self._point(body, f"task / {self.plan.parts}")
        left = self.plan.parts
        for cut, size in zip(self.plan.cuts, sizes, strict=True):
            low, high, extent = body.name("x"), body.name("x"), body.index(cut.axis.extent)
            number = f"task % {left}"
            left //= cut.parts
            body.line(f"const int64_t {low} = {number}{f' / {left}' if left > 1 else ''}*{size};")
            body.line(f"const int64_t {high} = {low} + {size} < {extent} ? {low} + {size} : {extent};")
            self.spans[cut.axis] = low, high
        made = self._folded(self.todo.phases[0], self.plan.copies[0])
        slots, slot = sum(1 + a.is_arg for a in made), 0
        for a in made:
            a.finish(True)
            for text, rep in _results(a):
                body.line(f"*({SCALAR[rep]} *)(parts + (task*{slots} + {slot})*8) = {text}[0];")
                slot += 1
        body.close()
        return made

    def _rest(self, made: list[Accumulator]) -> list[str]:
        """The statements that combine the parts, and those that follow at the point."""
        frame, parts = self.frame, self.plan.parts
        body = Body(self.plan.lanes, None, Varying(None), Representations(), self.body.storage)
        body.pointers, body.reloaded = self.body.pointers, self.body.reloaded
        body.scope.symbols.update(self.body.scopes[0].symbols)
        symbols = {a.symbol: a.symbol.name for a in frame.group.axes}
        point, task = body.name("p"), body.name("q")
        body.open(f"for (int64_t {point} = 0; {point} < {self._points()}; ++{point}) ", symbols)
        self._point(body, point)
        whole = [Accumulator(body, a.fold, False, 1, a.index_rep) for a in made]
        for a in whole:
            a.declare()
        body.open(f"for (int64_t {task} = {point}*{parts}; {task} < ({point} + 1)*{parts}; ++{task}) ")
        slots, slot = sum(1 + a.is_arg for a in made), 0
        for a in whole:
            found = []
            for rep in (a.rep, a.index_rep)[: 1 + a.is_arg]:
                text = f"*({SCALAR[rep]} *)(parts + ({task}*{slots} + {slot})*8)"
                if rep == "b":
                    text += " & 1"
                found.append(body.define(None, text, rep, False, body.scope.depth))
                slot += 1
            a.add(found[0], found[1] if a.is_arg else None, 0, "")
        body.close()
        for a in whole:
            result: Value = a.finish(False)
            body.forward[a.fold.register, ZERO] = result
        for phase in self.todo.phases[1:]:
            for item in phase.items:
                body.stores(item.stores, self.memory)
        body.close()
        return body.scope.lines


def _results(a: Accumulator) -> list[tuple[str, str]]:
    """C names of an accumulator's results, with their representations."""
    first = a.names[0]
    return [(first, a.rep), *([(f"{first}i", a.index_rep)] if a.is_arg else [])]
