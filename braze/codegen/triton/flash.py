"""Attention as Triton kernels: scores in tiles that never reach memory, with a program's functions of scores and masks inlined.

Three kernels: the result with the logarithms of its sums; the queries' gradients; those of keys and values. A tile has queries along y and
keys along x. With blocks of a mask a program visits those alone that the mask's tensors name, and asks the mask of partial ones only;
without, it visits all and asks everywhere. All numbers but those that products of matrices read are float32.
"""

from __future__ import annotations

from braze.codegen.triton.emit import NOTHING, Emitter, Scope, Value
from braze.codegen.triton.kernels import HEADER
from braze.codegen.triton.prelude import used
from braze.loops.build import nodes_of
from braze.loops.ir import DType, Node, Op
from braze.support.record import record

X, Y, XY = frozenset("x"), frozenset("y"), frozenset("xy")
GROWING = frozenset({Op.MUL, Op.SHL, Op.POW, Op.FMA, Op.CAST, Op.BITCAST})


@record
class Function:
    """A function of one pair of query and key: its result, the buffers that stand for its numbers, and those that it looks up, by place."""

    root: Node
    #: buffer -> "score", "batch", "head", "query", "key" or "grad"
    numbers: tuple[tuple[str, str], ...]
    #: buffer -> number of the tensor
    tables: tuple[tuple[str, int], ...]


#: what stands for each number: (text, what it spans)
NUMBERS = {
    "score": ("s", XY),
    "grad": ("dt", XY),
    "batch": ("batch", NOTHING),
    "head": ("head", NOTHING),
    "query": ("mi", Y),
    "key": ("ni", X),
}

BLOCKS = "counts, places, full_counts, full_places"
STRIDES = "sqb, sqh, sqm, sqd, skb, skh, skn, skd, svb, svh, svn, svd, sob, soh, som, soe"
SIZES = "H, G, M, N, KB, scale"
TILES = "YBLOCK: tl.constexpr, XBLOCK: tl.constexpr, D: tl.constexpr, E: tl.constexpr, DBLOCK: tl.constexpr, EBLOCK: tl.constexpr"
SPARSE = "BB, BH, BR, BW, FW, ROWS: tl.constexpr, COLUMNS: tl.constexpr"


def source(
    score: Function,
    mask: Function,
    slope: Function | None,
    tables: int,
    sparse: bool,
    full: bool,
    precision: str,
) -> str:
    """The module of the kernels. ``full``: blocks that the mask shows whole are named apart; no ``slope``: no gradients."""
    writer = _Writer(score, mask, tables, sparse, full, precision)
    parts = [writer.forward()]
    if slope is not None:
        parts += [writer.queries(slope), writer.keys(slope)]
    text = "\n\n".join(parts)
    return f"{HEADER}\n{used(text)}\n\n{text}\n"


class _Writer:
    def __init__(
        self, score: Function, mask: Function, tables: int, sparse: bool, full: bool, precision: str
    ) -> None:
        self.score, self.mask, self.tables, self.sparse, self.full = score, mask, tables, sparse, full
        self.precision = f', input_precision="{precision}"'

    def _head(self, name: str, pointers: str) -> str:
        parts = [pointers, *([BLOCKS] if self.sparse else []), *[f"table{i}" for i in range(self.tables)]]
        parts += [STRIDES, SIZES, *([SPARSE] if self.sparse else []), TILES]
        return f"@triton.jit\ndef {name}({', '.join(parts)}):\n"

    def _inlined(self, function: Function, indent: str) -> tuple[list[str], Value]:
        """The lines of a function, and its result."""
        emitter = Emitter({}, {name: f"table{i}" for name, i in function.tables}, ("y", "x"))
        emitter.count = 100 * (1 + len(indent))  # names of their own
        scope = Scope([], indent)
        numbers = dict(function.numbers)
        nodes = nodes_of(function.root)
        # sums and differences of places fit in 32 bits
        wide = any(n.op in GROWING and n.dtype is DType.I64 for n in nodes)
        for node in nodes:
            if node.op is Op.LOAD and not node.args and node.attr[0] in numbers:
                text, deps = NUMBERS[numbers[node.attr[0]]]
                whole = node.dtype is DType.I64 and (wide or not deps)
                scope.known[node] = Value(f"{text}.to(tl.int64)" if whole else text, deps)
        return scope.lines, emitter.value(function.root, scope)

    def _scores(self, indent: str, *, masked: bool) -> list[str]:
        """From products ``s`` of queries and keys: scaled and changed to ``t``, -inf where nothing is seen."""
        lines = [f"{indent}s = s * scale"]
        changed, t = self._inlined(self.score, indent)
        lines += [*changed, f"{indent}t = tl.broadcast_to({t.name}, [YBLOCK, XBLOCK]).to(tl.float32)"]
        lines.append(f"{indent}seen = ymask & xmask")
        if masked:
            asked, seen = self._inlined(self.mask, indent)
            lines += [*asked, f"{indent}seen = seen & ({seen.name})"]
        lines.append(f'{indent}t = tl.where(seen, t, float("-inf"))')
        return lines

    def _walks(self, counts: str, body: list[str], by_key: bool) -> list[str]:
        """Loops over the tiles along the other side; ``body`` has SCORES where these are formed."""
        step, side, whole = ("YBLOCK", "ROWS", "M") if by_key else ("XBLOCK", "COLUMNS", "N")
        place = "m0" if by_key else "n0"
        if not self.sparse:
            return [f"    for {place} in range(0, {whole}, {step}):", *self._body(body)]
        lines = self._walk(counts, step, side, place, "", "BW") + self._body(body)
        if self.full:
            lines += self._walk(counts, step, side, place, "full_", "FW") + self._body(body, masked=False)
        return lines

    def _walk(self, counts: str, step: str, side: str, place: str, which: str, width: str) -> list[str]:
        return [
            f"    count = tl.load({which}counts + {counts})",
            f"    for part in range(0, count * ({side} // {step})):",
            f"        {place} = tl.load({which}places + ({counts}) * {width} + part // ({side} // {step})) * {side} + part % ({side} // {step}) * {step}",
        ]

    def _body(self, body: list[str], *, masked: bool = True) -> list[str]:
        made: list[str] = []
        for line in body:
            made += self._scores("        ", masked=masked) if line == "SCORES" else [f"        {line}"]
        return made

    # -- the three kernels

    def forward(self) -> str:
        head = self._head("flex_forward", "q, k, v, out, lse, most")
        body = [
            *LOAD_KEYS,
            f"s = tl.dot(qt, tl.trans(kt){self.precision})",
            "SCORES",
            "higher = tl.maximum(top, tl.max(t, 1))",
            'base = tl.where((higher == float("-inf")) | (higher == float("inf")), 0.0, higher)',
            "p = tl.exp(t - base[:, None])",
            'before = tl.where(top == float("-inf"), 0.0, tl.exp(top - base))',
            "total = total * before + tl.sum(p, 1)",
            f"acc = acc * before[:, None] + tl.dot(p.to(vt.dtype), vt{self.precision})",
            "top = higher",
        ]
        lines = [
            *START,
            *_indented(LOAD_QUERIES),
            '    top = tl.full([YBLOCK], float("-inf"), tl.float32)',
            "    total = tl.zeros([YBLOCK], tl.float32)",
            "    acc = tl.zeros([YBLOCK, EBLOCK], tl.float32)",
            *self._row_of_blocks("y", "ROWS", "YBLOCK"),
            *self._walks("row", body, by_key=False),
            '    base = tl.where((top == float("-inf")) | (top == float("inf")), 0.0, top)',
            "    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]",
            "    at = out + b * sob + h * soh + m[:, None] * som + e[None, :] * soe",
            "    tl.store(at, acc.to(out.dtype.element_ty), mask=ymask & (e < E)[None, :])",
            "    tl.store(lse + bh.to(tl.int64) * M + m, tl.log(total) + base, mask=m < M)",
            "    tl.store(most + bh.to(tl.int64) * M + m, top, mask=m < M)",
        ]
        return head + "\n".join(lines)

    def queries(self, slope: Function) -> str:
        """dq: a program has a tile of queries and walks the keys."""
        head = self._head("flex_queries", "q, k, v, lse, delta, do, dq")
        lines = [
            *START,
            *_indented([*LOAD_QUERIES, *LOAD_RESULTS]),
            "    acc = tl.zeros([YBLOCK, DBLOCK], tl.float32)",
            *self._row_of_blocks("y", "ROWS", "YBLOCK"),
            *self._walks(
                "row",
                [*LOAD_KEYS, *self._slopes(slope), f"acc += tl.dot(ds.to(kt.dtype), kt{self.precision})"],
                by_key=False,
            ),
            "    at = dq + (bh.to(tl.int64) * M + m[:, None]) * D + d[None, :]",
            "    tl.store(at, acc.to(dq.dtype.element_ty), mask=ymask & (d < D)[None, :])",
        ]
        return head + "\n".join(lines)

    def keys(self, slope: Function) -> str:
        """dk and dv: a program has a tile of keys, and walks the queries of all heads that share it."""
        head = self._head("flex_keys", "q, k, v, lse, delta, do, dk, dv")
        body = [
            *LOAD_QUERIES,
            *LOAD_RESULTS,
            *self._slopes(slope),
            f"dvt += tl.dot(tl.trans(p.to(dot.dtype)), dot{self.precision})",
            f"dkt += tl.dot(tl.trans(ds.to(qt.dtype)), qt{self.precision})",
        ]
        walks = self._walks("row", body, by_key=True)
        inner = [
            "    h = hk * G + g",
            "    head = h",
            *self._row_of_blocks("x", "COLUMNS", "XBLOCK"),
            *walks,
        ]
        lines = [
            *START_KEYS,
            *_indented(LOAD_KEYS),
            "    dkt = tl.zeros([XBLOCK, DBLOCK], tl.float32)",
            "    dvt = tl.zeros([XBLOCK, EBLOCK], tl.float32)",
            "    for g in range(0, G):",
            *_indented(inner),
            "    at = dk + (bh.to(tl.int64) * N + n[:, None]) * D + d[None, :]",
            "    tl.store(at, dkt.to(dk.dtype.element_ty), mask=(n < N)[:, None] & (d < D)[None, :])",
            "    at = dv + (bh.to(tl.int64) * N + n[:, None]) * E + e[None, :]",
            "    tl.store(at, dvt.to(dv.dtype.element_ty), mask=(n < N)[:, None] & (e < E)[None, :])",
        ]
        return head + "\n".join(lines)

    def _slopes(self, slope: Function) -> list[str]:
        """From q, k, v and the result's gradient: probabilities ``p``, and gradients ``ds`` of the products."""
        lines, made = self._inlined(slope, "")
        return [
            f"s = tl.dot(qt, tl.trans(kt){self.precision})",
            "SCORES",
            "p = tl.exp(t - rest[:, None])",
            f"dt = p * (tl.dot(dot, tl.trans(vt){self.precision}) - away[:, None])",
            *lines,
            f"ds = tl.where(seen, tl.broadcast_to({made.name}, [YBLOCK, XBLOCK]).to(tl.float32) * scale, 0.0)",
        ]

    def _row_of_blocks(self, tile: str, side: str, step: str) -> list[str]:
        """Which row of the mask's tensors the program reads."""
        if not self.sparse:
            return []
        return [f"    row = ((b % BB) * BH + head % BH) * BR + {tile}block * {step} // {side}"]


# programs stand in one row, a head's tiles beside each other: a launch has 65,535 along another dimension at most
START = [
    "    yblock = tl.program_id(0) % tl.cdiv(M, YBLOCK)",
    "    bh = tl.program_id(0) // tl.cdiv(M, YBLOCK)",
    "    b = (bh // H).to(tl.int64)",
    "    h = (bh % H).to(tl.int64)",
    "    batch = bh // H",
    "    head = bh % H",
    "    m0 = yblock * YBLOCK",
    "    d = tl.arange(0, DBLOCK)",
    "    e = tl.arange(0, EBLOCK)",
    "    kb = b % KB",
    "    hk = h // G",
]
START_KEYS = [
    "    xblock = tl.program_id(0) % tl.cdiv(N, XBLOCK)",
    "    bh = tl.program_id(0) // tl.cdiv(N, XBLOCK)",
    "    hk = (bh % (H // G)).to(tl.int64)",
    "    b = (bh // (H // G)).to(tl.int64)",
    "    batch = bh // (H // G)",
    "    kb = b % KB",
    "    d = tl.arange(0, DBLOCK)",
    "    e = tl.arange(0, EBLOCK)",
    "    n0 = xblock * XBLOCK",
]
LOAD_KEYS = [
    "n = n0 + tl.arange(0, XBLOCK)",
    "ni = n[None, :]",
    "xmask = (n < N)[None, :]",
    "kt = tl.load(k + kb * skb + hk * skh + n[:, None] * skn + d[None, :] * skd, mask=(n < N)[:, None] & (d < D)[None, :], other=0.0)",
    "vt = tl.load(v + kb * svb + hk * svh + n[:, None] * svn + e[None, :] * svd, mask=(n < N)[:, None] & (e < E)[None, :], other=0.0)",
]
LOAD_QUERIES = [
    "m = m0 + tl.arange(0, YBLOCK)",
    "mi = m[:, None]",
    "ymask = (m < M)[:, None]",
    "qt = tl.load(q + b * sqb + h * sqh + m[:, None] * sqm + d[None, :] * sqd, mask=ymask & (d < D)[None, :], other=0.0)",
]
#: of the queries in a backward
LOAD_RESULTS = [
    "dot = tl.load(do + b * sob + h * soh + m[:, None] * som + e[None, :] * soe, mask=ymask & (e < E)[None, :], other=0.0)",
    "rest = tl.load(lse + (b * H + h) * M + m, mask=m < M, other=0.0)",
    'rest = tl.where(rest == float("-inf"), 0.0, rest)',
    "away = tl.load(delta + (b * H + h) * M + m, mask=m < M, other=0.0)",
]


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]
