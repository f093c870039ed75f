"""Which type an elementwise operation computes in, as PyTorch decides it.

Tensors with dimensions outrank tensors without, and these outrank Python numbers, unless the lower rank
has the higher category (bool < int < float < complex).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import torch

from braze.loops.dtypes import TORCH_NAME, from_torch
from braze.loops.ir import DType
from braze.lower.values.lazy import Lazy
from braze.symbolic.expr import Expr


def category(dtype: DType) -> int:
    """0 bool, 1 integer, 2 float, 3 complex."""
    if dtype is DType.BOOL:
        return 0
    if dtype.label.startswith(("f", "bf")):
        return 2
    return 3 if dtype.label.startswith("c") else 1


@cache
def promote(a: DType, b: DType) -> DType:
    """The least type that holds both."""
    if a is b:
        return a
    return from_torch(torch.promote_types(*(getattr(torch, TORCH_NAME[dtype]) for dtype in (a, b))))


def result_type(args: Iterable[object], default: DType) -> DType:
    """The common type of Lazy values, Python numbers and symbolic ints (``default``: of Python floats)."""
    ranks: list[DType | None] = [None, None, None]
    for a in args:
        rank, dtype = _rank_of(a, default)
        old = ranks[rank]
        ranks[rank] = dtype if old is None else promote(old, dtype)
    result = _combine(ranks[0], _combine(ranks[1], ranks[2]))
    assert result is not None, "an operation has at least one operand"
    return result


def _rank_of(a: object, default: DType) -> tuple[int, DType]:
    if isinstance(a, Lazy):
        if a.weak:
            return 2, default
        return (0 if a.sizes else 1), a.dtype
    if isinstance(a, bool):
        return 2, DType.BOOL
    if isinstance(a, (int, Expr)):
        return 2, DType.I64
    if isinstance(a, float):
        return 2, default
    return 2, DType.C64  # a complex number, of which loops know nothing


def _combine(higher: DType | None, lower: DType | None) -> DType | None:
    if higher is None or lower is None:
        return lower if higher is None else higher
    if category(higher) >= category(lower) and category(higher) >= 2:
        return higher
    if higher is DType.BOOL or category(lower) >= 2:
        return promote(higher, lower)
    return higher
