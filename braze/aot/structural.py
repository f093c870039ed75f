"""Operators that the aot stage itself takes apart: several views at once, and what evaluation makes nothing of."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch._ops import OpOverload

from braze.aot.foreach import FOREACH
from braze.runtime import recurrent

aten = torch.ops.aten
Tensor = torch.Tensor


def split(x: Tensor, size: int, dim: int = 0) -> Any:
    """Slices of ``size``, the last one smaller."""
    total = x.shape[dim]
    if type(total) is not int or type(size) is not int or size == 0:
        return NotImplemented
    return [aten.slice.Tensor(x, dim, s, min(s + size, total)) for s in range(0, max(total, 1), size)]


def split_with_sizes(x: Tensor, sizes: Sequence[int], dim: int = 0) -> Any:
    """Slices of the given sizes; PyTorch checks that they add up."""
    if any(type(s) is not int or s < 0 for s in (*sizes, x.shape[dim])) or sum(sizes) != x.shape[dim]:
        return NotImplemented
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [aten.slice.Tensor(x, dim, s, s + n) for s, n in zip(starts, sizes)]


def unbind(x: Tensor, dim: int = 0) -> Any:
    """One select per index."""
    if x.dim() == 0 or type(x.shape[dim]) is not int:
        return NotImplemented
    return [aten.select.int(x, dim, i) for i in range(x.shape[dim])]


def dropout(x: Tensor, p: float, train: bool) -> Any:
    """The input itself, outside training; zeros, for which nothing is drawn, where all is dropped."""
    if not train or p == 0 or x.numel() == 0:
        return x
    if p == 1 and x.dtype.is_floating_point:
        return aten.mul.Tensor(x, aten.full.default([], 0.0, dtype=x.dtype, device=x.device))
    return NotImplemented


#: what numbers are as tensors, before they are promoted
NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


def to_copy(x: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    """A plain number that PyTorch made a tensor of on the way, which modes see as the number again."""
    if isinstance(x, Tensor):
        return NotImplemented
    return aten.full.default([], x, dtype=dtype or NUMBERS[type(x)], device=device)


def zero_tensor(size: Sequence[Any], **options: Any) -> Tensor:
    """The zeros without memory that derivatives begin with, with memory."""
    return aten.full.default(size, 0, **options)  # type: ignore[no-any-return]


def native_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """With the running statistics written by operators that say so: this one writes them though its schema does not tell."""
    if not training or mean is None or var is None:
        return NotImplemented
    functional = aten._native_batch_norm_legit_functional.default
    *results, new_mean, new_var = functional(x, weight, bias, mean, var, True, momentum, eps)
    mean.copy_(new_mean)
    var.copy_(new_var)
    return tuple(results)


STRUCTURAL: Mapping[OpOverload, Callable[..., Any]] = MappingProxyType(
    {
        **FOREACH,
        aten.split.Tensor: split,
        aten.split_with_sizes.default: split_with_sizes,
        aten.unbind.int: unbind,
        aten._to_copy.default: to_copy,
        aten._efficientzerotensor.default: zero_tensor,
        aten.dropout.default: dropout,
        aten.feature_dropout.default: dropout,
        aten.alpha_dropout.default: dropout,
        aten.native_batch_norm.default: native_batch_norm,
    }
)

#: the same for what is differentiated, whose results the backward reads
IN_TRAINING: Mapping[OpOverload, Callable[..., Any]] = MappingProxyType(
    {aten.mkldnn_rnn_layer.default: recurrent.OPERATOR}
)

#: norms of inputs and parameters in two types: what is in which type in the kernels PyTorch's fakes do not tell; our
#: decompositions do
MIXED_NORMS = frozenset(
    {
        aten.native_layer_norm.default,
        aten.native_group_norm.default,
        aten.native_group_norm_backward.default,
        aten.native_batch_norm.default,
        aten._native_batch_norm_legit.default,
        aten._native_batch_norm_legit.no_stats,
    }
)


@functools.cache
def functional_of_inplace_view(func: Any) -> Any:
    """``aten.t`` for ``aten.t_``; None for those that change the memory itself."""
    name = func._schema.name.removeprefix("aten::")
    if name in ("resize_", "set_", "resize_as_"):
        return None
    packet = getattr(aten, name.removesuffix("_"), None)
    if packet is None:
        return None
    wanted = [str(p.type) for p in func._schema.arguments]
    for overload in (getattr(packet, name) for name in packet.overloads()):
        if [str(p.type) for p in overload._schema.arguments] == wanted:
            return overload
    return None
