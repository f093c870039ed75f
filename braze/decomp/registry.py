"""The table of decompositions: operator -> a function that computes it by simpler ones.

``@decompose(aten.native_layer_norm.default)`` enters a function that takes the operator's arguments. It may answer ``NotImplemented`` for arguments that it
does not cover; the operator then stays. The functions are plain: called on real tensors they compute.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from torch._ops import OpOverload

from braze.decomp.users import registered
from braze.graph.operators import Table, as_table, with_inplace
from braze.support.errors import InternalError

F = TypeVar("F", bound=Callable[..., Any])

FAMILIES = (
    "activations",
    "creation",
    "linear",
    "losses",
    "normalization",
    "normalization_gradients",
    "pooling",
    "random",
    "reductions",
    "shapes",
    "softmax",
    "upsampling",
)

_OURS: dict[OpOverload, Callable[..., Any]] = {}


def decompose(*ops: OpOverload) -> Callable[[F], F]:
    """Enter a function as the decomposition of these overloads."""

    def enter(function: F) -> F:
        for op in ops:
            known = _OURS.get(op)
            if known is not None:
                raise InternalError(
                    "BZ9021", f"two decompositions of {op}: {_place(known)} and {_place(function)}"
                )
            _OURS[op] = function
        return function

    return enter


def table(
    user: Mapping[OpOverload, Callable[..., Any]] | None = None, *, eager_random: bool = False
) -> Table:
    """What the pipeline hands to the aot stage: the user's, else ours, else PyTorch's for a few operators.

    ``user``: for this compile alone, before what is registered. ``eager_random``: operators that draw random
    numbers stay whole, so that the numbers are eager's.
    """
    _load()
    own = {op: rule for op, rule in _OURS.items() if op not in _draws()} if eager_random else _OURS
    theirs = with_inplace({**registered(), **as_table(user or {})})
    return Table({**_last_resort(), **own, **theirs})


def ours() -> Mapping[OpOverload, Callable[..., Any]]:
    """Our own decompositions."""
    _load()
    return MappingProxyType(_OURS)


def _load() -> None:
    for family in FAMILIES:
        importlib.import_module(f"braze.decomp.{family}")


def _last_resort() -> Mapping[OpOverload, Callable[..., Any]]:
    from braze.decomp.last_resort import LAST_RESORT

    return LAST_RESORT


def _draws() -> frozenset[OpOverload]:
    from braze.decomp.random import DRAWS

    return DRAWS


def _place(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"
