"""What a processor's vectors must know of values: which differ between lanes, which 64-bit integers fit 32, and which floats 16."""

from __future__ import annotations

from collections.abc import Iterable

from braze.loops.build import nodes_of
from braze.loops.dtypes import round_float
from braze.loops.ir import DType, Node, Op
from braze.symbolic.expr import Symbol


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
        found = self._memo.get(node)
        if found is not None:
            return found
        for n in nodes_of(node, known=self._memo):
            self._memo[n] = self._own(n) or any(self._memo[a] for a in n.args)
        return self._memo[node]

    def _own(self, node: Node) -> bool:
        if node.op is Op.LOAD:
            return self.symbol in node.attr[1].symbols() or node.attr[0] in self.buffers
        return node.op is Op.INDEX and self.symbol in node.attr.symbols()


_NARROWABLE = frozenset(
    (
        Op.INDEX, Op.CONST, Op.ADD, Op.SUB, Op.MUL, Op.NEG, Op.MAXIMUM, Op.MINIMUM, Op.WHERE, Op.CAST, Op.ABS,
        Op.MASKED,
    )
)  # fmt: skip
_INT32 = (-(2**31), 2**31 - 1)
_DTYPE_RANGE = {
    DType.BOOL: (0, 1), DType.U8: (0, 255), DType.I8: (-128, 127), DType.I16: (-32768, 32767), DType.I32: _INT32,
}  # fmt: skip
Range = tuple[int, int]


#: what gives one of its arguments' values, or that with another sign
_EXACT = frozenset((Op.NEG, Op.ABS, Op.MAXIMUM, Op.MINIMUM, Op.WHERE, Op.MASKED))


class Ranges:
    """Value ranges of integer nodes: 64-bit ones that provably fit are computed in 32 bits. And which floats a half type holds."""

    def __init__(self) -> None:
        self._memo: dict[Node, Range | None] = {}
        self._exact: dict[tuple[DType, Node], bool] = {}

    def holds(self, dtype: DType, node: Node) -> bool:
        """Whether each value of a node is one that a half type has, so that nothing is rounded on its way there."""
        for n in nodes_of(node):
            if (dtype, n) not in self._exact:
                self._exact[dtype, n] = self._is_exact(dtype, n)
        return self._exact[dtype, node]

    def _is_exact(self, dtype: DType, n: Node) -> bool:
        if not n.dtype.is_float or n.dtype is DType.F64:
            return False
        if n.op is Op.CONST:
            return _is_of(dtype, float(n.attr))
        if n.dtype is dtype and n.op in (Op.LOAD, Op.CAST, Op.BITCAST):
            return n.op is not Op.LOAD or not n.attr[0].startswith("%")
        if n.op in _EXACT or n.op is Op.CAST:
            values = n.args[1:] if n.op in (Op.WHERE, Op.MASKED) else n.args
            return n.dtype in (dtype, DType.F32) and all(self._exact[dtype, a] for a in values)
        return False

    def is_narrow(self, node: Node) -> bool:
        """Whether a value is of 64 bits and is computed in 32."""
        return node.dtype is DType.I64 and self.of(node) is not None

    def bytes_of(self, node: Node) -> int:
        """Bytes of a value in a lane of a vector: what is stored in fewer is widened to four."""
        wide = node.dtype is DType.F64 or (node.dtype is DType.I64 and not self.is_narrow(node))
        return 8 if wide else 4

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


def _is_of(dtype: DType, number: float) -> bool:
    """Whether a half type has a number."""
    return number != number or round_float(number, dtype) == number


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
