"""Bitwise operators and shifts of a symbolic integer and a number, by division and remainder: forms that graphs and guards can hold.

Python's integers have two's complement of any length: ``n & (2**k - 1)`` is ``n % 2**k`` for all n, and with ``n & c`` known
``n | c`` is ``(n - (n & c)) + c`` and ``n ^ c`` is ``(n - (n & c)) + (c - (n & c))``, of which no step is greater than what goes in
and comes out.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

#: runs of ones that a mask may have: each costs a division
MOST_RUNS = 4
AND = frozenset({operator.and_, operator.iand})
OR = frozenset({operator.or_, operator.ior})
XOR = frozenset({operator.xor, operator.ixor})
BITWISE = AND | OR | XOR
LEFT = frozenset({operator.lshift, operator.ilshift})
SHIFTS = LEFT | {operator.rshift, operator.irshift}
#: by more places PyTorch's algebra shifts to infinity, or to a float
MOST_PLACES = 62

#: an arithmetic operator on two numbers
Combine = Callable[[Any, Any, Any], Any]


def combined(combine: Combine, function: Any, a: Any, b: Any) -> Any:
    """``function(a, b)`` of a symbolic integer and an int, as ``combine`` does arithmetic; None where it takes too many steps."""
    number, mask = (b, a) if type(a) is int else (a, b)
    if type(mask) is not int:
        return None
    both = masked(combine, number, mask)
    if both is None or function in AND:
        return both
    others = combine(operator.sub, mask, both) if function in XOR else mask
    return combine(operator.add, combine(operator.sub, number, both), others)


def shifted(combine: Combine, function: Any, number: Any, places: int) -> Any:
    """``function(number, places)`` of a symbolic integer; by many places of the number that it stands for, which is guarded."""
    if not 0 <= places <= MOST_PLACES:
        return function(int(number), places)
    return combine(operator.mul if function in LEFT else operator.floordiv, number, 1 << places)


def masked(combine: Combine, number: Any, mask: int) -> Any:
    """``number & mask``; None where the mask has too many runs of ones."""
    if mask < 0:  # all bits but those of the complement
        cleared = masked(combine, number, ~mask)
        return None if cleared is None else combine(operator.sub, number, cleared)
    found: Any = 0
    for start, length in runs(mask):
        if length is None:
            return None
        part = combine(operator.floordiv, number, 1 << start) if start else number
        part = combine(operator.mod, part, 1 << length)
        found = combine(operator.add, found, combine(operator.mul, part, 1 << start))
    return found


def runs(mask: int) -> list[tuple[int, int | None]]:
    """(lowest bit, length) of each run of ones; a length of None behind the last that is allowed."""
    found: list[tuple[int, int | None]] = []
    start = 0
    while mask:
        zeros = (mask & -mask).bit_length() - 1
        mask >>= zeros
        ones = (~mask & (mask + 1)).bit_length() - 1
        if len(found) == MOST_RUNS or start + zeros + ones > 62:
            return [*found, (start, None)]
        found.append((start + zeros, ones))
        mask >>= ones
        start += zeros + ones
    return found
