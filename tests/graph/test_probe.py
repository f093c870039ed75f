"""Which calls meta functions may let pass that eager refuses."""

from __future__ import annotations

import math

import pytest
import torch

import braze
from braze.graph.probe import is_doubtful

#: type of elements -> the least and the greatest number that it has a place for
TYPES = {
    torch.uint8: (0, 255),
    torch.int8: (-128, 127),
    torch.int64: (-(2**63), 2**63 - 1),
    torch.float16: (-65504.0, 65504.0),
    torch.float8_e4m3fn: (-448.0, 448.0),
}
NUMBERS = [0, 1, 6, 7, -1, 127, 128, 255, 256, -129, 449, 65505, 2**63, -(2**63) - 1, 10**400, -(10**400)]
NUMBERS += [0.0, -0.0, 1e-31, 1e-30, 6.0, 6.5, -0.5, 1e300]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_number_without_a_place_in_the_tensors_type_is_doubtful(dtype):
    low, high = TYPES[dtype]
    x = torch.zeros(2, dtype=dtype)
    for number in NUMBERS:
        assert is_doubtful("add", (x, number), {}) is not (low <= number <= high), number
        assert is_doubtful("full", ((2,), number), {"dtype": dtype}) is not (low <= number <= high), number


def test_nan_and_infinity_have_a_place_and_do_not_hide_what_has_none():
    x = torch.zeros(2, dtype=torch.uint8)
    for number in (math.nan, math.inf, -math.inf):
        assert not is_doubtful("add", (x, number), {})
        assert is_doubtful("clamp", (x, number, 256), {})
        assert is_doubtful("clamp", (x, -1, number), {})


def test_true_and_complex_numbers_are_no_bounds():
    assert not is_doubtful("add", (torch.zeros(2, dtype=torch.bool), 1000), {})
    assert not is_doubtful("add", (torch.zeros(2, dtype=torch.complex64), 10**400), {})
    assert not is_doubtful("add", (torch.zeros(2, dtype=torch.uint8), True), {})


@pytest.mark.parametrize("zero", [0, 0.0, -0.0])
def test_only_divisions_doubt_zeros(zero):
    x = torch.zeros(2, dtype=torch.int64)
    assert is_doubtful("__floordiv__", (x, zero), {})
    assert not is_doubtful("__floordiv__", (x, 3), {})
    assert not is_doubtful("add", (x, zero), {})


def test_differences_refuse_truth_values_and_sums_such_factors():
    x = torch.zeros(2)
    assert is_doubtful("sub", (x, True), {}) and is_doubtful("rsub", (x, False), {})
    assert is_doubtful("add", (x, x), {"alpha": True})
    assert not is_doubtful("add", (x, True), {}) and not is_doubtful("mul", (x, True), {})


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "refused",
    [lambda x, n: x - (n > 3), lambda x, n: (n > 3) - x, lambda x, n: x.sub_(n > 3), lambda x, n: torch.add(x, 1, alpha=n > 3)],
    ids=["sub", "rsub", "sub_", "alpha"],
)  # fmt: skip
def test_the_truth_of_a_comparison_is_refused_where_eager_refuses_it(refused, dynamic):
    compiled = braze.compile(refused, dynamic=dynamic)
    for n in (3, 4, 5):
        for call in (refused, compiled):
            with pytest.raises(RuntimeError, match=r"bool tensor|Boolean"):
                call(torch.ones(3), n)
