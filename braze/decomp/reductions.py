"""Reductions by sum, amax, amin and elementwise operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from braze.decomp.numbers import constant
from braze.decomp.registry import decompose

aten = torch.ops.aten
Tensor = torch.Tensor


@decompose(aten.count_nonzero.dim_IntList)
def count_nonzero(x: Tensor, dim: Sequence[int]) -> Tensor:
    """How many elements differ from zero."""
    return aten.sum.dim_IntList(aten.ne.Scalar(x, 0), list(dim), dtype=torch.int64)


@decompose(aten.count_nonzero.default)
def count_nonzero_all(x: Tensor, dim: int | None = None) -> Tensor:
    return count_nonzero(x, list(range(x.dim())) if dim is None else [dim])


@decompose(aten.nansum.default)
def nansum(x: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The sum with nan taken for zero."""
    if not x.dtype.is_floating_point:
        return NotImplemented
    kept = aten.where.self(aten.ne.Tensor(x, x), constant(0.0, x), x)
    return aten.sum.dim_IntList(kept, None if dim is None else list(dim), keepdim, dtype=dtype)


@decompose(aten.aminmax.default)
def aminmax(x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> Any:
    """The least and the greatest."""
    dims = list(range(x.dim())) if dim is None else [dim]
    return aten.amin.default(x, dims, keepdim), aten.amax.default(x, dims, keepdim)


@decompose(aten.norm.ScalarOpt_dim)
def norm(x: Tensor, p: Any, dim: Sequence[int], keepdim: bool = False) -> Any:
    """The p-norm (2 where p is None)."""
    return aten.linalg_vector_norm.default(x, 2 if p is None else p, list(dim), keepdim)


@decompose(aten.norm.Scalar)
def norm_all(x: Tensor, p: Any = 2) -> Any:
    return aten.linalg_vector_norm.default(x, p)


@decompose(aten.dist.default)
def dist(x: Tensor, y: Tensor, p: Any = 2) -> Any:
    """The p-norm of the difference."""
    return norm_all(aten.sub.Tensor(x, y), p)


@decompose(aten.trace.default)
def trace(x: Tensor) -> Tensor:
    """The sum of the diagonal, in int64 where that is of integers."""
    return aten.sum.default(aten.diagonal.default(x))
