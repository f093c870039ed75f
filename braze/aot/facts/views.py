"""View operators: make one again over another tensor, or write its value back into what it views."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from braze.graph.nodes.facts import argument
from braze.graph.operators import operators
from braze.graph.operators.operators import SCATTERS
from braze.graph.private import torch_compat, torch_symbols
from braze.graph.rules.elementwise import fill_memory

aten = torch.ops.aten

Node = torch.fx.Node
Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


#: what sets a flag of a tensor's, which sizes and strides do not tell: no views to passes that go by these
_LAZY = frozenset({aten._conj.default, aten._neg_view.default})


def is_view(node: Node) -> bool:
    """Whether a node's operator gives a view of its first argument."""
    return operators.is_view(node.target)


def sees_memory(node: Node) -> bool:
    """Whether a node sees the memory of its first argument: as a view, or with a flag that its numbers are conjugated or negated as they are read."""
    return node.target in _LAZY or is_view(node)


def root_of(node: Node) -> Node:
    """The node whose memory a node sees."""
    while node.op == "call_function" and sees_memory(node):
        node = node.args[0]  # type: ignore[assignment]
    return node


def readers(node: Node) -> Iterator[Node]:
    """Who reads a value, through views too."""
    for user in node.users:
        if sees_memory(user):
            yield from readers(user)
        else:
            yield user


def has_overlap(tensor: torch.Tensor) -> bool:
    """Whether two elements of a tensor may be the same memory."""
    shape, strides = tuple(tensor.shape), tensor.stride()
    if any(isinstance(n, torch.SymInt) and torch_symbols.is_unbacked(n) for n in (*shape, *strides)):
        shape, strides = tuple(map(hint, shape)), tuple(map(hint, strides))
    return steps_meet(shape, strides)


def steps_meet(sizes: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Whether steps of such strides, so many along each dim, may lead to one place in two ways."""
    if any(n == 0 for n in sizes):
        return False
    dims = [(s, n) for n, s in zip(sizes, strides, strict=True) if n != 1]
    reach = 0
    for stride, size in sorted(dims, key=lambda d: hint(d[0])):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements of a tensor fill one stretch of memory, in whatever order."""
    return fill_memory(map(hint, tensor.shape), map(hint, tensor.stride()))


def elements(tensor: torch.Tensor) -> int:
    """How many elements a tensor had when tracing."""
    return math.prod(hint(size) for size in tensor.shape)


def bytes_of(node: Node) -> float:
    """Bytes of a tensor."""
    value = node.meta.get("val")
    return float(elements(value) * value.dtype.itemsize) if isinstance(value, torch.Tensor) else 0.0


def is_on_gpu(value: Any) -> bool:
    """Whether a value is a tensor on an NVIDIA GPU."""
    return isinstance(value, torch.Tensor) and value.device.type == "cuda"


def hint(size: Any) -> int:
    """A size as it was when tracing, about which nothing is decided; some size, of one that only the data tell."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    return torch_symbols.some_value(size) if torch_symbols.is_unbacked(size) else int(size.node.hint)


def hints(extents: Any) -> list[Any]:
    """Sizes or strides as the numbers they have in this trace, or as formulas where it has none; no guard comes of it."""
    return [_formula(n) if isinstance(n, torch.SymInt) else n for n in extents]


def _formula(size: torch.SymInt) -> Any:
    return size.node.expr if torch_symbols.is_unbacked(size) else size.node.hint


def place(tensor: torch.Tensor) -> list[Any]:
    """Where the elements lie in their memory."""
    return hints([*tensor.stride(), tensor.storage_offset()])


def is_empty(tensor: torch.Tensor) -> bool:
    return 0 in hints(tensor.shape)


def is_without_memory(value: Any) -> bool:
    """Whether a value is a fake tensor over no bytes."""
    if type(value) is not FakeTensor or not is_empty(value):
        return False
    with torch_compat.outside_modes():
        return hints([value.untyped_storage().nbytes()]) == [0]


def apply_view(node: Node, parent: Node) -> Call:
    """The view of ``node``, of ``parent`` instead of its first argument."""
    return node.target, (parent, *node.args[1:]), dict(node.kwargs)


def scatter_back(view: Node, parent: Node, value: Node) -> Call | None:
    """The call that gives ``parent`` with the part that ``view`` sees replaced by ``value``; None if unknown."""
    rule = _WAY_BACK.get(view.target)
    return rule(view, parent, value) if rule is not None else None


def _reshaped(view: Node, parent: Node, value: Node) -> Call | None:
    """For views that keep every element, in row-major order."""
    if view.meta["val"].numel() != parent.meta["val"].numel():
        return None
    return aten.view.default, (value, list(parent.meta["val"].shape)), {}


def _permuted(view: Node, parent: Node, value: Node) -> Call:
    dims = [d % len(view.args[1]) for d in view.args[1]]  # type: ignore[arg-type, operator, union-attr]
    return aten.permute.default, (value, [dims.index(i) for i in range(len(dims))]), {}


def _unsqueezed(view: Node, parent: Node, value: Node) -> Call:
    return aten.squeeze.dim, (value, view.args[1]), {}


def _sliced(view: Node, parent: Node, value: Node) -> Call:
    dim, start = argument(view, 1, "dim", 0), argument(view, 2, "start")
    end, step = argument(view, 3, "end"), argument(view, 4, "step", 1)
    return aten.slice_scatter.default, (parent, value, dim, start, end, step), {}


def _scattered(view: Node, parent: Node, value: Node) -> Call:
    return SCATTERS[view.target], (parent, value, *view.args[1:]), dict(view.kwargs)  # type: ignore[index]


def _restrided(view: Node, parent: Node, value: Node) -> Call:
    """A window on memory in an order of its own; a reshape, where it is all of its parent in the same order."""
    seen, whole = view.meta["val"], parent.meta["val"]
    sizes = (*seen.shape, *whole.shape, seen.storage_offset(), whole.storage_offset())
    if all(type(n) is int for n in sizes) and seen.numel() == whole.numel():
        same_start = seen.storage_offset() == whole.storage_offset()
        if same_start and seen.is_contiguous() and whole.is_contiguous():
            return aten.view.default, (value, list(whole.shape)), {}
    return _scattered(view, parent, value)


def _same(function: Any) -> Callable[[Node, Node, Node], Call]:
    """For views that are undone by ``function`` with the same arguments."""

    def rule(view: Node, parent: Node, value: Node) -> Call:
        return function, (value, *view.args[1:]), dict(view.kwargs)

    return rule


def _reinterpreted(view: Node, parent: Node, value: Node) -> Call:
    """For views in another type. Of no elements nothing was written, and no other type may be made of where they are said to lie."""
    if parent.meta["val"].numel() == 0:
        return aten.alias.default, (parent,), {}
    return aten.view.dtype, (value, parent.meta["val"].dtype), {}


_WAY_BACK: dict[Any, Callable[[Node, Node, Node], Call | None]] = {
    aten.view.default: _reshaped,
    aten._unsafe_view.default: _reshaped,
    aten.squeeze.default: _reshaped,
    aten.squeeze.dim: _reshaped,
    aten.squeeze.dims: _reshaped,
    aten.expand.default: _reshaped,
    aten.unsqueeze.default: _unsqueezed,
    aten.permute.default: _permuted,
    aten.t.default: _same(aten.t.default),
    aten.transpose.int: _same(aten.transpose.int),
    aten.slice.Tensor: _sliced,
    aten.select.int: _scattered,
    aten.diagonal.default: _scattered,
    aten.as_strided.default: _restrided,
    aten.view_as_real.default: _same(aten.view_as_complex.default),
    aten.view_as_complex.default: _same(aten.view_as_real.default),
    aten.view.dtype: _reinterpreted,
    aten.alias.default: _same(aten.alias.default),
}
