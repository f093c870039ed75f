"""Products of vectors and matrices: everything by mm, bmm and addmm, or by a product and a sum."""

from __future__ import annotations

from typing import Any

import torch

from braze.decomp.registry import decompose
from braze.graph.nodes.specs import HALVES

aten = torch.ops.aten
Tensor = torch.Tensor

#: elements of a matrix up to which its product with a vector is made here: larger ones by columns are up to 2.7 times quicker by ATen
_SMALL = 1 << 15


@decompose(aten.mv.default)
def mv(a: Tensor, x: Tensor) -> Tensor:
    """A matrix times a vector: of a small one, and of one that lies row by row, sums over its rows, which cost less than a call of ATen."""
    if a.dtype is not x.dtype:  # nothing is multiplied then (before PyTorch 2.13)
        return aten.new_zeros.default(x, a.shape[:1])
    known = all(isinstance(n, int) for n in (*a.shape, *a.stride()))
    if known and (a.numel() <= _SMALL or a.stride(1) == 1) and a.device.type == "cpu" and _exact_in(a.dtype):
        return aten.sum.dim_IntList(aten.mul.Tensor(a, x), [1], dtype=a.dtype)
    return aten.squeeze.dim(aten.mm.default(a, aten.unsqueeze.default(x, 1)), 1)


@decompose(aten.addmv.default)
def addmv(y: Tensor, a: Tensor, x: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta · y + alpha · (a x)."""
    if not _scalable(y) or not y.dtype is a.dtype is x.dtype:
        return NotImplemented
    if 0 in (*a.shape,) and [*y.shape] != [*a.shape[:1]]:
        return NotImplemented  # what the kernel gives has not the shape of a product
    if beta == 0:
        return _times(mv(a, x), alpha)
    return aten.add.Tensor(_times(y, beta), _times(mv(a, x), alpha))


@decompose(aten.dot.default)
def dot(a: Tensor, b: Tensor) -> Any:
    """The sum of products of two vectors."""
    if not _exact_in(a.dtype):
        return NotImplemented
    return aten.sum.default(aten.mul.Tensor(a, b), dtype=a.dtype)


@decompose(aten.vdot.default)
def vdot(a: Tensor, b: Tensor) -> Any:
    """Of real vectors the same."""
    return NotImplemented if a.is_complex() else aten.dot.default(a, b)


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
    if not _scalable(y) or a.dtype in HALVES:
        return NotImplemented
    total = aten.sum.dim_IntList(aten.bmm.default(a, b), [0])
    if beta == 0:
        return _times(total, alpha)
    return aten.add.Tensor(_times(y, beta), _times(total, alpha))


def _exact_in(dtype: torch.dtype) -> bool:
    """Whether sums of products are made in the type itself: not of half types, nor of complex numbers, of which there are no loops."""
    return not dtype.is_complex and dtype not in HALVES


def _scalable(y: Tensor) -> bool:
    """Whether a factor is applied as it is: for integers eager rounds it first."""
    return y.dtype.is_floating_point or y.dtype.is_complex


def _times(x: Tensor, factor: Any) -> Tensor:
    return x if factor == 1 else aten.mul.Scalar(x, factor)
