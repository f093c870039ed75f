"""Few points with long rows: the row itself is shared among threads.

Each task folds one part of a row into scalars; when all are done, one thread combines the parts in their
order (so that results do not depend on the number of threads) and does what follows at the point.
Applies to groups with one pass over the row.
"""

from __future__ import annotations

import dataclasses

from braze.codegen.c import analysis
from braze.codegen.c.analysis import Ranges, Varying
from braze.codegen.c.body import Body
from braze.codegen.c.folds import Accumulator
from braze.codegen.c.items import Plan, number_of, plan
from braze.codegen.c.kernel import Frame, header, make_frame
from braze.codegen.c.operations import Value
from braze.codegen.c.prelude import SCALAR
from braze.codegen.c.rows import Rows, strip_of
from braze.codegen.c.split_columns import SplitColumns, split_columns
from braze.codegen.records import KernelText
from braze.context import CompileContext
from braze.loops.build import nodes_of
from braze.loops.ir import Axis, Buffer
from braze.schedule.records import Group
from braze.symbolic.expr import ZERO, Expr, Integer, floor_div

#: parts of one row
_PARTS = 64
#: rows shorter than this (in elements) are not worth sharing
_LEAST = 1 << 15


def row_kernel(group: Group, buffers: dict[str, Buffer], ctx: CompileContext) -> KernelText:
    """The C of a group with reductions."""
    todo = plan(group.steps, group.row_axes, group.internal)
    nodes = nodes_of(*(n for p in todo.phases for n in p.roots()))
    frame, body = make_frame(group, buffers, ctx.target.vector_bytes, todo.registers, nodes)
    if _few_long_rows(frame, todo, ctx.target.cores):
        return _SplitRows(frame, body, todo, ctx.options.threads).kernel(buffers)
    split = split_columns(frame, todo, ctx.target.cores)
    if split is not None:
        return SplitColumns(split, body, todo, ctx.options.threads).kernel(buffers)
    frame = dataclasses.replace(frame, strip=strip_of(frame, todo, ctx.target.cores))
    return Rows(frame, body, todo, ctx.options.threads).kernel(buffers)


def _few_long_rows(frame: Frame, todo: Plan, cores: int) -> bool:
    points = number_of(frame.group.axes).value
    length = number_of(frame.group.row_axes)
    if points is None or points >= cores or frame.serial or frame.vector not in frame.group.row_axes:
        return False
    first, *rest = todo.phases
    one_pass = first.over_row and not any(p.over_row for p in rest) and not todo.kept
    return one_pass and (length.value is None or length.value >= _LEAST)


class _SplitRows(Rows):
    """Writes one such kernel: ``_body`` folds a part, ``_rest`` combines."""

    def kernel(self, buffers: dict[str, Buffer]) -> KernelText:
        frame, name = self.frame, self.frame.group.name
        axis = max(self.row_order, key=lambda a: (analysis.size_of(a.extent), a is frame.vector))
        unit = 4 * frame.lanes if axis is frame.vector else 1
        part = floor_div(axis.extent + (_PARTS * unit - 1), Integer(_PARTS * unit)) * unit
        made = self._part(axis, part)
        slots = sum(1 + a.is_arg for a in made)
        points = number_of(frame.group.axes).value or 0
        at = len(frame.args) + frame.status
        work = analysis.work_bytes(frame.group.steps, buffers, self.threads)
        lines = [
            f"static void {name}_body(void **b, const int64_t *s, int64_t lo, int64_t hi, int64_t tid) {{"
        ]
        lines += [*header(frame), f"  char *const parts = (char *)b[{at}];", *self.body.scope.lines, "}"]
        lines += [f"static void {name}_rest(void **b, const int64_t *s) {{"]
        lines += [*header(frame), f"  char *const parts = (char *)b[{at}];", *self._rest(made, buffers), "}"]
        lines += [
            f"void {name}(void **b, const int64_t *s) {{",
            *(f"  const int64_t {x} = s[{i}];" for i, x in enumerate(frame.sizes)),
            f"  char parts[{max(points * _PARTS * slots * 8, 8)}] __attribute__((aligned(64)));",
            f"  void *own[{at + 1}];",
            f"  for (int i = 0; i < {at}; ++i) own[i] = b[i];",
            f"  own[{at}] = parts;",
            f"  bz_run({name}_body, own, s, {points * _PARTS}, {work});",
            f"  {name}_rest(own, s);",
            "}",
        ]
        source = "\n".join(lines) + "\n"
        args = (*frame.args, "status") if frame.status else frame.args
        return KernelText(name, "c", source, args, frame.sizes, source.replace(name, "KERNEL"))

    def _point(self, body: Body, number: str) -> None:
        """The point's coordinates from its number."""
        axes = self.frame.group.axes
        rest = number
        for k in reversed(range(len(axes))):
            extent = body.index(axes[k].extent)
            body.line(f"const int64_t {axes[k].symbol.name} = {rest}{f' % ({extent})' if k else ''};")
            rest = f"({rest}) / ({extent})"

    def _part(self, axis: Axis, part: Expr) -> list[Accumulator]:
        """The function that folds one part of one row."""
        body = self.body
        symbols = {a.symbol: a.symbol.name for a in self.frame.group.axes}
        size, extent = body.index(part), body.index(axis.extent)
        body.open("for (int64_t task = lo; task < hi; ++task) ", symbols)
        self._point(body, f"task / {_PARTS}")
        low, high = body.name("x"), body.name("x")
        body.line(f"const int64_t {low} = task % {_PARTS}*{size};")
        body.line(f"const int64_t {high} = {low} + {size} < {extent} ? {low} + {size} : {extent};")
        self.span = (axis, low, high)
        phase = self.todo.phases[0]
        made = self._folded(phase, self._copies(phase))
        slots, slot = sum(1 + a.is_arg for a in made), 0
        for a in made:
            a.finish(True)
            for text, rep in _results(a):
                body.line(f"*({SCALAR[rep]} *)(parts + (task*{slots} + {slot})*8) = {text}[0];")
                slot += 1
        body.close()
        return made

    def _rest(self, made: list[Accumulator], buffers: dict[str, Buffer]) -> list[str]:
        """The statements that combine the parts, and those that follow at the point."""
        frame = self.frame
        body = Body(frame.lanes, None, Varying(None), Ranges(), self.body.storage)
        body.pointers, body.reloaded = self.body.pointers, self.body.reloaded
        body.scope.symbols.update(self.body.scopes[0].symbols)
        symbols = {a.symbol: a.symbol.name for a in frame.group.axes}
        points = number_of(frame.group.axes).value or 0
        point, task = body.name("p"), body.name("q")
        body.open(f"for (int64_t {point} = 0; {point} < {points}; ++{point}) ", symbols)
        self._point(body, point)
        whole = [Accumulator(body, a.fold, False, 1, a.index_rep) for a in made]
        for a in whole:
            a.declare()
        body.open(f"for (int64_t {task} = {point}*{_PARTS}; {task} < ({point} + 1)*{_PARTS}; ++{task}) ")
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
