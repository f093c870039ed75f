"""``braze::running_product_gradient``: what autograd gives for a running product, by PyTorch's own function, which looks whether a factor is zero.

Where none is, one running sum does it. What can be computed without a look takes two, a running product, and the places of zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

Tensor = torch.Tensor

_library = torch.library.Library("braze", "FRAGMENT")
_library.define(
    "running_product_gradient(Tensor tangent, Tensor x, int dim, Tensor result, SymInt[] strides) -> Tensor"
)


def _run(tangent: Tensor, x: Tensor, dim: int, result: Tensor, strides: Sequence[int]) -> Tensor:
    found: Tensor = torch.ops.aten.cumprod_backward(tangent, x, dim, result)
    fresh = found.untyped_storage().data_ptr() != tangent.untyped_storage().data_ptr()
    if fresh and found.stride() == tuple(strides):
        return found
    return _laid(tangent, x, dim, result, strides).copy_(found)


def _laid(tangent: Tensor, x: Tensor, dim: int, result: Tensor, strides: Sequence[int]) -> Tensor:
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device)


_library.impl("running_product_gradient", _run, "CPU")
_library.impl("running_product_gradient", _laid, "Meta")

OPERATOR = torch.ops.braze.running_product_gradient.default
