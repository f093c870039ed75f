"""What a process remembers of the program's code and classes: every such table has a bound, and ``braze.reset`` empties all."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

_tables: list[Any] = []


def remembered(most: int) -> Callable[[F], F]:
    """Keep the last ``most`` results of a function of hashable arguments, until :func:`forget`."""

    def wrap(function: F) -> F:
        table = functools.lru_cache(maxsize=most)(function)
        _tables.append(table)
        return cast(F, table)

    return wrap


def forget() -> None:
    """Empty every table."""
    for table in _tables:
        table.cache_clear()
