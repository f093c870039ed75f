"""The matrix product's template as a Triton kernel: what comes before on the left matrix, the product, what follows on its tile.

A program has a tile of rows (x) and columns (y) and walks the sum (r). The prologue runs over rows and the sum's places like
any kernel with rows: what it reduces is reduced in walks of its own first, what it computes for each place is computed
where the product needs it. The epilogue sees the sums in float32. Sums are taken in float32 in a fixed order.

A product of few rows may begin while what is ahead of it on the stream still runs: then it first loads what nobody writes meanwhile, its weights, or where its sum is
several steps, asks for them to be brought into the cache; and waits before all else. What follows on the tile it then loads with the first of what it multiplies: a load
behind a sum, at which threads meet, would begin when that is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from braze.codegen.records import KernelText
from braze.codegen.triton.asserts import asserted
from braze.codegen.triton.emit import NOTHING, Emitter, Scope, Value
from braze.codegen.triton.gemm_tiles import Means, Tiles, batch_candidates, by_rule, candidates
from braze.codegen.triton.kernels import kernel_text
from braze.codegen.triton.ops import TYPES
from braze.codegen.triton.walks import Walker
from braze.loops.build import nodes_of
from braze.loops.ir import Axis, Buffer, BufferView, Node, Op, TemplateCall
from braze.loops.rewrite import attr_exprs, roots, store_roots
from braze.schedule.facts.passes import passes_of
from braze.schedule.facts.plans import Form, Tile, blocks
from braze.schedule.facts.records import Group, GroupKind
from braze.schedule.gpu.far import is_wide
from braze.schedule.gpu.kernel_plan import KernelPlan
from braze.schedule.gpu.tile_sizes import power
from braze.symbolic.expr import ONE, ZERO, Expr, Symbol, axis_symbol, linear
from braze.symbolic.guess import likely_size

#: bytes that memory gives at once
LINE = 128

X, Y, XY, XR = (frozenset(letters) for letters in ("x", "y", "xy", "xr"))


def gemm_kernel(
    group: Group,
    buffers: dict[str, Buffer],
    tiles: Tiles | None = None,
    early: frozenset[str] | None = None,
    *,
    triggers: bool = False,
) -> KernelText:
    """The kernel of a template's group, cut as told or as the rule says. ``early``: it may begin while what is ahead of it still runs, which
    writes none of these buffers; None: it may not. ``triggers``: then what is behind it may begin with it."""
    call = group.call
    assert isinstance(call, TemplateCall)
    return GemmWriter(group, call, buffers, tiles or rule_of(call), early, triggers).text()


def rule_of(call: TemplateCall) -> Tiles:
    """The tiles of a call that nobody has measured."""
    return tiles_of(call)[0] if call.batch is not None else by_rule(*shape_of(call))


def tiles_of(call: TemplateCall) -> tuple[Tiles, ...]:
    """The tiles of a call that are worth a measurement, the rule's first."""
    rows, inner, columns, rights, itemsize = shape_of(call)
    if call.batch is None:
        return candidates(rows, inner, columns, rights, itemsize)
    return batch_candidates(rows, inner, columns, itemsize)


def shape_of(call: TemplateCall) -> tuple[int, int, int, int, int]:
    """(likely rows, places of the sum, columns, right-hand matrices, bytes of an element)."""
    m, n = call.axes[-2:]
    return (
        likely_size(m.extent), likely_size(call.args[0].sizes[-1]), likely_size(n.extent), len(call.rights),
        call.args[0].dtype.itemsize,
    )  # fmt: skip


class GemmWriter(Walker):
    """Writes one product's kernel."""

    def __init__(
        self,
        group: Group,
        call: TemplateCall,
        buffers: dict[str, Buffer],
        tiles: Tiles,
        early: frozenset[str] | None,
        triggers: bool,
    ) -> None:
        self.call, self.buffers, self.tiles, self.name = call, buffers, tiles, group.name
        self.m, self.n = call.axes[-2:]
        self.batch = call.batch
        inner = call.args[0].sizes[-1]
        self.k = Axis(axis_symbol("k", inner), inner)
        self.rights = call.rights
        # where weights cannot be read ahead, programs that wait only take up room: 8 rows were a fifth slower with it
        ahead = (
            self.batch is None
            and tiles.means is Means.MULTIPLY
            and {v.buffer for v in self.rights} <= (early or frozenset())
        )
        can = self._one_block() and (self._whole_sum() or self._in_lines())
        self.early = early if ahead and can else None
        self.triggers = triggers and self.early is not None
        #: what writes the epilogue, and where it has begun to
        self.following: tuple[Emitter, Scope] | None = None
        loops = Group(
            group.name, GroupKind.LOOPED, call.prologue, (self.m,), (self.k,), tuple(sorted(call.inside)),
            writes=group.writes, device=group.device,
        )  # fmt: skip
        super().__init__(loops, self._plan())
        self.emitter.asserted = asserted((call,))
        for axis in call.axes:
            self.emitter.symbols.pop(axis.symbol, None)
        written = {s.buffer for s in call.epilogue}
        names = self.plan.arguments
        self.emitter.pointers = {b: f"{'out' if b in written else 'in'}_ptr{i}" for i, b in enumerate(names)}

    def _plan(self) -> KernelPlan:
        call, tiles = self.call, self.tiles
        names = self._arguments()
        passes = passes_of(call.prologue, (self.k,)) if call.prologue else ()
        whole = self._whole_sum()
        return KernelPlan(
            Form.ROWS, names, self._sizes(), (), (Tile("x", (self.m,), tiles.rows),), Tile("r", (self.k,), tiles.inner),
            whole, passes, tiles.warps, tiles.stages, any(is_wide(self.buffers[n]) for n in names), False,
        )  # fmt: skip

    def _arguments(self) -> tuple[str, ...]:
        call = self.call
        reads = [n.attr[0] for n in self._nodes() if n.op is Op.LOAD]
        reads += [v.buffer for v in call.args]
        inside = call.inside
        return tuple(
            b for b in dict.fromkeys([*reads, *(s.buffer for s in call.epilogue)]) if b not in inside
        )

    def _nodes(self) -> Iterator[Node]:
        call = self.call
        yield from nodes_of(*(r for nest in call.prologue for r in roots(nest)))
        yield from nodes_of(*store_roots(call.epilogue))

    def _whole_sum(self) -> bool:
        """Whether one step takes the whole sum."""
        return self.k.extent.value is not None and self.tiles.inner >= self.k.extent.value

    def _in_lines(self) -> bool:
        """Whether a column of the right-hand matrices is known to be one piece of memory."""
        known = self.k.extent.value is not None and self.n.extent.value is not None
        return known and all(v.strides[-2].value == 1 for v in self.rights)

    def _sizes(self) -> tuple[Symbol, ...]:
        call = self.call
        exprs: list[Expr] = [*(a.extent for a in call.axes), self.k.extent]
        for view in call.args:
            exprs += [*view.strides, view.offset]
        exprs += [s.index for s in call.epilogue]
        exprs += [s.index for nest in call.prologue for s in nest.stores]
        exprs += [e for n in self._nodes() for e in attr_exprs(n.attr)]
        own = {self.k.symbol, *(a.symbol for a in call.axes)}
        found = {s for e in exprs for s in e.symbols() if s.place is None} - own
        return tuple(sorted(found, key=lambda s: s.name))

    # -- the text -----------------------------------------------------------------------------------

    def text(self) -> KernelText:
        """The kernel."""
        tiles, body, programs = self.tiles, self.write(), self._programs()
        constants: tuple[tuple[str, int], ...] = (
            ("XBLOCK", tiles.rows), ("YBLOCK", tiles.columns), ("RBLOCK", tiles.inner),
        )  # fmt: skip
        constants += () if self.early is None else (("EARLY", 1),)
        return kernel_text(
            self.name, body, self, self.buffers, constants, programs, early=self.early is not None
        )

    def _programs(self) -> Expr:
        """How many programs there are."""
        programs = blocks(self.m.extent, self.tiles.rows) * blocks(self.n.extent, self.tiles.columns)
        return programs if self.batch is None else self.batch.extent * programs

    def write(self) -> list[str]:
        """The lines of the body."""
        lines = self.base.lines
        if self.triggers:
            lines += ["    if EARLY:", "        gdc_launch_dependents()"]
        self._place()
        first = self.early is not None and self.plan.whole
        assert self.plan.row is not None
        self._row_numbers(self.plan.row)
        for k in range(len(self.rights)):
            lines.append(f"    acc{k}_ = tl.zeros({self._sum_shape()}, tl.float32)")
        if self.plan.whole:
            scope = self.row_scope(self.base, "rbase")
            rights = [self._right(view, scope) for view in self.rights] if first else []
            if first:
                self._load_ahead(scope)
                self._wait()
                self._begin_epilogue()
            for step in self.group.steps:
                self._step(step, scope)
            self._multiply(scope, rights)
        else:
            if self.early is not None:
                self._fetch()
                self._wait()
                self._begin_epilogue()
            self._reduced_first()
            body = Scope([], "        ", outer=self.base)
            self.row_scope(body, "roffset + rbase")
            self._multiply(body)
            stages = f", num_stages={self.tiles.stages}" if self.tiles.stages > 1 else ""
            lines.append(
                f"    for roffset in {'tl.' if stages else ''}range(0, {self.width}, RBLOCK{stages}):"
            )
            lines.extend(body.lines)
        self._epilogue()
        return lines

    def _fetch(self) -> None:
        """Ask for all of the program's columns, a line of memory each time."""
        columns, last, inner = self.tiles.columns, self.n.extent.value, self.k.extent.value
        assert last is not None and inner is not None
        lines = self.base.lines
        lines.append("    if EARLY:")
        for view in self.rights:
            length = LINE // view.dtype.itemsize
            steps = -(-inner // length)
            begin, across = map(self.emitter.text, (view.offset, view.strides[-1]))
            lines.append(f"        line = tl.arange(0, {power(steps * columns)})")
            lines.append(
                f"        column = tl.minimum(yblock * YBLOCK + tl.minimum(line // {steps}, {columns - 1}), {last - 1})"
            )
            lines.append(
                f"        bz_fetch({self.emitter.pointers[view.buffer]} + ({begin}) + column * ({across}) + line % {steps} * {length})"
            )

    def _load_ahead(self, scope: Scope) -> None:
        """What the prologue reads that nobody writes meanwhile: a norm's weight."""
        assert self.early is not None
        for node in plain_loads(r for nest in self.call.prologue for r in roots(nest)):
            if node.attr[0] in self.early and node.attr[1].symbols() <= self.emitter.symbols.keys():
                self.emitter.value(node, scope)

    def _wait(self) -> None:
        """All that ran before is done from here on, where this began sooner."""
        self.base.lines += ["    if EARLY:", "        gdc_wait()"]

    def _sum_shape(self) -> str:
        if self.tiles.slices > 1:
            return f"[{self.tiles.slices}, XBLOCK, YBLOCK]"
        return "[XBLOCK, YBLOCK]"

    def _place(self) -> None:
        """The program's tile: columns side by side; of many rows, a band of row blocks for each, so that both matrices stay in the cache."""
        lines, plan = self.base.lines, self.plan
        across = self.emitter.text(blocks(self.n.extent, self.tiles.columns))
        down = self.emitter.text(blocks(self.m.extent, self.tiles.rows))
        wide = ".to(tl.int64)" if plan.wide else ""
        lines.append(f"    program = tl.program_id(0){wide}")
        if self.batch is not None:
            lines.append(f"    batch = program // (({down}) * ({across}))")
            lines.append(f"    program = program % (({down}) * ({across}))")
            self.emitter.symbols[self.batch.symbol] = Value("batch", NOTHING)
        if self._one_block():
            lines += ["    xblock = program * 0", "    yblock = program"]
        elif self.tiles.band == 1:
            lines += [f"    xblock = program // ({across})", f"    yblock = program % ({across})"]
        else:
            band = self.tiles.band
            lines += [
                f"    first = program // ({band} * ({across})) * {band}",
                f"    height = tl.minimum({down} - first, {band})",
                f"    inside = program % ({band} * ({across}))",
                "    xblock = first + inside % height",
                "    yblock = inside // height",
            ]
        (x,) = plan.points
        lines.append("    xoffset = xblock * XBLOCK")
        self._tile(x, self.base)

    def _reduced_first(self) -> None:
        """Walks of the prologue that reduce its rows; what it computes along them is computed again in the product's walk."""
        for number, each in enumerate(self.plan.passes):
            if each.reduces:
                self._pass(number)
                continue
            for step in each.behind:
                self._stores(step, self.base)
            for store in (s for step in each.along for s in step.stores):
                self.emitter.recomputed[store.buffer, store.index] = store.value
                self._look_up(store.value)

    def _look_up(self, value: Node) -> None:
        """Where each of the rows that are copied lies: the same in each step of the sum."""
        if value.op is Op.LOAD:
            for place in value.args:
                if not any(self.k.symbol in e.symbols() for n in nodes_of(place) for e in attr_exprs(n.attr)):
                    self.emitter.value(place, self.base)

    def _multiply(self, scope: Scope, rights: Sequence[str] = ()) -> None:
        """One step of the sum: a tile of the left matrix, one of each right-hand one (``rights``: these, loaded before), their product."""
        left = self._left(scope)
        shape = self._sum_shape()
        for k, view in enumerate(self.rights):
            right = rights[k] if rights else self._right(view, scope)
            total = f"acc{k}_"
            if self.tiles.means is Means.CORES:
                text = f"tl.dot({left}, {right}, {total})"
            elif self.tiles.rows == 1:
                text = f"{total} + tl.reshape(tl.sum({left} * {right}, 1), {shape})"
            else:
                text = f"{total} + tl.sum({left}[:, None, :] * {right}[None, :, :], 2)"
            scope.lines.append(f"{scope.indent}{total} = {text}")

    def _left(self, scope: Scope) -> str:
        """The variable of the left matrix's tile: [XBLOCK, RBLOCK], or cut in slices."""
        emit, view, tiles = self.emitter, self.call.args[0], self.tiles
        axes = (self.m, self.k) if self.batch is None else (self.batch, self.m, self.k)
        places = (ZERO if a.extent is ONE else a.symbol for a in axes)
        index = linear(tuple(places), view.strides, view.offset)
        value = emit.value(Node(Op.LOAD, view.dtype, (), (view.buffer, index)), scope)
        text = value.name
        if value.deps != XR:
            text = f"tl.broadcast_to({text}, [XBLOCK, RBLOCK])"
        if emit.masks["r"] and self.call.prologue:
            zero = f"tl.full([1, 1], 0, {TYPES[view.dtype]})"
            text = emit.assign(f"tl.where(rmask, {text}, {zero})", XR, scope).name
        if tiles.means is Means.MULTIPLY:
            return emit.assign(f"({text}).to(tl.float32)", XR, scope).name
        if tiles.slices > 1:
            cut = f"[XBLOCK, {tiles.slices}, RBLOCK // {tiles.slices}]"
            return emit.assign(f"tl.permute(tl.reshape({text}, {cut}), [1, 0, 2])", XR, scope).name
        return text

    def _right(self, view: BufferView, scope: Scope) -> str:
        """The variable of a right-hand matrix's tile: by rows of its columns to be multiplied, by rows of the sum for the tensor cores."""
        emit, tiles = self.emitter, self.tiles
        down, across = map(emit.text, view.strides[-2:])
        base = f"{emit.pointers[view.buffer]} + ({self._begin(view)})"
        ragged_y, ragged_r = self._ragged_columns(), emit.masks["r"]
        lines, indent = scope.lines, scope.indent
        if tiles.slices > 1:
            part = f"RBLOCK // {tiles.slices}"
            places = f"(tl.arange(0, {tiles.slices})[:, None, None] * ({part}) + tl.arange(0, {part})[None, :, None])"
            columns = "(yblock * YBLOCK + tl.arange(0, YBLOCK))[None, None, :]"
        elif tiles.means is Means.CORES:
            places, columns = (
                "tl.arange(0, RBLOCK)[:, None]",
                "(yblock * YBLOCK + tl.arange(0, YBLOCK))[None, :]",
            )
        else:
            places, columns = (
                "tl.arange(0, RBLOCK)[None, :]",
                "(yblock * YBLOCK + tl.arange(0, YBLOCK))[:, None]",
            )
        walked = "" if self.plan.whole else "roffset + "
        at = f"b{emit.count}"
        emit.count += 1
        lines.append(f"{indent}{at}r = {walked}{places}")
        lines.append(f"{indent}{at}y = {columns}")
        masks = [f"({at}r < rnumel)"] if ragged_r else []
        masks += [f"({at}y < {emit.text(self.n.extent)})"] if ragged_y else []
        mask = f", mask={' & '.join(masks)}, other=0" if masks else ""
        # what one program alone reads no cache should keep
        told = ', eviction_policy="evict_first"' if self._one_block() else ""
        text = f"tl.load({base} + {at}r * ({down}) + {at}y * ({across}){mask}{told})"
        if tiles.means is Means.MULTIPLY:
            text += ".to(tl.float32)"
        return emit.assign(text, XR, scope).name

    def _begin(self, view: BufferView) -> str:
        """Where the program's right-hand matrix begins."""
        return self.emitter.text(
            view.offset if self.batch is None else view.offset + self.batch.symbol * view.strides[0]
        )

    def _ragged_columns(self) -> bool:
        n = self.n.extent.value
        return n is None or n % self.tiles.columns != 0

    def _last_row(self) -> str:
        """Where the rows end."""
        return self.emitter.text(self.m.extent)

    def _one_block(self) -> bool:
        """Whether a program has all rows."""
        most = self.m.extent.bounds()[1]
        return most is not None and most <= self.tiles.rows

    # -- the epilogue -------------------------------------------------------------------------------

    def _begin_epilogue(self) -> None:
        """The columns of the tile, and what follows on it reads there."""
        lines, product = self.base.lines, self.emitter
        symbols = {s: Value(s.name, NOTHING) for s in self.plan.sizes}
        if self.batch is not None:
            symbols[self.batch.symbol] = Value("batch", NOTHING)
        emit = Emitter(symbols, product.pointers, ("x", "y"))
        emit.far = product.far
        emit.masks = {"x": product.masks["x"], "y": self._ragged_columns()}
        lines.append("    xcolumn = xoffset + tl.arange(0, XBLOCK)[:, None]")
        lines.append("    ycolumn = yblock * YBLOCK + tl.arange(0, YBLOCK)[None, :]")
        if emit.masks["x"]:
            lines.append(f"    xmask = xcolumn < {self._last_row()}")
        if emit.masks["y"]:
            lines.append(f"    ymask = ycolumn < {emit.text(self.n.extent)}")
        emit.symbols[self.m.symbol] = Value("xcolumn", X)
        emit.symbols[self.n.symbol] = Value("ycolumn", Y)
        emit.reduced = {k: Value(f"acc{k}_", XY) for k in range(len(self.rights))}
        emit.asserted = product.asserted
        self.following = emit, Scope(lines, "    ")
        emit.count = product.count
        if self.early is not None:
            for node in plain_loads(store_roots(self.call.epilogue)):
                emit.value(node, self.following[1])
        product.count = emit.count

    def _epilogue(self) -> None:
        """What follows on the tile of sums."""
        lines = self.base.lines
        for k in range(len(self.rights)):
            if self.tiles.slices > 1:
                lines.append(f"    acc{k}_ = tl.sum(acc{k}_, 0)")
        if self.following is None:
            self._begin_epilogue()
        assert self.following is not None
        count, (self.emitter, scope) = self.emitter.count, self.following
        emit, emit.count = self.emitter, count
        values = [emit.value(s.value, scope) for s in self.call.epilogue]
        for store, value in zip(self.call.epilogue, values, strict=True):
            pointer = emit.spread(f"{emit.pointers[store.buffer]} + ({emit.text(store.index)})", XY)
            lines.append(f"    tl.store({pointer}, {emit.spread(value.name, XY)}{emit.mask(XY)})")
        emit.end(scope)


def plain_loads(values: Iterable[Node]) -> Iterator[Node]:
    """Loads in these values at places that are known, and that are made in any case."""
    seen, stack = set[Node](), list(values)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op is Op.LOAD and not node.args:
            yield node
        stack.extend(node.args[:1] if node.op is Op.MASKED else node.args)
