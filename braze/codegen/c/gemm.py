"""The packed GEMM template: C = A @ B with the epilogue done on each tile of results.

B lies in panels of ``columns`` columns, each stored row by row ([K][columns]), so that the inner loop reads
it in order. B is packed once where it is a constant, else in each call: by the task that multiplies by the panel, where a task has all rows
of A, else before. A is read where it is. A micro-kernel keeps ``rows`` x ``columns`` results in registers; they go
through a small tile in the first-level cache to the epilogue, which the vector emitter writes as it
writes any loop. A task is one block of rows times one panel; threads take tasks as they get free.

In a training step the matrices lie in memory rather than in the cache, in pieces too many and too short for the processor to see what comes next:
so lines of the next panel are asked for while one is multiplied by, and those that a tile's results go to before these are computed.
"""

from __future__ import annotations

from braze.codegen.c.body import Body, Storage
from braze.codegen.c.expr import indirect_symbols, to_c
from braze.codegen.c.kernel import capped
from braze.codegen.c.micro import LINE
from braze.codegen.c.operations import Representations
from braze.codegen.c.prelude import STORAGE
from braze.codegen.records import KernelText, PackText
from braze.context import CompileContext
from braze.loops.build import nodes_of
from braze.loops.ir import Buffer, DType, Node, Op, Store, TemplateCall
from braze.loops.ranges import Varying
from braze.loops.rewrite import store_roots
from braze.schedule.cpu.processors import lanes_of
from braze.schedule.facts.records import Group
from braze.support.errors import InternalError
from braze.support.record import record
from braze.symbolic.expr import ONE, Expr, Symbol
from braze.symbolic.guess import likely_size
from braze.target import Target

#: rows of K in one pass, so that a panel's part stays in the second-level cache
_K_BLOCK = 1024
#: rows of A in one task
_M_BLOCK = 128
#: rows of B that are packed side by side
_PACKED = 16
#: rows of B from one that is packed to one that is asked of memory, where each line holds rows of one column
_AHEAD = 2 * LINE
#: rows of A that are few enough for one task to have them all and pack its own panel; with more than one pass over K, half as many
_FEW_ROWS = 512


@record
class Tiling:
    """The shape of the micro-kernel: ``rows`` x (``vectors`` * ``lanes``) results."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes


def tiling(n: int, target: Target) -> Tiling:
    """The tile for N columns: as many registers as there are, with little of the last panel unused."""
    lanes = max(target.vector_bytes // 4, 4)
    if lanes != 16:
        return Tiling(6, 2, lanes)
    # one vector a row leaves half of the registers unused, so that loads bound it
    shapes = ((Tiling(8, 3, 16), 4), (Tiling(12, 2, 16), 4), (Tiling(16, 1, 16), 5))
    return min(shapes, key=lambda shape: -(-n // shape[0].columns) * shape[0].columns * shape[1])[0]


def gemm_kernel(group: Group, buffers: dict[str, Buffer], ctx: CompileContext) -> KernelText:
    """The C of a "gemm" template call."""
    call = group.call
    assert isinstance(call, TemplateCall)
    if call.kind != "gemm" or any(v.dtype is not DType.F32 for v in call.args):
        raise InternalError("BZ9065", f"no C template for {call.kind} on {call.args[0].dtype.label}")
    return _Gemm(group, call, buffers, ctx).kernel()


class _Gemm:
    """Writes one GEMM kernel."""

    def __init__(
        self, group: Group, call: TemplateCall, buffers: dict[str, Buffer], ctx: CompileContext
    ) -> None:
        self.name, self.call, self.buffers, self.target = group.name, call, buffers, ctx.target
        self.threads = ctx.options.threads
        self.a, self.b = call.args
        self.m_axis, self.n_axis = call.axes
        self.k, self.n = _static(self.b.sizes[0]), _static(self.b.sizes[1])
        self.m = self.m_axis.extent
        #: a matrix whose columns lie in one piece each, as the transpose of one that a forward has made
        self.by_columns = self.a.strides[1] is not ONE and self.a.strides[0] is ONE
        self.tile = tiling(self.n, ctx.target)
        self.panels = -(-self.n // self.tile.columns)
        self.packs_own = self._packs_own()
        self.m_block = self._rows_of_a_task()
        #: of one row of a panel; of one that lies by columns as many as of a row
        self.lines = self.tile.columns // LINE
        self.asked = self._lines_asked()
        reads = [n.attr[0] for n in nodes_of(*store_roots(call.epilogue)) if n.op is Op.LOAD]
        self.buffers_used = tuple(dict.fromkeys([self.a.buffer, *reads, *(s.buffer for s in call.epilogue)]))
        self.sizes = self._size_names()
        self.status = any(n.op is Op.CHECK_INDEX for n in nodes_of(*store_roots(call.epilogue)))

    def _packs_own(self) -> bool:
        """Whether each task packs the one panel that it multiplies by: then the panel is still in the core's cache."""
        few = _FEW_ROWS if self.k <= _K_BLOCK else _FEW_ROWS // 2
        m = self.m.value
        cores = self.target.cores
        # in the last round no more than a fifth of the cores' time is idle
        even = self.panels >= 4 * cores or self.panels >= 0.8 * cores * -(-self.panels // cores)
        return not self.call.constant_b and m is not None and m <= few and even

    def _lines_asked(self) -> int:
        """Lines of the next panel that are asked of memory with each place of a sum; 0 where panels are packed ahead, or lie in pieces.

        Rows of a panel that lie apart are asked for in vain on Intel's processors: products of 64 rows, 512 to 2,048 and back, took 0.93 and 1.08 of MKL's time without,
        and 1.06 to 1.12 and 1.15 to 1.28 with it; where a row lies by itself 0.79 to 0.86, from 1.16 and 1.08 (`benchmarks/results/2026-11-27-products-in-memory.json`).
        """
        by_rows, dense = self.b.strides[1] is ONE, self.b.strides[1] is self.b.sizes[0]
        asks = dense or (by_rows and self.target.vendor != "GenuineIntel")
        if not self.packs_own or not asks or self._names_in_b():
            return 0
        blocks = self.m_block // self.tile.rows
        return -(-self.lines // blocks)

    def _rows_of_a_task(self) -> int:
        """Rows of A per task: fewer where there would not be tasks enough for all cores."""
        step = self.tile.rows
        if self.packs_own:
            return max(-(-likely_size(self.m) // step) * step, step)
        rows = _M_BLOCK - _M_BLOCK % step
        m = likely_size(self.m)
        while rows > 2 * step and -(-m // rows) * self.panels < 4 * self.target.cores:
            rows = max(step, rows // 2 - rows // 2 % step)
        return rows

    def _size_names(self) -> tuple[str, ...]:
        bound = {self.m_axis.symbol.name, self.n_axis.symbol.name}
        exprs: list[Expr] = [self.m, *self.a.strides, self.a.offset, self.b.offset]
        exprs += [s.index for s in self.call.epilogue]
        for n in nodes_of(*store_roots(self.call.epilogue)):
            if n.op is Op.LOAD:
                exprs.append(n.attr[1])
            elif isinstance(n.attr, Expr):
                exprs.append(n.attr)
        found = {s.name for e in exprs for s in e.symbols() if s.place is None}
        return tuple(sorted(found - bound))

    def kernel(self) -> KernelText:
        packed = f"packed:{self.b.buffer}"
        b_arg = packed if self.call.constant_b else self.b.buffer
        status = self.status
        args = (*self.buffers_used, b_arg, *(("status",) if status else ()))
        pack = f"{self.name}_pack"
        source = "\n".join([*self._pack(pack), *self._body(status), *self._entry(pack), ""])
        packs = (PackText(self.b.buffer, pack, self.packed_bytes()),) if self.call.constant_b else ()
        return KernelText(
            self.name, "c", source, args, self.sizes, source.replace(self.name, "KERNEL"), None, packs
        )

    def packed_bytes(self) -> int:
        """Bytes of all panels; the last is padded with zeros."""
        return max(self.panels * self.tile.columns * self.k * 4, 64)

    # -- packing --------------------------------------------------------------------------------

    def _pack(self, name: str) -> list[str]:
        """``void name_panel(from, to, p, sizes)`` for one panel; where all are packed ahead, ``void name(from, to, sizes)`` for these."""
        t, k = self.tile.columns, self.k
        sizes = "".join(f" const int64_t {x} = s[{i}];" for i, x in enumerate(self.sizes))
        panel = [
            f"static void {name}_panel(const float *from, float *to, int64_t p, const int64_t *s) {{",
            f"  {sizes if self._names_in_b() else ''}",
            f"  const int64_t n0 = p*{t}, w = {self.n} - n0 < {t} ? {self.n} - n0 : {t};",
            f"  for (int64_t k0 = 0; k0 < {k}; k0 += {_PACKED}) {{",
            f"    const int64_t k1 = k0 + {_PACKED} < {k} ? k0 + {_PACKED} : {k};",
            *self._asked_ahead(),
            *self._packed_block(),
            f"    for (int64_t c = w; c < {t}; ++c)",
            f"      for (int64_t k = k0; k < k1; ++k) to[k*{t} + c] = 0;",
            "  }",
            "}",
        ]
        if self.packs_own:
            return panel
        return [
            *panel,
            f"static void {name}_body(void **b, const int64_t *s, int64_t lo, int64_t hi, int64_t tid) {{",
            f"  for (int64_t p = lo; p < hi; ++p) {name}_panel((const float *)b[0], (float *)b[1] + p*{t * k}L, p, s);",
            "}",
            f"void {name}(const void *from, void *to, const int64_t *s) {{",
            "  void *b[2] = {(void *)from, to};",
            f"  bz_run({name}_body, b, s, {self.panels}, {self.packed_bytes()});",
            "}",
        ]

    def _asked_ahead(self) -> list[str]:
        """The lines that hold rows of a panel that are packed later, each of another column."""
        if self.b.strides[1] is ONE:
            return []
        sk, sn = (to_c(s) for s in self.b.strides)
        at = f"from + {to_c(self.b.offset)} + (k0 + {_AHEAD})*{sk} + (n0 + c)*{sn}"
        return [
            f"    if (k0 + {_AHEAD} < {self.k})",
            f"      for (int64_t c = 0; c < w; ++c) __builtin_prefetch({at});",
        ]

    def _packed_block(self) -> list[str]:
        """Rows k0 to k1 of a panel, element by element; of a matrix that lies by columns in squares, turned in registers."""
        t, lanes = self.tile.columns, self.tile.lanes
        sk, sn = (to_c(s) for s in self.b.strides)
        one = f"to[k*{t} + c] = from[{to_c(self.b.offset)} + k*{sk} + (n0 + c)*{sn}];"
        if self.b.strides[1] is ONE:
            row = f"from + {to_c(self.b.offset)} + k*{sk} + n0 + c"
            return [
                "    for (int64_t k = k0; k < k1; ++k) {",
                "      int64_t c = 0;",
                f"      for (; c + {lanes} <= w; c += {lanes}) *(f32x{lanes}u *)(to + k*{t} + c) = *(const f32x{lanes}u *)({row});",
                f"      for (; c < w; ++c) {one}",
                "    }",
            ]
        return [
            "    int64_t c = 0;",
            f"    for (; c + {lanes} <= w; c += {lanes})",
            f"      for (int64_t q = k0; q < k1; q += {lanes}) {{",
            f"        float square[{lanes * lanes}] __attribute__((aligned(64)));",
            f"        const int64_t rows = k1 - q < {lanes} ? k1 - q : {lanes};",
            f"        bz_turn_f32x{lanes}(square, from + {to_c(self.b.offset)} + q*{sk} + (n0 + c)*{sn}, {sn}, rows, {lanes});",
            "        for (int64_t r = 0; r < rows; ++r)",
            f"          *(f32x{lanes}u *)(to + (q + r)*{t} + c) = *(f32x{lanes} *)(square + r*{lanes});",
            "      }",
            "    for (; c < w; ++c)",
            f"      for (int64_t k = k0; k < k1; ++k) {one}",
        ]

    def _names_in_b(self) -> bool:
        return bool(self.b.offset.symbols() or any(s.symbols() for s in self.b.strides))

    # -- the product ----------------------------------------------------------------------------

    def _body(self, status: bool) -> list[str]:
        """The tasks of one thread: micro-kernels into the tile, then the epilogue on it."""
        tile, k = self.tile, self.k
        columns, rows = tile.columns, tile.rows
        single = k <= _K_BLOCK
        held = rows if single else self.m_block
        row, column = (to_c(e) for e in self.a.strides)
        out = [
            f"static void {self.name}_body(void **b, const int64_t *s, int64_t lo, int64_t hi, int64_t tid) {{"
        ]
        out += self._header(status)
        out += [
            f"  float tile[{held * columns}] __attribute__((aligned(64))){' = {0}' if not k else ''};",
            "  for (int64_t task = lo; task < hi; ++task) {",
            f"    const int64_t m0 = task / {self.panels} * {self.m_block}, panel = task % {self.panels};",
            f"    const int64_t m1 = m0 + {self.m_block} < {to_c(self.m)} ? m0 + {self.m_block} : {to_c(self.m)};",
            *self._panel(),
        ]
        if single:
            out += [
                f"    for (int64_t m = m0; m < m1; m += {rows}) {{",
                f"      const int64_t count = m1 - m < {rows} ? m1 - m : {rows};",
                *self._asked_room("m", "count", "      "),
                *self._multiply(
                    "a + m*" + f"({row})", "bp", str(k), "tile", "0", "      ", self._asking("0")
                ),
                *self._epilogue("m", "count", "      "),
                "    }",
            ]
        else:
            out += [
                f"    for (int64_t k0 = 0; k0 < {k}; k0 += {_K_BLOCK}) {{",
                f"      const int64_t kn = {k} - k0 < {_K_BLOCK} ? {k} - k0 : {_K_BLOCK};",
                f"      for (int64_t m = m0; m < m1; m += {rows}) {{",
                f"        const int64_t count = m1 - m < {rows} ? m1 - m : {rows};",
                *self._multiply(
                    f"a + m*({row}) + k0*({column})",
                    f"bp + k0*{columns}",
                    "kn",
                    f"tile + (m - m0)*{columns}",
                    "k0 != 0",
                    "        ",
                    self._asking("k0"),
                ),
                "      }",
                "    }",
                *self._epilogue("m0", "(m1 - m0)", "    "),
            ]
        return [*out, "  }", "}"]

    def _panel(self) -> list[str]:
        """Where a task finds its panel."""
        size = self.tile.columns * self.k
        if not self.packs_own:
            return [f"    const float *const bp = packed + panel*{size}L;"]
        at = len(self.buffers_used) + 2
        out = [
            f"    float *const bp = (float *)b[{at}] + bz_thread()*{size}L;",
            f"    {self.name}_pack_panel(packed, bp, panel, s);",
        ]
        if self.asked:
            later = f"panel + 1 < {self.panels} ? panel + 1 : panel"
            first = f"{to_c(self.b.offset)} + ({later})*{self.tile.columns}*{to_c(self.b.strides[1])}"
            out.append(f"    const float *const next = packed + {first};")
        return out

    def _asking(self, k0: str) -> str:
        """What a micro-kernel asks for: each block of rows a part of the next panel's lines, the first again where blocks are left."""
        if not self.asked:
            return ""
        by_rows = self.b.strides[1] is ONE
        step, apart = (to_c(self.b.strides[0]), LINE) if by_rows else (LINE, LINE * self.k)
        part = f"(m - m0)/{self.tile.rows}*{self.asked}"
        return f", next + ({part} < {self.lines} ? {part} : 0)*{apart} + {k0}*({step}), {step}, {apart}"

    def _header(self, status: bool) -> list[str]:
        out = []
        for i, name in enumerate(self.buffers_used):
            c = STORAGE[self.buffers[name].dtype.stored.label][0]
            out.append(f"  {c} *const b{i} = ({c} *)b[{i}];")
        out += [f"  const int64_t {x} = s[{i}];" for i, x in enumerate(self.sizes)]
        n = len(self.buffers_used)
        out.append(f"  const float *const packed = (const float *)b[{n}];")
        out.append(f"  const float *const a = b0 + {to_c(self.a.offset)};")
        if status:
            out.append(f"  int64_t *const status = (int64_t *)b[{n + 1}];")
        return out

    def _multiply(
        self, a: str, b: str, k: str, c: str, again: str, indent: str, asking: str = ""
    ) -> list[str]:
        """Calls of the micro-kernels: the full one, and what is left of the rows."""
        t = self.tile
        lda = to_c(self.a.strides[1 if self.by_columns else 0])
        row = to_c(self.a.strides[0])

        def micro(rows: int) -> str:
            return f"bz_gemm{rows}{'t' if self.by_columns else 'c'}{t.vectors}{f'a{self.asked}' if self.asked else ''}_f32x{t.lanes}"

        def call(rows: int, at: str = "") -> str:
            moved = (f"{a} + {at}*({row})", f"{c} + {at}*{t.columns}") if at else (a, c)
            return f"{micro(rows)}({k}, {moved[0]}, {lda}, {b}, {moved[1]}, {again}{asking});"

        known = self.m.value
        if known is not None and known % t.rows == 0:
            return [indent + call(t.rows)]
        if known is not None:
            if known < t.rows:
                return [indent + call(known)]
            return [f"{indent}if (count == {t.rows}) {call(t.rows)}", f"{indent}else {call(known % t.rows)}"]
        out = [
            f"{indent}if (count == {t.rows}) {call(t.rows)}",
            f"{indent}else {{",
            f"{indent}  int64_t r = 0;",
        ]
        for part in (8, 4, 2, 1):
            if part < t.rows:
                out.append(f"{indent}  if (r + {part} <= count) {{ {call(part, 'r')} r += {part}; }}")
        return [*out, f"{indent}}}"]

    def _asked_room(self, first: str, count: str, indent: str) -> list[str]:
        """The lines that a tile's results are written to."""
        m, n = self.m_axis.symbol, self.n_axis.symbol
        stores = [x for x in self.call.epilogue if n in x.index.symbols() and not indirect_symbols(x.index)]
        if not stores:
            return []
        c = self.tile.columns
        names = {m: f"({first} + r)", n: f"(panel*{c} + c)"}
        places = [f"b{self.buffers_used.index(x.buffer)} + {to_c(x.index, names)}" for x in stores]
        return [
            f"{indent}for (int64_t r = 0; r < {count}; ++r)",
            f"{indent}  for (int64_t c = 0; c < {c}; c += {LINE}) {{",
            *(f"{indent}    __builtin_prefetch({place}, 1);" for place in places),
            f"{indent}  }}",
        ]

    def _epilogue(self, first: str, count: str, indent: str) -> list[str]:
        """Loops over the tile's rows and columns that evaluate the stores."""
        stores, w = self.call.epilogue, self.tile.lanes
        symbol = self.n_axis.symbol
        varying, ranges = Varying(symbol), Representations()
        nodes = [n for n in nodes_of(*store_roots(stores)) if n.op is not Op.REDUCED]
        lanes = min(w, lanes_of(nodes, varying, ranges, self.target.vector_bytes))
        body = Body(lanes, symbol, varying, ranges, Storage(self.buffers))
        body.scope.indent = indent
        body.pointers = {n: f"b{i}" for i, n in enumerate(self.buffers_used)}
        for x in self.sizes:
            body.scope.symbols[Symbol(x)] = x
        m, n = self.m_axis.symbol.name, symbol.name
        row = body.name("r")
        body.open(f"for (int64_t {row} = 0; {row} < {count}; ++{row}) ", {self.m_axis.symbol: f"{m}_"})
        body.line(f"const int64_t {m}_ = {first} + {row};")
        c = self.tile.columns
        stop = f"({self.n} - panel*{c} < {c} ? {self.n} - panel*{c} : {c})" if self.n % c else str(c)
        col = body.name("c")
        body.line(f"int64_t {col} = 0;")
        at = f"tile + {row}*{c} + {col}"
        body.open(f"for (; {col} + {lanes} <= {stop}; {col} += {lanes}) ", {symbol: f"{n}_"})
        self._stores(body, f"{n}_", col, f"bz_load_f32x{lanes}({at})", stores, c)
        body.close()
        if self.n % c % lanes:
            body.open(f"if ({col} < {stop}) ", {symbol: f"{n}_"}, count=f"({stop} - {col})")
            self._stores(body, f"{n}_", col, f"bz_load_f32x{lanes}({at})", stores, c)
            body.close()
        body.close()
        return body.scope.lines

    def _stores(self, body: Body, n: str, col: str, tile: str, stores: tuple[Store, ...], c: int) -> None:
        body.line(f"const int64_t {n} = panel*{c} + {col};")
        depth = body.scope.depth
        body.define(Node(Op.REDUCED, DType.F32, (), 0), tile, "f32", True, depth)
        body.stores(stores, self.buffers_used)

    def _entry(self, pack: str) -> list[str]:
        """The kernel itself."""
        work = capped(f"({to_c(self.m)})*{max(self.k * self.n // 8, 1)}L", self.threads)
        out = [f"void {self.name}(void **b, const int64_t *s) {{"]
        out += [f"  const int64_t {x} = s[{i}];" for i, x in enumerate(self.sizes)]
        tasks = f"({to_c(self.m)} + {self.m_block - 1}) / {self.m_block} * {self.panels}"
        run = f"bz_run_free({self.name}_body, {{}}, s, {tasks}, {work});"
        if self.call.constant_b:
            return [*out, "  " + run.format("b"), "}"]
        at = len(self.buffers_used)
        if self.packs_own:
            # one panel a thread, behind the arguments
            size, place = f"bz_threads()*{self.tile.columns * self.k * 4}L + 64", at + 2
            packing = []
        else:
            size, place = str(self.packed_bytes()), at
            packing = [f"  {pack}(b[{at}], own[{at}], s);"]
        return [
            *out,
            f"  void *own[{at + 3}];",
            f"  for (int i = 0; i < {at + 1 + self.status}; ++i) own[i] = b[i];",
            f"  own[{place}] = bz_borrow({size});",
            *packing,
            "  " + run.format("own"),
            f"  bz_return(own[{place}]);",
            "}",
        ]


def _static(e: Expr) -> int:
    if e.value is None:
        raise InternalError("BZ9066", f"the gemm template needs known sizes, not {e}")
    return e.value
