"""Sizes with few divisions are the sizes they were; what programs write differently comes out the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braze.symbolic.expr import Expr, FloorDiv, Integer, Mod, Symbol, maximum, minimum
from braze.symbolic.flat import Flattener, close_bounds, divisions, exact_quotient, flat, parts_of

S, T = Symbol("s", 1), Symbol("t", 1)


@st.composite
def sizes(draw: st.DrawFn, depth: int = 4) -> Expr:
    """What programs compute of the sizes of pictures: divisors are positive."""
    if not depth or draw(st.integers(0, 5)) == 0:
        return draw(st.sampled_from([S, T]) | st.integers(-3, 40).map(Integer))
    a = draw(sizes(depth=depth - 1))
    match draw(st.sampled_from(["+", "-", "*", "//", "//", "%", "%", "max", "min"])):
        case "+":
            return a + draw(sizes(depth=depth - 1))
        case "-":
            return a - draw(sizes(depth=depth - 1))
        case "*":
            return a * draw(st.sampled_from([2, 3, 7, S, T]))
        case "//":
            return a // draw(st.sampled_from([2, 4, 7, S, S * 4, T + 1]))
        case "%":
            return a % draw(st.sampled_from([2, 4, 7, 14, S, S * 4]))
        case "max":
            return maximum(a, draw(st.integers(-2, 20)))
        case _:
            return minimum(a, draw(st.integers(-2, 20)))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(sizes(), st.integers(1, 300), st.integers(1, 60))
def test_a_flat_size_is_the_size(e: Expr, s: int, t: int) -> None:
    at = {S: s, T: t}
    assert flat(e).evaluate(at) == e.evaluate(at)
    expanded = Flattener().expanded
    assert expanded(e).evaluate(at) == e.evaluate(at)
    assert not any(isinstance(part, Mod) for part in parts_of(expanded(e)))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(sizes(), st.integers(1, 12), st.integers(0, 11), st.integers(1, 40), st.integers(1, 60))
def test_what_is_known_of_remainders_changes_no_size_that_has_them(
    e: Expr, m: int, c: int, count: int, t: int
) -> None:
    c %= m
    at = {S: m * count + c, T: t}
    known = {"s": (m, c)}
    assert flat(e, known).evaluate(at) == e.evaluate(at)
    counted, back = Flattener(known).by_multiples(e)
    assert counted.subs(back).evaluate(at) == e.evaluate(at)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    sizes(),
    st.integers(0, 9),
    st.sampled_from([(2, 4), (4, 2), (8, 2), (2, 7)]),
    st.integers(1, 60),
    st.integers(1, 60),
)
def test_what_a_quotient_is_changes_no_size_at_which_it_is(
    e: Expr, more: int, by: tuple[int, int], s: int, t: int
) -> None:
    m, k = by
    quotient = (S + more) // m
    at = {S: s * m * k - more % (m * k), T: t}
    while at[S] < 1 or quotient.evaluate(at) % k:
        at[S] += 1
    known = Flattener(None, {quotient: ((S + more) // (m * k)) * k} if isinstance(quotient, FloorDiv) else {})
    for each in (e, quotient // k, (quotient + 1) // k, quotient - quotient // k * k):
        assert known.flat(each).evaluate(at) == each.evaluate(at)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(sizes(), sizes(), st.integers(1, 300), st.integers(1, 60))
def test_an_exact_quotient_times_the_divisor_is_the_size(a: Expr, b: Expr, s: int, t: int) -> None:
    at = {S: s, T: t}
    for e, d in ((a, b), (a * b, b)):
        found = exact_quotient(e, d)
        if found is not None:
            assert found.evaluate(at) * d.evaluate(at) == e.evaluate(at)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(sizes(), sizes(), st.integers(1, 300), st.integers(1, 60))
def test_close_bounds_hold(a: Expr, b: Expr, s: int, t: int) -> None:
    at = {S: s, T: t}
    for e in (a, a - b, flat(a - b)):
        low, high = close_bounds(e)
        assert (low is None or low <= e.evaluate(at)) and (high is None or e.evaluate(at) <= high)


def test_padding_is_bounded_by_the_multiple():
    assert close_bounds(PADDED - S // 4) == (0, 6)
    assert close_bounds(S // 4 * 4 - S) == (-3, 0)
    assert close_bounds(S // 4 * 4 - S - T) == (None, -1)


def test_of_two_bounds_the_closer_one_is_told():
    """Those of a sum of ranges are further apart than those of what rounding leaves."""
    few = Symbol("few", 1, 9)
    padded = (few + 6) // 7 * 7 - few
    assert padded.bounds() == (-2, 13)
    assert close_bounds(padded) == (0, 6)


def test_what_is_left_of_a_size_by_its_half_is_half_again_no_less_than_nothing():
    assert close_bounds((S + 1 - (S + 1) // 2) // 2)[0] >= 0


def test_factors_cancel():
    assert exact_quotient(S * T * 21 + S * 14, S * 7) is T * 3 + 2
    assert exact_quotient(S * T * 21 + 14, S * 7) is None
    assert exact_quotient(S * 20, Integer(7)) is None
    assert exact_quotient(S, Integer(0)) is None


PADDED = 7 * ((S // 4 + 6) // 7)
WAYS = {
    "what is missing": S // 4 + (Integer(7) - S // 4 % 7) % 7,
    "a negative remainder": S // 4 + (S // 4) * -1 % 7,
    "rounded up": (S * 0 - (S // 4 * -1) // 7) * 7,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_padded_size_is_one_however_it_is_written(way):
    assert flat(WAYS[way]) is flat(PADDED)
    assert divisions(flat(WAYS[way])) == 1


def test_halves_of_halves_are_one_division():
    e: Expr = S // 4
    for _ in range(3):
        e = (e + 1) // 2
    assert str(flat(e)) == "(s + 28)//32"
    assert divisions(flat(e + (Integer(7) - e % 7) % 7)) == 1


def test_sizes_of_known_remainder_are_written_by_what_is_counted():
    known = {"s": (28, 0)}
    assert flat(S // 4, known) is 7 * (S // 28)
    assert flat(PADDED, known) is 7 * (S // 28)
    assert flat(S // 4 % 7, known).value == 0
    assert flat((S + 3) // 4 - S // 4, known).value == 0
