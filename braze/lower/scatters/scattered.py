"""Values stored, or added, at computed places of a tensor, on a GPU: loops whose stores look up where.

What makes the values is computed in the loop that stores them. Sums are atomic, in float32 for half types, whose result is rounded once. Where
very many values meet at few places, each of some copies of the sums takes its share of them, so that fewer wait for each other. Where the
program asks for the same numbers each time, sums of rows go by the order of their numbers (``segments.py``), and the rest is ATen's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from braze.loops import build
from braze.loops.ir import BufferView, DType, Node, Op, ReduceKind, Reduction, Store, StoreMode
from braze.lower.elementwise.pointwise import convert
from braze.lower.scatters.placed import Placed, place_of, positions, spreads
from braze.lower.scatters.segments import rows_added
from braze.lower.values.lazy import Index, Lazy, numel
from braze.lower.values.pointwise_core import computed, elementwise
from braze.lower.values.realize import ProgramBuilder
from braze.lower.values.registry import aten
from braze.lower.views.indexing import looked_up
from braze.lower.views.views import expand_value
from braze.support.record import record
from braze.symbolic.expr import ONE, ZERO, Expr, Integer, contiguous_strides, linear, modulo
from braze.symbolic.guess import likely_size

I32, I64 = DType.I32, DType.I64
#: what sums of a type are added up in
WIDE = {
    DType.F32: DType.F32, DType.F64: DType.F64, I32: I32, I64: I64, DType.F16: DType.F32, DType.BF16: DType.F32,
}  # fmt: skip
#: elements for each value that is added to some of them, up to which a sum in a wider type, all of which is written and read, is ours
SPARSE = 2
#: bytes of sums in a wider type that a GPU's cache has no room for: where no more values than sums are added to these, ATen's additions in the half type itself are the quicker ones
#: (elements of bfloat16, as many as places, on an H200: 8.4 million 136 us and 134 ours, 14.2 million 217 and 434, 22.7 million 550 and 954)
CACHED = 40 << 20
#: places that are few, values for each of these that are very many, and copies of the sums, at most
FEW, MANY, COPIES = 4096, 64, 64


@record
class Scatter:
    """What a scatter stores, and how.

    ``adds``: to what is there; ``clears``: it adds to zeros where it does; ``alike``: all values are the same, so that their order is too;
    ``turn``: what changes from one value to the next that may be for the same place. ``rows``: the operands of the same as a sum of rows: indices, values.
    """

    placed: Placed
    adds: bool = False
    clears: bool = False
    alike: bool = False
    turn: Callable[[Index], Expr] | None = None
    rows: tuple[Sequence[Lazy | None], Lazy] | None = None


def scattered(g: ProgramBuilder, target: Any, x: Lazy, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What a scatter into ``x`` gives, by loops; NotImplemented for what is ATen's."""
    found = _found(g, target, x, args, kwargs)
    if found is None:
        return NotImplemented
    if target in ONE_EACH and len(args) == 3 and not kwargs:
        chosen = _one_each(g, x, args[0], args[1], found)
        if chosen is not NotImplemented:
            return chosen
    if _is_empty(x, found):
        return NotImplemented
    placed = found.placed
    strides = g.symbols.exprs(g.val.stride())
    if g.ctx.deterministic and not found.alike:
        return _in_order(g, x, found)
    if not found.adds:
        view = g.copy(x, strides)
        _store(g, view, placed, placed.value, StoreMode.OVER)
        return g.lazy(view.buffer)
    wide = WIDE[x.dtype]
    there, given = likely_size(numel(x.sizes)), likely_size(numel(placed.sizes))
    if wide is not x.dtype:
        added = _by_rows(g, x, found, there, given)
        if added is not NotImplemented or there > SPARSE * given:
            return added
        if target is aten.scatter_add.default and given <= there and there * wide.itemsize > CACHED:
            return NotImplemented
    if _crowded(x, found, there, given):
        return _by_copies(g, x, found, wide, there, given)
    view = g.copy(convert(g, x, wide), strides)
    if found.clears:
        zero = constant(g, placed.sizes, 0, wide, x.device)
        _store(g, view, placed, zero, StoreMode.OVER)
    _store(g, view, placed, convert(g, placed.value, wide), StoreMode.ADD)
    return _narrowed(g, g.lazy(view.buffer), x.dtype, strides)


def _one_each(g: ProgramBuilder, x: Lazy, dim: int, index: Lazy, found: Scatter) -> Any:
    """One element for each row of a dimension is a choice between what is there and what is given, which fuses with what is around it."""
    dim = dim % x.rank
    rows = (*x.sizes[:dim], ONE, *x.sizes[dim + 1 :])
    if tuple(index.sizes) != rows:
        return NotImplemented
    value = found.placed.value
    g.realize_if_costly(value)

    def inner(at: Index) -> Node:
        row = [*at[:dim], ZERO, *at[dim + 1 :]]
        named, number = build.cast(index.load(row), I64), g.index_node(at[dim])
        here = build.binary(Op.EQ, named, number)
        # what is kept below the row's end is another element's number
        looked_at = build.check_index(named, x.sizes[dim])
        if looked_at is not named:
            here = build.both(here, build.binary(Op.EQ, looked_at, number))
        there, given = x.load(at), value.load(row)
        if found.adds:
            wide = WIDE[x.dtype]
            given = g.rounded(build.add(build.cast(there, wide), build.cast(given, wide)), x.dtype)
        return build.where(here, given, there)

    return computed(g, [x, index, value], inner, x.sizes, x.dtype, 3)


def placed_on_gpu(
    g: ProgramBuilder, target: Any, part: Lazy, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Placed | None, StoreMode]:
    """What a scatter stores straight into the window ``part``, and how; None for what is ATen's."""
    found = _found(g, target, part, args, kwargs)
    if found is None or found.clears or _is_empty(part, found) or (g.ctx.deterministic and not found.alike):
        return None, StoreMode.PLAIN
    if not found.adds:
        return found.placed, StoreMode.PLAIN
    return (found.placed if WIDE[part.dtype] is part.dtype else None), StoreMode.ADD


def _found(
    g: ProgramBuilder, target: Any, x: Lazy, args: Sequence[Any], kwargs: dict[str, Any]
) -> Scatter | None:
    """What a scatter on a GPU stores, if loops can."""
    if (
        g.ctx.target.kind != "cuda"
        or x.device == "cpu"
        or not x.rank
        or not x.dtype.is_computable
        or target not in FORMS
    ):
        return None
    found = FORMS[target](g, x, *args, **kwargs)
    return None if found is None or (found.adds and x.dtype not in WIDE) else found


def _is_empty(x: Lazy, found: Scatter) -> bool:
    """Whether there is known to be no place, or nothing for it."""
    return any(size.value == 0 for size in (*x.sizes, *found.placed.sizes))


def _store(
    g: ProgramBuilder,
    view: BufferView,
    placed: Placed,
    value: Lazy,
    mode: StoreMode,
    more: Callable[[Index], Expr] | None = None,
) -> None:
    """The loop that stores."""
    axes, index = g.axes(placed.sizes)
    further = more(index) if more is not None else ZERO
    g.nest(
        axes,
        (placed.store(view, value, index, mode, further),),
        value.device,
        (*value.pending_ops, g.op_name),
    )


def _narrowed(g: ProgramBuilder, x: Lazy, dtype: DType, strides: tuple[Expr, ...]) -> Lazy:
    if x.dtype is dtype:
        return x
    x = convert(g, x, dtype)
    x.hint = strides
    return x


def _in_order(g: ProgramBuilder, x: Lazy, found: Scatter) -> Any:
    """The same numbers each time."""
    if found.rows is None or x.dtype not in (DType.F32, DType.F16, DType.BF16):
        return NotImplemented
    indices, values = found.rows
    zeros = constant(g, x.sizes, 0, x.dtype, x.device)
    added = rows_added(g, zeros, indices, values, least=1)
    if added is NotImplemented:
        return NotImplemented
    return elementwise(g, build.add, (x, added))


def _by_rows(g: ProgramBuilder, x: Lazy, found: Scatter, there: int, given: int) -> Any:
    """Sums of few long rows of a half type in many rows of zeros, by one operator that writes each row once."""
    if found.rows is None or found.clears or given > there:
        return NotImplemented
    return rows_added(g, x, *found.rows)


def _crowded(x: Lazy, found: Scatter, there: int, given: int) -> bool:
    known = all(size.value is not None for size in x.sizes)
    return known and found.turn is not None and not found.clears and there <= FEW and given >= MANY * there


def _by_copies(g: ProgramBuilder, x: Lazy, found: Scatter, wide: DType, there: int, given: int) -> Lazy:
    """Sums in several copies, each of which gets its share of the values, and their sum."""
    copies = COPIES
    while copies > 2 and copies * there * 4 > given:
        copies //= 2
    count, placed, turn = Integer(copies), found.placed, found.turn
    assert turn is not None
    inner = contiguous_strides(x.sizes)
    zeros = constant(g, (count, *x.sizes), 0, wide, x.device)
    held = g.copy(zeros)
    view = BufferView(held.buffer, x.sizes, inner, ZERO, wide)
    size = numel(x.sizes)

    def share(index: Index) -> Expr:
        return modulo(turn(index), count) * size

    _store(g, view, placed, convert(g, placed.value, wide), StoreMode.ADD, share)
    axes, index = g.axes(x.sizes)
    over, (k,) = g.axes([count], "q")
    total = Reduction(ReduceKind.SUM, wide, g.load(held, (k, *index)))
    out = g.new_buffer(wide, x.sizes, inner, x.device)
    g.nest(
        axes,
        (Store(out, linear(index, inner, ZERO), build.reduced(0, wide)),),
        x.device,
        (g.op_name,),
        over=over,
        reductions=(total,),
    )
    summed = g.lazy(out)
    result = elementwise(
        g,
        lambda a, b: build.cast(build.add(build.cast(a, wide), b), x.dtype),
        (x, summed),
        common=wide,
        out=x.dtype,
    )
    result.hint = g.symbols.exprs(g.val.stride())
    return result


def constant(g: ProgramBuilder, sizes: tuple[Expr, ...], number: Any, dtype: DType, device: str) -> Lazy:
    """A tensor of one number."""
    node = build.const(number, dtype)
    return Lazy(sizes, dtype, device, lambda index: node, ops=(g.op_name,))


# -- what each operator stores


def _integers(x: Lazy, *indices: Any) -> bool:
    return all(isinstance(i, Lazy) and i.dtype in (I64, I32) and i.device == x.device for i in indices)


def _elements(
    g: ProgramBuilder, x: Lazy, indices: Any, values: Any, accumulate: bool = False
) -> Scatter | None:
    """``index_put``."""
    tensors = [i for i in indices if i is not None]
    if not tensors or not _integers(x, *tensors) or values.dtype is not x.dtype or values.device != x.device:
        return None
    found = looked_up(x, indices)
    if not spreads(values.sizes, found.sizes):
        return None
    extents = [x.sizes[d] for d in found.dims]
    places = [place_of(k, extent) for k, extent in enumerate(extents)]
    for i in tensors:
        g.realize_if_costly(i)
    known = [positions(g, i, extent, wrap=True) for i, extent in zip(tensors, extents, strict=True)]
    looked = tuple(zip(known, found.where, strict=True))
    alike = not accumulate and numel(values.sizes) is ONE
    value = expand_value(g, values, found.sizes)
    placed = Placed(found.sizes, lambda i: found.at(i, places), looked, value)
    first = len(found.sizes) - len(found.row) - 1
    turn = (lambda i: i[first]) if len(found.shape) == 1 else None
    return Scatter(placed, adds=accumulate, alike=alike, turn=turn, rows=(indices, values))


def _slices(
    g: ProgramBuilder, x: Lazy, dim: int, index: Any, value: Any, wrap: bool = False, **how: Any
) -> Scatter | None:
    """Slices of one dimension; negative indices count from its end where ``wrap``."""
    if not _integers(x, index) or index.rank != 1:
        return None
    dim = dim % x.rank
    sizes = (*x.sizes[:dim], index.sizes[0], *x.sizes[dim + 1 :])
    if not isinstance(value, Lazy):
        value = constant(g, sizes, value, x.dtype, x.device)
    elif not value.sizes:
        value = expand_value(g, value, sizes)
    if tuple(value.sizes) != sizes or value.dtype is not x.dtype or value.device != x.device:
        return None
    g.realize_if_costly(index)
    known = positions(g, index, x.sizes[dim], wrap=wrap)
    place = place_of(0, x.sizes[dim])
    placed = Placed(sizes, lambda i: [*i[:dim], place, *i[dim + 1 :]], ((known, lambda i: [i[dim]]),), value)
    return Scatter(placed, turn=lambda i: i[dim], rows=([index], value) if dim == 0 else None, **how)


def _copied(g: ProgramBuilder, x: Lazy, dim: int, index: Any, source: Any) -> Scatter | None:
    """``index_copy``."""
    return _slices(g, x, dim, index, source)


def _filled(g: ProgramBuilder, x: Lazy, dim: int, index: Any, value: Any) -> Scatter | None:
    """``index_fill``."""
    if isinstance(value, Lazy) and (value.sizes or value.dtype is not x.dtype):
        return None
    return _slices(g, x, dim, index, value, wrap=True, alike=True)


def _added(
    g: ProgramBuilder, x: Lazy, dim: int, index: Any, source: Any, *, alpha: Any = 1
) -> Scatter | None:
    """``index_add``."""
    if alpha != 1:
        if isinstance(alpha, Lazy) or x.dtype not in WIDE:
            return None
        source = _times(g, source, alpha)
    return _slices(g, x, dim, index, source, adds=True)


def _times(g: ProgramBuilder, x: Lazy, number: Any) -> Lazy:
    """A value by a number, as eager rounds it."""
    wide = WIDE.get(x.dtype, x.dtype)

    def scaled(a: Node) -> Node:
        return build.mul(a, build.const(number, wide))

    return elementwise(g, scaled, (x,), common=wide, out=x.dtype)


def _along(g: ProgramBuilder, x: Lazy, dim: int, index: Any, source: Any, **how: Any) -> Scatter | None:
    """``scatter``: one element per index, along a dimension."""
    if not _integers(x, index) or index.rank != x.rank:
        return None
    dim = dim % x.rank
    if not isinstance(source, Lazy):
        source = constant(g, index.sizes, source, x.dtype, x.device)
    if source.dtype is not x.dtype or source.device != x.device or source.rank != x.rank:
        return None
    inside = all(_within(n, m) for d, (n, m) in enumerate(zip(index.sizes, x.sizes, strict=True)) if d != dim)
    if not inside or not all(_within(n, m) for n, m in zip(index.sizes, source.sizes, strict=True)):
        return None
    g.realize_if_costly(index)
    known = positions(g, index, x.sizes[dim], wrap=False)
    place = place_of(0, x.sizes[dim])
    placed = Placed(index.sizes, lambda i: [*i[:dim], place, *i[dim + 1 :]], ((known, lambda i: i),), source)
    return Scatter(placed, turn=(lambda i: i[0]) if x.rank == 1 else None, **how)


def _within(n: Expr, m: Expr) -> bool:
    """Whether a size is another, or known to be no larger, as eager asks for."""
    return n == m or (n.value is not None and m.value is not None)


def _set(g: ProgramBuilder, x: Lazy, dim: int, index: Any, value: Any) -> Scatter | None:
    """``scatter`` of one number."""
    if isinstance(value, Lazy):
        return None
    return _along(g, x, dim, index, value, alike=True)


def _reduced(
    g: ProgramBuilder, x: Lazy, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Scatter | None:
    """``scatter_reduce``, of sums."""
    if reduce != "sum":
        return None
    return _along(g, x, dim, index, source, adds=True, clears=not include_self)


#: those of which one element for each row is a choice
ONE_EACH = frozenset({aten.scatter.src, aten.scatter.value, aten.scatter_add.default})
FORMS: dict[Any, Callable[..., Scatter | None]] = {
    aten.index_put.default: _elements,
    aten.index_copy.default: _copied,
    aten.index_fill.int_Scalar: _filled,
    aten.index_fill.int_Tensor: _filled,
    aten.index_add.default: _added,
    aten.scatter.src: _along,
    aten.scatter.value: _set,
    aten.scatter_add.default: lambda *args: _along(*args, adds=True),
    aten.scatter_reduce.two: _reduced,
}  # fmt: skip
