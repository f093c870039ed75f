"""Symbolic sizes that metadata rules may compute with: what they say of them holds for all sizes, or they do not say it.

An :class:`Extent` is a size as an expression of ours. Two are equal where their expressions are, and a comparison is told
by the least and greatest value that the difference can take; what neither tells raises :class:`Undecided`, and the operator goes PyTorch's way, which asks and guards. A :class:`Geometry` stands for a tensor of such sizes in the rules of
``rules.py``, ``elementwise.py`` and ``view_rules.py``. No guard and no simplification comes of it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze.graph.sizes.known_sizes import Ground
from braze.symbolic.expr import Expr, as_expr, minimum
from braze.symbolic.flat import close_bounds, exact_quotient


class Undecided(Exception):
    """A rule asks what holds of some sizes only."""


class Extent:
    """A symbolic size."""

    __slots__ = ("form", "ground", "made")

    def __init__(self, form: Expr, ground: Ground, made: Any = None) -> None:
        self.form = form
        self.ground = ground
        #: the torch.SymInt, where there is one already
        self.made = made

    @property
    def size(self) -> Any:
        """As PyTorch has it."""
        return self.ground.number(self.form) if self.made is None else self.made

    def __hash__(self) -> int:
        return hash(self.form)

    def __eq__(self, other: object) -> bool:
        if type(other) is Extent:
            if self.form is other.form:
                return True
            low, high = close_bounds(self.ground.difference(self.form, other.form))
            if low == 0 == high:
                return True
            if (low is not None and low > 0) or (high is not None and high < 0):
                return False
        elif type(other) is int:
            low, high = close_bounds(self.form)
            if (low is not None and low > other) or (high is not None and high < other):
                return False
        else:
            return False
        return self._asked(operator.eq, other)

    def __lt__(self, other: Any) -> bool:
        low, high = self._beyond(other)
        if low is not None and low >= 0:
            return False
        if high is not None and high < 0:
            return True
        return self._asked(operator.lt, other)

    def __gt__(self, other: Any) -> bool:
        low, high = self._beyond(other)
        if low is not None and low > 0:
            return True
        if high is not None and high <= 0:
            return False
        return self._asked(operator.gt, other)

    def _asked(self, question: Callable[[Any, Any], Any], other: Any) -> bool:
        """PyTorch's answer, which holds from here on; where that may be."""
        if not self.ground.asking:
            raise Undecided(f"{question.__name__}({self.form}, {other})")
        return bool(question(self.size, _plain(other)))

    def _beyond(self, other: Any) -> tuple[int | None, int | None]:
        """Bounds of how much greater it is."""
        if type(other) is int:
            low, high = close_bounds(self.form)
            return None if low is None else low - other, None if high is None else high - other
        if self.form is other.form:
            return 0, 0
        return close_bounds(self.ground.difference(self.form, other.form))

    def __le__(self, other: Any) -> bool:
        return not self > other

    def __ge__(self, other: Any) -> bool:
        return not self < other

    def __bool__(self) -> bool:
        return self > 0

    def __add__(self, other: Any) -> Any:
        return self._with(self.form + _form(other))

    def __sub__(self, other: Any) -> Any:
        return self._with(self.form - _form(other))

    def __mul__(self, other: Any) -> Any:
        if type(other) is int and other == 1:
            return self
        return self._with(self.form * _form(other))

    def __floordiv__(self, other: Any) -> Any:
        if type(other) is int and other == 1:
            return self
        if not other > 0:
            raise Undecided(f"whether {other} is above 0")
        return self._with(self.form // _form(other))

    def __mod__(self, other: Any) -> Any:
        return self - self // other * other

    def __rsub__(self, other: Any) -> Any:
        return self._with(_form(other) - self.form)

    __radd__ = __add__
    __rmul__ = __mul__

    def _with(self, form: Expr) -> Any:
        return _of_form(form, self.ground)


def _of_form(form: Expr, ground: Ground) -> Any:
    return _size(ground.flat(form), ground)


def _size(form: Expr, ground: Ground) -> Any:
    """An int where the form is one, else an Extent."""
    return form.value if form.value is not None else Extent(form, ground)


def extent(size: Any, ground: Ground) -> Any:
    """A size for rules: an int, or an Extent."""
    if type(size) is int:
        return size
    form = ground.form(size)
    if form is None:
        raise Undecided(f"what {size} is")
    return _size(form, ground)


def divided(total: Any, by: Any) -> Any:
    """The quotient of two sizes where one divides the other at all sizes; else None."""
    ground = total.ground if type(total) is Extent else by.ground
    found = exact_quotient(as_expr(_form(total)), as_expr(_form(by)))
    return None if found is None else _size(found, ground)


def smaller(a: Any, b: Any) -> Any:
    """The smaller of two sizes, at all sizes; which one it is is not asked."""
    ground = a.ground if type(a) is Extent else b.ground if type(b) is Extent else None
    return min(a, b) if ground is None else _of_form(minimum(_form(a), _form(b)), ground)


def _plain(value: Any) -> Any:
    return value.size if type(value) is Extent else value


def _form(value: Any) -> Any:
    return value.form if type(value) is Extent else value


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
    """Whether two sizes are known to be one."""
    if type(a) is Extent and type(b) is Extent:
        return a.form is b.form or a.ground.difference(a.form, b.form).value == 0
    return type(a) is type(b) and bool(a == b)


def row_major(shape: Sequence[Any]) -> tuple[Any, ...]:
    """The strides of a contiguous tensor."""
    made = []
    step: Any = 1
    for size in reversed(shape):
        made.append(step)
        if not (type(size) is int and size <= 1):
            if size < 1:
                raise Undecided(f"a stride beside {size.form} elements")
            step = size * step
    return tuple(reversed(made))


TENSORS = (torch.Tensor, Geometry)


def is_symbolic(sizes: Sequence[Any]) -> bool:
    """Whether a shape has an Extent."""
    return any(type(n) is Extent for n in sizes)


def may_ask(tensors: Sequence[Any]) -> bool:
    """Whether what does not hold at all sizes may be asked, and guarded. Of numbers all is known."""
    known = (n for t in tensors for n in (*t.shape, *t.stride()) if type(n) is Extent)
    return all(n.ground.asking for n in known)


def broadcast(shapes: Sequence[Sequence[Any]]) -> list[Any]:
    """The common shape: in each dim, sizes that are not the number 1 are written alike, or asked whether they are one."""
    made: list[Any] = []
    for d in range(max(map(len, shapes)), 0, -1):
        sizes = [s[-d] for s in shapes if len(s) >= d]
        sizes = [n for n in sizes if type(n) is not int or n != 1] or [1]
        made.append(sizes[0] if all(same(n, sizes[0]) for n in sizes[1:]) else _asked_to_agree(sizes))
    return made


def _asked_to_agree(sizes: list[Any]) -> Any:
    """What a broadcast makes of sizes that are written differently, where that may be asked."""
    if not any(type(n) is Extent and n.ground.asking for n in sizes):
        raise Undecided("a broadcast of different sizes")
    wide = [n for n in sizes if n != 1]
    if any(n != wide[0] for n in wide[1:]):
        raise ValueError("shapes do not fit")
    return next((n for n in wide if type(n) is int), wide[0]) if wide else 1


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
            return _without_gaps(first, shape, dtype)
        left.remove(inner)
        step = step * shape[inner]
    return Geometry(dtype, shape, first.strides)


def _without_gaps(x: Geometry, shape: Sequence[Any], dtype: torch.dtype) -> Geometry:
    """A dense tensor whose dims lie in the order that they have in a window of a larger one."""
    order: list[int] = []  # innermost first
    for d, stride in enumerate(x.strides):
        if same(stride, 0) or any(same(stride, x.strides[e]) for e in order):
            raise Undecided("the order of dims of one stride")
        order.insert(sum(1 for e in order if x.strides[e] < stride), d)
    strides: list[Any] = [1] * len(shape)
    step: Any = 1
    for d in order:
        strides[d] = step
        step = step * shape[d]
    return Geometry(dtype, shape, strides)
