"""Views of tensors with symbolic sizes, where what they are does not depend on the sizes (see ``extents.py``)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze.graph.extents import Extent, Geometry, Undecided, row_major, same

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
    if type(step) is not int or step != 1:
        return NotImplemented
    start = 0 if start is None else start
    if type(start) is int and start < 0:
        return NotImplemented
    whole = end is None or (type(end) is int and end == END)
    if whole or (type(end) is Extent and same(end, size)):
        end = size
    elif type(end) is int:
        if end < 0:
            end = size + end
        elif type(size) is int:
            end = min(end, size)
        elif end > size.least:
            raise Undecided("whether a slice ends within its dim")
    else:
        raise Undecided("whether a slice ends within its dim")
    if type(start) is not int or start > end:
        raise Undecided("whether a slice starts within its dim")
    length = end - start if start else end
    return x.view(
        [*x.shape[:dim], length, *x.shape[dim + 1 :]], x.strides, start * x.strides[dim] if start else 0
    )


def _expand(x: Geometry, sizes: Sequence[Any], *, implicit: bool = False) -> Any:
    lead = len(sizes) - x.dim()
    if lead < 0:
        return NotImplemented
    shape, strides = [], []
    for d, wanted in enumerate(sizes):
        if d < lead:
            if type(wanted) is int and wanted < 0:
                return NotImplemented
            shape.append(wanted)
            strides.append(0)
            continue
        own, step = x.shape[d - lead], x.strides[d - lead]
        if (type(wanted) is int and wanted == -1) or same(wanted, own):
            shape.append(own)
            strides.append(step)
        elif type(own) is int and own == 1:
            if type(wanted) is int and wanted < 0:
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
    """Of a row-major tensor, or one whose last dims stay as they are."""
    shape = list(sizes)
    kept = 0
    while kept < min(len(shape), x.dim()) and same(shape[len(shape) - 1 - kept], x.shape[x.dim() - 1 - kept]):
        kept += 1
    if kept == len(shape) == x.dim():
        return x.view(shape, x.strides)
    if not x.is_contiguous():
        return NotImplemented
    holes = [d for d, n in enumerate(shape) if type(n) is int and n == -1]
    total = math.prod(x.shape)
    if holes:
        given = math.prod(n for d, n in enumerate(shape) if d not in holes)
        if len(holes) > 1 or (type(given) is int and given <= 0):
            return NotImplemented
        shape[holes[0]] = _quotient(x.shape, [n for d, n in enumerate(shape) if d not in holes])
    made = math.prod(shape)
    if not same(made, total):
        raise Undecided("whether a view has as many elements")
    return x.view(shape, row_major(shape))


def _quotient(sizes: Sequence[Any], divisors: Sequence[Any]) -> Any:
    """The product of sizes by that of divisors, where equal ones cancel and numbers divide."""
    above = [n for n in sizes if type(n) is Extent]
    for n in divisors:
        if type(n) is Extent:
            if not any(same(n, m) for m in above):
                raise Undecided("what is left for a dim")
            above.remove(next(m for m in above if same(n, m)))
    numbers = math.prod(n for n in sizes if type(n) is int)
    by = math.prod(n for n in divisors if type(n) is int)
    if numbers % by:
        raise Undecided("what is left for a dim")
    return math.prod([numbers // by, *above])


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
    aten.expand.default: _expand,
    aten.view.default: _view,
    aten._unsafe_view.default: _view,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split_sizes,
}
