"""Gradients of what is written where a mask says (``y[mask] = v``): autograd asks for ``gradient[mask]``, whose size only the data tell.

What was written says more: as many elements as the mask has places, or one for all of them, whose gradient is a sum. The
write itself, in the forward, refuses a mask of another count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze.graph.private import torch_compat

aten = torch.ops.aten
Tensor = torch.Tensor


def rule(args: Sequence[Any]) -> Callable[..., Tensor] | None:
    """How the derivative that autograd is at gives ``gradient[mask]``, if it is that of such a write."""
    indices = args[1]
    masks = [i for i in indices if i is not None]
    if len(masks) != 1 or masks[0].dtype is not torch.bool:
        return None
    written = torch_compat.sizes_written(torch_compat.running_backward())
    return None if written is None else _Gradient(written)


class _Gradient:
    """The gradient of values of some sizes that were written at a mask's places."""

    def __init__(self, written: Sequence[Any]) -> None:
        self.written = written

    def __call__(self, gradient: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
        at, mask = next((i, mask) for i, mask in enumerate(indices) if mask is not None)
        before, behind = gradient.shape[:at], gradient.shape[at + mask.dim() :]
        seen = mask.reshape(*mask.shape, *(1 for _ in behind))
        if (count := self._count(len(behind))) is not None:
            return aten.masked_scatter_backward.default(gradient, seen, (*before, count, *behind))  # type: ignore[no-any-return]
        kept = aten.where.self(seen, gradient, gradient.new_zeros(()))
        return kept.reshape(*before, mask.numel(), *behind)  # autograd sums it to what was written

    def _count(self, behind: int) -> Any:
        """How many places there are; None where one element stands for all."""
        if len(self.written) <= behind:
            return None
        count = self.written[len(self.written) - behind - 1]
        return None if count == 1 else count
