"""The order in which one thing needs the other."""

import pytest

from braze.support.order import on_demand


@pytest.mark.parametrize(
    ("ends", "order"),
    [("d", "abcd"), ("bd", "abcd"), ("cb", "acb"), ("dd", "abcd"), ("", "")],
)
def test_each_stands_behind_what_it_lacks(ends, order):
    needs = {"a": "", "b": "a", "c": "a", "d": "bca"}
    assert "".join(on_demand(ends, needs.__getitem__)) == order


def test_long_chains_are_no_recursion():
    assert on_demand([100_000], lambda n: [n - 1] if n else []) == list(range(100_001))
