"""Bounds of arithmetic on intervals hold for all that lies in them, and are no further apart than that."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable

import pytest

from braze.symbolic import intervals
from braze.symbolic.intervals import Interval

ENDS = [*itertools.combinations_with_replacement(range(-4, 6), 2)]
POSITIVE = [e for e in ENDS if e[0] > 0]
#: beyond all that is looked at
FAR = 40


def values(a: Interval) -> range:
    """What lies in an interval; where it has no end, as far as is looked."""
    return range(-FAR if a[0] is None else a[0], (FAR if a[1] is None else a[1]) + 1)


def opened(a: Interval, b: Interval) -> list[tuple[Interval, Interval]]:
    """Two intervals, and what becomes of them where one end is not known."""
    return [
        (a, b),
        ((None, a[1]), b),
        ((a[0], None), b),
        (a, (None if b[0] is None or b[0] < 1 else b[0], None)),
    ]


CASES = [
    (intervals.multiplied, operator.mul, ENDS),
    (intervals.quotient, operator.floordiv, POSITIVE),
    (intervals.greater, max, ENDS),
    (intervals.smaller, min, ENDS),
]


@pytest.mark.parametrize(("bounds", "of", "second"), CASES, ids=lambda c: getattr(c, "__name__", ""))
def test_bounds_are_the_least_and_the_greatest(
    bounds: Callable[[Interval, Interval], Interval], of: Callable[[int, int], int], second: list[Interval]
) -> None:
    for a, b in itertools.product(ENDS, second):
        found = [of(x, y) for x in values(a) for y in values(b)]
        assert bounds(a, b) == (min(found), max(found)), (a, b)


def test_a_remainder_is_less_than_the_divisor_and_no_more_than_what_is_divided() -> None:
    for high, most in itertools.product(range(9), range(1, 9)):
        found = [x % y for x in range(high + 1) for y in range(1, most + 1)]
        assert intervals.remainder((0, high), (1, most)) == (0, max(found))
    assert intervals.remainder((0, 7), (1, None)) == (0, 7)
    assert intervals.remainder((0, None), (1, 5)) == intervals.remainder((None, 3), (1, 5)) == (0, 4)
    assert intervals.remainder((-3, 3), (1, None)) == (0, None)


@pytest.mark.parametrize(
    ("bounds", "of", "second"),
    [*CASES, (intervals.remainder, operator.mod, POSITIVE)],
    ids=lambda c: getattr(c, "__name__", ""),
)
def test_where_an_end_is_not_known_bounds_hold(
    bounds: Callable[[Interval, Interval], Interval], of: Callable[[int, int], int], second: list[Interval]
) -> None:
    for pair in itertools.product(ENDS[::3], second[::3]):
        for a, b in opened(*pair):
            low, high = bounds(a, b)
            found = [of(x, y) for x in values(a) for y in values(b) if second is ENDS or y > 0]
            assert (low is None or low <= min(found)) and (high is None or max(found) <= high), (a, b)
