"""Dropout and its kin by random numbers that kernels compute themselves.

One seed is drawn from the generator that ``manual_seed`` sets; each element's number is a function of the seed and the
element's place. They are not eager's numbers: option ``fallback_random`` keeps the operators whole.
"""

from __future__ import annotations

from typing import Any

import torch

from braze.decomp.numbers import cast, widened
from braze.decomp.registry import decompose
from braze.runtime.operators.philox import UNIFORM

aten = torch.ops.aten
Tensor = torch.Tensor


def _uniform(like: Tensor) -> Tensor:
    """A number in [0, 1) for each element."""
    seed = aten.randint.low(-(2**63), 2**63 - 1, [], dtype=torch.int64, device=like.device)
    return UNIFORM(seed, list(like.shape))


def _draws(like: Tensor, generator: Any) -> bool:
    return generator is None and like.numel() > 0 and like.device.type in ("cpu", "cuda")


def _chosen(like: Tensor, p: Any) -> Tensor:
    """Which elements are drawn, each with probability ``p``."""
    numbers = _uniform(like)
    return aten.lt.Tensor(numbers, p) if isinstance(p, torch.Tensor) else aten.lt.Scalar(numbers, p)


@decompose(aten.bernoulli_.float)
def bernoulli_in_place(x: Tensor, p: float = 0.5, *, generator: Any = None) -> Any:
    """1 with probability ``p``, else 0."""
    if not _draws(x, generator) or x.is_complex() or not 0 <= p <= 1:
        return NotImplemented
    return aten.copy_.default(x, cast(_chosen(x, p), x.dtype))


@decompose(aten.bernoulli.p)
def bernoulli_p(x: Tensor, p: float, *, generator: Any = None) -> Any:
    """1 with probability ``p``, else 0."""
    if not _draws(x, generator) or x.is_complex() or not 0 <= p <= 1:
        return NotImplemented
    return cast(_chosen(x, p), x.dtype)


@decompose(aten.native_dropout.default)
def native_dropout(x: Tensor, p: float, train: bool | None) -> Any:
    """x / (1 - p) where an element is kept, else x * 0, which is nan where x is not finite; also which are kept."""
    if not _draws(x, None) or train is False or not 0 < p < 1 or not x.dtype.is_floating_point:
        return NotImplemented
    kept = _chosen(x, 1 - p)
    return aten.mul.Scalar(aten.mul.Tensor(x, kept), 1 / (1 - p)), kept


@decompose(aten.native_dropout_backward.default)
def native_dropout_backward(grad: Tensor, kept: Tensor, scale: float) -> Any:
    """The gradient where an element was kept, times 1 / (1 - p); else 0, or nan where it is not finite."""
    if not grad.dtype.is_floating_point:
        return NotImplemented
    wide = widened(grad)
    return cast(aten.mul.Scalar(aten.mul.Tensor(wide, cast(kept, wide.dtype)), scale), grad.dtype)


#: operators that stay whole where eager's very numbers are asked for
DRAWS = frozenset({aten.bernoulli_.float, aten.bernoulli.p, aten.native_dropout.default})
