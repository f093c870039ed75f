"""A check that a type holds a number, for graphs: ``braze::require_place(value, dtype, elements)`` raises eager's error where it does not."""

from __future__ import annotations

import functools
import math

import torch

_library = torch.library.Library("braze", "FRAGMENT")
_library.define("require_place(Scalar value, ScalarType dtype, SymInt? elements=None) -> ()")


@functools.cache
def _greatest(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).max


def holds(dtype: torch.dtype, value: float) -> bool:
    """Whether a number is surely none that overflows a type, which is no complex one and not that of truth values."""
    if dtype.is_floating_point:
        return not abs(value) > _greatest(dtype) or abs(value) == math.inf
    known = torch.iinfo(dtype)
    return known.min <= value <= known.max


def require_place(value: float, dtype: torch.dtype, elements: int | None = None) -> None:
    """Raise eager's error where a number overflows a type, be it for one element if told how many there are."""
    if elements != 1 and not holds(dtype, value):
        torch.empty(2, dtype=dtype, device="cpu").fill_(value)  # in one element halves take what overflows


_library.impl("require_place", require_place, "CompositeExplicitAutograd")

REQUIRE_PLACE = torch.ops.braze.require_place.default
