"""Kernel plans -> Triton kernels.

A program has a tile of points (``xindex``, in squares ``yindex`` too), and a group with rows a dimension for the row: a tile
that holds it whole, or walks it once per pass. Values of an earlier pass are computed again from their inputs rather than read
back from memory. Which axes lie where, and how large tiles are, the plan says (``schedule/kernels.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from braze.codegen.records import KernelText, TritonLaunch
from braze.codegen.triton.accumulate import LANES, XR, Accumulator, R, X, collapsed, combine, identity
from braze.codegen.triton.emit import NOTHING, Deps, Emitter, Fours, Scope, Value, index_text
from braze.codegen.triton.ops import POINTERS, TYPES
from braze.codegen.triton.prelude import used
from braze.loops.build import nodes_of
from braze.loops.ir import Axis, Buffer, DType, LoopNest, Node, Op, ReduceKind, Reduction, StoreMode
from braze.loops.rewrite import roots
from braze.schedule.kernels import KernelPlan, has_columns
from braze.schedule.mixed import down_columns
from braze.schedule.passes import flat, over_row
from braze.schedule.plans import Form, Tile, blocks
from braze.schedule.records import Group, Schedule
from braze.symbolic.divides import multiple
from braze.symbolic.expr import ONE, Expr, indirect

HEADER = """import triton
import triton.language as tl
from triton.language.extra import libdevice
"""
#: what kernels import that wait by themselves for those before them, or let those behind them begin
EARLY_HEADER = "from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait\n"


def kernel(
    group: Group, plan: KernelPlan, schedule: Schedule, *, waits: bool = False, triggers: bool = False
) -> KernelText:
    """The text of one group's kernel; ``waits``: it begins early and waits by itself for what is before it, ``triggers``: it lets what is behind it begin (then)."""
    writer = Writer(group, plan)
    begins = ["    if EARLY:", "        gdc_wait()"] if waits else ["    if LETS:"] if triggers else []
    begins += ["        gdc_launch_dependents()"] if triggers else []
    body = [*begins, *writer.write()]
    tiles = (*plan.points, plan.row) if plan.row is not None else plan.points
    constants = tuple((f"{tile.letter.upper()}BLOCK", tile.block) for tile in tiles)
    constants += (("EARLY", 1),) if waits else (("LETS", 1),) if triggers else ()
    buffers = {name: schedule.buffer(name) for name in plan.arguments}
    return kernel_text(group.name, body, writer, buffers, constants, plan.programs, early=bool(begins))


def kernel_text(
    name: str,
    body: Sequence[str],
    writer: Writer,
    buffers: Mapping[str, Buffer],
    constants: tuple[tuple[str, int], ...],
    programs: Expr,
    *,
    early: bool,
) -> KernelText:
    """The kernel with the lines that a writer wrote. ``early``: they wait by themselves, or let others begin."""
    plan, sizes = writer.plan, tuple(s.name for s in writer.plan.sizes)
    pointers = [writer.emitter.pointers[b] for b in plan.arguments]
    parameters = ", ".join([*pointers, *sizes, *(f"{b}: tl.constexpr" for b, _ in constants)])
    function = "\n".join([f"@triton.jit\ndef {name}({parameters}):", *body, ""])
    source = f"{HEADER}{EARLY_HEADER if early else ''}\n{used(function)}\n\n{function}"
    dtypes = tuple(POINTERS[buffers[b].dtype] for b in plan.arguments)
    launch = TritonLaunch(str(programs), constants, plan.warps, plan.stages, dtypes)
    canonical = f"{launch}\n{source.replace(name, 'kernel')}"
    return KernelText(name, "triton", source, plan.arguments, sizes, canonical, launch)


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
        self.emitter = Emitter(symbols, pointers, tuple(tile.letter for tile in tiles))
        self.emitter.coarse = plan.coarse
        self.emitter.masks = {tile.letter: not tile.divides for tile in tiles}
        self.base = Scope([], "    ")
        self.width = ""

    def write(self) -> list[str]:
        """The lines of the body."""
        self._points()
        if self.plan.walked is not None:
            self._walked(self.plan.walked)
            return self.base.lines
        if self.plan.row is None:
            for step in self.group.steps:
                self._stores(step, self.base)
            return self.base.lines
        self._row_numbers(self.plan.row)
        if self.plan.whole:
            scope = self._row_scope(self.base, "rbase")
            for step in self.group.steps:
                self._step(step, scope)
        else:
            for number in range(len(self.plan.passes)):
                self._pass(number)
        return self.base.lines

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
        names = {s.name: v.name for s, v in self.emitter.symbols.items()}
        inner: Expr = ONE
        if len(digits) > 1:
            lines.append(f"    program = {program}")
            program = "program"
        for k, (name, count) in enumerate(digits):
            text = program if inner is ONE else f"{program} // ({index_text(inner, names)})"
            if k < len(digits) - 1:
                text = f"({text}) % ({index_text(count, names)})"
            lines.append(f"    {name} = {text}")
            inner = inner * count
        for k, axis in enumerate(reversed(plan.outer)):
            self.emitter.symbols[axis.symbol] = Value(f"o{k}", NOTHING)
        for tile in reversed(plan.points):
            if plan.walked is None:
                lines.append(f"    {tile.letter}offset = {tile.letter}block * {tile.letter.upper()}BLOCK")
                self._tile(tile, self.base)

    def _tile(self, tile: Tile, scope: Scope) -> None:
        """The numbers of the points of one dimension from its offset on, and their axes."""
        x, lines, indent = tile.letter, scope.lines, scope.indent
        spread = f"[{', '.join(':' if d == x else 'None' for d in self.emitter.dims)}]"
        places = f"tl.arange(0, {x.upper()}BLOCK){spread if len(self.emitter.dims) > 1 else ''}"
        lines.append(f"{indent}{x}index = {x}offset + {places}")
        if x == self.emitter.dims[-1]:
            quads = f"tl.arange(0, {x.upper()}BLOCK // 4){spread if len(self.emitter.dims) > 1 else ''}"
            self.emitter.last = Fours(flat(tile.axes), tile.block, f"({x}offset // 4 + {quads})")
        if self.emitter.masks[x]:
            names = {s.name: v.name for s, v in self.emitter.symbols.items()}
            lines.append(f"{indent}{x}mask = {x}index < {index_text(tile.extent, names)}")
        self._split(f"{x}index", x, tile.axes, scope, frozenset(x))

    def _split(self, whole: str, prefix: str, axes: tuple[Axis, ...], scope: Scope, deps: Deps) -> None:
        """Variables for each axis, from the flat index, innermost last."""
        names = {s.name: v.name for s, v in self.emitter.symbols.items()}
        inner: Expr = ONE
        for position in range(len(axes) - 1, -1, -1):
            axis = axes[position]
            text = whole if inner is ONE else f"({whole} // ({index_text(inner, names)}))"
            if position:
                text = f"({text} % ({index_text(axis.extent, names)}))"
            variable = f"{prefix}{len(axes) - 1 - position}"
            scope.lines.append(f"{scope.indent}{variable} = {text}")
            self.emitter.symbols[axis.symbol] = Value(variable, deps)
            inner = inner * axis.extent

    def _row_numbers(self, row: Tile) -> None:
        names = {s.name: v.name for s, v in self.emitter.symbols.items()}
        self.width = index_text(row.extent, names)
        self.base.lines.append(f"    rnumel = {self.width}")
        wide = ".to(tl.int64)" if self.plan.wide else ""
        self.base.lines.append(f"    rbase = tl.arange(0, RBLOCK)[None, :]{wide}")

    def _row_scope(self, scope: Scope, index: str) -> Scope:
        shifted = self.plan.begin is not None
        scope.lines.append(f"{scope.indent}rindex = {index}{' - shift' if shifted else ''}")
        if self.emitter.masks["r"]:
            inside = "(rindex >= 0) & (rindex < rnumel)" if shifted else "rindex < rnumel"
            scope.lines.append(f"{scope.indent}rmask = {inside}")
        assert self.plan.row is not None
        begin = index.removesuffix("rbase")  # nothing, or where a tile of the walk begins
        quads = f"({begin.replace('roffset', 'roffset // 4')}tl.arange(0, RBLOCK // 4)[None, :])"
        self.emitter.last = Fours(flat(self.plan.row.axes), self.plan.row.block, quads)
        self._split("rindex", "r", self.plan.row.axes, scope, R)
        return scope

    # -- persistent -------------------------------------------------------------------------------

    def _step(self, step: LoopNest, scope: Scope) -> None:
        if step.reductions:
            self.emitter.reduced = {}
            self._forget_reduced(scope)
            slot = 0
            for reduction in step.reductions:
                value = self.emitter.value(reduction.value, scope)
                for result in self._whole(reduction, value, scope):
                    self.emitter.reduced[slot] = result
                    slot += 1
        self._stores(step, scope)

    def _forget_reduced(self, scope: Scope) -> None:
        """Op.REDUCED means another step's results from here on."""
        scope.guarded.clear()
        for known in (scope.known, self.base.known):
            for node in [n for n in known if _mentions_reduced(n)]:
                del known[node]

    def _whole(self, reduction: Reduction, value: Value, scope: Scope) -> list[Value]:
        """Reduce a tile that holds the whole row."""
        full = self._full(value, scope)
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
        among = reduction.value.dtype if kind.finds_place else reduction.dtype
        return [self._collapse(kind, full, among, scope)]

    def _mean(self, full: Value, dtype: DType, scope: Scope) -> Value:
        total = self._collapse(ReduceKind.SUM, full, dtype, scope)
        return self.emitter.assign(f"bz_mean({total.name}, rnumel)", X, scope)

    def _full(self, value: Value, scope: Scope) -> Value:
        if value.deps == XR:
            return value
        return self.emitter.assign(f"tl.broadcast_to({value.name}, [XBLOCK, RBLOCK])", XR, scope)

    def _collapse(self, kind: ReduceKind, full: Value, dtype: DType, scope: Scope) -> Value:
        """One number a row out of a whole tile; lanes past the row hold the identity."""
        emit = self.emitter
        name = full.name
        if emit.masks["r"] and not kind.finds_place:
            name = emit.assign(f"tl.where(rmask, {name}, {identity(kind, dtype)})", XR, scope).name
        if kind.finds_place:
            return self._arg(kind, name, dtype, "rindex", scope)
        if kind is ReduceKind.SUM:
            name = f"{name}.to({TYPES[dtype]})"
        elif kind in (ReduceKind.ANY, ReduceKind.ALL):
            name = f"({name}).to(tl.int32)"
        return emit.assign(collapsed(kind, name, 1, "[:, None]"), X, scope)

    def _arg(self, kind: ReduceKind, name: str, dtype: DType, places: str, scope: Scope) -> Value:
        emit = self.emitter
        values = f"tl.where(rmask, {name}, {identity(kind, dtype)})" if emit.masks["r"] else name
        where = f"tl.where(rmask, {places}, 2147483647)" if emit.masks["r"] else places
        where = f"tl.broadcast_to({where}, [XBLOCK, RBLOCK])"
        pair = emit.assign(f"tl.reduce(({values}, {where}), 1, bz_{kind.value})", X, scope)
        return emit.assign(f"{pair.name}[1][:, None].to(tl.int64)", X, scope)

    # -- mixed ------------------------------------------------------------------------------------

    def _walked(self, size: Expr) -> None:
        """A tile of rows after the other, each held whole; what is summed down the columns is kept between them."""
        plan, emit, base = self.plan, self.emitter, self.base
        assert plan.row is not None and self.group.walked is not None
        (x,) = plan.points
        columns = down_columns(self.group)
        self._row_numbers(plan.row)
        self._row_scope(base, "rbase")
        names = {s.name: v.name for s, v in emit.symbols.items()}
        rows = index_text(size, names)
        base.lines.append(f"    first = {emit.symbols[self.group.walked.part.symbol].name} * ({rows})")
        body = Scope([], "        ", outer=base)
        emit.masks["x"] = self._ragged(x, size)
        self._same_for_all_rows(columns)
        body.lines.append("        xoffset = first + begin")
        self._tile(x, body)
        for step in self.group.steps:
            if step.reduce_axes != (self.group.walked.within,):
                self._step(step, body)
        kept = [(step, [self._down(r, body) for r in step.reductions]) for step in columns]
        stages = f", num_stages={plan.stages}" if plan.stages > 1 else ""
        base.lines.append(f"    for begin in {'tl.' if stages else ''}range(0, {rows}, XBLOCK{stages}):")
        base.lines.extend(body.lines)
        for step, names_of in kept:
            emit.reduced = {
                k: self._collapsed(r, n) for k, (r, n) in enumerate(zip(step.reductions, names_of))
            }
            self._forget_reduced(base)
            self._columns_stored(step)

    def _same_for_all_rows(self, columns: tuple[LoopNest, ...]) -> None:
        """Load before the walk what each tile would load again: a norm's weight."""
        written = {s.buffer for step in self.group.steps for s in step.stores}
        own = {axis.symbol for axis in self.group.axes}
        for node in nodes_of(*(r for step in (*self.group.steps, *columns) for r in roots(step))):
            if node.op is Op.LOAD and not node.args and node.attr[0] not in written:
                symbols = node.attr[1].symbols()
                if not symbols & own and symbols <= self.emitter.symbols.keys():
                    self.emitter.value(node, self.base)

    def _ragged(self, x: Tile, size: Expr) -> bool:
        """Whether a tile of a walk may reach past the last row, or the end of its part."""
        assert self.group.walked is not None
        count = self.group.walked.part.extent.value or 0
        return (x.extent.value or -1) != count * (size.value or 0) or (size.value or 1) % x.block != 0

    def _down(self, reduction: Reduction, body: Scope) -> str:
        """Take a tile into what is kept down the columns: one number a column where each thread has whole ones, else lane by lane."""
        emit, kind = self.emitter, reduction.kind
        value = self._full(emit.value(reduction.value, body), body).name
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

    def _columns_stored(self, step: LoopNest) -> None:
        """What a program leaves of its rows: one number a column."""
        emit = self.emitter
        for store in step.stores:
            value = emit.value(store.value, self.base)
            text, _ = emit.index(store.index, {}, self.base)
            pointer = emit.spread(f"{emit.pointers[store.buffer]} + ({text})", R)
            self.base.lines.append(f"    tl.store({pointer}, {emit.spread(value.name, R)}{emit.mask(R)})")

    # -- looped -----------------------------------------------------------------------------------

    def _pass(self, number: int) -> None:
        """One walk over the row: one that reduces nothing begins at the row's end, which the caches still hold from the walk before."""
        this, before, later = (
            self.plan.passes[number],
            self.plan.passes[:number],
            self.plan.passes[number + 1 :],
        )
        back = not this.reduces and any(each.along for each in before)
        if this.along:
            again = bool(later) and not later[0].reduces
            self.emitter.eviction = "evict_first" if back else "evict_last" if again else ""
            self._loop(this.along, back)
            self.emitter.eviction = ""
        for step in this.behind:
            self._stores(step, self.base)

    def _loop(self, steps: Sequence[LoopNest], back: bool) -> None:
        """One walk over the row: accumulate every step's reductions, store what is stored along the row."""
        emit = self.emitter
        before = self.base.lines
        if self.plan.limit is not None:
            self._same_for_all_points()
        opened: list[Accumulator] = []
        if self.plan.begin is not None:
            self._ends(steps, opened)
        body = Scope([], "        ", outer=self.base)
        if back:
            end = "full" if self.plan.begin is not None else self._last_tile()
            body.lines.append(f"        roffset = {end} - rstep")
        self._row_scope(body, "roffset + rbase")
        finish = self._body(steps, body, opened)
        # a literal where there is one: the interpreter turns assigned numbers into arrays
        head = self._turns() if finish else "range({begin}, {end}, RBLOCK)"
        begin, end = ("RBLOCK", "full") if self.plan.begin is not None else ("0", self._end())
        head = head.format(begin=begin, end=end)
        before.append(f"    for {'rstep' if back else 'roffset'} in {head}:")
        before.extend(body.lines)
        emit.vectors = None
        if self.plan.begin is not None:
            emit.masks["r"] = True
        for axis in self.group.row_axes:
            emit.symbols.pop(axis.symbol)
        for step, accumulators in finish:
            emit.reduced = {}
            self._forget_reduced(self.base)
            slot = 0
            for accumulator in accumulators:
                for result in accumulator.results(emit, self.base):
                    emit.reduced[slot] = result
                    slot += 1
            self._stores(step, self.base)

    def _body(
        self, steps: Sequence[LoopNest], body: Scope, opened: list[Accumulator]
    ) -> list[tuple[LoopNest, list[Accumulator]]]:
        """What is done with one tile of a walk; the accumulators of each step, those that are ``opened`` first."""
        finish: list[tuple[LoopNest, list[Accumulator]]] = []
        known = iter(opened)
        for step in steps:
            if step.reductions:
                finish.append((step, [self._accumulate(r, body, next(known, None)) for r in step.reductions]))
            else:
                self._stores(step, body)
                for store in step.stores:
                    self.emitter.recomputed[store.buffer, store.index] = store.value
        return finish

    def _ends(self, steps: Sequence[LoopNest], opened: list[Accumulator]) -> None:
        """The tiles in which a row begins and ends, of a walk along whole vectors; those between them have no masks."""
        emit, plan, base = self.emitter, self.plan, self.base
        assert plan.begin is not None and plan.row is not None
        emit.masks["r"] = True  # of rows of whole tiles, too: they begin within one
        if "    first = " not in "".join(base.lines):
            text, _ = emit.index(plan.begin, {}, base)
            base.lines += [
                f"    first = ({text}) // {plan.vector} * {plan.vector}",
                f"    shift = tl.sum(({text}) - first).to(tl.int32)",
                "    full = tl.maximum(RBLOCK, (rnumel + shift) // RBLOCK * RBLOCK)",
            ]
        emit.vectors = plan.begin, plan.row.axes[0].symbol, "first + (roffset + rbase)"
        body = Scope([], "        ", outer=base)
        body.lines.append("        roffset = rend * full")
        self._row_scope(body, "roffset + rbase")
        opened += [a for _, accumulators in self._body(steps, body, []) for a in accumulators]
        base.lines.append("    for rend in range(0, 2):")
        base.lines.extend(body.lines)
        emit.masks["r"] = False

    def _last_tile(self) -> str:
        return f"((({self.width}) + RBLOCK - 1) // RBLOCK - 1) * RBLOCK"

    def _turns(self) -> str:
        """The range of a walk that reduces, as the plan wants its turns."""
        plan = self.plan
        options = f", loop_unroll_factor={plan.unrolled}" if plan.unrolled > 1 else ""
        return f"{'tl.' if options else ''}range({{begin}}, {{end}}, RBLOCK{options})"

    def _same_for_all_points(self) -> None:
        """Load before the walk what a program needs one number of, and find out where it ends."""
        own = {axis.symbol for axis in self.plan.outer}
        for node in nodes_of(*(r for step in self.group.steps for r in roots(step))):
            if node.op is Op.LOAD and not node.args and node.attr[1].symbols() <= own:
                self.emitter.value(node, self.base)
        assert self.plan.limit is not None
        self.emitter.value(self.plan.limit, self.base)

    def _end(self) -> str:
        """Where a walk ends: with the row, or where the plan knows that nothing more counts."""
        if self.plan.limit is None:
            return self.width
        limit = self.emitter.value(self.plan.limit, self.base).name
        if self.plan.limit.op is not Op.LOAD:  # constants in it make it a tile of one number
            limit = f"tl.max({limit})"
        return f"tl.minimum({limit}, {self.width}).to(tl.int{64 if self.plan.wide else 32})"

    def _block(self) -> int:
        return self.plan.row.block if self.plan.row is not None else 1

    def _accumulate(self, reduction: Reduction, body: Scope, known: Accumulator | None = None) -> Accumulator:
        """Take a tile of one reduction in; ``known``: where other tiles of the walk were."""
        value = self._full(self.emitter.value(reduction.value, body), body)
        accumulator = known
        if accumulator is None:
            lanes, apart = self._lanes(reduction)
            accumulator = Accumulator(reduction, f"acc{self.emitter.count}", lanes, apart=apart)
            self.emitter.count += 1
            accumulator.open(self.base.lines)
        accumulator.add(value.name, body.lines, self.emitter.masks["r"])
        return accumulator

    def _lanes(self, reduction: Reduction) -> tuple[int, bool]:
        """How many elements of a row one thread has at once, and whether they lie apart: a row that begins anywhere is read one by one."""
        plan, block = self.plan, self._block()
        if plan.form is not Form.ROWS or block % LANES:
            return 1, False
        if plan.begin is not None:
            return LANES, False
        loads = [n for n in nodes_of(reduction.value) if n.op is Op.LOAD]
        width = min((self._vector(n) for n in loads), default=LANES)
        if 2 * width >= LANES:
            return LANES, False
        return max(1, block // (32 * plan.warps * width)), True

    def _vector(self, load: Node) -> int:
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
        return width * LANES * load.dtype.itemsize // 16

    # -- stores -----------------------------------------------------------------------------------

    def _stores(self, step: LoopNest, scope: Scope) -> None:
        emit = self.emitter
        for store in step.stores:
            value = emit.value(store.value, scope)
            if not store.args:
                scope.stored[store.buffer, store.index] = value
            if store.buffer in self.group.internal:
                continue
            places = {indirect(k).name: emit.value(a, scope) for k, a in enumerate(store.args)}
            text, deps = emit.index(store.index, places, scope)
            deps = deps | value.deps | (R if over_row(step, self.group.row_axes) else NOTHING) | self.points
            pointer = emit.spread(f"{emit.pointers[store.buffer]} + ({text})", deps)
            kept = emit.spread(value.name, deps)
            call = "tl.atomic_add" if store.mode is StoreMode.ADD else "tl.store"
            options = self._hint(deps) if call == "tl.store" else ""
            scope.lines.append(f"{scope.indent}{call}({pointer}, {kept}{emit.mask(deps)}{options})")

    def _hint(self, deps: Deps) -> str:
        """What caches are told about a store."""
        return ', eviction_policy="evict_first"' if self.plan.streamed and deps >= R else ""


def _mentions_reduced(node: Node) -> bool:
    stack = [node]
    while stack:
        n = stack.pop()
        if n.op is Op.REDUCED:
            return True
        stack.extend(n.args)
    return False
