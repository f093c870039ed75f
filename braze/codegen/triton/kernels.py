"""Groups -> Triton kernels.

A pointwise group is one tile of XBLOCK points. A group with rows is XBLOCK rows by RBLOCK elements: persistent
holds the whole row; looped walks it once per *pass*, a run of steps with no reduction's result needed by the
next. Values of an earlier pass are computed again from their inputs rather than read back from memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from braze.codegen.records import KernelText, TritonLaunch
from braze.codegen.triton.choices import Tile, choose_tile
from braze.codegen.triton.emit import NOTHING, Emitter, Scope, Value, index_text
from braze.codegen.triton.ops import POINTERS, TYPES
from braze.codegen.triton.prelude import used
from braze.context import CompileContext
from braze.loops.ir import Axis, DType, LoopNest, Node, Op, ReduceKind, Reduction, StoreMode
from braze.schedule.records import Group, GroupKind, Schedule
from braze.support.errors import Unsupported
from braze.symbolic.expr import ONE, Expr, Symbol, indirect

HEADER = """import triton
import triton.language as tl
from triton.language.extra import libdevice
"""

X = frozenset("x")
R = frozenset("r")
XR = frozenset("xr")


def generate(schedule: Schedule, ctx: CompileContext) -> tuple[KernelText, ...]:
    """One kernel per group of loop nests on a GPU, in the schedule's order.

    Raises Unsupported (BZ5010) for a group that Triton cannot express.
    """
    kinds = (GroupKind.POINTWISE, GroupKind.PERSISTENT, GroupKind.LOOPED)
    return tuple(
        kernel(group, schedule) for group in schedule.groups if group.kind in kinds and group.device != "cpu"
    )


def kernel(group: Group, schedule: Schedule) -> KernelText:
    """The text of one group's kernel."""
    name = group.name
    buffers = arguments(group)
    sizes = size_symbols(group)
    tile = choose_tile(group)
    writer = Writer(group, schedule, tile, buffers, sizes)
    body = writer.write()
    pointers = [writer.emitter.pointers[b] for b in buffers]
    blocks = ["XBLOCK"] + (["RBLOCK"] if tile.row else [])
    parameters = ", ".join(
        [*pointers, *(s.name for s in sizes), "xnumel", *(f"{b}: tl.constexpr" for b in blocks)]
    )
    function = "\n".join([f"@triton.jit\ndef {name}({parameters}):", *body, ""])
    source = f"{HEADER}\n{used(function)}\n\n{function}"
    launch = TritonLaunch(
        xnumel=str(extent(group.axes)),
        constants=(("XBLOCK", tile.x),) + ((("RBLOCK", tile.row),) if tile.row else ()),
        num_warps=tile.warps,
        num_stages=tile.stages,
        dtypes=tuple(POINTERS[schedule.buffer(b).dtype] for b in buffers),
    )
    return KernelText(
        name=name,
        language="triton",
        source=source,
        args=buffers,
        sizes=tuple(s.name for s in sizes),
        canonical=f"{launch}\n{source.replace(name, 'kernel')}",
        launch=launch,
    )


def arguments(group: Group) -> tuple[str, ...]:
    """The buffers that the kernel touches in memory: read first, then written."""
    reads: dict[str, None] = {}
    writes: dict[str, None] = {}
    for step in group.steps:
        for node in walk_nest(step):
            if node.op is Op.LOAD:
                reads[node.attr[0]] = None
        writes.update(dict.fromkeys(s.buffer for s in step.stores))
    outside = [b for b in reads if b not in group.internal]
    return tuple(dict.fromkeys([*outside, *(b for b in writes if b not in group.internal)]))


def walk_nest(nest: LoopNest) -> list[Node]:
    """Every node of a nest once."""
    seen: dict[Node, None] = {}
    stack = [r.value for r in nest.reductions] + [s.value for s in nest.stores]
    stack += [a for s in nest.stores for a in s.args]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen[node] = None
            stack.extend(node.args)
    return list(seen)


def size_symbols(group: Group) -> tuple[Symbol, ...]:
    """Sizes that the kernel needs at run time, by name."""
    axes = {a.symbol for step in group.steps for a in (*step.axes, *step.reduce_axes)}
    axes |= {a.symbol for a in (*group.axes, *group.row_axes)}
    found: set[Symbol] = set()
    for axis in (*group.axes, *group.row_axes):
        found |= axis.extent.symbols()
    for step in group.steps:
        for node in walk_nest(step):
            if node.op is Op.LOAD:
                found |= node.attr[1].symbols()
            elif node.op is Op.INDEX:
                found |= node.attr.symbols()
        for store in step.stores:
            found |= store.index.symbols()
    return tuple(sorted((s for s in found - axes if s.place is None), key=lambda s: s.name))


def extent(axes: tuple[Axis, ...]) -> Expr:
    """The number of points of some axes."""
    total: Expr = ONE
    for axis in axes:
        total = total * axis.extent
    return total


@dataclass(slots=True)
class Pass:
    """Steps that share one walk over the row."""

    steps: list[LoopNest]


class Writer:
    """Writes one kernel's body."""

    def __init__(
        self,
        group: Group,
        schedule: Schedule,
        tile: Tile,
        buffers: tuple[str, ...],
        sizes: tuple[Symbol, ...],
    ) -> None:
        self.group = group
        self.schedule = schedule
        self.tile = tile
        self.row = {a.symbol for a in group.row_axes}
        written = {s.buffer for step in group.steps for s in step.stores}
        pointers = {b: f"{'out' if b in written else 'in'}_ptr{i}" for i, b in enumerate(buffers)}
        symbols = {s: Value(s.name, NOTHING) for s in sizes}
        names = ("XBLOCK", "RBLOCK") if tile.row else ("XBLOCK",)
        self.emitter = Emitter(symbols, pointers, names)
        self.base = Scope([], "    ", False)
        self.width = ""

    def write(self) -> list[str]:
        """The lines of the body."""
        self._points()
        if not self.tile.row:
            for step in self.group.steps:
                self._stores(step, self.base)
            return self.base.lines
        self._row_numbers()
        if self.tile.persistent:
            scope = self._row_scope(self.base, "rbase")
            for step in self.group.steps:
                self._step(step, scope)
        else:
            self._passes()
        return self.base.lines

    # -- indices ----------------------------------------------------------------------------------

    def _points(self) -> None:
        lines = self.base.lines
        two = bool(self.tile.row)
        lines.append(
            "    xoffset = tl.program_id(0).to(tl.int64) * XBLOCK"
            if self._wide()
            else "    xoffset = tl.program_id(0) * XBLOCK"
        )
        lines.append(f"    xindex = xoffset + tl.arange(0, XBLOCK){'[:, None]' if two else ''}")
        lines.append("    xmask = xindex < xnumel")
        self._split("xindex", "x", self.group.axes, self.base, X)

    def _split(
        self, whole: str, prefix: str, axes: tuple[Axis, ...], scope: Scope, deps: frozenset[str]
    ) -> None:
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

    def _wide(self) -> bool:
        """Whether any buffer needs 64-bit offsets."""
        for name in self.emitter.pointers:
            buffer = self.schedule.buffer(name)
            span: Expr = ONE
            for size, stride in zip(buffer.sizes, buffer.strides, strict=True):
                span = span + (size - 1) * stride
            high = span.bounds()[1]
            if span.value is None and high is None:
                continue
            if (span.value or high or 0) >= 2**31:
                return True
        return False

    def _row_numbers(self) -> None:
        names = {s.name: v.name for s, v in self.emitter.symbols.items()}
        total = extent(self.group.row_axes)
        self.width = index_text(total, names)
        self.base.lines.append(f"    rnumel = {self.width}")
        self.base.lines.append("    rbase = tl.arange(0, RBLOCK)[None, :]")
        self.emitter.masks["r"] = not (self.tile.persistent and total.value == self.tile.row)

    def _row_scope(self, scope: Scope, index: str) -> Scope:
        scope.lines.append(f"{scope.indent}rindex = {index}")
        if self.emitter.masks["r"]:
            scope.lines.append(f"{scope.indent}rmask = rindex < rnumel")
        self._split("rindex", "r", self.group.row_axes, scope, R)
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
            power = emit.assign(f"tl.exp({full.name} - {top.name})", XR, scope)
            return [top, self._collapse(ReduceKind.SUM, power, reduction.dtype, scope)]
        among = reduction.value.dtype if kind in (ReduceKind.ARGMAX, ReduceKind.ARGMIN) else reduction.dtype
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
        if emit.masks["r"] and kind not in (ReduceKind.ARGMAX, ReduceKind.ARGMIN):
            name = emit.assign(f"tl.where(rmask, {name}, {identity(kind, dtype)})", XR, scope).name
        text = {
            ReduceKind.SUM: f"tl.sum({name}.to({TYPES[dtype]}), 1)[:, None]",
            ReduceKind.PROD: f"tl.reduce({name}, 1, bz_prod)[:, None]",
            ReduceKind.MAX: f"tl.reduce({name}, 1, bz_max)[:, None]",
            ReduceKind.MIN: f"tl.reduce({name}, 1, bz_min)[:, None]",
            ReduceKind.ANY: f"(tl.max(({name}).to(tl.int32), 1) != 0)[:, None]",
            ReduceKind.ALL: f"(tl.min(({name}).to(tl.int32), 1) != 0)[:, None]",
        }.get(kind)
        if text is not None:
            return emit.assign(text, X, scope)
        if kind in (ReduceKind.ARGMAX, ReduceKind.ARGMIN):
            return self._arg(kind, name, dtype, "rindex", scope)
        raise Unsupported("BZ5010", f"Triton generator has no reduction {kind.value}")

    def _arg(self, kind: ReduceKind, name: str, dtype: DType, places: str, scope: Scope) -> Value:
        emit = self.emitter
        values = f"tl.where(rmask, {name}, {worst(kind, dtype)})" if emit.masks["r"] else name
        where = f"tl.where(rmask, {places}, 2147483647)" if emit.masks["r"] else places
        where = f"tl.broadcast_to({where}, [XBLOCK, RBLOCK])"
        pair = emit.assign(f"tl.reduce(({values}, {where}), 1, bz_{kind.value})", X, scope)
        return emit.assign(f"{pair.name}[1][:, None].to(tl.int64)", X, scope)

    # -- looped -----------------------------------------------------------------------------------

    def _passes(self) -> None:
        for group in plan_passes(self.group, self.row):
            self._pass(group)

    def _pass(self, group: Pass) -> None:
        whole_row = [s for s in group.steps if s.reductions or self._over_row(s)]
        if whole_row:
            self._loop(whole_row)
        for step in group.steps:
            if not step.reductions and not self._over_row(step):
                self._stores(step, self.base)

    def _over_row(self, step: LoopNest) -> bool:
        return any(a.symbol in self.row for a in step.axes)

    def _loop(self, steps: list[LoopNest]) -> None:
        """One walk over the row: accumulate every step's reductions, store what is stored along the row."""
        emit = self.emitter
        before = self.base.lines
        body = Scope([], "        ", True, outer=self.base)
        self._row_scope(body, "roffset + rbase")
        finish: list[tuple[LoopNest, list[Accumulator]]] = []
        for step in steps:
            if step.reductions:
                accumulators = [self._accumulate(r, body) for r in step.reductions]
                finish.append((step, accumulators))
            else:
                self._stores(step, body)
                for store in step.stores:
                    emit.recomputed[store.buffer, store.index] = store.value
        # a literal where there is one: the interpreter turns assigned numbers into arrays
        before.append(f"    for roffset in range(0, {self.width}, RBLOCK):")
        before.extend(body.lines)
        for symbol in self.row:
            emit.symbols.pop(symbol)
        for step, accumulators in finish:
            emit.reduced = {}
            self._forget_reduced(self.base)
            slot = 0
            for accumulator in accumulators:
                for result in accumulator.results(self):
                    emit.reduced[slot] = result
                    slot += 1
            self._stores(step, self.base)

    def _accumulate(self, reduction: Reduction, body: Scope) -> Accumulator:
        value = self._full(self.emitter.value(reduction.value, body), body)
        accumulator = Accumulator(reduction, f"acc{self.emitter.count}")
        self.emitter.count += 1
        accumulator.open(self.base.lines)
        accumulator.add(value.name, body.lines, self.emitter.masks["r"])
        return accumulator

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
            deps = deps | value.deps | frozenset({"r"} if self._over_row(step) else ()) | X
            pointer = emit.spread(f"{emit.pointers[store.buffer]} + ({text})", deps)
            kept = emit.spread(value.name, deps)
            call = "tl.atomic_add" if store.mode is StoreMode.ADD else "tl.store"
            scope.lines.append(f"{scope.indent}{call}({pointer}, {kept}{emit.mask(deps)})")


@dataclass(slots=True)
class Accumulator:
    """The running state of one reduction in a looped kernel: a tile combined lane by lane, then collapsed."""

    reduction: Reduction
    name: str

    def open(self, lines: list[str]) -> None:
        """Declare the state before the loop."""
        kind, dtype = self.reduction.kind, self.reduction.dtype
        shape = "[XBLOCK, RBLOCK]"
        if kind is ReduceKind.WELFORD:
            for part in ("n", "mean", "m2"):
                lines.append(f"    {self.name}_{part} = tl.full({shape}, 0, {TYPES[dtype]})")
        elif kind is ReduceKind.ONLINE_SOFTMAX:
            lines.append(f'    {self.name}_top = tl.full({shape}, float("-inf"), {TYPES[dtype]})')
            lines.append(f"    {self.name}_sum = tl.full({shape}, 0, {TYPES[dtype]})")
        elif kind in (ReduceKind.ARGMAX, ReduceKind.ARGMIN):
            of = self.reduction.value.dtype
            lines.append(f"    {self.name}_v = tl.full({shape}, {worst(kind, of)}, {TYPES[of]})")
            lines.append(f"    {self.name}_i = tl.full({shape}, 2147483647, tl.int32)")
        else:
            kept = DType.I32 if kind in (ReduceKind.ANY, ReduceKind.ALL) else dtype
            lines.append(f"    {self.name} = tl.full({shape}, {identity(kind, dtype)}, {TYPES[kept]})")

    def add(self, value: str, lines: list[str], masked: bool) -> None:
        """Take one tile in, inside the loop."""
        n, kind = self.name, self.reduction.kind

        def put(target: str, text: str) -> None:
            lines.append(
                f"        {target} = tl.where(rmask, {text}, {target})"
                if masked
                else f"        {target} = {text}"
            )

        if kind is ReduceKind.WELFORD:
            lines.append(f"        {n}_d = {value} - {n}_mean")
            put(f"{n}_n", f"{n}_n + 1")
            put(f"{n}_mean", f"{n}_mean + bz_div({n}_d, {n}_n)")
            put(f"{n}_m2", f"{n}_m2 + {n}_d * ({value} - {n}_mean)")
        elif kind is ReduceKind.ONLINE_SOFTMAX:
            lines.append(f"        {n}_new = bz_max({n}_top, {value})")
            power = f"tl.where({value} == {n}_new, 1.0, tl.exp({value} - {n}_new))"
            put(f"{n}_sum", f"bz_rescale({n}_sum, {n}_top, {n}_new) + {power}")
            put(f"{n}_top", f"{n}_new")
        elif kind in (ReduceKind.ARGMAX, ReduceKind.ARGMIN):
            places = "tl.broadcast_to(rindex, [XBLOCK, RBLOCK]).to(tl.int32)"
            lines.append(f"        {n}_p, {n}_q = bz_{kind.value}({n}_v, {n}_i, {value}, {places})")
            put(f"{n}_v", f"{n}_p")
            put(f"{n}_i", f"{n}_q")
        else:
            put(n, combine(kind, n, value))

    def results(self, writer: Writer) -> list[Value]:
        """Collapse the state after the loop."""
        emit, scope, n = writer.emitter, writer.base, self.name
        kind = self.reduction.kind
        if kind is ReduceKind.WELFORD:
            count = emit.assign(f"tl.sum({n}_n, 1)[:, None]", X, scope)
            mean = emit.assign(f"bz_div(tl.sum({n}_mean * {n}_n, 1)[:, None], {count.name})", X, scope)
            emit.assign(f"{n}_mean - {mean.name}", XR, scope)
            gap = f"t{emit.count - 1}"
            m2 = emit.assign(f"tl.sum({n}_m2 + {n}_n * {gap} * {gap}, 1)[:, None]", X, scope)
            return [mean, m2]
        if kind is ReduceKind.ONLINE_SOFTMAX:
            top = emit.assign(f"tl.reduce({n}_top, 1, bz_max)[:, None]", X, scope)
            total = emit.assign(f"tl.sum(bz_rescale({n}_sum, {n}_top, {top.name}), 1)[:, None]", X, scope)
            return [top, total]
        if kind in (ReduceKind.ARGMAX, ReduceKind.ARGMIN):
            pair = emit.assign(f"tl.reduce(({n}_v, {n}_i), 1, bz_{kind.value})", X, scope)
            return [emit.assign(f"{pair.name}[1][:, None].to(tl.int64)", X, scope)]
        text = {
            ReduceKind.SUM: f"tl.sum({n}, 1)[:, None]",
            ReduceKind.PROD: f"tl.reduce({n}, 1, bz_prod)[:, None]",
            ReduceKind.MAX: f"tl.reduce({n}, 1, bz_max)[:, None]",
            ReduceKind.MIN: f"tl.reduce({n}, 1, bz_min)[:, None]",
            ReduceKind.ANY: f"(tl.max({n}, 1) != 0)[:, None]",
            ReduceKind.ALL: f"(tl.min({n}, 1) != 0)[:, None]",
        }[kind]
        return [emit.assign(text, X, scope)]


def combine(kind: ReduceKind, state: str, value: str) -> str:
    """The lane-wise step of a simple reduction."""
    return {
        ReduceKind.SUM: f"{state} + {value}",
        ReduceKind.PROD: f"{state} * {value}",
        ReduceKind.MAX: f"bz_max({state}, {value})",
        ReduceKind.MIN: f"bz_min({state}, {value})",
        ReduceKind.ANY: f"{state} | ({value}).to(tl.int32)",
        ReduceKind.ALL: f"{state} & ({value}).to(tl.int32)",
    }[kind]


def identity(kind: ReduceKind, dtype: DType) -> str:
    """The value that leaves a reduction unchanged."""
    if kind in (ReduceKind.SUM, ReduceKind.ANY):
        return "0"
    if kind in (ReduceKind.PROD, ReduceKind.ALL):
        return "1"
    if dtype.is_float:
        return 'float("-inf")' if kind is ReduceKind.MAX else 'float("inf")'
    if dtype is DType.BOOL:
        return "0" if kind is ReduceKind.MAX else "1"
    bits = 8 * dtype.itemsize - (dtype is not DType.U8)
    low = 0 if dtype is DType.U8 else -(1 << bits)
    return str(low if kind is ReduceKind.MAX else (1 << bits) - 1)


def worst(kind: ReduceKind, dtype: DType) -> str:
    """The value that every other one is better than, or as good as and sooner."""
    return identity(ReduceKind.MAX if kind is ReduceKind.ARGMAX else ReduceKind.MIN, dtype)


def plan_passes(group: Group, row: set[Symbol]) -> list[Pass]:
    """Cut the steps where one needs, along the row, the result of a reduction of the same pass."""
    passes: list[Pass] = [Pass([])]
    pending: set[str] = set()  # buffers whose values exist only after the current pass's loop
    for step in group.steps:
        along = bool(step.reductions) or any(a.symbol in row for a in step.axes)
        reads = {n.attr[0] for n in walk_nest(step) if n.op is Op.LOAD}
        if along and reads & pending:
            passes.append(Pass([]))
            pending = set()
        passes[-1].steps.append(step)
        if step.reductions or (reads & pending) or not along:
            pending |= {s.buffer for s in step.stores}
    return passes


def _mentions_reduced(node: Node) -> bool:
    stack = [node]
    while stack:
        n = stack.pop()
        if n.op is Op.REDUCED:
            return True
        stack.extend(n.args)
    return False
