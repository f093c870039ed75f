"""Sizes that only a call will tell are guessed in one place."""

from __future__ import annotations

import pytest

from braze.symbolic.expr import Integer, Symbol, floor_div, maximum
from braze.symbolic.guess import UNKNOWN, likely, likely_size

S = Symbol("s", 2)


@pytest.mark.parametrize(
    ("size", "number"),
    [
        (Integer(0), 0),
        (Integer(2**40), 2**40),
        (S, UNKNOWN),
        (S * 768, UNKNOWN * 768),
        (Symbol("few", 2, 16), 16),
        (Symbol("many", 5000), 5000),
        (Symbol("none", 0, 0) + 3, 3),
        (Symbol("any"), UNKNOWN),
        (floor_div(S, Integer(2 * UNKNOWN)), 1),
        (S - 2000, 1),
        (maximum(S, 3000), 3000),
    ],
)
def test_a_size_is_itself_or_a_guess_within_bounds(size, number):
    """A known size is itself, a symbol is within its bounds, and no size is guessed to be empty or less."""
    assert likely_size(size) == number


def test_what_was_seen_of_a_symbol_is_its_value():
    """A number that tracing saw beats the guess; strides, unlike sizes, may be negative."""
    assert likely(S * 4, {"s": 3}) == 12
    assert likely(S * 4, {"other": 3}) == 4 * UNKNOWN
    assert likely(S * -1) == -UNKNOWN
