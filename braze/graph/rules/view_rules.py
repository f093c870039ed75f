"""Views of tensors with symbolic sizes, where what they are does not depend on the sizes (see ``extents.py``)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze.graph.sizes.extents import Extent, Geometry, Undecided, divided, same, smaller

aten = torch.ops.aten
#: what a slice to the end is given as
END = 2**63 - 1


def _dim(x: Geometry, dim: int, extra: int = 0) -> int:
    rank = x.dim() + extra
    if not -rank <= dim < rank:
        raise IndexError("no such dim")
    return dim % rank


def _transpose(x: Geometry, a: int, b: int) -> Geometry:
    return x.transpose(_dim(x, a), _dim(x, b))


def _t(x: Geometry) -> Any:
    return x.transpose(0, 1) if x.dim() == 2 else NotImplemented


def _permute(x: Geometry, dims: Sequence[int]) -> Any:
    order = [_dim(x, d) for d in dims]
    if sorted(order) != list(range(x.dim())):
        return NotImplemented
    return x.view([x.shape[d] for d in order], [x.strides[d] for d in order])


def _unsqueeze(x: Geometry, dim: int) -> Geometry:
    dim = _dim(x, dim, 1)
    step = x.shape[dim] * x.strides[dim] if dim < x.dim() else 1
    return x.view([*x.shape[:dim], 1, *x.shape[dim:]], [*x.strides[:dim], step, *x.strides[dim:]])


def _alias(x: Geometry) -> Geometry:
    return x.view(x.shape, x.strides)


def _select(x: Geometry, dim: int, index: Any) -> Any:
    dim = _dim(x, dim)
    size = x.shape[dim]
    if type(index) is not int or not size > (index if index >= 0 else -index - 1):
        return NotImplemented
    at = index if index >= 0 else size + index
    rest = [d for d in range(x.dim()) if d != dim]
    return x.view([x.shape[d] for d in rest], [x.strides[d] for d in rest], at * x.strides[dim])


def _slice(x: Geometry, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Any:
    dim = _dim(x, dim)
    size = x.shape[dim]
    if type(step) is not int or step < 1:
        return NotImplemented
    start = _counted(0 if start is None else start, size)
    whole = end is None or (type(end) is int and end == END)
    if whole or (type(end) is Extent and same(end, size)):
        end = size
    else:
        end = _counted(end, size)
        if end > size:
            end = size
    if start > end:
        raise Undecided("whether a slice starts within its dim")
    length = end - start if not (type(start) is int and start == 0) else end
    strides = list(x.strides)
    if step > 1:
        length = (length + (step - 1)) // step
        strides[dim] = strides[dim] * step
    offset = 0 if type(start) is int and start == 0 else start * x.strides[dim]
    return x.view([*x.shape[:dim], length, *x.shape[dim + 1 :]], strides, offset)


def _counted(place: Any, size: Any) -> Any:
    """A place in a dim, counted from its start; a number or a size that may be negative is counted from the end."""
    if place < 0:
        place = size + place
        if place < 0:
            raise Undecided("where before its first element a slice starts or ends")
    return place


def window_of_diagonal(
    x: Any, row: int, column: int, offset: Any, smaller: Callable[[Any, Any], Any]
) -> tuple[list[Any], list[Any], Any, Any]:
    """(sizes of the other dims, strides of these and of the diagonal, its length, where it starts) in a geometry or a tensor.

    The length is below zero where the whole diagonal lies outside; one without elements starts where ``x`` does, wherever that would be.
    """
    strides = x.stride()
    above = offset >= 0
    down, right = (0, offset) if above else (-1 * offset, 0)
    length = smaller(x.shape[row] - down, x.shape[column] - right)
    start = right * strides[column] if above else down * strides[row]
    rest = [d for d in range(x.dim()) if d not in (row, column)]
    steps = [*(strides[d] for d in rest), strides[row] + strides[column]]
    return [x.shape[d] for d in rest], steps, length, start


def _diagonal(x: Geometry, offset: Any = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """Where it starts depends on whether it has elements, so that this is asked."""
    row, column = _dim(x, dim1), _dim(x, dim2)
    if row == column:
        return NotImplemented
    sizes, strides, length, start = window_of_diagonal(x, row, column, offset, smaller)
    return x.view([*sizes, length], strides, start) if length > 0 else x.view([*sizes, 0], strides)


def _expand(x: Geometry, sizes: Sequence[Any], *, implicit: bool = False) -> Any:
    lead = len(sizes) - x.dim()
    if lead < 0:
        return NotImplemented
    shape, strides = [], []
    for d, wanted in enumerate(sizes):
        if d < lead:
            if wanted < 0 or (type(wanted) is Extent and wanted == 1):
                return NotImplemented
            shape.append(wanted)
            strides.append(0)
            continue
        own, step = x.shape[d - lead], x.strides[d - lead]
        one = type(own) is int and own == 1
        if type(wanted) is int and wanted == -1:
            shape.append(own)
            strides.append(step)
        elif same(own, wanted) or (not one and own == wanted):
            # of two ways to write a size that which is asked for, by which others know it
            shape.append(own if type(own) is int else wanted)
            strides.append(step)
        elif one:
            if wanted < 0 or wanted == 1:
                return NotImplemented
            shape.append(wanted)
            strides.append(0)
        else:
            raise Undecided("whether a dim is expanded")
    # eager gives new dims the stride that keeps them in order where they have one element
    if any(type(n) is int and n == 1 for n in shape[:lead]):
        return NotImplemented
    return x.view(shape, strides)


def _view(x: Geometry, sizes: Sequence[Any]) -> Any:
    """Each run of dims that lie in memory as one becomes some of the new dims."""
    shape = list(sizes)
    holes = [d for d, n in enumerate(shape) if type(n) is int and n == -1]
    if any(n < 1 for n in x.shape):  # what has no elements keeps the strides that it has in its own sizes
        alike = len(shape) == x.dim() and all(map(same, shape, x.shape))
        return x.view(shape, x.strides) if alike else NotImplemented
    if any(type(n) is Extent and n < 0 for n in shape):
        return NotImplemented
    if holes:
        given = math.prod([n for d, n in enumerate(shape) if d not in holes])
        if len(holes) > 1 or given < 1:
            return NotImplemented
        shape[holes[0]] = _quotient(math.prod(x.shape), given)
    at, strides = len(shape), [1] * len(shape)
    for count, step in _runs(x):
        done: Any = 1
        while at and (not same(done, count) or (type(shape[at - 1]) is int and shape[at - 1] == 1)):
            at -= 1
            strides[at] = step * done
            done = done * shape[at]
        # asked for once: what a dim is divided by divides it
        if not same(done, count) and (at or done != count):
            raise Undecided("whether a view has as many elements")
    return x.view(shape, strides) if not at else NotImplemented


def _runs(x: Geometry) -> list[tuple[Any, Any]]:
    """(elements, step) of each run of dims in row-major order, the innermost first.

    The innermost dim begins one, also where it has one element: its step is what eager gives dims of one element in its place.
    """
    made: list[tuple[Any, Any]] = []
    count: Any = 1
    step: Any = x.strides[-1] if x.dim() else 1
    for d in range(x.dim() - 1, 0, -1):
        count = count * x.shape[d]
        size, stride = x.shape[d - 1], x.strides[d - 1]
        if (type(size) is not int or size != 1) and not same(stride, count * step):
            made.append((count, step))
            count, step = 1, stride
    return [*made, (count * x.shape[0] if x.dim() else 1, step)]


def _quotient(total: Any, given: Any) -> Any:
    """How often the sizes that are given are in all elements."""
    if type(total) is int and type(given) is int:
        if total % given:
            raise Undecided("what is left for a dim")
        return total // given
    found = divided(total, given)
    if found is None:
        raise Undecided("what is left for a dim")
    return found


def _split(x: Geometry, size: Any, dim: int = 0) -> Any:
    dim = _dim(x, dim)
    whole = x.shape[dim]
    if type(size) is not int or type(whole) is not int or size <= 0:
        return NotImplemented
    return _split_sizes(x, [min(size, whole - at) for at in range(0, whole, size)], dim)


def _split_sizes(x: Geometry, sizes: Sequence[Any], dim: int = 0) -> Any:
    dim = _dim(x, dim)
    if (
        any(type(n) is not int for n in (*sizes, x.shape[dim]))
        or sum(sizes) != x.shape[dim]
        or min(sizes) < 0
    ):
        return NotImplemented
    made, at = [], 0
    for n in sizes:
        made.append(x.view([*x.shape[:dim], n, *x.shape[dim + 1 :]], x.strides, at * x.strides[dim]))
        at += n
    return made


VIEWS: dict[Any, Callable[..., Any]] = {
    aten.transpose.int: _transpose,
    aten.t.default: _t,
    aten.permute.default: _permute,
    aten.unsqueeze.default: _unsqueeze,
    aten.alias.default: _alias,
    aten.detach.default: _alias,
    aten.select.int: _select,
    aten.slice.Tensor: _slice,
    aten.diagonal.default: _diagonal,
    aten.expand.default: _expand,
    aten.view.default: _view,
    aten._unsafe_view.default: _view,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split_sizes,
}
