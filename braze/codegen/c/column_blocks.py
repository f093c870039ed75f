"""Many columns with many rows: a block of columns is walked in the order of memory, a few rows at a time.

A strip of columns that is walked down to its end reads a line or two of each row, and rows that lie kilobytes apart are each a page: nothing is read ahead.
Here the results of all columns of a block so far lie beside each other on the stack, where the first cache holds them, and each few rows are added to them strip by strip.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from braze.codegen.c.folds import Accumulator
from braze.codegen.c.operations import Value
from braze.codegen.c.prelude import rep_vector
from braze.codegen.c.rows import Rows
from braze.loops.build import nodes_of
from braze.loops.ir import Op
from braze.schedule.cpu.phases import Phase
from braze.symbolic.expr import ZERO, Expr


class ColumnBlocks(Rows):
    """Writes one such kernel; one of strips where the plan holds no results in memory."""

    #: what earlier passes have found at each column and later ones read: names of the arrays, and how their numbers are represented
    known: dict[tuple[str, Expr], tuple[str, str]]
    #: of the pass that is written, the arrays of its accumulators, fold by fold
    arrays: list[str]
    #: the depth of the scope of a block, its first column and its end, as C text
    depth: int
    start: str
    end: str

    def _columns(self, number: str) -> None:
        if not self.plan.held:
            super()._columns(number)
            return
        body, axis, block = self.body, self.plan.vector, self.plan.points[0].block
        assert axis is not None
        self.known, extent = {}, body.index(axis.extent)
        self.depth = body.scope.depth
        self.start, self.end = body.name("x"), body.name("x")
        body.line(f"const int64_t {self.start} = {number}*{block};")
        more = f"{self.start} + {block}"
        body.line(f"const int64_t {self.end} = {more} < {extent} ? {more} : {extent};")
        phases = self.todo.phases
        passes = [n for n, phase in enumerate(phases) if phase.over_row]
        for n, after in zip(passes, [*passes[1:], len(phases)], strict=True):
            self._declare_held(phases[n])
            self._walk_block(phases[n])
            if phases[n].folds or after > n + 1:
                self._each_vector(self.start, functools.partial(self._ended, n, after))

    def _ended(self, number: int, after: int, column: str) -> None:
        """At a vector of columns: what follows a pass over the rows, before the next one."""
        phases = self.todo.phases
        self.body.forward.update(self._known_of(column))
        self._after(self._taken(phases[number], [column]), phases[number + 1 : after])
        self._hold(column, phases[after:])

    def _each_vector(self, start: str, write: Callable[[str], None]) -> None:
        """What is written at each vector of columns from ``start`` to the end of the block; the last one may be short."""
        body, axis, w = self.body, self.plan.vector, self.plan.lanes
        assert axis is not None
        j = axis.symbol.name
        body.open(f"for (int64_t {j} = {start}; {j} < {self.end}; {j} += {w}) ", {axis.symbol: j})
        self._one_vector(axis, j, self.end, lambda: write(j))
        body.close()

    def _after(self, made: list[Accumulator], phases: Sequence[Phase]) -> None:
        """What is done at a vector of columns with what a pass has found."""
        for a in made:
            self.body.forward[a.fold.register, ZERO] = a.finish(False)
        for phase in phases:
            self._stores(phase.items)

    # -- what is held -------------------------------------------------------------------------------

    def _accumulators(self, phase: Phase, vectors: int) -> list[Accumulator]:
        """Those of some vectors of columns, in turn: sums have a second level, to which each part of the rows is added."""
        made = [
            Accumulator(self.body, fold, True, 1, self._position_rep())
            for _ in range(vectors)
            for fold in phase.folds
        ]
        for a in made:
            a.declare()
            if a.is_float_sum:
                a.declare_total()
        return made

    def _declare_held(self, phase: Phase) -> None:
        """The arrays of a pass's accumulators, as before the first row."""
        body, vectors, self.arrays = self.body, self._vectors(), []
        number, outside = body.name("q"), body.scope.depth
        body.open(f"for (int64_t {number} = 0; {number} < {vectors}; ++{number}) ")
        for a in self._accumulators(phase, 1):
            for c, name in a.state():
                self.arrays.append(body.name("h"))
                body.line(f"{c} {self.arrays[-1]}[{vectors}];", outside)
                body.line(f"{self.arrays[-1]}[{number}] = {name};")
        body.close()

    def _vectors(self) -> int:
        return self.plan.points[0].block // self.plan.lanes

    def _at(self, array: str, column: str) -> str:
        """What is held of the vector whose first column this is."""
        return f"{array}[({column} - {self.start})/{self.plan.lanes}]"

    def _taken(self, phase: Phase, columns: list[str]) -> list[Accumulator]:
        """The accumulators of some vectors of columns with what is held of them."""
        made = self._accumulators(phase, len(columns))
        self._move(made, columns, "{0} = {1};")
        return made

    def _move(self, made: list[Accumulator], columns: list[str], text: str) -> None:
        each = len(made) // len(columns)
        for k, column in enumerate(columns):
            state = [name for a in made[k * each : (k + 1) * each] for _, name in a.state()]
            for name, array in zip(state, self.arrays, strict=True):
                self.body.line(text.format(name, self._at(array, column)))

    def _hold(self, column: str, later: Sequence[Phase]) -> None:
        """Keep what later passes read of what is known at a vector of columns."""
        body, depth = self.body, self.body.scope.depth
        read = {n.attr for phase in later for n in nodes_of(*phase.roots()) if n.op is Op.LOAD and not n.args}
        for key, value in list(body.forward.items()):
            if value.depth < depth or key not in read:
                continue
            if key not in self.known:
                self.known[key] = body.name("h"), value.rep
                vector = rep_vector(value.rep, self.plan.lanes)
                body.line(f"{vector} {self.known[key][0]}[{self._vectors()}];", self.depth)
            body.line(f"{self._at(self.known[key][0], column)} = {body.splat(value).text};")

    def _known_of(self, column: str) -> dict[tuple[str, Expr], Value]:
        """What earlier passes have found at a vector of columns."""
        body = self.body
        return {
            key: body.define(None, self._at(array, column), rep, True, body.scope.depth)
            for key, (array, rep) in self.known.items()
        }

    # -- the pass over the rows ---------------------------------------------------------------------

    def _walk_block(self, phase: Phase) -> None:
        body = self.body
        *outer, inner = self.row_order
        for axis in outer:
            j = axis.symbol.name
            low, high = self._range(axis)
            body.open(f"for (int64_t {j} = {low}; {j} < {high}; ++{j}) ", {axis.symbol: j})
        (begin, last), rows = self._range(inner), self.plan.held
        first, stop = body.name("x"), body.name("x")
        body.open(f"for (int64_t {first} = {begin}; {first} < {last}; {first} += {rows}) ")
        body.line(f"const int64_t {stop} = {first} + {rows} < {last} ? {first} + {rows} : {last};")
        self._strips(phase, first, stop)
        for _ in range(len(outer) + 1):
            body.close()

    def _strips(self, phase: Phase, first: str, stop: str) -> None:
        """Some rows of all columns of a block: strips of some vectors, then what is left one by one."""
        body, axis = self.body, self.plan.vector
        assert axis is not None
        wide, column = self.plan.lanes * self.plan.strip, body.name("c")
        body.line(f"int64_t {column} = {self.start};")
        body.open(f"for (; {column} + {wide} <= {self.end}; {column} += {wide}) ")
        columns = self._open_strip(column)
        for each in self.strip:
            each.results.update(self._known_of(each.name))
        self._fold_rows(phase, columns, first, stop)
        self.strip = []
        body.close()
        if axis.extent.value is None or axis.extent.value % wide:

            def alone(j: str) -> None:
                body.forward.update(self._known_of(j))
                self._fold_rows(phase, [j], first, stop)

            self._each_vector(column, alone)

    def _fold_rows(self, phase: Phase, columns: list[str], first: str, stop: str) -> None:
        """Add some rows to what is held of some vectors of columns."""
        made = self._taken(phase, columns)
        self._walk_inner(phase, made, self.row_order[-1], first, stop, 1)
        for a in made:
            if a.total:
                a.fold_total()
        self._move(made, columns, "{1} = {0};")
