"""Values added at rows that numbers name, as sums of segments, in Triton's interpreter beside ATen."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from braze.lower.scatters import segments
from tests.codegen.test_triton_forms import agree, numbers
from tests.codegen.test_triton_segments import DIGITS, calls, places
from tests.codegen.triton_bench import computed_bounds, interpreted, planned

pytestmark = computed_bounds


@pytest.fixture
def many(monkeypatch):
    """Places that the interpreter gets through are many."""
    monkeypatch.setattr(segments, "FEW", 0)


def added(*sizes):
    """The gradient of rows that were taken from a tensor of some sizes."""

    def gradient(v, *indices):
        return torch.ops.aten.index_put(v.new_zeros(sizes), list(indices), v, True)

    return gradient


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_taken_by_number_add_up_in_their_places(dtype, tmp_path):
    given = numbers(50, 16, 8, dtype=dtype), places(50, 23, "half") - 23  # numbers count from the end
    plan, results = interpreted(lambda v, i: added(23, 16, 8)(v, i), tmp_path, *given)
    agree(results, [added(23, 16, 8)(given[0].double(), given[1])], DIGITS[dtype])
    assert calls(plan) == ["braze.table_sums.default"]


def test_rows_taken_by_two_numbers_that_are_broadcast(tmp_path):
    i, j = places(20, 9, "spread").view(5, 4) - 9, (torch.arange(4) * 3 - 2).int()
    fn = lambda v, i, j: added(9, 10, 128)(v, i, j)
    plan, results = interpreted(fn, tmp_path, numbers(5, 4, 128), i, j)
    agree(results, [fn(numbers(5, 4, 128).double(), i, j.long())], 1e-5)
    assert calls(plan) == ["braze.table_sums.default"]
    one = numbers(1, 128)  # a value for all places
    agree(interpreted(fn, tmp_path, one, i, j)[1], [fn(one.double(), i, j.long())], 1e-4)


@pytest.mark.usefixtures("many")
def test_many_rows_taken_by_number_are_summed_in_order(tmp_path):
    fn = lambda v, i: added(23, 128)(v, i)
    plan, results = interpreted(fn, tmp_path, numbers(200, 128), places(200, 23, "half"))
    agree(results, [fn(numbers(200, 128).double(), places(200, 23, "half"))], 1e-4)
    assert calls(plan) == ["braze.groups.default"]


@pytest.mark.parametrize(
    ("fn", "given"),
    [
        (lambda v, i: added(23, 127)(v, i), torch.empty(50, 127)),  # a row that is short
        (lambda v, i: torch.ops.aten.index_put(v.new_ones(23, 128), [i], v, True), torch.empty(50, 128)),
        (lambda v, i: torch.ops.aten.index_put(v.new_zeros(9, 23, 128), [None, i], v, True), torch.empty(9, 50, 128)),
        (lambda v, i: added(23, 128)(v, i), torch.empty(50, 128, dtype=torch.float64)),
    ],
)  # fmt: skip
def test_what_else_is_put_is_added_by_loops(fn, given):
    assert calls(planned(fn, given, places(50, 23, "spread"))) == []
