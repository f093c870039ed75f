"""Reduction groups: for each parallel point, passes over its row and statements between them.

The vectors lie in the row (the usual case: results are folded across lanes) or along a parallel axis
(sums over columns: each lane is a point of its own). Row buffers that a later pass reads stay in scratch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from braze.codegen.c.folds import Accumulator
from braze.codegen.c.kernel import Frame, finish, open_tasks, start_body
from braze.codegen.c.operations import Value
from braze.codegen.c.prelude import STORAGE
from braze.codegen.records import KernelText
from braze.loops.ir import Axis, DType, Node, Op
from braze.schedule.cpu.phases import Item, Phase
from braze.schedule.facts.passes import flat
from braze.schedule.facts.plans import Form
from braze.symbolic.expr import ZERO, Expr, product
from braze.symbolic.guess import likely_size

#: bytes of row scratch that may lie on a thread's stack
_STACK = 128 << 10
#: additions in one chain before its sum is moved to a second level
_CHAIN = 16


class Columns:
    """One vector of columns of several: the C name of its first column, and results that later passes use."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.results: dict[tuple[str, Expr], Value] = {}


class Rows:
    """Writes one reduction kernel."""

    def __init__(self, frame: Frame, threads: int) -> None:
        self.threads = threads
        #: of row axes that are walked in part: first and end, as C text
        self.spans: dict[Axis, tuple[str, str]] = {}
        plan = self.plan = frame.plan
        assert plan.phases is not None and plan.row is not None
        self.frame, self.body, self.todo = frame, start_body(frame), plan.phases
        self.columns = plan.form is Form.COLUMNS
        self.in_row = plan.vector is not None and not self.columns
        self.memory = frozenset(plan.arguments)
        self.row_order = plan.row.axes
        self.body.storage.update({name: d.label for name, d in (*self.todo.registers, *self.todo.kept)})
        self.freed: list[str] = []
        #: the columns that are folded side by side: per vector, its first column and what is known of it
        self.strip: list[Columns] = []

    def kernel(self) -> KernelText:
        frame, body = self.frame, self.body
        self._declare_scratch()
        number = open_tasks(frame, body)
        if self.columns:
            self._columns(number)
        else:
            self._phases()
        body.close()
        for pointer in self.freed:
            body.line(f"free({pointer});")
        return finish(frame, body, self.threads)

    def _declare_scratch(self) -> None:
        """Row buffers that outlive a pass: on the stack if they are small, else from malloc."""
        at = flat(self.row_order)
        length = product([a.extent for a in self.row_order])
        lanes = self.plan.lanes
        total = 0
        for name, dtype in self.todo.kept:
            pointer, c = self.body.name("k"), STORAGE[dtype.label][0]
            count: Expr = length * lanes if self.columns else length + lanes
            size = None if count.value is None else count.value * dtype.itemsize
            if size is not None and total + size <= _STACK:
                total += size
                self.body.line(f"{c} {pointer}[{count}] __attribute__((aligned(64)));")
            else:
                self.body.line(
                    f"{c} *const {pointer} = ({c} *)malloc(({self.body.index(count)})*sizeof({c}));"
                )
                self.freed.append(pointer)
            self.body.scratch[name] = (pointer, at)

    def _columns(self, number: str) -> None:
        """Several vectors of points at a time, or one; the last one may be short."""
        body, axis = self.body, self.plan.vector
        assert axis is not None
        w, j, known = self.plan.lanes, axis.symbol.name, axis.extent.value
        extent, block = body.index(axis.extent), w * self.plan.strip
        start, last = f"{number}*{block}", ""
        if block > w:
            start, end = body.name("x"), body.name("x")
            body.line(f"const int64_t {start} = {number}*{block}, {end} = {start} + {block};")
            if known is None or known >= block:
                body.open("" if known is not None and known % block == 0 else f"if ({end} <= {extent}) ")
                self._side_by_side(start)
                body.close()
                if known is not None and known % block == 0:
                    return
            body.open(f"if ({end} > {extent}) ")
            last = f"for (int64_t {j} = {start}; {j} < {extent}; {j} += {w}) "
            body.open(last, {axis.symbol: j})
        else:
            body.line(f"const int64_t {j} = {start};")
        self._one_vector(axis, j, extent, self._phases)
        if last:
            body.close()
            body.close()

    def _one_vector(self, axis: Axis, j: str, extent: str, write: Callable[[], None]) -> None:
        """What is written at the points from ``j`` on, as many as a vector holds or there are."""
        body, w, known = self.body, self.plan.lanes, axis.extent.value
        if known is not None and known % w == 0:
            body.open("", {axis.symbol: j})
            write()
            body.close()
            return
        if known is None or known >= w:
            body.open(f"if ({j} + {w} <= {extent}) ", {axis.symbol: j})
            write()
            body.close()
        test = f"if ({j} + {w} > {extent}) "
        body.open(test, {axis.symbol: j}, count=f"({extent} - {j})")
        write()
        body.close()

    def _side_by_side(self, start: str) -> None:
        """All vectors of a strip in the same passes over the rows."""
        self._open_strip(start)
        for phase in self.todo.phases:
            if phase.over_row:
                self._strip_loop(phase)
                continue
            for columns in self.strip:
                with self._among(columns, in_loop=False):
                    self._stores(phase.items)
        self.strip = []

    def _open_strip(self, start: str) -> list[str]:
        """Name the first column of each vector of a strip."""
        self.strip = [Columns(self.body.name("c")) for _ in range(self.plan.strip)]
        for k, columns in enumerate(self.strip):
            self.body.line(f"const int64_t {columns.name} = {start} + {k * self.plan.lanes};")
        return [columns.name for columns in self.strip]

    @contextlib.contextmanager
    def _among(self, columns: Columns, *, in_loop: bool) -> Iterator[None]:
        """Write for one vector of a strip, with what is known of it; what statements at the points add is kept."""
        body, axis = self.body, self.plan.vector
        assert axis is not None
        depth = body.aside({axis.symbol: columns.name}).depth
        known = {k: Value(v.text, v.rep, v.varying, depth) for k, v in columns.results.items()}
        body.forward.update(known)
        yield
        if not in_loop:
            columns.results.update({k: v for k, v in body.forward.items() if v.depth >= depth})
        body.close()

    def _phases(self) -> None:
        for phase, copies in zip(self.todo.phases, self.plan.copies, strict=True):
            if phase.over_row:
                self._loop(phase, copies)
            else:
                self._stores(phase.items)

    def _stores(self, items: tuple[Item, ...]) -> None:
        for item in items:
            self.body.stores(item.stores, self.memory)

    # -- one pass over the row ------------------------------------------------------------------

    def _loop(self, phase: Phase, copies: int) -> None:
        for a in self._folded(phase, copies):
            self.body.forward[a.fold.register, ZERO] = a.finish(self.in_row)

    def _strip_loop(self, phase: Phase) -> None:
        """The same for all vectors of a strip."""
        made = self._folded(phase, 1)
        each = len(made) // len(self.strip)
        for k, columns in enumerate(self.strip):
            for a in made[k * each : (k + 1) * each]:
                columns.results[a.fold.register, ZERO] = a.finish(False)

    def _folded(self, phase: Phase, copies: int) -> list[Accumulator]:
        """The pass itself; its accumulators, those of each vector of a strip in turn."""
        made = [
            Accumulator(self.body, fold, self.plan.vector is not None, copies, self._position_rep())
            for _ in range(max(len(self.strip), 1))
            for fold in phase.folds
        ]
        for a in made:
            a.declare()
        two_level = [a for a in made if a.is_float_sum and self._chain(copies) > _CHAIN]
        for a in two_level:
            a.declare_total()
        self._walk_row(phase, made, two_level, copies)
        return made

    def _position_rep(self) -> str:
        return self.body.ranges.rep(self._position())

    def _position(self) -> Node:
        return Node(Op.INDEX, DType.I64, (), flat(self.frame.group.row_axes))

    def _chain(self, copies: int) -> int:
        """Additions in one accumulator over the whole row."""
        length = 1
        for a in self.row_order:
            length *= likely_size(a.extent)
            if a.extent.value is None:
                length *= 1024
        return length // (self.plan.lanes * copies if self.in_row else 1)

    def _walk_row(
        self, phase: Phase, made: list[Accumulator], two_level: list[Accumulator], copies: int
    ) -> None:
        body = self.body
        *outer, inner = self.row_order
        for axis in outer:
            j = axis.symbol.name
            low, high = self._range(axis)
            body.open(f"for (int64_t {j} = {low}; {j} < {high}; ++{j}) ", {axis.symbol: j})
        w = self.plan.lanes if self.in_row else 1
        block = _CHAIN * w * copies
        known = inner.extent.value
        begin, end = self._range(inner)
        blocked = bool(two_level) and (known is None or known > block)
        if blocked:
            start, stop = body.name("x"), body.name("x")
            body.open(f"for (int64_t {start} = {begin}; {start} < {end}; {start} += {block}) ")
            body.line(f"const int64_t {stop} = {start} + {block} < {end} ? {start} + {block} : {end};")
            self._walk_inner(phase, made, inner, start, stop, copies)
        else:
            self._walk_inner(phase, made, inner, begin, end, copies)
        for a in two_level:
            a.fold_total()
        for _ in range(len(outer) + blocked):
            body.close()

    def _range(self, axis: Axis) -> tuple[str, str]:
        """Where a row axis starts and ends."""
        return self.spans.get(axis) or ("0", self.body.index(axis.extent))

    def _walk_inner(
        self, phase: Phase, made: list[Accumulator], axis: Axis, start: str, stop: str, copies: int
    ) -> None:
        body, j, known = self.body, axis.symbol.name, axis.extent.value
        if not self.in_row:
            body.open(f"for (int64_t {j} = {start}; {j} < {stop}; ++{j}) ", {axis.symbol: j})
            each = len(made) // max(len(self.strip), 1)
            for k, columns in enumerate(self.strip):
                with self._among(columns, in_loop=True):
                    self._items(phase, made[k * each : (k + 1) * each], 0, "")
            if not self.strip:
                self._items(phase, made, 0, "")
            body.close()
            return
        w = self.plan.lanes
        body.open("")
        body.line(f"int64_t {j} = {start};")
        wide = w * copies
        if copies > 1:
            body.open(f"for (; {j} + {wide} <= {stop}; {j} += {wide}) ")
            for c in range(copies):
                name = f"{j}_{c}"
                body.open("", {axis.symbol: name})
                body.line(f"const int64_t {name} = {j} + {c * w};")
                self._items(phase, made, c, "")
                body.close()
            body.close()
        if (copies == 1 or known is None or known % wide >= w) and (known is None or known >= w):
            body.open(f"for (; {j} + {w} <= {stop}; {j} += {w}) ", {axis.symbol: j})
            self._items(phase, made, 0, "")
            body.close()
        if known is None or known % w:
            count = f"({stop} - {j})"
            body.open(f"if ({j} < {stop}) ", {axis.symbol: j}, count=count)
            self._items(phase, made, 0, f"bz_lanesx{w}({count})")
            body.close()
        body.close()

    def _items(self, phase: Phase, made: list[Accumulator], copy: int, active: str) -> None:
        """The body of one pass, for one vector (or one element)."""
        body = self.body
        by_register = {a.fold.register: a for a in made}
        for item in phase.items:
            for fold in item.folds:
                a = by_register[fold.register]
                a.add(self._operand(fold.value, a.rep), self._index_of(a), copy, active)
            body.stores(item.stores, self.memory)

    def _operand(self, node: Node, rep: str) -> Value:
        value = self.body.convert(self.body.value(node), rep)
        return self.body.splat(value) if self.plan.vector is not None else value

    def _index_of(self, a: Accumulator) -> Value | None:
        if not a.fold.kind.finds_place:
            return None
        return self._operand(self._position(), a.index_rep)
