"""Derivative formulas of PyTorch's that compute otherwise on fakes than on plain tensors, for which they look at numbers.

``max(x)`` without a dimension shares its gradient evenly among the elements that are as large: on the CPU by writing the share into
zeros, on tensors of other kinds by multiplying it by a mask, so that a share of infinity, or below zero, leaves marks everywhere.
"""

from __future__ import annotations

from typing import Any

import torch

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


def _node(value: torch.Tensor) -> torch.fx.Node | None:
    found: torch.fx.Node | None = value.__dict__.get("_node")
    return found
