"""What a process remembers of the program's code and classes: every such table has a bound, and ``braze.reset`` empties all."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
V = TypeVar("V")

_tables: list[Any] = []


def remembered(most: int) -> Callable[[F], F]:
    """Keep the last ``most`` results of a function of hashable arguments, until :func:`forget`."""

    def wrap(function: F) -> F:
        table = functools.lru_cache(maxsize=most)(function)
        _tables.append(table)
        return cast(F, table)

    return wrap


class Latest(Generic[V]):
    """The last ``most`` things that were entered, each with a value (not None); ``gone`` is told of the values that are let go."""

    def __init__(self, most: int, gone: Callable[[V], object] = lambda value: None) -> None:
        self._most, self._gone = most, gone
        self._values: dict[object, V] = {}
        #: entered again by what a collection within runs
        self._lock = threading.RLock()
        _tables.append(self)

    def enter(self, key: object, value: V) -> bool:
        """Whether it is new here."""
        with self._lock:
            if key in self._values:
                return False
            self._values[key] = value
            old = self._values.pop(next(iter(self._values))) if len(self._values) > self._most else None
        if old is not None:
            self._gone(old)
        return True

    def cache_clear(self) -> None:
        """Let go of all."""
        with self._lock:
            old, self._values = self._values, {}
        for each in old.values():
            self._gone(each)


def forget() -> None:
    """Empty every table."""
    for table in _tables:
        table.cache_clear()
