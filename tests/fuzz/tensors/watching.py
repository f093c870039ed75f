"""Eager's backward where each operation watches what it keeps.

``kron`` multiplies its arguments as ``_unsafe_view``s of themselves, which have the memory and a count of writes of their own: where an argument
is written after it, autograd takes the product's gradient of what was written, without a word. What a compiled program has kept is
the argument, of whose writes it knows: it refuses, or gives the gradient of what was multiplied.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

Tensor = torch.Tensor

#: operations that do not watch what they keep
UNWATCHED = re.compile(r"\bkron\(")


class Watching(TorchFunctionMode):
    """Computes these of views that count their writes with what they look at."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.kron, Tensor.kron):
            return kron(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def kron(input: Tensor, other: Tensor) -> Tensor:
    """Each element of the one by the whole other."""
    rank = max(input.dim(), other.dim())
    outer, inner = (x[(None,) * (rank - x.dim())] for x in (input, other))
    for d in range(rank):
        outer, inner = outer.unsqueeze(2 * d + 1), inner.unsqueeze(2 * d)
    product = outer * inner
    joined = product.reshape([product.size(2 * d) * product.size(2 * d + 1) for d in range(rank)])
    return joined.clone()  # no view, as what kron gives: of a hook on one that was written since PyTorch dies
