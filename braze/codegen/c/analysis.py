"""What a group of loop nests touches and how: its accesses, its vector axis, its lanes, its work."""

from __future__ import annotations

from collections.abc import Iterable

from braze.codegen.c.expr import stride, to_c
from braze.codegen.c.prelude import REP_BYTES, STORAGE
from braze.loops.build import nodes_of
from braze.loops.ir import Axis, Buffer, DType, LoopNest, Node, Op, Store
from braze.loops.rewrite import roots
from braze.loops.scalars import cost
from braze.schedule.passes import Access, touched
from braze.symbolic.expr import Expr, Symbol, product

#: assumed extent of a loop whose extent is a symbol
_UNKNOWN_EXTENT = 1024


def store_roots(stores: Iterable[Store]) -> tuple[Node, ...]:
    return tuple(n for s in stores for n in (*s.args, s.value))


def size_of(e: Expr) -> int:
    """An extent as a number, guessed where it is a symbol."""
    return e.value if e.value is not None else _UNKNOWN_EXTENT


def choose_vector_axis(axes: tuple[Axis, ...], found: Iterable[Access], lanes: int) -> Axis | None:
    """The axis whose vectors make the fewest memory operations; None where there is none to choose."""
    best: tuple[float, int] | None = None
    chosen = None
    listed = list(found)
    for rank, axis in enumerate(reversed(axes)):
        extent = size_of(axis.extent)
        if extent <= 1:
            continue
        padding = -(-extent // lanes) * lanes / extent
        cost = sum(_access_cost(a, axis.symbol, lanes) for a in listed) + 0.25
        key = (cost * padding, rank)
        if best is None or key < best:
            best, chosen = key, axis
    return chosen


def _access_cost(a: Access, symbol: Symbol, lanes: int) -> float:
    step = stride(a.index, symbol)
    if step == 0:
        return 0.1 if not a.store else 4.0
    if step == 1:
        return 1.0
    if isinstance(step, int) and abs(step) <= 4 and not a.store:
        return lanes / 4
    return lanes * (1.0 if step is not None else 1.5)


class Varying:
    """Which nodes differ between the lanes of a vector along ``symbol``."""

    def __init__(self, symbol: Symbol | None, buffers: Iterable[str] = ()) -> None:
        self.symbol = symbol
        #: results of reductions that differ between lanes
        self.buffers = frozenset(buffers)
        self._memo: dict[Node, bool] = {}

    def __call__(self, node: Node) -> bool:
        if self.symbol is None:
            return False
        for n in nodes_of(node, known=self._memo):
            self._memo[n] = self._own(n) or any(self._memo[a] for a in n.args)
        return self._memo[node]

    def _own(self, node: Node) -> bool:
        if node.op is Op.LOAD:
            return self.symbol in node.attr[1].symbols() or node.attr[0] in self.buffers
        return node.op is Op.INDEX and self.symbol in node.attr.symbols()


_NARROWABLE = frozenset(
    (
        Op.INDEX,
        Op.CONST,
        Op.ADD,
        Op.SUB,
        Op.MUL,
        Op.NEG,
        Op.MAXIMUM,
        Op.MINIMUM,
        Op.WHERE,
        Op.CAST,
        Op.ABS,
        Op.MASKED,
    )
)
_INT32 = (-(2**31), 2**31 - 1)
_DTYPE_RANGE = {
    DType.BOOL: (0, 1), DType.U8: (0, 255), DType.I8: (-128, 127), DType.I16: (-32768, 32767), DType.I32: _INT32,
}  # fmt: skip
Range = tuple[int, int]


class Ranges:
    """Value ranges of integer nodes: 64-bit ones that provably fit are computed in 32 bits."""

    def __init__(self) -> None:
        self._memo: dict[Node, Range | None] = {}

    def rep(self, node: Node) -> str:
        """The representation a node's value is held in."""
        rep = STORAGE[node.dtype.label][1]
        return "i32" if rep == "i64" and self.of(node) is not None else rep

    def of(self, node: Node) -> Range | None:
        """Bounds within 32 bits of the value and of all it is computed from; None where not known."""
        for n in nodes_of(node, known=self._memo):
            r = self._compute(n)
            self._memo[n] = r if r is not None and r[0] >= _INT32[0] and r[1] <= _INT32[1] else None
        return self._memo[node]

    def _compute(self, n: Node) -> Range | None:
        if n.dtype in _DTYPE_RANGE:
            return _DTYPE_RANGE[n.dtype]
        if n.dtype is not DType.I64 or n.op not in _NARROWABLE:
            return None
        if n.op is Op.CONST:
            return n.attr, n.attr
        if n.op is Op.INDEX:
            low, high = n.attr.bounds()
            return None if low is None or high is None else (low, high)
        if n.op is Op.CAST and n.args[0].dtype.is_float:
            return None
        args = [self._memo[a] for a in n.args]
        known = [a for a in args if a is not None]
        if len(known) < len(args):
            return None
        return _combine(n.op, known)


def _combine(op: Op, a: list[Range]) -> Range | None:
    if op is Op.CAST:
        return a[0]
    if op is Op.ADD:
        return a[0][0] + a[1][0], a[0][1] + a[1][1]
    if op is Op.SUB:
        return a[0][0] - a[1][1], a[0][1] - a[1][0]
    if op is Op.MUL:
        corners = [x * y for x in a[0] for y in a[1]]
        return min(corners), max(corners)
    if op is Op.NEG:
        return -a[0][1], -a[0][0]
    if op is Op.ABS:
        return 0, max(abs(a[0][0]), abs(a[0][1]))
    pair = a[1:] if op in (Op.WHERE, Op.MASKED) else a
    return min(p[0] for p in pair), max(p[1] for p in pair)


def choose_lanes(nodes: Iterable[Node], varying: Varying, ranges: Ranges, vector_bytes: int) -> int:
    """Lanes of the group's vectors: the widest value that differs by lane fills a register."""
    widest = 4
    for node in nodes:
        if varying(node):
            widest = max(widest, REP_BYTES[ranges.rep(node)])
    return max(vector_bytes // widest, 2)


def work_bytes(nests: Iterable[LoopNest], buffers: dict[str, Buffer], threads: int) -> str:
    """C text of a group's cost in bytes of traffic (arithmetic counted as bytes), for at most ``threads``."""
    static = 0
    texts: list[str] = []
    for nest in nests:
        axes = (*nest.axes, *nest.reduce_axes)
        for buffer, index, _, indirect in dict.fromkeys(touched(nest)):
            used = [x.extent for x in axes if x.symbol in index.symbols() or indirect]
            size = buffers[buffer].dtype.itemsize if buffer in buffers else 4
            static, texts = _add_cost(product(used), size, static, texts)
        spent = sum(cost(n.op) for n in nodes_of(*roots(nest)))
        if spent:
            static, texts = _add_cost(product([x.extent for x in axes]), max(spent // 2, 1), static, texts)
    return capped(" + ".join([*texts, str(static)]), threads)


def capped(work: str, threads: int) -> str:
    """The work, or as much of it as keeps a number of threads busy (0: all of it)."""
    return f"bz_min_s({work}, {threads}L << 16)" if threads else work


def _add_cost(count: Expr, each: int, static: int, texts: list[str]) -> tuple[int, list[str]]:
    if count.value is not None:
        return static + count.value * each, texts
    return static, [*texts, f"({to_c(count)})*{each}"]


def indirect_symbols(e: Expr) -> list[tuple[int, Symbol]]:
    """The symbols in ``e`` that stand for values read from memory, each after its number."""
    return sorted((s.place, s) for s in e.symbols() if s.place is not None)
