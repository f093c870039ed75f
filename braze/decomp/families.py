"""All decompositions in one table: the families' own, and the user's."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from torch._ops import OpOverload

from braze.decomp.random import DRAWS
from braze.decomp.registry import OURS
from braze.decomp.users import registered
from braze.graph.operators.decompositions import Table, as_table, with_inplace

FAMILIES = (
    "activations", "convolutions", "creation", "linear", "losses", "normalization", "normalization_gradients", "pooling",
    "random", "reductions", "shapes", "softmax", "upsampling",
)  # fmt: skip


def table(
    user: Mapping[OpOverload, Callable[..., Any]] | None = None, *, eager_random: bool = False
) -> Table:
    """What the pipeline hands to the aot stage: the user's, else ours.

    ``user``: for this compile alone, before what is registered. ``eager_random``: operators that draw random
    numbers stay whole, so that the numbers are eager's.
    """
    _load()
    own = {op: rule for op, rule in OURS.items() if op not in DRAWS} if eager_random else OURS
    theirs = with_inplace({**registered(), **as_table(user or {})})
    return Table({**own, **theirs})


def ours() -> Mapping[OpOverload, Callable[..., Any]]:
    """Our own decompositions."""
    _load()
    return MappingProxyType(OURS)


def _load() -> None:
    for family in FAMILIES:
        importlib.import_module(f"braze.decomp.{family}")
