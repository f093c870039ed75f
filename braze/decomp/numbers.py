"""Number types: what eager kernels compute in, and casts to it and back."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from braze.graph.nodes.facts import set_facts
from braze.graph.nodes.specs import HALVES

aten = torch.ops.aten


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type in which eager kernels compute on values of ``dtype``."""
    return torch.float32 if dtype in HALVES else dtype


def cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``x`` in ``dtype``; a graph knows of its node that it rounds what was computed, and that no program asks for it."""
    if x.dtype is dtype:
        return x
    made = aten._to_copy.default(x, dtype=dtype)
    node = made.__dict__.get("_node") if dtype in HALVES else None
    if isinstance(node, torch.fx.Node) and node.target is aten._to_copy.default:
        set_facts(node, rounding=True)
    return made


def widened(x: torch.Tensor) -> torch.Tensor:
    """``x`` in the type that eager kernels compute in."""
    return cast(x, compute_dtype(x.dtype))


def constant(value: Any, like: torch.Tensor) -> torch.Tensor:
    """A number beside a tensor, in its type."""
    return aten.full.default([], value, dtype=like.dtype, device=like.device)


def float_dtype(x: torch.Tensor) -> torch.dtype:
    """The type of a floating-point result for ``x``: its own, or the default for integers."""
    return x.dtype if x.dtype.is_floating_point or x.dtype.is_complex else torch.get_default_dtype()


def reduced(values: torch.Tensor, reduction: int) -> Any:
    """A loss by its reduction: 0 none, 1 mean, 2 sum."""
    if reduction == 1:
        return aten.mean.default(values)
    return aten.sum.default(values) if reduction == 2 else values
