"""Few columns with many rows: the rows are shared among threads.

Each task folds one part of the rows of a strip of columns into vectors; when all are done, one thread combines the parts in
their order (so that results do not depend on the number of threads) and does what follows at the columns.
Applies to groups whose only points are the columns, with one pass over the rows.
"""

from __future__ import annotations

import dataclasses

from braze.codegen.c import analysis
from braze.codegen.c.body import Body
from braze.codegen.c.folds import Accumulator
from braze.codegen.c.items import Plan, number_of
from braze.codegen.c.kernel import Frame, header
from braze.codegen.c.operations import Value
from braze.codegen.c.prelude import REP_BYTES
from braze.codegen.c.rows import Rows, strip_of
from braze.codegen.records import KernelText
from braze.loops.ir import Buffer
from braze.symbolic.expr import ZERO, Integer, floor_div

#: parts of the rows, at least
_PARTS = 16
#: rows of a part that are worth a task of their own
_LEAST = 32
#: bytes of partial results that may lie on the stack
_STACK = 128 << 10


def split_columns(frame: Frame, todo: Plan, cores: int) -> Frame | None:
    """The frame for this way of writing the group; None where columns alone keep the cores busy."""
    group, vector = frame.group, frame.vector
    if vector is None or group.axes != (vector,) or frame.serial or todo.kept or cores < 2:
        return None
    first, *rest = todo.phases
    folds = [f for item in first.items for f in item.folds]
    points, rows = vector.extent.value, number_of(group.row_axes).value
    if not first.over_row or any(p.over_row for p in rest) or any(i.stores for i in first.items):
        return None
    if points is None or (rows is not None and rows < _LEAST * _PARTS):
        return None
    if not all(
        f.dtype.label in ("f32", "f64") and f.kind.value in ("sum", "prod", "max", "min") for f in folds
    ):
        return None
    strip = strip_of(frame, todo, 0)
    while strip > 1 and strip * frame.lanes > points:
        strip //= 2
    if (
        points >= 2 * cores * strip * frame.lanes
        or len(folds) * 8 * _padded(points, frame.lanes) * _PARTS > _STACK
    ):
        return None
    return dataclasses.replace(frame, strip=strip)


def _padded(points: int, lanes: int) -> int:
    return -(-points // lanes) * lanes


class SplitColumns(Rows):
    """Writes one such kernel: ``_body`` folds a part, ``_rest`` combines."""

    def kernel(self, buffers: dict[str, Buffer]) -> KernelText:
        frame, name = self.frame, self.frame.group.name
        assert frame.vector is not None and frame.vector.extent.value is not None
        self.combining = False
        at = len(frame.args) + frame.status
        size, own = self._part(), self.body
        strips = -(-frame.vector.extent.value // (frame.lanes * frame.strip))
        work = analysis.work_bytes(frame.group.steps, buffers, self.threads)
        parts = f"  char *const parts = (char *)b[{at}];"
        lines = [
            f"static void {name}_body(void **b, const int64_t *s, int64_t lo, int64_t hi, int64_t tid) {{",
            *header(frame), parts, *own.scope.lines, "}",
            f"static void {name}_rest(void **b, const int64_t *s) {{",
            *header(frame), parts, *self._rest(own), "}",
            f"void {name}(void **b, const int64_t *s) {{",
            *(f"  const int64_t {x} = s[{i}];" for i, x in enumerate(frame.sizes)),
            f"  char parts[{size * _PARTS}] __attribute__((aligned(64)));",
            f"  void *own[{at + 1}];",
            f"  for (int i = 0; i < {at}; ++i) own[i] = b[i];",
            f"  own[{at}] = parts;",
            f"  bz_run({name}_body, own, s, {strips * _PARTS}, {work});",
            f"  {name}_rest(own, s);",
            "}",
        ]  # fmt: skip
        source = "\n".join(lines) + "\n"
        args = (*frame.args, "status") if frame.status else frame.args
        return KernelText(name, "c", source, args, frame.sizes, source.replace(name, "KERNEL"))

    def _part(self) -> int:
        """Write the function that folds one part of a strip; the bytes of its results for all columns."""
        body, frame = self.body, self.frame
        axis = max(self.row_order, key=lambda a: analysis.size_of(a.extent))
        part = floor_div(axis.extent + (_PARTS - 1), Integer(_PARTS))
        rows, extent = body.index(part), body.index(axis.extent)
        body.open("for (int64_t task = lo; task < hi; ++task) ")
        body.line(f"const int64_t part = task % {_PARTS}, block = task / {_PARTS};")
        low, high = body.name("x"), body.name("x")
        body.line(f"const int64_t {low} = part*{rows} < {extent} ? part*{rows} : {extent};")
        body.line(f"const int64_t {high} = {low} + {rows} < {extent} ? {low} + {rows} : {extent};")
        self.span = (axis, low, high)
        self._columns("block", frame.lanes * frame.strip)
        body.close()
        self.span = None
        return sum(self._slot_bytes())

    def _slot_bytes(self) -> list[int]:
        """Bytes of each fold's partial results for all columns."""
        assert self.frame.vector is not None and self.frame.vector.extent.value is not None
        count = _padded(self.frame.vector.extent.value, self.frame.lanes)
        folds = [f for item in self.todo.phases[0].items for f in item.folds]
        return [count * REP_BYTES[f.dtype.label] for f in folds]

    def _place(self, slot: int, vector: str, part: str, column: str) -> str:
        """The address of one vector of partial results."""
        sizes, folds = self._slot_bytes(), [f for i in self.todo.phases[0].items for f in i.folds]
        each = REP_BYTES[folds[slot].dtype.label]
        at = f"{part}*{sum(sizes)} + {sum(sizes[:slot])} + {column}*{each}"
        return f"*({vector} *)(parts + {at})"

    def _phases(self) -> None:
        assert self.frame.vector is not None
        column = self.body.names()[self.frame.vector.symbol]
        if self.combining:
            self._combine(column)
            return
        made = self._folded(self.todo.phases[0], 1)
        self._leave(made, [column])

    def _side_by_side(self, start: str) -> None:
        columns = self._open_strip(start)
        made = self._folded(self.todo.phases[0], 1)
        self._leave(made, columns)
        self.strip = []

    def _leave(self, made: list[Accumulator], columns: list[str]) -> None:
        """Store the results of a part."""
        each = len(made) // len(columns)
        for k, a in enumerate(made):
            place = self._place(k % each, a.type, "part", columns[k // each])
            self.body.line(f"{place} = {a.finish(False).text};")

    def _rest(self, own: Body) -> list[str]:
        """The statements that combine the parts, and those that follow at the columns."""
        axis = self.frame.vector
        assert axis is not None
        self.body = body = Body(own.lanes, own.symbol, own.varying, own.ranges, own.storage)
        body.pointers, body.reloaded = own.pointers, own.reloaded
        body.scope.symbols.update(own.scopes[0].symbols)
        self.combining = True
        j, w, extent = axis.symbol.name, self.frame.lanes, body.index(axis.extent)
        body.open(f"for (int64_t {j} = 0; {j} < {extent}; {j} += {w}) ", {axis.symbol: j})
        self._one_vector(axis, j, extent)
        body.close()
        return body.scope.lines

    def _combine(self, column: str) -> None:
        body = self.body
        folds = [f for item in self.todo.phases[0].items for f in item.folds]
        whole = [Accumulator(body, f, True, 1, self._position_rep()) for f in folds]
        for a in whole:
            a.declare()
        part = body.name("q")
        body.open(f"for (int64_t {part} = 0; {part} < {_PARTS}; ++{part}) ")
        for slot, a in enumerate(whole):
            place = self._place(slot, a.type, part, column)
            a.add(Value(place, a.rep, True, body.scope.depth), None, 0, "")
        body.close()
        for a in whole:
            body.forward[a.fold.register, ZERO] = a.finish(False)
        for phase in self.todo.phases[1:]:
            self._stores(phase.items)
