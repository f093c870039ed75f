"""The body of a kernel without walks: points, rows that one tile holds whole, and rows that are summed down their columns, too.

A program has a tile of points (``xindex``, in squares ``yindex`` too), and a group with rows a dimension for the row. Which axes lie
where, and how large tiles are, the plan says (``schedule/gpu/kernels.py``).
"""

from __future__ import annotations

import math

from braze.codegen.triton.accumulate import LANES, XR, Accumulator, R, X, collapsed, combine, identity
from braze.codegen.triton.asserts import asserted
from braze.codegen.triton.emit import NOTHING, Along, Deps, Emitter, RowsTogether, Scope, Value
from braze.codegen.triton.extremes import Extremes
from braze.codegen.triton.ops import TYPES
from braze.loops.build import nodes_of
from braze.loops.ir import Axis, DType, LoopNest, Node, Op, ReduceKind, Reduction, StoreMode
from braze.loops.rewrite import roots, walk
from braze.schedule.facts.passes import flat, keeps_what_it_stores, over_row
from braze.schedule.facts.plans import Tile, blocks
from braze.schedule.facts.records import Group
from braze.schedule.forms.mixed import down_columns
from braze.schedule.gpu.kernel_plan import KernelPlan
from braze.schedule.gpu.kernels import has_columns
from braze.schedule.gpu.row_ends import overlaps
from braze.schedule.gpu.tile_sizes import power
from braze.symbolic.divides import multiple
from braze.symbolic.expr import ONE, Expr, indirect

#: numbers that a thread keeps until they are stored, of a kernel without rows
HELD_BACK = 32


class Writer:
    """Writes one kernel's body."""

    def __init__(self, group: Group, plan: KernelPlan) -> None:
        self.group = group
        self.plan = plan
        written = {s.buffer for step in group.steps for s in step.stores}
        pointers = {b: f"{'out' if b in written else 'in'}_ptr{i}" for i, b in enumerate(plan.arguments)}
        symbols = {s: Value(s.name, NOTHING) for s in plan.sizes}
        tiles = (*plan.points, plan.row) if plan.row is not None else plan.points
        self.points = frozenset(tile.letter for tile in plan.points)
        # of rows that are read as one block, threads have rows each: nothing passes between them
        dims = tuple(tile.letter for tile in (reversed(tiles) if plan.together else tiles))
        self.emitter = Emitter(symbols, pointers, dims)
        self.emitter.coarse = plan.coarse
        self.emitter.far = frozenset(plan.sizes) if plan.wide else frozenset()
        self.emitter.asserted = asserted(group.steps)
        self.emitter.masks = {tile.letter: not tile.divides for tile in tiles}
        self.overlaps = overlaps(group, plan)
        if self.overlaps:
            self.emitter.masks[plan.points[0].letter] = False
        self.emitter.beside = self._beside()
        self.base = Scope([], "    ")
        self.width = ""
        #: sums along the row that were taken with an earlier step's
        self.joined: dict[LoopNest, Value] = {}

    def _beside(self) -> int:
        """Elements that lie side by side in a thread, where random numbers are drawn: as many as one instruction stores."""
        plan = self.plan
        tiles = (*plan.points, plan.row) if plan.row is not None else plan.points
        each = math.prod(tile.block for tile in tiles) // (32 * plan.warps)
        stores = [s for step in self.group.steps if not step.reductions for s in step.stores]
        sizes = {s.value.dtype.itemsize for s in stores if s.buffer in plan.arguments}
        return 8 if sizes == {2} and each >= 8 else 4

    def of_any_size(self) -> None:
        """Have every tile reach past its end, so that the text is the same for all sizes."""
        self.overlaps = False
        self.emitter.masks = dict.fromkeys(self.emitter.masks, True)

    def write(self) -> list[str]:
        """The lines of the body."""
        self._points()
        if self.plan.walked is not None:
            self._walked()
            return self.base.lines
        if self.plan.row is None:
            self._at_points()
            return self.base.lines
        self._row_numbers(self.plan.row)
        scope = self.row_scope(self.base, "rbase")
        for step in self.group.steps:
            self._step(step, scope)
        self.emitter.end(scope)
        return self.base.lines

    def _at_points(self) -> None:
        """All steps of a kernel without rows. What stands behind a store in a kernel's text is loaded when the store has its value, so stores
        stand behind the loads of as many as threads have room for."""
        each = max(1, math.prod(tile.block for tile in self.plan.points) // (32 * self.plan.warps))
        room = HELD_BACK // each if keeps_what_it_stores(self.group.steps) else 1
        held: list[str] = []
        for step in self.group.steps:
            self._stores(step, self.base, held, room)
        self.base.lines += held
        self.emitter.end(self.base)

    # -- indices ----------------------------------------------------------------------------------

    def _points(self) -> None:
        """Where the program's tile begins: its number is that of the tile along the threads, then of others, then of outer axes."""
        lines, plan = self.base.lines, self.plan
        program = "tl.program_id(0).to(tl.int64)" if plan.wide else "tl.program_id(0)"
        digits: list[tuple[str, Expr]] = [
            (f"{tile.letter}block", blocks(tile.extent, tile.block))
            for tile in reversed(plan.points)
            if plan.walked is None
        ]
        digits += [(f"o{k}", axis.extent) for k, axis in enumerate(reversed(plan.outer))]
        inner: Expr = ONE
        if len(digits) > 1:
            lines.append(f"    program = {program}")
            program = "program"
        for k, (name, count) in enumerate(digits):
            text = program if inner is ONE else f"{program} // ({self.emitter.text(inner)})"
            if k < len(digits) - 1:
                text = f"({text}) % ({self.emitter.text(count)})"
            lines.append(f"    {name} = {text}")
            inner = inner * count
        for k, axis in enumerate(reversed(plan.outer)):
            self.emitter.symbols[axis.symbol] = Value(f"o{k}", NOTHING)
        for tile in reversed(plan.points):
            if plan.walked is None:
                offset = f"{tile.letter}block * {tile.letter.upper()}BLOCK"
                if self.overlaps:
                    offset = f"tl.minimum({offset}, {self.emitter.text(tile.extent - tile.block)})"
                lines.append(f"    {tile.letter}offset = {offset}")
                self._tile(tile, self.base)

    def _tile(self, tile: Tile, scope: Scope) -> None:
        """The numbers of the points of one dimension from its offset on, and their axes."""
        x, lines, indent = tile.letter, scope.lines, scope.indent
        spread = self.emitter.placed(x)
        places = f"tl.arange(0, {x.upper()}BLOCK){spread if len(self.emitter.dims) > 1 else ''}"
        lines.append(f"{indent}{x}index = {x}offset + {places}")
        if x == self.emitter.dims[-1]:
            parts = f"tl.arange(0, {x.upper()}BLOCK // {{n}}){spread if len(self.emitter.dims) > 1 else ''}"
            self.emitter.last = Along(flat(tile.axes), tile.block, f"({x}offset // {{n}} + {parts})")
        if self.emitter.masks[x]:
            lines.append(f"{indent}{x}mask = {x}index < {self.emitter.text(tile.extent)}")
        self._split(f"{x}index", x, tile.axes, scope, frozenset(x))

    def _split(self, whole: str, prefix: str, axes: tuple[Axis, ...], scope: Scope, deps: Deps) -> None:
        """Variables for each axis, from the flat index, innermost last."""
        inner: Expr = ONE
        for position in range(len(axes) - 1, -1, -1):
            axis = axes[position]
            text = whole if inner is ONE else f"({whole} // ({self.emitter.text(inner)}))"
            if position:
                text = f"({text} % ({self.emitter.text(axis.extent)}))"
            variable = f"{prefix}{len(axes) - 1 - position}"
            scope.lines.append(f"{scope.indent}{variable} = {text}")
            self.emitter.symbols[axis.symbol] = Value(variable, deps)
            inner = inner * axis.extent

    def _row_numbers(self, row: Tile) -> None:
        self.width = self.emitter.text(row.extent)
        self.base.lines.append(f"    rnumel = {self.width}")
        wide = ".to(tl.int64)" if self.plan.wide else ""
        self.base.lines.append(f"    rbase = tl.arange(0, RBLOCK){self.emitter.placed('r')}{wide}")
        if self.plan.together:
            self.emitter.together = self._together(row)
            self.base.lines += ["    lindex = tl.arange(0, RBLOCK)", "    lmask = lindex < rnumel"]
            self._split("lindex", "l", row.axes, self.base, R)

    def _together(self, row: Tile) -> RowsTogether:
        """The program's rows as one block of memory."""
        (x,), long = self.plan.points, row.extent.value
        assert long is not None
        left = (
            f"(({self.emitter.text(x.extent)}) - xoffset) * {long}"
            if self.emitter.masks["x"]
            else f"XBLOCK * {long}"
        )
        number = flat(x.axes) * long + flat(row.axes)
        return RowsTogether(number, long, f"xoffset * {long}", left, power(x.block * long))

    def row_scope(self, scope: Scope, index: str, inside: str = "rindex < rnumel") -> Scope:
        shifted = self.plan.begin is not None
        scope.lines.append(f"{scope.indent}rindex = {index}{' + head' if shifted else ''}")
        if self.emitter.masks["r"]:
            scope.lines.append(f"{scope.indent}rmask = {inside}")
        assert self.plan.row is not None
        begin = index.removesuffix("rbase")  # nothing, or where a tile of the walk begins
        parts = f"({begin.replace('roffset', 'roffset // {n}')}tl.arange(0, RBLOCK // {{n}})[None, :])"
        self.emitter.last = Along(flat(self.plan.row.axes), self.plan.row.block, parts)
        self._split("rindex", "r", self.plan.row.axes, scope, R)
        return scope

    def vector(self, load: Node) -> int:
        """Elements along the row that one instruction loads: up to 16 bytes, from where rows begin at multiples of so many."""
        assert self.plan.row is not None
        row = flat(self.plan.row.axes)
        if not load.attr[1].symbols() & row.symbols():
            return LANES
        rest, width = load.attr[1] - row, max(1, 16 // load.dtype.itemsize)
        if rest.symbols() & row.symbols():
            return LANES
        while width > 1 and not multiple(rest, width):
            width //= 2
        return max(1, width * LANES * load.dtype.itemsize // 16)

    # -- persistent -------------------------------------------------------------------------------

    def _step(self, step: LoopNest, scope: Scope) -> None:
        if step.reductions:
            self.emitter.reduced = {}
            self._forget_reduced(scope)
            known = self.joined.pop(step, None)
            results = self._results_of(step, scope) if known is None else [known]
            self.emitter.reduced = dict(enumerate(results))
        self._stores(step, scope)

    def _results_of(self, step: LoopNest, scope: Scope) -> list[Value]:
        """What a step's reductions give; with a later step's sum from the same exchange between threads, where that waits for nothing in between."""
        partner = self._partner(step)
        if partner is not None:
            ours, theirs = self._sums_together(step.reductions[0], partner.reductions[0], scope)
            self.joined[partner] = theirs
            return [ours]
        found = Extremes(self, step, scope)
        return [
            result
            for reduction in step.reductions
            for result in (
                found.of(reduction)
                if found.finds(reduction)
                else self._whole(reduction, self.emitter.value(reduction.value, scope), scope)
            )
        ]

    def _partner(self, step: LoopNest) -> LoopNest | None:
        """The next step that sums along the rows of a walked group, if it reads nothing that this one and those between them make."""
        if self.plan.walked is None or not _is_one_sum(step):
            return None
        made = {s.buffer for s in step.stores}
        for later in self.group.steps[self.group.steps.index(step) + 1 :]:
            if later.reductions:
                alike = later.reduce_axes == step.reduce_axes and _is_one_sum(later)
                read = {n.attr[0] for n in walk(*roots(later)) if n.op is Op.LOAD}
                same = alike and later.reductions[0].dtype is step.reductions[0].dtype
                return later if same and not read & made else None
            made |= {s.buffer for s in later.stores}
        return None

    def _sums_together(self, one: Reduction, other: Reduction, scope: Scope) -> tuple[Value, Value]:
        """Two sums along the row: threads wait for each other once."""
        emit = self.emitter
        lanes = [
            self._reducible(ReduceKind.SUM, self.full(emit.value(r.value, scope), scope), r.dtype, scope)
            for r in (one, other)
        ]
        pair = emit.assign(f"tl.reduce(({', '.join(lanes)}), {emit.along('r')}, bz_two_sums)", X, scope)
        ours, theirs = (
            emit.assign(_from_zero(f"{pair.name}[{k}]{emit.placed('x')}"), X, scope) for k in range(2)
        )
        return ours, theirs

    def _forget_reduced(self, scope: Scope) -> None:
        """Op.REDUCED means another step's results from here on."""
        scope.guarded.clear()
        for known in (scope.known, self.base.known):
            for node in [n for n in known if any(m.op is Op.REDUCED for m in walk(n))]:
                del known[node]

    def _whole(self, reduction: Reduction, value: Value, scope: Scope) -> list[Value]:
        """Reduce a tile that holds the whole row."""
        full = self.full(value, scope)
        emit = self.emitter
        kind = reduction.kind
        if kind is ReduceKind.WELFORD:
            mean = self._mean(full, reduction.dtype, scope)
            away = emit.assign(f"{full.name} - {mean.name}", XR, scope)
            square = emit.assign(f"{away.name} * {away.name}", XR, scope)
            return [mean, self._collapse(ReduceKind.SUM, square, reduction.dtype, scope)]
        if kind is ReduceKind.ONLINE_SOFTMAX:
            top = self._collapse(ReduceKind.MAX, full, reduction.dtype, scope)
            power = emit.assign(f"bz_below({full.name} - {top.name})", XR, scope)
            return [top, self._collapse(ReduceKind.SUM, power, reduction.dtype, scope)]
        return [self._collapse(kind, full, reduction.dtype, scope)]

    def _mean(self, full: Value, dtype: DType, scope: Scope) -> Value:
        total = self._collapse(ReduceKind.SUM, full, dtype, scope)
        return self.emitter.assign(f"bz_mean({total.name}, rnumel)", X, scope)

    def full(self, value: Value, scope: Scope) -> Value:
        if value.deps == XR:
            return value
        return self.emitter.assign(f"tl.broadcast_to({value.name}, {self.emitter.shape(XR)})", XR, scope)

    def _collapse(self, kind: ReduceKind, full: Value, dtype: DType, scope: Scope) -> Value:
        """One number a row out of a whole tile."""
        emit, name = self.emitter, self._reducible(kind, full, dtype, scope)
        text = collapsed(kind, name, emit.along("r"), emit.placed("x"))
        return emit.assign(_from_zero(text) if kind is ReduceKind.SUM and dtype.is_float else text, X, scope)

    def _reducible(self, kind: ReduceKind, full: Value, dtype: DType, scope: Scope) -> str:
        """A tile as it is reduced: lanes past the row hold the identity."""
        emit = self.emitter
        name = full.name
        if emit.masks["r"]:
            name = emit.assign(f"tl.where(rmask, {name}, {identity(kind, dtype)})", XR, scope).name
        if kind is ReduceKind.SUM:
            name = f"{name}.to({TYPES[dtype]})"
        elif kind in (ReduceKind.ANY, ReduceKind.ALL):
            name = f"({name}).to(tl.int32)"
        return name

    # -- mixed ------------------------------------------------------------------------------------

    def _walked(self) -> None:
        """A tile of rows after the other, each held whole, at which programs take turns; what is summed down the columns is kept between them."""
        plan, emit, base = self.plan, self.emitter, self.base
        assert plan.row is not None and self.group.walked is not None
        (x,) = plan.points
        columns = down_columns(self.group)
        self._row_numbers(plan.row)
        self.row_scope(base, "rbase")
        part, count = self._take_turns(blocks(x.extent, x.block))
        body = Scope([], "        ", outer=base)
        self._same_for_all_rows(columns)
        body.lines.append(f"        xoffset = ({part} + turn * ({count})) * XBLOCK")
        self._tile(x, body)
        for step in self.group.steps:
            if step.reduce_axes != (self.group.walked.within,):
                self._step(step, body)
        kept = [(step, [self._down(r, body) for r in step.reductions]) for step in columns]
        emit.end(body)
        stages = f", num_stages={plan.stages}" if plan.stages > 1 else ""
        base.lines.append(f"    for turn in {'tl.' if stages else ''}range(0, turns, 1{stages}):")
        base.lines.extend(body.lines)
        for step, names_of in kept:
            emit.reduced = {
                k: self._collapsed(r, n) for k, (r, n) in enumerate(zip(step.reductions, names_of))
            }
            self._forget_reduced(base)
            self._columns_stored(step, base)
        emit.end(base)

    def _take_turns(self, tiles: Expr) -> tuple[str, str]:
        """How many of so many tiles this program takes, as ``turns``; gives its number, and how many take turns with it."""
        assert self.group.walked is not None
        axis = self.group.walked.part
        part, count = self.emitter.symbols[axis.symbol].name, self.emitter.text(axis.extent)
        self.base.lines.append(
            f"    turns = (({self.emitter.text(tiles)}) - {part} + {count} - 1) // ({count})"
        )
        return part, count

    def _same_for_all_rows(self, columns: tuple[LoopNest, ...]) -> None:
        """Load before the walk what each tile would load again: a norm's weight."""
        written = {s.buffer for step in self.group.steps for s in step.stores}
        own = {axis.symbol for axis in self.group.axes}
        for node in nodes_of(*(r for step in (*self.group.steps, *columns) for r in roots(step))):
            if node.op is Op.LOAD and not node.args and node.attr[0] not in written:
                symbols = node.attr[1].symbols()
                if not symbols & own and symbols <= self.emitter.symbols.keys():
                    self.emitter.value(node, self.base)

    def _down(self, reduction: Reduction, body: Scope) -> str:
        """Take a tile into what is kept down the columns: one number a column where each thread has whole ones, else lane by lane."""
        emit, kind = self.emitter, reduction.kind
        value = self.full(emit.value(reduction.value, body), body).name
        name = f"acc{emit.count}"
        emit.count += 1
        Accumulator(reduction, name, rows="1" if has_columns(self.plan) else "XBLOCK").open(self.base.lines)
        if has_columns(self.plan):
            if emit.masks["x"]:
                value = f"tl.where(xmask, {value}, {identity(kind, reduction.value.dtype)})"
            kept = TYPES[DType.I32 if kind in (ReduceKind.ANY, ReduceKind.ALL) else reduction.dtype]
            text = combine(kind, name, collapsed(kind, f"({value}).to({kept})", 0, "[None, :]"))
        else:
            text = combine(kind, name, value)
            text = f"tl.where(xmask, {text}, {name})" if emit.masks["x"] else text
        body.lines.append(f"        {name} = {text}")
        return name

    def _collapsed(self, reduction: Reduction, name: str) -> Value:
        if has_columns(self.plan) and reduction.kind not in (ReduceKind.ANY, ReduceKind.ALL):
            return Value(name, R)
        return self.emitter.assign(collapsed(reduction.kind, name, 0, "[None, :]"), R, self.base)

    def _columns_stored(self, step: LoopNest, scope: Scope) -> None:
        """What a program leaves of its rows: one number a column."""
        emit = self.emitter
        for store in step.stores:
            value = emit.value(store.value, scope)
            pointer = emit.spread(f"{emit.pointers[store.buffer]} + ({emit.text(store.index)})", R)
            line = f"tl.store({pointer}, {emit.spread(value.name, R)}{emit.mask(R)})"
            scope.lines.append(f"{scope.indent}{line}")

    # -- stores -----------------------------------------------------------------------------------

    def _stores(self, step: LoopNest, scope: Scope, held: list[str] | None = None, room: int = 1) -> None:
        """A step's values, and what stores them: at once, or when ``held`` has so many."""
        emit, held = self.emitter, [] if held is None else held
        for store in step.stores:
            value = emit.value(store.value, scope)
            if not store.args and store.mode is StoreMode.PLAIN:
                scope.stored[store.buffer, store.index] = value
            if store.buffer in self.group.internal:
                continue
            found = [emit.place(a, scope) for a in store.args]
            text, deps = emit.index(store.index, {indirect(k).name: at for k, (at, _) in enumerate(found)})
            deps = deps | value.deps | (R if over_row(step, self.group.row_axes) else NOTHING) | self.points
            pointer = emit.spread(f"{emit.pointers[store.buffer]} + ({text})", deps)
            kept = emit.spread(value.name, deps)
            call, told = (
                "tl.store",
                ', eviction_policy="evict_first"' if self.plan.streamed and deps >= R else "",
            )
            if store.mode is StoreMode.ADD:
                call, told = "tl.atomic_add", ', sem="relaxed"'
            exists = " & ".join(test for _, test in found if test)
            held.append(f"{scope.indent}{call}({pointer}, {kept}{emit.mask(deps, exists)}{told})")
            if len(held) >= room:
                scope.lines += held
                held.clear()


def _is_one_sum(step: LoopNest) -> bool:
    """Whether a step has one sum of floating-point numbers, and no other reduction."""
    return (
        len(step.reductions) == 1
        and step.reductions[0].kind is ReduceKind.SUM
        and step.reductions[0].dtype.is_float
    )


def _from_zero(total: str) -> str:
    """A sum of a tile that holds nothing but the row, as eager's kernels begin it: of nothing but ``-0.0`` it is ``0.0``."""
    return f"{total} + 0.0"
