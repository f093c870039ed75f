"""``braze::wide_product``: a product of half types on processors for which oneDNN has none, by those of float32, in which eager adds up, too.

ATen's own take 2 to 70 times as long there. What is made wide is a block of the second factor at a time, so that no weight stands in memory twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from braze.runtime.operators.convolutions import has_type

Tensor = torch.Tensor

#: bytes of the second factor that are made wide at a time
BLOCK = 8 << 20
#: rows that are multiplied no quicker so where columns lie in one piece, of which ATen reads each once then; multiplications that are not worth it
FEW, SMALL = 2, 1 << 17

_library = torch.library.Library("braze", "FRAGMENT")
_ARGUMENTS = "Tensor? bias, Tensor a, Tensor b, Scalar beta, Scalar alpha"
_library.define(f"wide_product({_ARGUMENTS}) -> Tensor")
_library.define(f"wide_product.out({_ARGUMENTS}, *, Tensor(a!) out) -> Tensor(a!)")


def _product(bias: Tensor | None, a: Tensor, b: Tensor, beta: Any, alpha: Any) -> Tensor:
    return into(bias, a, b, beta, alpha, out=_shaped(bias, a, b, beta, alpha))


def into(bias: Tensor | None, a: Tensor, b: Tensor, beta: Any, alpha: Any, *, out: Tensor) -> Tensor:
    """beta · bias + alpha · a b, of matrices or batches of such; (*, m, k) and (*, k, n), all of one half type; ``bias`` of any sizes that expand to (*, m, n)."""
    if has_type(a.dtype) or a.numel() * b.shape[-1] < SMALL or (a.shape[-2] <= FEW and b.stride(-2) == 1):
        return _called(bias, a, b, beta, alpha, out=out)
    added = None if bias is None else bias.expand(out.shape)
    for rows, part in _blocks(a, b):
        given = None if added is None else added[part].float()
        out[part].copy_(_called(given, a[rows].float(), b[part].float(), beta, alpha))
    return out


def _called(bias: Tensor | None, a: Tensor, b: Tensor, beta: Any, alpha: Any, **out: Tensor) -> Tensor:
    if bias is None:
        return (torch.mm if a.dim() == 2 else torch.bmm)(a, b, **out)
    return (torch.addmm if a.dim() == 2 else torch.baddbmm)(bias, a, b, beta=beta, alpha=alpha, **out)


def _blocks(a: Tensor, b: Tensor) -> Iterator[tuple[Any, Any]]:
    """Which part of the first factor goes with which of the second and of the result: columns, or members of a batch."""
    if a.dim() == 2:
        each = max(1, BLOCK // (4 * max(1, b.shape[0])))
        for first in range(0, b.shape[1], each):
            yield ..., (slice(None), slice(first, first + each))
    else:
        each = max(1, BLOCK // (4 * max(1, b.shape[1] * b.shape[2])))
        for first in range(0, b.shape[0], each):
            yield (slice(first, first + each),) * 2


def _shaped(bias: Tensor | None, a: Tensor, b: Tensor, beta: Any, alpha: Any) -> Tensor:
    return a.new_empty((*a.shape[:-1], b.shape[-1]))


_library.impl("wide_product", _product, "CPU")
_library.impl("wide_product.out", into, "CPU")
_library.impl("wide_product", _shaped, "Meta")

OPERATOR = torch.ops.braze.wide_product.default
