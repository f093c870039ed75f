"""Depthwise convolutions as a Triton kernel: each channel's window of its own, what follows on its results.

A program has a strip of rows, columns (x) of them and some channels (y). It goes over the window's columns, and for each down the rows of the picture that its strip
needs: an element that it has read has its part in all rows of the strip whose windows hold it. Threads lie along the channels where these lie side by side, else
along the columns. Sums are taken in float32 in a fixed order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from braze.codegen.records import KernelText
from braze.codegen.triton.asserts import asserted
from braze.codegen.triton.depthwise_tiles import Strips, strips_of
from braze.codegen.triton.emit import NOTHING, Scope, Value
from braze.codegen.triton.gemm import plain_loads
from braze.codegen.triton.kernels import kernel_text
from braze.codegen.triton.writer import Writer
from braze.loops.build import nodes_of
from braze.loops.ir import Axis, Buffer, Node, Op, TemplateCall
from braze.loops.rewrite import attr_exprs, store_roots
from braze.products import Depthwise
from braze.schedule.facts.plans import Form, Tile, blocks
from braze.schedule.facts.records import Group
from braze.schedule.gpu.far import is_wide
from braze.schedule.gpu.kernel_plan import KernelPlan
from braze.symbolic.expr import Expr, Symbol
from braze.symbolic.guess import likely_size

X, Y, XY = (frozenset(letters) for letters in ("x", "y", "xy"))


def depthwise_kernel(group: Group, buffers: dict[str, Buffer], strips: Strips | None = None) -> KernelText:
    """The kernel of a depthwise convolution's group, cut as told or as the rule says."""
    call = group.call
    assert isinstance(call, TemplateCall)
    return _Depthwise(group, call, buffers, strips or strips_of(depthwise_of(call))[0]).text()


def depthwise_of(call: TemplateCall) -> Depthwise:
    """What a call computes, by likely sizes where only a call tells."""
    pictures, weights = call.args
    assert call.window is not None
    samples, channels, high, wide = map(likely_size, pictures.sizes)
    _, down, across = map(likely_size, weights.sizes)
    w = call.window
    return Depthwise(
        pictures.dtype.label, samples, channels, (high, wide), (down, across), w.stride, w.padding, w.dilation, w.last
    )  # fmt: skip


class _Depthwise(Writer):
    """Writes one kernel."""

    def __init__(self, group: Group, call: TemplateCall, buffers: dict[str, Buffer], strips: Strips) -> None:
        assert call.window is not None
        self.call, self.buffers, self.strips, self.name = call, buffers, strips, group.name
        self.window, self.of = call.window, depthwise_of(call)
        self.last = call.window.last
        self.samples, *rest = call.axes
        self.rows, self.columns, self.channels = rest if self.last else (*rest[1:], rest[0])
        super().__init__(dataclasses.replace(group, steps=()), self._plan())
        self.emitter.asserted = asserted((call,))
        written = {s.buffer for s in call.epilogue}
        self.emitter.pointers = {
            b: f"{'out' if b in written else 'in'}_ptr{i}" for i, b in enumerate(self.plan.arguments)
        }

    def _plan(self) -> KernelPlan:
        call, strips = self.call, self.strips
        x, y = Tile("x", (self.columns,), strips.columns), Tile("y", (self.channels,), strips.channels)
        reads = [n.attr[0] for n in self._nodes() if n.op is Op.LOAD]
        names = tuple(
            dict.fromkeys([*(v.buffer for v in call.args), *reads, *(s.buffer for s in call.epilogue)])
        )
        wide = any(is_wide(self.buffers[n]) for n in names)
        points = (x, y) if self.last else (y, x)
        return KernelPlan(
            Form.TILED, names, self._sizes(), (), points, None, False, (), strips.warps, 1, wide, coarse=False
        )

    def _nodes(self) -> Iterator[Node]:
        yield from nodes_of(*store_roots(self.call.epilogue))

    def _sizes(self) -> tuple[Symbol, ...]:
        call = self.call
        exprs: list[Expr] = [a.extent for a in call.axes]
        for view in call.args:
            exprs += [*view.sizes, *view.strides, view.offset]
        exprs += [s.index for s in call.epilogue]
        exprs += [e for n in self._nodes() for e in attr_exprs(n.attr)]
        own = {a.symbol for a in call.axes}
        found = {s for e in exprs for s in e.symbols() if s.place is None} - own
        return tuple(sorted(found, key=lambda s: s.name))

    # -- the text -----------------------------------------------------------------------------------

    def text(self) -> KernelText:
        """The kernel."""
        strips, body = self.strips, self.write()
        constants = (("XBLOCK", strips.columns), ("YBLOCK", strips.channels))
        programs = blocks(self.channels.extent, strips.channels) * blocks(self.columns.extent, strips.columns)
        programs = programs * blocks(self.rows.extent, strips.rows) * self.samples.extent
        return kernel_text(self.name, body, self, self.buffers, constants, programs, early=False)

    def write(self) -> list[str]:
        """The lines of the body."""
        self._place()
        self._sums()
        self._epilogue()
        return self.base.lines

    def _place(self) -> None:
        """The program's strip: channels side by side, then columns, then strips below each other, so that what neighbours read lies in the cache."""
        emit, lines, strips = self.emitter, self.base.lines, self.strips
        wide = ".to(tl.int64)" if self.plan.wide else ""
        counts = (
            ("yblock", blocks(self.channels.extent, strips.channels)),
            ("xblock", blocks(self.columns.extent, strips.columns)),
            ("strip", blocks(self.rows.extent, strips.rows)),
        )
        lines.append(f"    program = tl.program_id(0){wide}")
        for name, count in counts:
            lines += [
                f"    {name} = program % ({emit.text(count)})",
                f"    program = program // ({emit.text(count)})",
            ]
        lines.append("    sample = program")
        for letter, block in (("x", "xblock"), ("y", "yblock")):
            upper = letter.upper()
            lines.append(
                f"    {letter}index = {block} * {upper}BLOCK + tl.arange(0, {upper}BLOCK){emit.placed(letter)}"
            )
        for tile in self.plan.points:
            if not tile.divides:
                lines.append(f"    {tile.letter}mask = {tile.letter}index < {emit.text(tile.extent)}")
        for axis, value in (
            (self.samples, Value("sample", NOTHING)), (self.columns, Value("xindex", X)), (self.channels, Value("yindex", Y)),
        ):  # fmt: skip
            emit.symbols[axis.symbol] = value

    def _sums(self) -> None:
        """The sums of each row of the strip."""
        emit, lines, strips = self.emitter, self.base.lines, self.strips
        pictures, weights = self.call.args
        (_, _, high, wide), (n, c, h, w) = pictures.sizes, map(emit.text, pictures.strides)
        channel, down, across = map(emit.text, weights.strides)
        (stride, over), (above, left), (apart, beside) = (
            self.window.stride, self.window.padding, self.window.dilation,
        )  # fmt: skip
        heavy = f"{emit.pointers[weights.buffer]} + ({emit.text(weights.offset)}) + yindex * ({channel})"
        lines.append(
            f"    base = {emit.pointers[pictures.buffer]} + ({emit.text(pictures.offset)}) + sample * ({n}) + yindex * ({c})"
        )
        lines.append(f"    heavy = {heavy}")
        lines.append(f"    first = strip * {strips.rows * stride} - {above}")
        lines += [f"    acc{o} = tl.zeros({emit.shape(XY)}, tl.float32)" for o in range(strips.rows)]
        kernel_rows, kernel_columns = self.of.kernel
        filler = ", other=0"
        masks = f", mask=ymask{filler}" if emit.masks["y"] else ""
        for s in range(kernel_columns):
            lines.append(f"    at = xindex * {over} + {s * beside - left}")
            inside = self._inside("at", self._ends(self.columns, wide, 1))
            inside += ["ymask"] if emit.masks["y"] else []
            if inside:
                lines.append(f"    inside = {' & '.join(inside)}")
            for r in range(kernel_rows):
                place = f"heavy + {r} * ({down}) + {s} * ({across})"
                lines.append(f"    w{r} = tl.load({place}{masks}).to(tl.float32)")
            for i in range((strips.rows - 1) * stride + (kernel_rows - 1) * apart + 1):
                taken = [
                    (o, (i - o * stride) // apart)
                    for o in range(strips.rows)
                    if _meets(i - o * stride, apart, kernel_rows)
                ]
                if not taken:
                    continue
                held = self._inside(f"(xindex * 0 + first + {i})", self._ends(self.rows, high, 0))
                if inside:
                    held.append("inside")
                # of what neither padding nor a tile's end leaves out nothing is masked
                mask = f", mask={' & '.join(held)}{filler}" if held else ""
                pointer = emit.spread(f"base + (first + {i}) * ({h}) + at * ({w})", XY)
                lines.append(f"    level = tl.load({pointer}{mask}).to(tl.float32)")
                lines += [f"    acc{o} += level * w{r}" for o, r in taken]

    def _ends(self, axis: Axis, size: Expr, dim: int) -> tuple[bool, Expr | None]:
        """Whether windows of a dimension may begin before the picture, and the picture's size if they, or a tile's last ones, may end behind it."""
        stride, padding = self.window.stride[dim], self.window.padding[dim]
        reach = (self.of.kernel[dim] - 1) * self.window.dilation[dim]
        block = self.strips.columns if dim else self.strips.rows
        count, known = axis.extent.value, size.value
        assert count is not None and known is not None  # pictures of sizes that vary are ATen's
        last = (-(-count // block) * block - 1) * stride - padding + reach
        return padding > 0, size if last >= known else None

    def _inside(self, place: str, ends: tuple[bool, Expr | None]) -> list[str]:
        begins, size = ends
        tests = [f"({place} >= 0)"] if begins else []
        return tests if size is None else [*tests, f"({place} < {self.emitter.text(size)})"]

    # -- the epilogue -------------------------------------------------------------------------------

    def _epilogue(self) -> None:
        """What follows on each row of the strip; what rows share is loaded once."""
        emit, base, rows = self.emitter, self.base, self.strips.rows
        count = self.rows.extent
        ragged = count.value is None or count.value % rows != 0
        for node in plain_loads(store_roots(self.call.epilogue)):
            if self.rows.symbol not in node.attr[1].symbols():
                emit.value(node, base)
        within = emit.masks["x"]
        if ragged and within:
            base.lines.append("    across = xmask")
        for o in range(rows):
            scope = Scope(base.lines, "    ", outer=base)
            text = f"strip * {rows} + {o}"
            if ragged:
                test = f"(xindex * 0 + {text} < {emit.text(count)})"
                base.lines.append(f"    xmask = {f'across & {test}' if within else test}")
                emit.masks["x"] = True
                text = f"tl.minimum({text}, {emit.text(count)} - 1)"
            base.lines.append(f"    row{o} = {text}")
            emit.symbols[self.rows.symbol] = Value(f"row{o}", NOTHING)
            emit.reduced = {0: Value(f"acc{o}", XY)}
            values = [emit.value(s.value, scope) for s in self.call.epilogue]
            for store, value in zip(self.call.epilogue, values, strict=True):
                pointer = emit.spread(f"{emit.pointers[store.buffer]} + ({emit.text(store.index)})", XY)
                base.lines.append(f"    tl.store({pointer}, {emit.spread(value.name, XY)}{emit.mask(XY)})")
            emit.end(scope)


def _meets(distance: int, apart: int, rows: int) -> bool:
    """Whether a row of the picture, so far below where a window begins, is a row of the window."""
    return distance >= 0 and distance % apart == 0 and distance // apart < rows
