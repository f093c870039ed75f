"""Derivative formulas of PyTorch's that compute otherwise on fakes than on plain tensors, for which they look at numbers.

``max(x)`` without a dimension shares its gradient evenly among the elements that are as large: on the CPU by writing the share into
zeros, on tensors of other kinds by multiplying it by a mask, so that a share of infinity, or below zero, leaves marks everywhere.
``prod`` divides its result by each element where none is zero, and on tensors of other kinds multiplies the others, which is another number
where one is infinite, or none. Before PyTorch 2.13 ``cumprod`` does so too, and in all versions it computes on fakes what may not be needed. The derivative of ``sgn`` are zeros without memory, which stay zeros
whatever they are multiplied with or divided by, also by zero: a trace sees those operators before PyTorch knows such zeros. And the places of
a mask are looked for, whose count fakes cannot tell (`masks.py`).
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from braze.aot.trace import masks
from braze.graph.nodes.facts import set_facts
from braze.graph.private import torch_compat
from braze.runtime.operators import running_gradients

aten = torch.ops.aten
MUL = aten.mul.Tensor


def shares_evenly(mask: Any, share: Any) -> bool:
    """Whether a product is ``mask * (gradient / mask.sum())``, by which ``max``, ``min`` and ``median`` go backward."""
    if not (isinstance(mask, torch.Tensor) and isinstance(share, torch.Tensor)):
        return False
    if mask.dtype is not torch.bool or mask.device.type != "cpu" or share.dim():
        return False
    node, divided = _node(mask), _node(share)
    if node is None or divided is None or divided.target is not aten.div.Tensor:
        return False
    count = divided.args[1]
    return isinstance(count, torch.fx.Node) and count.target is aten.sum.default and count.args[0] is node


def evenly_shared(mask: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """The product, as it is computed of plain tensors."""
    return share.new_zeros(mask.shape).masked_fill(mask, share)


def zeros(size: Sequence[Any], **options: Any) -> torch.Tensor:
    """Zeros without memory, with memory; they are known for what they are."""
    made: torch.Tensor = aten.full.default(size, 0, **options)
    made.__dict__["_zeros"] = True
    return made


def rule(func: Any, args: Sequence[Any]) -> Callable[..., torch.Tensor] | None:
    """How an operator of a backward gives what it gives on plain tensors, where it gives something else on fakes."""
    if func is MUL and shares_evenly(*args):
        return evenly_shared
    if func is aten.index.Tensor:
        return masks.rule(args)
    if func not in _OF_ZEROS:
        return None
    first, second = map(_are_zeros, args[:2])
    if func is aten.add.Tensor:  # to another gradient autograd adds them in place, as plain zeros
        if first and isinstance(args[1], torch.Tensor):
            return _no_numbers if second else _added
        return None
    if func is aten.div.Tensor:
        return _no_numbers if first and not second else _infinite if second and not first else None
    return _no_numbers if first or second else None


#: the operators that know zeros without memory, and do not compute with them
_OF_ZEROS = frozenset({MUL, aten.mul.Scalar, aten.div.Tensor, aten.add.Tensor})


def _are_zeros(value: Any) -> bool:
    """Whether these are zeros without memory, or a view of some."""
    if not isinstance(value, torch.Tensor):
        return False
    return "_zeros" in (value if value._base is None else value._base).__dict__


def _shape(x: Any, y: Any) -> Any:
    return torch.broadcast_shapes(*[v.shape for v in (x, y) if isinstance(v, torch.Tensor)])


def _device(x: torch.Tensor, y: Any) -> torch.device:
    return (y if isinstance(y, torch.Tensor) and y.dim() > x.dim() else x).device


def _no_numbers(x: torch.Tensor, y: Any, **_: Any) -> torch.Tensor:
    """Such zeros again."""
    return zeros(_shape(x, y), dtype=torch.result_type(x, y), device=_device(x, y))


def _infinite(x: Any, y: torch.Tensor) -> torch.Tensor:
    """What is divided by such zeros, whatever its sign."""
    made: torch.Tensor = aten.full.default(
        _shape(x, y), float("inf"), dtype=torch.result_type(x, y), device=_device(y, x)
    )
    return made


def _added(x: torch.Tensor, y: torch.Tensor, alpha: Any = 1) -> torch.Tensor:
    """What is added to such zeros, as it is."""
    made: torch.Tensor = aten._to_copy.default(
        y.expand(_shape(x, y)), dtype=torch.result_type(x, y), device=_device(x, y)
    )
    return made if alpha == 1 else made.mul(alpha)


def correct(nodes: Iterable[Any], tangents: Iterable[torch.fx.Node]) -> None:
    """Have those of autograd's operations that compute otherwise on fakes give what they give on plain tensors, and custom ones gradients."""
    reading = set(tangents)
    for node in nodes:
        if type(node) in torch_compat.OF_PRODUCTS:
            node.register_hook(_product_of(node))
        elif type(node) is torch_compat.OF_RUNNING_PRODUCT:
            node.register_hook(_running_product_of(node))
        elif isinstance(node, torch.autograd.function.BackwardCFunction):
            node.register_hook(functools.partial(_known_as_gradients, reading))


def _known_as_gradients(
    reading: set[torch.fx.Node], found: tuple[Any, ...], came: tuple[Any, ...]
) -> tuple[Any, ...]:
    """What a custom backward gives, copied where it reads none of the tangents: else it may be one node with a value of the program."""
    return tuple(value if value is None or _reads(value, reading) else _as_gradient(value) for value in found)


def _reads(value: torch.Tensor, reading: set[torch.fx.Node]) -> bool:
    """Whether a value is made of one of some nodes, and becomes one of them then: what is made of it is found sooner."""
    node = _node(value)
    if node is None:
        return True
    seen, waiting = {node}, deque([node])
    while waiting:
        at = waiting.popleft()  # the nearest first: a tangent is rarely far
        if at in reading:
            reading.add(node)
            return True
        waiting.extend(n for n in at.all_input_nodes if n not in seen)
        seen.update(at.all_input_nodes)
    return False


def _as_gradient(value: torch.Tensor) -> torch.Tensor:
    copy = value.clone()
    if (node := _node(copy)) is not None:
        set_facts(node, gradient=True)
    return copy


def _product_of(node: Any) -> Any:
    """What gives the gradient of a product from that which PyTorch computes where there may be zeros."""

    def corrected(found: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...] | None:
        (safe,), (tangent,) = found, tangents
        x, result = node._saved_self, node._saved_result
        if safe is None or not x.dim() or not safe.is_floating_point():
            return None
        x = x.to(tangent.dtype)
        dim = getattr(node, "_saved_dim", None)
        if dim is not None and not node._saved_keepdim:
            dim = _signed(dim)
            tangent, result = tangent.unsqueeze(dim), result.unsqueeze(dim)
        zeros = (x == 0).sum()
        if dim is None:  # with two zeros every other product is zero
            safe = torch.where(zeros > 1, torch.zeros_like(safe), safe)
        return (torch.where(zeros == 0, (tangent * (result / x)).to(safe.dtype), safe),)

    return corrected


def _running_product_of(node: Any) -> Any:
    """What gives the gradient of a running product as PyTorch computes it of plain tensors: before a line's first zero, at it, and 0 behind.

    On a processor by PyTorch's own function; elsewhere a look would wait for the device.
    """

    def corrected(found: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...] | None:
        (safe,), (tangent,) = found, tangents
        x, result, dim = node._saved_self, node._saved_result, _signed(node._saved_dim)
        if safe is None or x.numel() <= 1 or x.shape[dim] == 1 or not safe.is_floating_point():
            return None
        tangent = tangent.to(x.dtype)
        if x.device.type == "cpu":
            given: torch.Tensor = running_gradients.OPERATOR(
                tangent, x, dim, result.to(x.dtype), safe.stride()
            )
            return (given.to(safe.dtype),)
        if not torch_compat.RUNS_OTHERWISE_ON_FAKES:
            return None
        zeros = (x == 0).cumsum(dim)
        before, since = zeros == 0, zeros == 1
        sums = torch.where(before, result * tangent, 0.0).flip(dim).cumsum(dim).flip(dim)
        # what follows the first zero is multiplied by what stands before it
        behind = torch.where(since & (x != 0), x, 1.0).cumprod(dim) * torch.where(since, tangent, 0.0)
        place = before.sum(dim, keepdim=True)
        factor = torch.where(place == 0, 1.0, result.gather(dim, (place - 1).clamp(min=0)))
        at_zero = torch.where(since & (x == 0), behind.sum(dim, keepdim=True) * factor, 0.0)
        return (torch.where(before, sums / x, at_zero).to(safe.dtype),)

    return corrected


def _signed(dim: int) -> int:
    """A dim as autograd keeps it: one from the end is a number without a sign."""
    return dim - (1 << 64) if dim >= 1 << 63 else dim


def _node(value: torch.Tensor) -> torch.fx.Node | None:
    found: torch.fx.Node | None = value.__dict__.get("_node")
    return found
