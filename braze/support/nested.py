"""What lies in nested tuples and lists, as arguments and results of operators are."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def leaves(values: Any) -> list[Any]:
    """What nested tuples and lists, and the values of dicts, hold in order; anything else is a leaf itself."""
    if isinstance(values, dict):
        values = tuple(values.values())
    if isinstance(values, (tuple, list)):
        return [leaf for value in values for leaf in leaves(value)]
    return [values]


def every(kind: type[T], values: Any) -> list[T]:
    """The leaves of a kind."""
    return [leaf for leaf in leaves(values) if isinstance(leaf, kind)]
