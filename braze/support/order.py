"""Things in the order in which one needs the other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

Thing = TypeVar("Thing", bound=Hashable)


def on_demand(ends: Iterable[Thing], needs: Callable[[Thing], Sequence[Thing]]) -> list[Thing]:
    """The ends in their order, and all that they need, each thing behind what it still lacks."""
    order: dict[Thing, None] = {}
    for end in ends:
        todo = [end]
        while todo:
            missing = [n for n in needs(todo[-1]) if n not in order]
            if missing:
                todo += reversed(missing)
            else:
                order.setdefault(todo.pop())
    return list(order)
