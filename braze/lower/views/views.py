"""Views as index arithmetic: on a value in memory a strided window, otherwise a map of the index.

Each view is a pair of functions: from the new index to the old one, and from the old window to the new
one (or None, where strides cannot say it).
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from braze.loops import build
from braze.loops.ir import BufferView, DType, Node, Op
from braze.lower.values.lazy import Index, Lazy, Strided, flatten, strided_lazy
from braze.lower.values.pointwise_core import broadcast_index, computed, is_broadcast
from braze.lower.values.realize import ProgramBuilder
from braze.lower.values.registry import aten, lowering
from braze.support.layouts import span
from braze.symbolic.expr import ONE, ZERO, Expr, as_expr, contiguous_strides, known_le
from braze.symbolic.flat import flat
from braze.symbolic.names import is_told_by_data

#: for an index of the whole: whether it lies in a window, and where
Place = Callable[[Index], tuple[Node, Index]]


def view_of(
    g: ProgramBuilder, x: Lazy, sizes: tuple[Expr, ...], place: Callable[[Index], Index], strided: Strided
) -> Lazy:
    """A view of ``x``: a window where strides can say it, else a map of the index."""
    if x.view is not None:
        window = strided(x.view)
        if window is not None:
            return strided_lazy(g, window, x.device)
    return Lazy(
        sizes,
        x.dtype,
        x.device,
        lambda index: x.load(place(index)),
        cost=x.cost,
        ops=x.pending_ops,
        base=x,
        rederive=strided,
    )


def window(
    view: BufferView, sizes: Sequence[Expr], strides: Sequence[Expr], offset: Expr | None = None
) -> BufferView:
    """The same buffer seen through other sizes and strides."""
    return BufferView(
        view.buffer, tuple(sizes), tuple(strides), view.offset if offset is None else offset, view.dtype
    )


# -- reshape


def group_dimensions(old: Sequence[Expr], new: Sequence[Expr]) -> list[tuple[list[int], list[int]]]:
    """Pair up runs of dimensions with the same number of elements; sizes 1 are left out."""
    a = [d for d, s in enumerate(old) if s is not ONE]
    b = [d for d, s in enumerate(new) if s is not ONE]
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(a) and j < len(b):
        left, right = [a[i]], [b[j]]
        p, q = old[a[i]], new[b[j]]
        i, j = i + 1, j + 1
        while p is not q:
            grow_left = _grow_left(p, q, i < len(a), j < len(b))
            if grow_left is None:
                return [*groups, (left + a[i:], right + b[j:])]
            if grow_left:
                left.append(a[i])
                p, i = p * old[a[i]], i + 1
            else:
                right.append(b[j])
                q, j = q * new[b[j]], j + 1
        groups.append((left, right))
    if i < len(a) or j < len(b):
        # only sizes that are 0 or unknown can be left; give them to the last group
        if groups:
            groups[-1] = (groups[-1][0] + a[i:], groups[-1][1] + b[j:])
        else:
            groups.append((a[i:], b[j:]))
    return groups


def _grow_left(p: Expr, q: Expr, more_left: bool, more_right: bool) -> bool | None:
    """Which product is the smaller and must take the next dimension; None where nobody can tell."""
    if p.value is not None and q.value is not None:
        if p.value < q.value:
            return True if more_left else None
        return False if more_right else None
    low, high = (q - p).bounds()
    if low is not None and low >= 0 and more_left:
        return True
    if high is not None and high <= 0 and more_right:
        return False
    return None


def reshape_value(g: ProgramBuilder, x: Lazy, sizes: tuple[Expr, ...]) -> Lazy:
    """The same elements in row-major order under other sizes."""
    if sizes == x.sizes:
        return x
    groups = group_dimensions(x.sizes, sizes)

    def place(index: Index) -> Index:
        out: list[Expr] = [ZERO] * x.rank
        if ZERO in x.sizes:
            return out  # no point asks
        for left, right in groups:
            if len(left) == len(right) == 1:
                out[left[0]] = index[right[0]]
                continue
            position = flatten([index[d] for d in right], [sizes[d] for d in right])
            for d in reversed(left[1:]):
                out[d] = position % x.sizes[d]
                position = position // x.sizes[d]
            if left:
                out[left[0]] = position
        return out

    def strided(view: BufferView) -> BufferView | None:
        strides = reshaped_strides(groups, view.sizes, view.strides, sizes)
        return None if strides is None else window(view, sizes, strides)

    return view_of(g, x, sizes, place, strided)


def reshaped_strides(
    groups: list[tuple[list[int], list[int]]],
    sizes: Sequence[Expr],
    strides: Sequence[Expr],
    wanted: Sequence[Expr],
) -> tuple[Expr, ...] | None:
    """Strides under which a window of ``sizes`` shows as ``wanted``, if there are such."""
    if any(s is ZERO for s in sizes):
        return contiguous_strides(wanted)
    out: list[Expr | None] = [None] * len(wanted)
    for left, right in groups:
        for d, e in itertools.pairwise(left):
            if strides[d] is not strides[e] * sizes[e]:
                return None
        step = strides[left[-1]] if left else ONE
        for d in reversed(right):
            out[d] = step
            step = step * wanted[d]
    # a dimension of size 1 gets the stride that torch gives it: as if it were wound tightly
    step = ONE
    for d in reversed(range(len(wanted))):
        found = out[d]
        if found is None:
            out[d] = found = step
        step = found * wanted[d]
    return tuple(s for s in out if s is not None)


@lowering(aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default)
def view(g: ProgramBuilder, x: Lazy, shape: Any, *_: Any) -> Any:
    """Other sizes, same order."""
    return reshape_value(g, x, g.symbols.exprs(g.val.shape))


def fresh(g: ProgramBuilder, x: Lazy) -> Lazy:
    """The same value as one that will get memory of its own."""
    return computed(g, [x], x.load, x.sizes, x.dtype, 0)


# -- order of dimensions


def permute_value(g: ProgramBuilder, x: Lazy, dims: Sequence[int]) -> Lazy:
    """Dimension d of the result is dimension dims[d] of ``x``."""
    return _of_dimensions(g, x, [(d % x.rank,) for d in dims])


def _of_dimensions(g: ProgramBuilder, x: Lazy, dims: Sequence[tuple[int, ...]]) -> Lazy:
    """Each dimension of the result goes along those of ``x`` that ``dims`` has in its place, which are of one size; the others are of size 1."""

    def place(index: Index) -> Index:
        out: list[Expr] = [ZERO] * x.rank
        for i, together in zip(index, dims, strict=True):
            for d in together:
                out[d] = i
        return out

    def strided(view: BufferView) -> BufferView:
        steps = [functools.reduce(operator.add, (view.strides[d] for d in together)) for together in dims]
        return window(view, [view.sizes[first] for first, *_ in dims], steps)

    return view_of(g, x, tuple(x.sizes[first] for first, *_ in dims), place, strided)


@lowering(aten.permute.default)
def permute(g: ProgramBuilder, x: Lazy, dims: Sequence[int]) -> Any:
    """Reorder the dimensions."""
    return permute_value(g, x, dims)


@lowering(aten.transpose.int)
def transpose(g: ProgramBuilder, x: Lazy, a: int, b: int) -> Any:
    """Swap two dimensions."""
    if not x.rank:
        return x
    order = list(range(x.rank))
    order[a], order[b] = order[b], order[a]
    return permute_value(g, x, order)


@lowering(aten.t.default)
def t(g: ProgramBuilder, x: Lazy) -> Any:
    """The matrix transposed."""
    return permute_value(g, x, list(reversed(range(x.rank))))


# -- broadcasting and size-1 dimensions


def expand_value(g: ProgramBuilder, x: Lazy, sizes: tuple[Expr, ...]) -> Lazy:
    """Repeat dimensions of size 1, and lead with new ones."""
    lead, repeats = len(sizes) - x.rank, is_broadcast(x, sizes)
    if not lead and not repeats:
        return x
    if repeats:
        g.realize_if_costly(x)

    def strided(view: BufferView) -> BufferView:
        own = zip(view.strides, view.sizes, sizes[lead:], strict=True)
        strides = [ZERO if size is ONE and wanted is not ONE else stride for stride, size, wanted in own]
        return window(view, sizes, [ZERO] * lead + strides)

    return view_of(g, x, sizes, broadcast_index(x, len(sizes), sizes), strided)


@lowering(aten.expand.default, aten.expand_copy.default)
def expand(g: ProgramBuilder, x: Lazy, shape: Any, **_: Any) -> Any:
    """Broadcast to a shape."""
    out = expand_value(g, x, g.symbols.exprs(g.val.shape))
    return fresh(g, out) if g.op_name == "expand_copy" else out


@lowering(aten.unsqueeze.default)
def unsqueeze(g: ProgramBuilder, x: Lazy, dim: int) -> Any:
    """A new dimension of size 1 at ``dim``."""
    at = dim % (x.rank + 1)

    def strided(view: BufferView) -> BufferView:
        step = view.strides[at] * view.sizes[at] if at < len(view.sizes) else ONE
        return window(
            view, [*view.sizes[:at], ONE, *view.sizes[at:]], [*view.strides[:at], step, *view.strides[at:]]
        )

    return view_of(
        g, x, (*x.sizes[:at], ONE, *x.sizes[at:]), lambda index: [*index[:at], *index[at + 1 :]], strided
    )


@lowering(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def squeeze(g: ProgramBuilder, x: Lazy, dims: Any = None) -> Any:
    """Drop those of some dimensions, or of all, that have size 1."""
    named = range(x.rank) if dims is None else [dims] if isinstance(dims, int) else dims
    gone = {d % x.rank for d in named if x.sizes[d % x.rank] is ONE} if x.rank else set()
    return _of_dimensions(g, x, [(d,) for d in range(x.rank) if d not in gone]) if gone else x


# -- parts


def slice_value(g: ProgramBuilder, x: Lazy, dim: int, start: Expr, size: Expr, step: int = 1) -> Lazy:
    """``size`` elements of a dimension from ``start``, every ``step``-th."""
    dim = dim % x.rank
    if start is ZERO and step == 1 and size is x.sizes[dim]:
        return x

    def place(index: Index) -> Index:
        out = list(index)
        out[dim] = out[dim] * step + start
        return out

    def strided(view: BufferView) -> BufferView:
        sizes, strides = list(view.sizes), list(view.strides)
        offset = view.offset + start * strides[dim]
        sizes[dim], strides[dim] = size, strides[dim] * step
        return window(view, sizes, strides, offset)

    return view_of(g, x, (*x.sizes[:dim], size, *x.sizes[dim + 1 :]), place, strided)


def in_slice(
    g: ProgramBuilder, index: Index, dim: int, size: Expr, start: Expr, stop: Expr, step: int
) -> tuple[Node, Index]:
    """Whether an index of a whole, whose dimension has ``size``, lies in a slice of it; and where in the slice."""
    i = index[dim]
    inside = build.const(True, DType.BOOL)
    if start is not ZERO:
        inside = build.both(inside, build.binary(Op.GE, g.index_node(i), g.index_node(start)))
    if stop is not size:
        inside = build.both(inside, build.lt(g.index_node(i), g.index_node(stop)))
    if step != 1:
        inside = build.both(inside, build.binary(Op.EQ, g.index_node((i - start) % step), build.index(0)))
    at = list(index)
    at[dim] = (i - start) // step
    return inside, at


def on_diagonal(g: ProgramBuilder, rank: int, offset: int, dim1: int, dim2: int) -> Place:
    """Whether an index lies on the diagonal of two dimensions, and where in its elements."""
    dim1, dim2 = dim1 % rank, dim2 % rank

    def place(index: Index) -> tuple[Node, Index]:
        row, column = index[dim1], index[dim2]
        here = build.binary(Op.EQ, g.index_node(column - row), build.index(offset))
        rest = [i for d, i in enumerate(index) if d not in (dim1, dim2)]
        return here, [*rest, row if offset >= 0 else column]

    return place


def clamp_start(
    g: ProgramBuilder, start: Any, end: Any, size: Expr, taken: Expr, step: int = 1
) -> Expr | None:
    """A slice's start counted from 0 and inside the dimension; None where that depends on the run.

    ``taken``: the result's size, as the tracer found it.
    """
    first = counted_from_start(g.symbols.expr(0 if start is None else start), size)
    if first is None:
        return None
    if first.value is not None and size.value is not None:
        return as_expr(max(0, min(first.value, size.value)))
    room = (size - first).bounds()[0]
    if known_le(0, first) and room is not None and room >= 0:
        return first
    # a size of exactly end - start, in steps, says that neither was clamped
    whole = end is None or (isinstance(end, int) and end > 1 << 48)
    last = size if whole else counted_from_start(g.symbols.expr(end), size)
    exact = last is not None and flat(taken) is flat((last - first + (step - 1)) // step)
    return first if exact else None


def counted_from_start(place: Expr, size: Expr) -> Expr | None:
    """A place in a dimension, of which what is negative is counted from the end; None where that depends on the run."""
    low, high = place.bounds()
    if high is not None and high < 0:
        return place + size
    return None if low is None or low < 0 else place


@lowering(aten.slice.Tensor, aten.slice_copy.Tensor)
def slice_tensor(
    g: ProgramBuilder, x: Lazy, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    """x[start:end:step] along a dimension."""
    size = g.symbols.expr(g.val.shape[dim])
    first = clamp_start(g, start, end, x.sizes[dim % x.rank], size, step)
    if first is None:
        return NotImplemented
    out = slice_value(g, x, dim, first, size, step)
    return fresh(g, out) if g.op_name == "slice_copy" else out


@lowering(aten.select.int)
def select(g: ProgramBuilder, x: Lazy, dim: int, at: Any) -> Any:
    """x[at] along a dimension."""
    dim = dim % x.rank
    i = counted_from_start(g.symbols.expr(at), x.sizes[dim])
    if i is None or not is_inside(i, x.sizes[dim]):
        return NotImplemented
    return select_value(g, x, dim, i)


def is_inside(i: Expr, size: Expr) -> bool:
    """Whether an index is one of a size, as far as no guard has seen to it: what only the data tell may be anything."""
    if not any(is_told_by_data(s.name) for s in i.symbols()):
        return True
    return known_le(0, i) and known_le(i + 1, size)


def select_value(g: ProgramBuilder, x: Lazy, dim: int, i: Expr) -> Lazy:
    """One element of a dimension."""

    def strided(view: BufferView) -> BufferView:
        return window(
            view,
            [*view.sizes[:dim], *view.sizes[dim + 1 :]],
            [*view.strides[:dim], *view.strides[dim + 1 :]],
            view.offset + i * view.strides[dim],
        )

    return view_of(
        g, x, (*x.sizes[:dim], *x.sizes[dim + 1 :]), lambda index: [*index[:dim], i, *index[dim:]], strided
    )


@lowering(aten.split.Tensor, aten.split_with_sizes.default)
def split(g: ProgramBuilder, x: Lazy, sizes: Any, dim: int = 0) -> Any:
    """Pieces of a dimension, of the sizes that the tracer found."""
    start: Expr = ZERO
    out = []
    for piece in g.val:
        size = g.symbols.expr(piece.shape[dim])
        out.append(slice_value(g, x, dim, start, size))
        start = start + size
    return tuple(out)


@lowering(aten.unbind.int)
def unbind(g: ProgramBuilder, x: Lazy, dim: int = 0) -> Any:
    """The slices along a dimension, without it."""
    return tuple(select_value(g, x, dim % x.rank, as_expr(i)) for i in range(len(g.val)))


@lowering(aten.diagonal.default)
def diagonal(g: ProgramBuilder, x: Lazy, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """The elements whose two indices differ by ``offset``, as a last dimension."""
    return diagonal_value(g, x, offset, dim1, dim2, g.symbols.expr(g.val.shape[-1]))


def diagonal_value(g: ProgramBuilder, x: Lazy, offset: int, dim1: int, dim2: int, size: Expr) -> Lazy:
    """``size`` elements whose two indices differ by ``offset``, as a last dimension; where there are none it starts where ``x`` does."""
    row, column = dim1 % x.rank, dim2 % x.rank
    away = 0 if size == ZERO else offset
    square = slice_value(g, x, row, as_expr(max(-away, 0)), size)
    square = slice_value(g, square, column, as_expr(max(away, 0)), size)
    rest = [(d,) for d in range(x.rank) if d not in (row, column)]
    return _of_dimensions(g, square, [*rest, (row, column)])


@lowering(aten.unfold.default)
def unfold(g: ProgramBuilder, x: Lazy, dim: int, size: int, step: int) -> Any:
    """Windows of ``size`` along a dimension, ``step`` apart, as a last dimension."""
    if not x.rank:
        return NotImplemented
    dim = dim % x.rank
    sizes = g.symbols.exprs(g.val.shape)

    def place(index: Index) -> Index:
        out = list(index[:-1])
        out[dim] = out[dim] * step + index[-1]
        return out

    def strided(view: BufferView) -> BufferView:
        strides = [*view.strides, view.strides[dim]]
        strides[dim] = strides[dim] * step
        return window(view, sizes, strides)

    return view_of(g, x, sizes, place, strided)


@lowering(aten.flip.default)
def flip(g: ProgramBuilder, x: Lazy, dims: Sequence[int]) -> Any:
    """Reverse dimensions, into fresh memory."""
    turned = frozenset(d % max(x.rank, 1) for d in dims)
    if x.owned and x.view is None and x.turned is not None and x.turned[1] == turned:
        x.owned = False  # who turns it back once more gets memory of their own
        return x.turned[0]

    def inner(index: Index) -> Any:
        return x.load([x.sizes[d] - 1 - i if d in turned else i for d, i in enumerate(index)])

    made = computed(g, [x], inner, x.sizes, x.dtype, 1)
    made.turned = x, turned
    return made


def choose_part(here: Node, then: Node, other: Node) -> Node:
    """``then`` where ``here`` holds, else ``other``; each one's loads only where it is taken."""
    return build.masked(here, then, build.masked(build.invert(here), other, build.const(0, other.dtype)))


@lowering(aten.roll.default)
def roll(g: ProgramBuilder, x: Lazy, shifts: Any, dims: Any = ()) -> Any:
    """Rotate dimensions, into fresh memory."""
    shifts = shifts if isinstance(shifts, (list, tuple)) else [shifts]
    if not dims or not all(isinstance(s, int) for s in shifts) or ZERO in x.sizes:
        return NotImplemented
    moves: dict[int, int] = {}
    for s, d in zip(shifts, dims, strict=True):
        moves[d % x.rank] = moves.get(d % x.rank, 0) + s

    def inner(index: Index, done: int = 0) -> Any:
        out = list(index)
        for k, (d, s) in enumerate(moves.items()):
            size = x.sizes[d]
            back = -s % size.value if size.value is not None else (as_expr(-s) % size)
            if x.device == "cpu" and size.value is not None:
                # two stretches, each of neighbouring elements
                if k >= done and back:
                    here = build.lt(g.index_node(index[d]), g.index_node(size - back))
                    parts = [
                        [i + by if e == d else i for e, i in enumerate(index)] for by in (back, back - size)
                    ]
                    return choose_part(here, *(inner(part, k + 1) for part in parts))
                continue
            out[d] = (out[d] + back) % size
        return x.load(out)

    return computed(g, [x], inner, x.sizes, x.dtype, 1)


@lowering(aten._pad_circular.default)
def pad_circular(g: ProgramBuilder, x: Lazy, pad: Any) -> Any:
    """The other end before each end, into fresh memory in one walk: PyTorch writes its middle, then end by end."""
    sizes = g.symbols.exprs(g.val.shape)
    befores = {x.rank - 1 - k // 2: as_expr(pad[k]) for k in range(0, len(pad), 2)}
    # what is cut off at one end is not what comes around at the other
    if ZERO in x.sizes or not all(known_le(ZERO, as_expr(n)) for n in pad):
        return NotImplemented
    g.realize_if_costly(x)

    def stretches(index: Index, dims: list[int]) -> Node:
        if not dims:
            return x.load(index)
        (d, *rest), moved = dims, list(index)
        moved[d] = index[d] - befores[d]

        def at(by: Expr) -> Node:
            return stretches([i + by if e == d else i for e, i in enumerate(moved)], rest)

        place = g.index_node(moved[d])
        inside = choose_part(build.lt(place, g.index_node(x.sizes[d])), at(ZERO), at(-x.sizes[d]))
        return choose_part(build.lt(place, g.index_node(ZERO)), at(x.sizes[d]), inside)

    return computed(g, [x], lambda index: stretches(list(index), [*befores]), sizes, x.dtype, 1)


# -- the same value


@lowering(aten.alias.default, aten.detach.default, aten.lift_fresh.default, aten.lift.default)
def alias(g: ProgramBuilder, x: Lazy, *_: Any) -> Any:
    """The value itself."""
    return x


@lowering(aten.as_strided.default)
def as_strided(g: ProgramBuilder, x: Lazy, sizes: Any, strides: Any, offset: Any = None) -> Any:
    """Any window on the storage: only of a value that lies in memory, at the offset that eager means.

    How much memory there is behind the elements of a tensor from outside is another matter at each call: ATen asks.
    """
    view = g.realize(x)
    outside = g.comes_from_outside(view.buffer)
    if view.offset is not ZERO or (offset is not None and outside):
        return NotImplemented
    found = window(view, g.symbols.exprs(sizes), g.symbols.exprs(strides), g.symbols.expr(offset or 0))
    if outside and not _span(found) <= _span(view):
        return NotImplemented
    return strided_lazy(g, found, x.device)


def _span(view: BufferView) -> float:
    """The elements of memory that a view spans; nan where only a call tells."""
    sizes, strides = [s.value for s in view.sizes], [s.value for s in view.strides]
    if 0 not in sizes and None in (*sizes, *strides):
        return math.nan
    return span(sizes, strides)  # type: ignore[arg-type]


@lowering(aten.view.dtype)
def view_dtype(g: ProgramBuilder, x: Lazy, dtype: Any) -> Any:
    """The bits read as another type of the same width."""
    to = g.dtype_of(dtype)
    if to is x.dtype:
        return x
    if to.itemsize != x.dtype.itemsize or not (to.is_computable and x.dtype.is_computable):
        return NotImplemented
    if "bool" in (to.label, x.dtype.label):
        return NotImplemented

    def inner(index: Index) -> Any:
        return build.Node(Op.BITCAST, to, (x.load(index),), None)

    return computed(g, [x], inner, x.sizes, to, 1)
