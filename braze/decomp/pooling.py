"""Pooling to one element is a reduction; other pooling stays ATen's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from braze.decomp.registry import decompose

aten = torch.ops.aten
Tensor = torch.Tensor


@decompose(aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool2d(x: Tensor, output_size: Sequence[int]) -> Any:
    """The mean over height and width where one element is wanted."""
    return aten.mean.dim(x, [-2, -1], True) if list(output_size) == [1, 1] else NotImplemented


@decompose(aten._adaptive_avg_pool3d.default)
def adaptive_avg_pool3d(x: Tensor, output_size: Sequence[int]) -> Any:
    """The mean over depth, height and width where one element is wanted."""
    return aten.mean.dim(x, [-3, -2, -1], True) if list(output_size) == [1, 1, 1] else NotImplemented
