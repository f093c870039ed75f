"""Tensor values during lowering: a view of a buffer, or a function from an index to a scalar node.

A ``Lazy`` that is not realized runs its ``inner`` function where it is read. Views of it only map the
index; once it is realized (``realize.py``), they become strided windows on its buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Protocol

from braze.loops.ir import BufferView, DType, Node
from braze.support.errors import Origin
from braze.symbolic.expr import ONE, ZERO, Expr, contiguous_strides, known_le, linear

Index = Sequence[Expr]
Strided = Callable[[BufferView], BufferView | None]


@dataclass(slots=True, eq=False, repr=False)
class Lazy:
    """A tensor that is known by how to compute each element.

    ``view``: where it lies, once realized. ``hint``: the strides that eager gives it. ``cost``: a measure of the
    arithmetic that reading one element repeats (0: a plain read). ``base`` and ``rederive``: the value
    that this is a view of, and how to take the view once that value lies in memory.
    """

    sizes: tuple[Expr, ...]
    dtype: DType
    device: str
    inner: Callable[[Index], Node]
    _: KW_ONLY
    view: BufferView | None = None
    cost: int = 0
    ops: tuple[str, ...] = ()
    base: Lazy | None = None
    rederive: Strided | None = None
    hint: tuple[Expr, ...] | None = None
    #: how many operators a read runs through
    depth: int = 0
    origin: Origin | None = None
    #: stands for a Python float: counts as a number where types are promoted
    weak: bool = False
    #: the value that this one is with some dims reversed, and which
    turned: tuple[Lazy, frozenset[int]] | None = None
    #: whether that value is in fresh memory that nobody else reads
    owned: bool = False

    def load(self, index: Index) -> Node:
        """The element at ``index``."""
        return self.inner(index)

    @property
    def rank(self) -> int:
        return len(self.sizes)

    @property
    def pending_cost(self) -> int:
        """The arithmetic that one more reader repeats."""
        if self.view is not None:
            return 0
        return self.base.pending_cost if self.base is not None else self.cost

    @property
    def pending_ops(self) -> tuple[str, ...]:
        """The operations that one more reader computes anew, for kernel names."""
        if self.view is not None:
            return ()
        return self.base.pending_ops if self.base is not None else self.ops

    def __repr__(self) -> str:
        where = self.view.buffer if self.view is not None else f"cost {self.cost}"
        return f"Lazy({self.dtype.label}[{', '.join(map(str, self.sizes))}], {where})"


class Loads(Protocol):
    """Who writes the program (``realize.py``), as far as values in memory need it."""

    def load(self, view: BufferView, index: Index) -> Node:
        """Read one element of a view."""


def strided_lazy(builder: Loads, view: BufferView, device: str) -> Lazy:
    """A value that lies in memory."""
    value = Lazy(view.sizes, view.dtype, device, lambda index: builder.load(view, index), view=view)
    value.hint = view.strides
    return value


def dense_order(sizes: Sequence[Expr], strides: Sequence[Expr]) -> list[int] | None:
    """Dimensions from innermost to outermost, if the strides are a permuted row-major layout without holes.

    Dimensions of size 1 are left out, as their strides mean nothing.
    """
    left = [d for d, size in enumerate(sizes) if size is not ONE]
    order: list[int] = []
    step: Expr = ONE
    while left:
        found = next((d for d in reversed(left) if strides[d] is step), None)
        if found is None:
            return None
        order.append(found)
        left.remove(found)
        step = step * sizes[found]
    return order


def known_apart(sizes: Sequence[Expr], strides: Sequence[Expr]) -> bool:
    """Whether all elements are shown to have places of their own, or to share them along a whole dim (stride 0)."""
    if ZERO in sizes or dense_order(sizes, strides) is not None:
        return True
    dims = [(s, n) for s, n in zip(strides, sizes, strict=True) if n is not ONE and s is not ZERO]
    return _nested(dims, ZERO)


def _nested(dims: list[tuple[Expr, Expr]], reach: Expr) -> bool:
    """Whether the dims can be put in an order in which each steps over all that those before it reach."""
    return not dims or any(
        known_le(reach + 1, stride) and _nested(dims[:k] + dims[k + 1 :], reach + stride * (size - 1))
        for k, (stride, size) in enumerate(dims)
    )


def numel(sizes: Sequence[Expr]) -> Expr:
    """The number of elements."""
    out: Expr = ONE
    for size in sizes:
        out = out * size
    return out


def flatten(index: Index, sizes: Sequence[Expr]) -> Expr:
    """The row-major position of an index."""
    return linear(index, contiguous_strides(sizes), ZERO)
