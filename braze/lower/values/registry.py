"""The table of lowerings: one function per ATen overload.

A lowering is called as ``f(builder, *args, **kwargs)`` with the graph's arguments, where tensors are
``Lazy`` values and symbolic ints are ``Expr``; it returns what the op returns, or ``NotImplemented`` where it
does not carry this call (the op then runs through ATen). A float that is known when the graph runs is a ``Lazy``
too, and comes as an operand (``scalars.OPERANDS``) or as one of the other ``numbers`` that the lowering names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from braze.support.errors import InternalError

aten = torch.ops.aten

Lowering = Callable[..., Any]

LOWERINGS: dict[object, Lowering] = {}
#: overload -> names of its numbers that may be floats known when the graph runs
NUMBERS: dict[object, frozenset[str]] = {}


def lowering(*targets: Any, numbers: Iterable[str] = ()) -> Callable[[Lowering], Lowering]:
    """Register a function for overloads, or for every functional overload of an op."""

    def register(function: Lowering) -> Lowering:
        for target in targets:
            for overload in overloads_of(target):
                claim(overload, function)
                if numbers:
                    NUMBERS[overload] = frozenset(numbers)
        return function

    return register


def claim(overload: object, function: Lowering) -> None:
    """Enter one row; a second row for the same op is a mistake of ours."""
    old = LOWERINGS.get(overload)
    if old is not None:
        raise InternalError("BZ9004", f"two lowerings for {overload}: {_place(old)} and {_place(function)}")
    LOWERINGS[overload] = function


def overloads_of(target: Any) -> Iterator[object]:
    """A target's overloads, those with out= arguments left out."""
    if not isinstance(target, torch._ops.OpOverloadPacket):
        yield target
        return
    for name in target.overloads():
        overload = getattr(target, name)
        if "out" not in name and not any(a.is_out for a in overload._schema.arguments):
            yield overload


def _place(function: Lowering) -> str:
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(function)
