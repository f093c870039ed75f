"""Which operators refuse a number that a type does not hold, where others compute infinity with it or wrap it.

``x.fill_(1e300)`` of float32 is an error in eager ("value cannot be converted to type float without overflow"), ``x + 1e300`` is
infinite. For a number that changes the graph has a check, ``braze::require_place``. Where one element of a half type is filled on the
CPU, eager makes infinity of what overflows: where how many there are changes, the check is told.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from braze.graph.nodes.specs import HALVES
from braze.graph.operators.operators import names_of_parameters
from braze.runtime.operators.number_places import holds
from braze.support.nested import every

#: operator -> its numbers that become one of the result's type on the CPU
_AS_RESULT = {
    "add": "alpha", "sub": "alpha", "rsub": "alpha", "clamp": "min max", "clamp_min": "min", "clamp_max": "max",
    "constant_pad_nd": "value", "fill": "value", "full": "fill_value", "full_like": "fill_value", "hardshrink": "lambd",
    "hardtanh": "min_val max_val", "index_fill": "value", "linspace": "start end", "logspace": "start end",
    "masked_fill": "value", "new_full": "fill_value", "scatter": "value", "threshold": "value",
}  # fmt: skip
#: ... and those that become one of the type in which it is computed: half types are computed in float32
_AS_COMPUTED = {
    "addbmm": "alpha beta", "addcdiv": "value", "addcmul": "value", "addmm": "alpha beta", "addmv": "alpha beta",
    "addr": "alpha beta", "baddbmm": "alpha beta", "celu": "alpha", "elu": "alpha scale input_scale",
    "leaky_relu": "negative_slope", "lerp": "weight", "rrelu_with_noise": "lower upper", "scalar_tensor": "s",
    "softplus": "beta threshold", "threshold": "threshold",
}  # fmt: skip
_NUMBERS = (int, float, torch.SymInt, torch.SymFloat)
#: of all these, those that fill their result, where one element of a half type takes what overflows
_FILLS = frozenset({"constant_pad_nd", "fill", "full", "full_like", "linspace", "logspace", "new_full"})


def numbers_converted(
    func: Any, args: Any, kwargs: Any, result: Any
) -> Iterator[tuple[Any, torch.dtype, Any]]:
    """The numbers of a call that eager may refuse since a type does not hold them, each with that type and, if one element alone takes any number, how many there are where that changes."""
    places = _places_of(func)
    given = [(kwargs.get(p.name, args[p.at] if p.at < len(args) else None), p.as_result) for p in places]
    given = [(value, as_result) for value, as_result in given if isinstance(value, _NUMBERS)]
    if not given:
        return
    made = next(iter(every(torch.Tensor, result)), None)
    if made is None:
        return
    computed = torch.float32 if made.dtype in HALVES else made.dtype
    own = made.dtype if made.device.type == "cpu" else computed
    elements = _elements_filled(func, made)
    for value, as_result in given:
        dtype, filled = (own, elements) if as_result else (computed, None)
        if _may_lack_place(value, dtype) and not (type(filled) is int and filled == 1):
            yield value, dtype, filled if isinstance(filled, torch.SymInt) else None


def _elements_filled(func: Any, made: torch.Tensor) -> Any:
    """How many elements a call fills, if one alone takes what overflows: the CPU's kernel for one casts to half types by a double."""
    if made.dtype in HALVES and made.device.type == "cpu" and _name_of(func) in _FILLS:
        return math.prod(made.shape)
    return None


class _Place(NamedTuple):
    """A number among an operator's parameters, and whether it becomes one of the result's type or of the type in which it is computed."""

    name: str
    at: int
    as_result: bool


@functools.cache
def _places_of(func: Any) -> list[_Place]:
    name = _name_of(func)
    named = [(n, True) for n in _AS_RESULT.get(name, "").split()]
    named += [(n, False) for n in _AS_COMPUTED.get(name, "").split()]
    known = names_of_parameters(func) if named else ()
    return [_Place(n, known.index(n), as_result) for n, as_result in named if n in known]


def _name_of(func: Any) -> str:
    """An operator's name, of whichever overload and also in place."""
    return str(func.__name__.partition(".")[0].rstrip("_"))


def _may_lack_place(value: Any, dtype: torch.dtype) -> bool:
    if dtype.is_complex or dtype is torch.bool:
        return False
    if isinstance(value, torch.SymFloat):
        return dtype is not torch.float64
    if isinstance(value, torch.SymInt):
        return dtype is torch.float16 or not (dtype.is_floating_point or dtype is torch.int64)
    return type(value) in (int, float) and not holds(dtype, value)
