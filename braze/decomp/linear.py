"""Products of vectors and matrices: everything by mm, bmm and addmm, or by a product and a sum."""

from __future__ import annotations

from typing import Any

import torch

from braze.decomp.registry import decompose

aten = torch.ops.aten
Tensor = torch.Tensor


@decompose(aten.mv.default)
def mv(a: Tensor, x: Tensor) -> Tensor:
    """A matrix times a vector."""
    return aten.squeeze.dim(aten.mm.default(a, aten.unsqueeze.default(x, 1)), 1)


@decompose(aten.addmv.default)
def addmv(y: Tensor, a: Tensor, x: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta · y + alpha · (a x)."""
    if not _scalable(y):
        return NotImplemented
    if beta == 0:
        return _times(mv(a, x), alpha)
    return aten.add.Tensor(_times(y, beta), _times(mv(a, x), alpha))


@decompose(aten.dot.default)
def dot(a: Tensor, b: Tensor) -> Any:
    """The sum of products of two vectors."""
    if a.dtype in (torch.float16, torch.bfloat16) or a.is_complex():
        return NotImplemented
    return aten.sum.default(aten.mul.Tensor(a, b), dtype=a.dtype)


@decompose(aten.addr.default)
def addr(y: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta · y + (alpha · a) bᵀ, multiplied in eager's order."""
    if not _scalable(y):
        return NotImplemented
    outer = aten.mul.Tensor(aten.unsqueeze.default(_times(a, alpha), 1), b)
    return outer if beta == 0 else aten.add.Tensor(_times(y, beta), outer)


@decompose(aten.addbmm.default)
def addbmm(y: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta · y + alpha · the sum of the products of a batch."""
    if not _scalable(y) or a.dtype in (torch.float16, torch.bfloat16):
        return NotImplemented
    total = aten.sum.dim_IntList(aten.bmm.default(a, b), [0])
    if beta == 0:
        return _times(total, alpha)
    return aten.add.Tensor(_times(y, beta), _times(total, alpha))


def _scalable(y: Tensor) -> bool:
    """Whether a factor is applied as it is: for integers eager rounds it first."""
    return y.dtype.is_floating_point or y.dtype.is_complex


def _times(x: Tensor, factor: Any) -> Tensor:
    return x if factor == 1 else aten.mul.Scalar(x, factor)
