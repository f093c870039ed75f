"""Few columns with many rows: the rows are shared among threads.

Each task folds one part of the rows of a strip of columns into vectors; when all are done, one thread combines the parts in
their order (so that results do not depend on the number of threads) and does what follows at the columns.
Applies to groups whose only points are the columns, with one pass over the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from braze.codegen.c.body import Body
from braze.codegen.c.column_blocks import ColumnBlocks
from braze.codegen.c.folds import Accumulator
from braze.codegen.c.kernel import finish_parts
from braze.codegen.c.operations import Value
from braze.codegen.c.prelude import REP_BYTES
from braze.codegen.records import KernelText
from braze.schedule.cpu.phases import Phase
from braze.symbolic.expr import ZERO, Integer, floor_div
from braze.symbolic.guess import likely_size

#: bytes at multiples of which the vectors of instructions begin, at most
ALIGNED = 64


def _padded(points: int, lanes: int) -> int:
    return -(-points // lanes) * lanes


class SplitColumns(ColumnBlocks):
    """Writes one such kernel: ``_body`` folds a part, ``_rest`` combines."""

    def kernel(self) -> KernelText:
        plan = self.plan
        assert plan.vector is not None and plan.vector.extent.value is not None
        size, own = self._part(), self.body
        strips = -(-plan.vector.extent.value // plan.points[0].block)
        bytes = str(size * plan.parts)
        part, rest = own.scope.lines, self._rest(own)
        return finish_parts(self.frame, part, rest, bytes, strips * plan.parts, self.threads)

    def _part(self) -> int:
        """Write the function that folds one part of a strip; the bytes of its results for all columns."""
        body, parts = self.body, self.plan.parts
        axis = max(self.row_order, key=lambda a: likely_size(a.extent))
        part = floor_div(axis.extent + (parts - 1), Integer(parts))
        rows, extent = body.index(part), body.index(axis.extent)
        body.open("for (int64_t task = lo; task < hi; ++task) ")
        body.line(f"const int64_t part = task % {parts}, block = task / {parts};")
        low, high = body.name("x"), body.name("x")
        body.line(f"const int64_t {low} = part*{rows} < {extent} ? part*{rows} : {extent};")
        body.line(f"const int64_t {high} = {low} + {rows} < {extent} ? {low} + {rows} : {extent};")
        self.spans = {axis: (low, high)}
        self._columns("block")
        body.close()
        self.spans = {}
        return sum(self._slot_bytes())

    def _slot_bytes(self) -> list[int]:
        """Bytes of each fold's partial results for all columns, so that vectors of each type lie where their instructions ask for."""
        assert self.plan.vector is not None and self.plan.vector.extent.value is not None
        count = _padded(self.plan.vector.extent.value, self.plan.lanes)
        folds = self.todo.phases[0].folds
        return [_padded(count * REP_BYTES[f.dtype.label], ALIGNED) for f in folds]

    def _place(self, slot: int, vector: str, part: str, column: str) -> str:
        """The address of one vector of partial results."""
        sizes, folds = self._slot_bytes(), self.todo.phases[0].folds
        each = REP_BYTES[folds[slot].dtype.label]
        at = f"{part}*{sum(sizes)} + {sum(sizes[:slot])} + {column}*{each}"
        return f"*({vector} *)(parts + {at})"

    def _phases(self) -> None:
        self._after(self._folded(self.todo.phases[0], 1), ())

    def _after(self, made: list[Accumulator], phases: Sequence[Phase]) -> None:
        assert self.plan.vector is not None
        self._leave(made, [self.body.names()[self.plan.vector.symbol]])

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
        axis = self.plan.vector
        assert axis is not None
        self.body = body = Body(own.lanes, own.symbol, own.varying, own.ranges, own.storage, own.gathers)
        body.pointers, body.reloaded = own.pointers, own.reloaded
        body.scope.symbols.update(own.scopes[0].symbols)
        j, w, extent = axis.symbol.name, self.plan.lanes, body.index(axis.extent)
        body.open(f"for (int64_t {j} = 0; {j} < {extent}; {j} += {w}) ", {axis.symbol: j})
        self._one_vector(axis, j, extent, lambda: self._combine(j))
        body.close()
        return body.scope.lines

    def _combine(self, column: str) -> None:
        body = self.body
        folds = self.todo.phases[0].folds
        whole = [Accumulator(body, f, True, 1, self._position_rep()) for f in folds]
        for a in whole:
            a.declare()
        part = body.name("q")
        body.open(f"for (int64_t {part} = 0; {part} < {self.plan.parts}; ++{part}) ")
        for slot, a in enumerate(whole):
            place = self._place(slot, a.type, part, column)
            a.add(Value(place, a.rep, True, body.scope.depth), None, 0, "")
        body.close()
        for a in whole:
            body.forward[a.fold.register, ZERO] = a.finish(False)
        for phase in self.todo.phases[1:]:
            self._stores(phase.items)
