"""Sums that are exact in any order, be they of a million numbers: these are multiples of one unit, of which the type counts all."""

from __future__ import annotations

import math
from typing import Any

import torch

Tensor = torch.Tensor

#: operators that add up what they are given as it is, and those that multiply two tensors and add up nothing else
AS_GIVEN = frozenset("sum nansum trace cumsum index_put index_put_ index_add scatter_add".split())
IN_PAIRS = frozenset("mm bmm dot mv".split())


def are_whole(name: str, args: Any, kwargs: Any, size: Tensor, eps: float) -> Tensor:
    """Where an operator's sums are: ``size`` is what they come to without signs, ``eps`` the type's."""
    if name not in AS_GIVEN | IN_PAIRS or kwargs.get("alpha", 1) != 1:
        return torch.zeros_like(size, dtype=torch.bool)
    found = [unit_of(a.detach()) for a in args if isinstance(a, Tensor) and a.is_floating_point()]
    unit = math.prod(found) if name in IN_PAIRS else min(found, default=0.0)
    return size.double() * eps <= 2 * unit


def unit_of(numbers: Tensor) -> float:
    """The largest power of two of which all finite numbers are multiples; infinite for zeros alone."""
    mantissa, exponent = torch.frexp(numbers.double())
    digits = (mantissa.nan_to_num(0.0, 0.0, 0.0) * 2.0**53).to(torch.int64)
    lowest = torch.where(digits != 0, (digits & -digits).double().log2() + exponent - 53, torch.inf)
    return 2.0 ** lowest.min().item() if numbers.numel() else math.inf
