"""Whether elements have places of their own is shown by sizes and strides alone: who trusts it writes all of them at once."""

from __future__ import annotations

import itertools
from math import prod

from hypothesis import given, settings
from hypothesis import strategies as st

from braze.lower.values.lazy import known_apart
from braze.symbolic.expr import Symbol, as_expr

DIM = st.tuples(st.integers(0, 4), st.integers(0, 9))


def apart(dims: list[tuple[int, int]]) -> bool:
    return known_apart([as_expr(n) for n, _ in dims], [as_expr(s) for _, s in dims])


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.lists(DIM, max_size=4))
def test_what_is_shown_is_so(dims: list[tuple[int, int]]) -> None:
    if apart(dims):
        moving = [(n, s) for n, s in dims if s]
        places = [
            sum(i * s for i, (_, s) in zip(at, moving, strict=True))
            for at in itertools.product(*(range(n) for n, _ in moving))
        ]
        assert 0 in [n for n, _ in dims] or len(set(places)) == prod(n for n, _ in moving)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(2, 4), st.integers(0, 3)), max_size=3), st.data())
def test_dims_that_step_over_all_within_are_apart_beside_any_that_go_nowhere(sizes, data) -> None:
    """Those of one element, whatever their stride, and those of stride 0; in any order."""
    dims, step = [], 1
    for size, gap in sizes:
        dims.append((size, step + gap))
        step = (step + gap) * size
    dims += data.draw(st.lists(st.tuples(st.just(1), st.integers(0, 20)), max_size=2))
    dims += data.draw(st.lists(st.tuples(st.integers(1, 5), st.just(0)), max_size=2))
    assert apart(data.draw(st.permutations(dims)))


def test_sizes_that_only_a_call_tells() -> None:
    n = Symbol("n", 1)
    four, one, none = as_expr(4), as_expr(1), as_expr(0)
    assert known_apart([four, n, four], [n * 2, one, none])
    assert not known_apart([four, n], [n - 1, one])
    assert not known_apart([n, n], [one, one])
