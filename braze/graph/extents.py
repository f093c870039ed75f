"""Symbolic sizes that metadata rules may compute with: what they say of them holds for all sizes, or they do not say it.

An :class:`Extent` is a size with its expression. Two are equal where their expressions are, and a comparison with a number is
told by the least value that the expression can take; what neither tells raises :class:`Undecided`, and the
operator goes PyTorch's way, which asks and guards. A :class:`Geometry` stands for a tensor of such sizes in the rules of
``rules.py``, ``elementwise.py`` and ``view_rules.py``. No guard and no simplification comes of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from braze.graph import torch_compat


class Undecided(Exception):
    """A rule asks what holds of some sizes only."""


class Extent:
    """A symbolic size."""

    __slots__ = ("expr", "known", "size")

    def __init__(self, size: torch.SymInt, known: dict[Any, int | None]) -> None:
        self.size = size
        self.expr = size.node.expr
        #: the least values found so far, by expression
        self.known = known

    @property
    def least(self) -> int:
        """No value of it is below this."""
        found = self.known.get(self.expr, self)
        if found is self:
            found = self.known[self.expr] = _least(self.expr, torch_compat.ranges(self.size.node.shape_env))
        if found is None:
            raise Undecided(f"how small {self.expr} may be")
        return found  # type: ignore[return-value]

    def __hash__(self) -> int:
        return hash(self.expr)

    def __eq__(self, other: object) -> bool:
        if type(other) is Extent:
            if self.expr is other.expr or self.expr == other.expr:
                return True
        elif type(other) is int and self.least > other:
            return False
        raise Undecided(f"{self.expr} == {other}")

    def __lt__(self, other: Any) -> bool:
        if type(other) is Extent:
            if self.expr == other.expr:
                return False
        elif self.least >= other:
            return False
        raise Undecided(f"{self.expr} < {other}")

    def __gt__(self, other: Any) -> bool:
        if type(other) is Extent:
            if self.expr == other.expr:
                return False
        elif self.least > other:
            return True
        raise Undecided(f"{self.expr} > {other}")

    def __le__(self, other: Any) -> bool:
        return not self > other

    def __ge__(self, other: Any) -> bool:
        return not self < other

    def __bool__(self) -> bool:
        return self > 0

    def __add__(self, other: Any) -> Any:
        return self._made(self.size + _plain(other))

    def __sub__(self, other: Any) -> Any:
        return self._made(self.size - _plain(other))

    def __mul__(self, other: Any) -> Any:
        if type(other) is int and other == 1:
            return self
        return self._made(self.size * _plain(other))

    def __floordiv__(self, other: Any) -> Any:
        if type(other) is int and other == 1:
            return self
        return self._made(self.size // _plain(other))

    def __rsub__(self, other: Any) -> Any:
        return self._made(other - self.size)

    __radd__ = __add__
    __rmul__ = __mul__

    def _made(self, size: Any) -> Any:
        return extent(size, self.known)


def extent(size: Any, known: dict[Any, int | None]) -> Any:
    """A size for rules: an int, or an Extent."""
    if type(size) is int:
        return size
    number = size.node.maybe_as_int()
    return Extent(size, known) if number is None else number


def _plain(value: Any) -> Any:
    return value.size if type(value) is Extent else value


def _least(expr: Any, ranges: dict[Any, Any]) -> int | None:
    """A lower bound of an expression over symbols, or None."""
    if expr.is_Integer:
        return int(expr)
    if expr.is_Symbol:
        bounds = ranges.get(expr)
        return int(bounds.lower) if bounds is not None and bounds.lower.is_Integer else None
    parts = [_least(part, ranges) for part in expr.args]
    known = [part for part in parts if part is not None]
    name = type(expr).__name__
    if name == "Max" and known:
        return max(known)
    if len(known) < len(parts):
        return None
    if expr.is_Add:
        return sum(known)
    if expr.is_Mul:
        return math.prod(known) if min(known) >= 0 else None
    if name in ("FloorDiv", "CleanDiv") and expr.args[1].is_Integer and known[1] > 0:
        return known[0] // known[1]
    return None


class Geometry:
    """A tensor's type, sizes and strides, for rules."""

    __slots__ = ("dtype", "offset", "shape", "source", "strides")

    def __init__(
        self, dtype: torch.dtype, shape: Sequence[Any], strides: Sequence[Any] | None, source: Any = None
    ) -> None:
        self.dtype = dtype
        self.shape = tuple(shape)
        self.strides = tuple(strides) if strides is not None else row_major(shape)
        self.offset: Any = 0
        #: the fake whose storage it is over; None for a new one
        self.source = source

    def dim(self) -> int:
        return len(self.shape)

    def stride(self, dim: int | None = None) -> Any:
        return self.strides if dim is None else self.strides[dim]

    def element_size(self) -> int:
        return self.dtype.itemsize

    def numel(self) -> Any:
        return math.prod(self.shape)

    def is_complex(self) -> bool:
        return self.dtype.is_complex

    def is_contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> bool:
        """Whether it is in row-major order (or channels-last) at all sizes."""
        order = range(self.dim() - 1, -1, -1)
        dims = list(order) if memory_format is torch.contiguous_format else [1, *order[:-2], 0]
        step: Any = 1
        for d in dims:
            size = self.shape[d]
            if type(size) is int and size == 1:
                continue
            if not same(self.strides[d], step):
                if size > 1 and self.strides[d] != step:
                    return False
                raise Undecided("which order the dims have")
            step = step * size
        return True

    def view(self, shape: Sequence[Any], strides: Sequence[Any], offset: Any = 0) -> Geometry:
        """Another look at the same storage."""
        made = Geometry(self.dtype, shape, strides, self.source)
        made.offset = self.offset + offset
        return made

    def transpose(self, a: int, b: int) -> Geometry:
        """Two dims exchanged; of a new tensor too."""
        order = list(range(self.dim()))
        order[a], order[b] = order[b], order[a]
        return self.view([self.shape[d] for d in order], [self.strides[d] for d in order])

    def stand_in(self) -> torch.Tensor:
        """A small tensor of this type and rank: what type results have does not depend on sizes."""
        return torch.empty((1,) * self.dim(), dtype=self.dtype, device="meta")


def same(a: Any, b: Any) -> bool:
    """Whether two sizes are written alike."""
    if type(a) is Extent and type(b) is Extent:
        return bool(a.expr is b.expr or a.expr == b.expr)
    return type(a) is type(b) and bool(a == b)


def row_major(shape: Sequence[Any]) -> tuple[Any, ...]:
    """The strides of a contiguous tensor."""
    made = []
    step: Any = 1
    for size in reversed(shape):
        made.append(step)
        if not (type(size) is int and size <= 1):
            if type(size) is Extent and size.least < 1:
                raise Undecided(f"whether {size.expr} is 0")
            step = size * step
    return tuple(reversed(made))


TENSORS = (torch.Tensor, Geometry)


def is_symbolic(sizes: Sequence[Any]) -> bool:
    """Whether a shape has an Extent."""
    return any(type(n) is Extent for n in sizes)


def broadcast(shapes: Sequence[Sequence[Any]]) -> list[Any]:
    """The common shape: in each dim, sizes that are not the number 1 must be written alike."""
    made: list[Any] = []
    for d in range(max(map(len, shapes)), 0, -1):
        sizes = [s[-d] for s in shapes if len(s) >= d]
        sizes = [n for n in sizes if type(n) is not int or n != 1] or [1]
        if not all(same(n, sizes[0]) for n in sizes[1:]):
            raise Undecided("a broadcast of different sizes")
        made.append(sizes[0])
    return made


def allocated(operands: Sequence[Geometry], shape: Sequence[Any], dtype: torch.dtype) -> Any:
    """The result of an elementwise operator: row-major if the operands are, else as the operands of its shape agree."""
    if all(t.is_contiguous() for t in operands if t.dim()):
        return Geometry(dtype, shape, None)
    first = operands[0]
    for t in operands:
        if len(t.shape) != len(shape) or not all(map(same, t.shape, shape)):
            raise Undecided("the order of the dims of a broadcast")
        if not all(map(same, t.strides, first.strides)):
            raise Undecided("the order of the dims of operands that differ")
    if any(type(n) is int and n == 1 for n in shape) or any(n < 2 for n in shape):
        raise Undecided("the order of dims of size 1")
    step: Any = 1
    left = list(range(len(shape)))
    while left:
        inner = next((d for d in left if same(first.strides[d], step)), None)
        if inner is None:
            return NotImplemented
        left.remove(inner)
        step = step * shape[inner]
    return Geometry(dtype, shape, first.strides)
