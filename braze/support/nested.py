"""What lies in nested tuples and lists, as arguments and results of operators are."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")
_NESTS = (tuple, list, dict)


def leaves(values: Any) -> list[Any]:
    """What nested tuples and lists, and the values of dicts, hold in order; anything else is a leaf itself."""
    if not isinstance(values, _NESTS):
        return [values]
    found: list[Any] = []
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, _NESTS):
            found += leaves(value)
        else:
            found.append(value)
    return found


def every(kind: type[T], values: Any) -> list[T]:
    """The leaves of a kind."""
    return [leaf for leaf in leaves(values) if isinstance(leaf, kind)]
