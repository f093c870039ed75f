"""How an elementwise operation is composed: promotion, broadcasting, computation type, rounding.

Eager rounds to the result's type after every operator, so each lowered operator ends with a cast to it;
half types compute in float32 in between. Such a cast is marked: kernels may leave it out (``schedule/rewrites/roundings.py``).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

from braze.loops import build, scalars
from braze.loops.dtypes import compute_type
from braze.loops.ir import DType, Node, Op
from braze.lower.values.lazy import Index, Lazy
from braze.lower.values.promote import result_type
from braze.lower.values.realize import ProgramBuilder, constant_of
from braze.symbolic.expr import ONE, ZERO, Expr

Scalar = Callable[..., Node]


class Promote(enum.Enum):
    """What the operands are converted to before the computation."""

    DEFAULT = "the common type"
    INT_TO_FLOAT = "the common type, integers to the default float"
    BOOL = "bool: x != 0"


def cost_of(op: Op) -> int:
    """What one evaluation costs, in additions."""
    return 1 + scalars.cost(op)


def broadcast_index(x: Lazy, rank: int, sizes: Sequence[Expr]) -> Callable[[Index], Index]:
    """From an index into a broadcast shape to one into ``x``."""
    lead = rank - x.rank
    fixed = [d for d in range(x.rank) if x.sizes[d] is ONE and sizes[lead + d] is not ONE]
    if not lead and not fixed:
        return _same
    if not fixed:
        return lambda index: index[lead:]

    def pick(index: Index) -> Index:
        out = list(index[lead:])
        for d in fixed:
            out[d] = ZERO
        return out

    return pick


def _same(index: Index) -> Index:
    return index


def is_broadcast(x: Lazy, sizes: Sequence[Expr]) -> bool:
    """Whether a value is read several times when it is broadcast to ``sizes``."""
    lead = len(sizes) - x.rank
    return any(s is not ONE for s in sizes[:lead]) or any(
        x.sizes[d] is ONE and sizes[lead + d] is not ONE for d in range(x.rank)
    )


def operand(
    g: ProgramBuilder,
    a: Any,
    sizes: Sequence[Expr],
    common: DType,
    compute: DType,
    precise: bool = False,
) -> Callable[[Index], Node]:
    """A loader of one operand over the broadcast shape, converted as eager converts it.

    Numbers are rounded to the common type like tensors, unless ``precise``. So are tensors without dimensions, which
    eager's kernels for the CPU take as numbers.
    """
    if isinstance(a, Lazy):
        if is_broadcast(a, sizes):
            g.realize_if_costly(a)
        place = broadcast_index(a, len(sizes), sizes)
        if a.dtype is common and common is compute:
            return a.load if place is _same else lambda index: a.load(place(index))
        within = compute if precise and not a.sizes and a.device == "cpu" else common
        return lambda index: build.cast(build.cast(a.load(place(index)), within), compute)
    if isinstance(a, Expr):
        node = build.cast(build.index(a), compute)
    else:
        node = build.const(a, compute)
        if not precise and common is not compute:
            node = build.cast(build.const(node.attr, common), compute)
    return lambda index: node


def broadcast_sizes(values: Sequence[Any]) -> tuple[Expr, ...]:
    """The common shape of the tensors among ``values``."""
    shapes = [v.sizes for v in values if isinstance(v, Lazy)]
    rank = max(map(len, shapes))
    out: list[Expr] = [ONE] * rank
    for shape in shapes:
        for d, size in enumerate(shape, rank - len(shape)):
            if size is not ONE:
                out[d] = size
    return tuple(out)


def usable(args: Sequence[Any]) -> bool:
    """Whether loops can compute with the tensors among these operands: element types, one device. Of numbers the common type tells."""
    device = ""
    for a in args:
        if isinstance(a, Lazy):
            if not a.dtype.is_computable or (device and a.device != device):
                return False
            device = a.device
    return bool(device)


def placed(args: Sequence[Any]) -> list[Any]:
    """The operands that say on which device is computed: without known numbers in the CPU's memory beside a tensor of a GPU."""
    if len({a.device for a in args if isinstance(a, Lazy)}) < 2:
        return list(args)
    return [a for a in args if not (isinstance(a, Lazy) and a.device == "cpu" and _is_number(a))]


def _is_number(a: Lazy) -> bool:
    """Whether a tensor of no dims is a number that the compile knows, which kernels have in their text."""
    return not a.sizes and a.dtype.is_computable and constant_of(a) is not None


def elementwise(
    g: ProgramBuilder,
    scalar: Scalar,
    args: Sequence[Any],
    *,
    promote: Promote = Promote.DEFAULT,
    cost: int = 1,
    out: DType | None = None,
    common: DType | None = None,
    precise: bool = False,
) -> Any:
    """Apply ``scalar`` to nodes of the computation type at every point of the broadcast shape.

    ``out`` is the result's type (default: the common type); ``common`` overrides the promotion;
    ``precise``: eager does not round numbers to a half type for this operator; a tensor is a number only where it is
    not the first operand.
    """
    here = placed(args)
    if not usable(here):
        return NotImplemented
    tensors = [a for a in args if isinstance(a, Lazy)]
    device = next(a.device for a in here if isinstance(a, Lazy))
    if common is None:
        common = common_type(g, args, promote)
    if not common.is_computable:
        return NotImplemented
    compute = compute_type(common)
    sizes = broadcast_sizes(args)
    loaders = [
        operand(g, a, sizes, common, compute, precise and (k > 0 or not isinstance(a, Lazy)))
        for k, a in enumerate(args)
    ]
    final = out or common
    rounded = DType.BOOL if out is DType.BOOL else common

    def inner(index: Index) -> Node:
        return build.cast(g.rounded(scalar(*[load(index) for load in loaders]), rounded), final)

    return computed(g, tensors, inner, sizes, final, cost, device)


def elementwise_of_own_types(
    g: ProgramBuilder, scalar: Scalar, args: Sequence[Lazy], out: DType, cost: int
) -> Any:
    """Apply ``scalar`` to nodes of the operands' own types; it returns a node of type ``out``."""
    here = placed(args)
    if not usable(here) or not out.is_computable:
        return NotImplemented
    sizes = broadcast_sizes(args)
    loaders = [operand(g, a, sizes, a.dtype, a.dtype) for a in args]

    def inner(index: Index) -> Node:
        return scalar(*[load(index) for load in loaders])

    return computed(g, args, inner, sizes, out, cost, here[0].device)


def computed(
    g: ProgramBuilder,
    values: Sequence[Lazy],
    inner: Callable[[Index], Node],
    sizes: tuple[Expr, ...],
    dtype: DType,
    cost: int,
    device: str = "",
) -> Lazy:
    """What the node computes of some values; ``cost``: of an element, beside what reading theirs takes. ``device``: not the first one's."""
    return Lazy(
        sizes, dtype, device or values[0].device, inner,
        cost=cost + sum(v.pending_cost for v in values), ops=merge_ops(values, g.op_name),
    )  # fmt: skip


def common_type(g: ProgramBuilder, args: Sequence[Any], promote: Promote) -> DType:
    """The type that operands are converted to."""
    if promote is Promote.BOOL:
        return DType.BOOL
    common = result_type(args, g.default_float)
    if promote is Promote.INT_TO_FLOAT and (common.is_integer or common is DType.BOOL):
        return g.default_float
    return common


def merge_ops(values: Sequence[Lazy], *names: str) -> tuple[str, ...]:
    """The names of the operations in an expression, in order, each once."""
    merged: dict[str, None] = {}
    for v in values:
        merged.update(dict.fromkeys(v.pending_ops))
    merged.update(dict.fromkeys(names))
    return tuple(merged)
