"""Constructors for scalar nodes: they set the dtype, fold constants, and apply sound identities.

Sound means bit for bit as IEEE and two's complement have it: ``x + 0.0`` stays (it turns -0.0 into 0.0),
``x - 0.0``, ``x * 1`` and ``x / 1`` go. Nothing is reassociated.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Container, Mapping
from typing import Any

from braze.loops.dtypes import round_float, truncated_to, wrap_integer
from braze.loops.ir import ROUNDING, DType, Node, Op
from braze.loops.scalars import SCALARS, TESTS
from braze.symbolic.expr import ZERO, Expr, FloorDiv, IntLike, Max, Min, Mod, Product, Sum, Symbol, as_expr

Number = bool | int | float

#: tests of which args[1] is compared with args[0]
COMPARISONS: dict[Op, Callable[[Number, Number], bool]] = {
    Op.EQ: operator.eq,
    Op.NE: operator.ne,
    Op.LT: operator.lt,
    Op.LE: operator.le,
    Op.GT: operator.gt,
    Op.GE: operator.ge,
}
#: operations that give the correctly rounded result when done in double and rounded once (f32, f64)
_EXACT: dict[Op, Callable[[Number, Number], Number]] = {
    Op.ADD: operator.add,
    Op.SUB: operator.sub,
    Op.MUL: operator.mul,
}
_BITWISE: dict[Op, Callable[[int, int], int]] = {
    Op.AND: operator.and_,
    Op.OR: operator.or_,
    Op.XOR: operator.xor,
}


def const(value: Number, dtype: DType) -> Node:
    """A constant, already rounded or wrapped to its type."""
    if dtype is DType.BOOL:
        return Node(Op.CONST, dtype, (), bool(value))
    if dtype.is_float:
        return Node(Op.CONST, dtype, (), round_float(float(value), dtype))
    return Node(Op.CONST, dtype, (), wrap_integer(int(value), dtype))


def index(value: IntLike, dtype: DType = DType.I64) -> Node:
    """The value of an index expression, converted to ``dtype``."""
    e = as_expr(value)
    if e.value is not None:
        return const(e.value, dtype)
    return cast(Node(Op.INDEX, DType.I64, (), e), dtype)


def load(buffer: str, dtype: DType, at: Expr, args: tuple[Node, ...] = ()) -> Node:
    """``buffer[at]``; ``args[k]`` is the value of `indirect(k)` inside ``at``."""
    return Node(Op.LOAD, dtype, args, (buffer, at))


def register(name: str, dtype: DType) -> Node:
    """A value that the generator has under a name, in no buffer of the program."""
    return load(name, dtype, ZERO)


def reduced(k: int, dtype: DType) -> Node:
    """Result ``k`` of the nest's reductions."""
    return Node(Op.REDUCED, dtype, (), k)


def cast(x: Node, dtype: DType) -> Node:
    """Convert with C rules."""
    if x.dtype is dtype:
        return x
    if x.op is Op.CONST:
        return _cast_constant(x.attr, x.dtype, dtype)
    if x.op is Op.CAST and _exact_cast(x.args[0].dtype, x.dtype):
        # the inner conversion loses nothing, so one conversion does
        return asked_for(cast(x.args[0], dtype))
    return Node(Op.CAST, dtype, (x,), None)


def rounded(x: Node, dtype: DType) -> Node:
    """What an operation gives, rounded to a half type as eager does; a kernel may leave that out."""
    made = cast(x, dtype)
    if x.op is Op.CAST and x.args[0].dtype is dtype:
        return x.args[0]  # a half type's value itself
    if made.op is Op.CAST and made.args == (x,) and x.dtype.is_float:
        return Node(Op.CAST, dtype, (x,), ROUNDING)
    return made


def asked_for(x: Node) -> Node:
    """The value, whose rounding stays if its last step is one: the program asks for its type."""
    return Node(Op.CAST, x.dtype, x.args) if x.op is Op.CAST and x.attr is not None else x


def unary(op: Op, x: Node) -> Node:
    """An operation on one value."""
    if op is Op.NOT:
        return invert(x)
    if op is Op.NEG:
        if x.op is Op.NEG:
            return x.args[0]
        if x.op is Op.CONST:
            return const(-x.attr, x.dtype)
    if op is Op.ABS:
        if x.op is Op.ABS or x.dtype in (DType.BOOL, DType.U8):
            return x
        if x.op is Op.NEG and x.dtype.is_float:
            return unary(Op.ABS, x.args[0])
    if SCALARS[op].whole and (not x.dtype.is_float or x.op in _WHOLE):
        return x
    if op in (Op.ISNAN, Op.ISINF) and not x.dtype.is_float:
        return const(False, DType.BOOL)
    return Node(op, DType.BOOL if op in TESTS else x.dtype, (x,), None)


_WHOLE = frozenset(op for op, row in SCALARS.items() if row.whole)


def binary(op: Op, x: Node, y: Node) -> Node:
    """An operation on two values of one type."""
    if x.dtype is not y.dtype:
        raise TypeError(f"{op.value}: {x.dtype.label} and {y.dtype.label}")
    if x.op is Op.CONST and y.op is Op.CONST:
        folded = _fold(op, x, y)
        if folded is not None:
            return folded
    if op in COMPARISONS and x.dtype is DType.I64:
        decided = _decided(op, x, y)
        if decided is not None:
            return const(decided, DType.BOOL)
    simple = _identity(op, x, y)
    if simple is not None:
        return simple
    return Node(op, DType.BOOL if op in TESTS else x.dtype, (x, y), None)


def add(x: Node, y: Node) -> Node:
    return binary(Op.ADD, x, y)


def sub(x: Node, y: Node) -> Node:
    return binary(Op.SUB, x, y)


def mul(x: Node, y: Node) -> Node:
    return binary(Op.MUL, x, y)


def div(x: Node, y: Node) -> Node:
    return binary(Op.DIV, x, y)


def lt(x: Node, y: Node) -> Node:
    return binary(Op.LT, x, y)


def both(x: Node, y: Node) -> Node:
    return binary(Op.AND, x, y)


def either(x: Node, y: Node) -> Node:
    return binary(Op.OR, x, y)


def fma(x: Node, y: Node, z: Node) -> Node:
    """x*y + z, rounded once."""
    return Node(Op.FMA, x.dtype, (x, y, z), None)


def invert(x: Node) -> Node:
    """Logical not of a bool, bitwise not of an integer."""
    if x.op is Op.NOT:
        return x.args[0]
    if x.op is Op.CONST:
        return const(not x.attr if x.dtype is DType.BOOL else ~x.attr, x.dtype)
    return Node(Op.NOT, x.dtype, (x,), None)


def where(condition: Node, x: Node, y: Node) -> Node:
    """``x`` where the condition holds, else ``y``; both are evaluated."""
    if condition.dtype is not DType.BOOL or x.dtype is not y.dtype:
        raise TypeError(f"where({condition.dtype.label}, {x.dtype.label}, {y.dtype.label})")
    if condition.op is Op.CONST:
        return x if condition.attr else y
    if x is y:
        return x
    if condition.op is Op.NOT:
        return where(condition.args[0], y, x)
    return Node(Op.WHERE, x.dtype, (condition, x, y), None)


def masked(condition: Node, x: Node, other: Node) -> Node:
    """``x`` where the condition holds, else ``other``; loads inside ``x`` happen only where it holds."""
    if condition.dtype is not DType.BOOL or x.dtype is not other.dtype:
        raise TypeError(f"masked({condition.dtype.label}, {x.dtype.label}, {other.dtype.label})")
    if condition.op is Op.CONST:
        return x if condition.attr else other
    if x is other:
        return x
    return Node(Op.MASKED, x.dtype, (condition, x, other), None)


def check_index(i: Node, extent: Expr) -> Node:
    """``i``, known to be in 0 <= i < extent."""
    if i.op is Op.CONST and extent.value is not None and 0 <= i.attr < extent.value:
        return i
    if i.op is Op.INDEX:
        low, high = i.attr.bounds()
        top = extent.bounds()[0]
        if low is not None and low >= 0 and high is not None and top is not None and high < top:
            return i
    return Node(Op.CHECK_INDEX, DType.I64, (i,), extent)


def wrapped(i: Node, size: Node) -> Node:
    """``i``, where it is negative counted from the end of so many."""
    return where(lt(i, const(0, DType.I64)), add(i, size), i)


def is_wrapped(i: Node, extent: Expr) -> bool:
    """Whether an index counts from the end where it was negative."""
    return i.op is Op.WHERE and i is wrapped(i.args[2], index(extent))


def index_condition(op: Op, x: IntLike, y: IntLike) -> Node:
    """A comparison of two index expressions, decided now where their ranges decide it."""
    return binary(op, index(x), index(y))


def nodes_of(*roots: Node, known: Container[Node] = (), inside_masks: bool = True) -> list[Node]:
    """Every node under the roots once, arguments before users.

    ``known``: nodes to leave out with all that is under them. An analysis that keeps what it found passes its memo, and
    so visits each node of a growing expression once, not once for every node above it. ``inside_masks``: also what is computed
    only where the condition of a MASKED value holds.
    """
    order: list[Node] = []
    seen: set[Node] = set()
    stack: list[Any] = [*reversed(roots)]
    while stack:
        node = stack.pop()
        if node is None:  # all under the one below has been entered
            order.append(stack.pop())
        elif node not in seen and node not in known:
            seen.add(node)
            args = node.args
            if not args:
                order.append(node)
                continue
            if node.op is Op.MASKED and not inside_masks:
                args = (args[0], args[2])
            stack += (node, None)
            stack += args[::-1]
    return order


def _identity(op: Op, x: Node, y: Node) -> Node | None:
    """The operand that the operation leaves unchanged, if it does."""
    if x.op is Op.CONST and op in (Op.ADD, Op.MUL, Op.AND, Op.OR, Op.XOR):
        x, y = y, x
    if x is y and op in (Op.AND, Op.OR, Op.MAXIMUM, Op.MINIMUM):
        return x
    if y.op is not Op.CONST:
        return None
    k = y.attr
    if op is Op.ADD:
        neutral = math.copysign(1.0, k) < 0 and k == 0 if y.dtype.is_float else k == 0
        return x if neutral else None
    if op is Op.SUB:
        neutral = math.copysign(1.0, k) > 0 and k == 0 if y.dtype.is_float else k == 0
        return x if neutral else None
    if op is Op.MUL:
        if k == 1:
            return x
        return y if k == 0 and not y.dtype.is_float else None
    if op is Op.DIV:
        return x if k == 1 else None
    if op in (Op.SHL, Op.SHR):
        return x if k == 0 else None
    if y.dtype is DType.BOOL and op in (Op.AND, Op.OR, Op.XOR):
        if op is Op.XOR:
            return invert(x) if k else x
        return (x if k else y) if op is Op.AND else (y if k else x)
    return None


def _decided(op: Op, x: Node, y: Node) -> bool | None:
    """What two indices (or an index and a number) compare to, where their ranges tell."""
    if x.op not in (Op.INDEX, Op.CONST) or y.op not in (Op.INDEX, Op.CONST):
        return None
    if op in (Op.GT, Op.LE):
        return _decided(Op.LT if op is Op.GT else Op.GE, y, x)
    if op is Op.NE:
        equal = _decided(Op.EQ, x, y)
        return None if equal is None else not equal
    low, high = (as_expr(x.attr) - as_expr(y.attr)).bounds()
    above, below = low is not None and low >= 0, high is not None and high < 0
    if op is Op.EQ:
        if low == 0 == high:
            return True
        return False if below or (low is not None and low > 0) else None
    return (above if op is Op.GE else below) if above or below else None


def _fold(op: Op, x: Node, y: Node) -> Node | None:
    if op in COMPARISONS:
        return const(COMPARISONS[op](x.attr, y.attr), DType.BOOL)
    if op in (Op.MAXIMUM, Op.MINIMUM) and x.attr == x.attr and y.attr == y.attr and x.attr != y.attr:
        return x if (x.attr > y.attr) == (op is Op.MAXIMUM) else y
    if op in _BITWISE and not x.dtype.is_float:
        return const(_BITWISE[op](x.attr, y.attr), x.dtype)
    if op in _EXACT and (x.dtype.is_integer or x.dtype in (DType.F32, DType.F64)):
        return const(_EXACT[op](x.attr, y.attr), x.dtype)
    if op is Op.DIV and y.attr != 0 and x.dtype in (DType.F32, DType.F64):
        return const(x.attr / y.attr, x.dtype)
    return None


def _cast_constant(value: Number, source: DType, dtype: DType) -> Node:
    if dtype is DType.BOOL:
        return const(value != 0, dtype)
    if dtype.is_integer and source.is_float:
        limit = 2 ** (8 * truncated_to(dtype).itemsize - 1)
        if not (math.isfinite(value) and -limit <= value < limit):
            return const(wrap_integer(-limit, dtype), dtype)
    return const(value, dtype)


def _exact_cast(source: DType, to: DType) -> bool:
    """Whether every value of ``source`` is a value of ``to``."""
    if source is DType.BOOL:
        return to is not DType.BOOL
    if source.is_float:
        return to.is_float and source.itemsize < to.itemsize
    if not source.is_integer:
        return False
    if to.is_integer:
        return to.itemsize > source.itemsize and to is not DType.U8
    bits = source.itemsize * 8 - (0 if source is DType.U8 else 1)
    return bits <= {DType.F64: 53, DType.F32: 24, DType.F16: 11, DType.BF16: 8}.get(to, 0)


def arithmetic(e: Expr, values: Mapping[Symbol, Node]) -> Node:
    """An index expression as i64 arithmetic, with nodes for some of its symbols."""
    if isinstance(e, Symbol):
        return values[e] if e in values else index(e)
    if not any(s in values for s in e.symbols()):
        return index(e)
    parts = [arithmetic(c, values) for c in e.children()]
    if isinstance(e, Sum):
        out = const(e.constant, DType.I64)
        for node, (_, k) in zip(parts, e.parts, strict=True):
            out = add(out, mul(node, const(k, DType.I64)))
        return out
    op = {Product: Op.MUL, FloorDiv: Op.FLOORDIV, Mod: Op.REMAINDER, Max: Op.MAXIMUM, Min: Op.MINIMUM}[
        type(e)
    ]
    out = parts[0]
    for part in parts[1:]:
        out = binary(op, out, part)
    return out
