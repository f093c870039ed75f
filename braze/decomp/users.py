"""Decompositions that users register: for the process, or for the length of a block.

What is registered is one immutable table, replaced at each change; ``key()`` is its identity, by which compiled functions
know under which table they were compiled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType
from typing import Any

from torch._ops import OpOverload

from braze.graph.operators.decompositions import as_table

Rule = Callable[..., Any]

_lock = threading.Lock()
_registered: Mapping[OpOverload, Rule] = MappingProxyType({})


def registered() -> Mapping[OpOverload, Rule]:
    """The table as it is now."""
    return _registered


def key(table: Mapping[OpOverload, Rule] | None = None) -> Hashable:
    """Equal for tables of the same functions."""
    return frozenset((_registered if table is None else table).items())


def add(given: Mapping[Any, Rule]) -> Mapping[OpOverload, Rule]:
    """Register more; what an operator had before is replaced. Gives the table as it was. UserError BZ0045 as ``as_table``."""
    return replace({**_registered, **as_table(given)})


def replace(table: Mapping[OpOverload, Rule]) -> Mapping[OpOverload, Rule]:
    """Let this be the table; gives the one before."""
    global _registered
    with _lock:
        before, _registered = _registered, MappingProxyType(dict(table))
    return before
