"""The table of decompositions: operator -> a function that computes it by simpler ones.

``@decompose(aten.native_layer_norm.default)`` enters a function that takes the operator's arguments. It may answer ``NotImplemented`` for arguments that it
does not cover; the operator then stays. The functions are plain: called on real tensors they compute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch._ops import OpOverload

from braze.support.errors import InternalError

F = TypeVar("F", bound=Callable[..., Any])

#: overload -> its decomposition, as far as the families are loaded
OURS: dict[OpOverload, Callable[..., Any]] = {}


def decompose(*ops: OpOverload) -> Callable[[F], F]:
    """Enter a function as the decomposition of these overloads."""

    def enter(function: F) -> F:
        for op in ops:
            known = OURS.get(op)
            if known is not None:
                raise InternalError(
                    "BZ9021", f"two decompositions of {op}: {_place(known)} and {_place(function)}"
                )
            OURS[op] = function
        return function

    return enter


def _place(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"
