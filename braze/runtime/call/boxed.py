"""Calls of compiled graphs: all inputs come as one sequence, a list of which the call may empty to let go of them early."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

#: ``f(inputs) -> outputs``
Boxed = Callable[[Sequence[Any]], Sequence[Any]]


class Written(NamedTuple):
    """What a call is that writes its inputs ``roots`` itself: ``call``, given those of ``places`` once more behind the others.

    ``unseen``: those of ``roots`` of which autograd is to count nothing.
    """

    call: Boxed
    roots: tuple[int, ...]
    places: tuple[int, ...]
    unseen: tuple[int, ...] = ()

    @property
    def seen(self) -> tuple[int, ...]:
        """Those of ``roots`` of which autograd counts the write, and refuses it to tensors of inference mode."""
        return tuple(k for k in self.roots if k not in self.unseen)


class Holds(NamedTuple):
    """What a call is whose graph holds tensors itself: ``call``, given them behind its inputs."""

    call: Boxed
    held: tuple[Any, ...]


def boxed(call: F) -> F:
    """Mark a callable as one that takes all its inputs as one list."""
    call.boxed = True  # type: ignore[attr-defined]
    return call


def is_boxed(call: object) -> bool:
    """Whether a callable takes its inputs as one list, by our mark or by that of functions made for functorch."""
    return bool(getattr(call, "boxed", False) or getattr(call, "_boxed_call", False))
