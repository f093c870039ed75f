"""Places by number: the counting sort of the kernels, in Triton's interpreter, beside ATen's sort."""

from __future__ import annotations

import itertools

import pytest
import torch

pytest.importorskip("triton")

from braze.runtime.gpu import groups
from tests.codegen.triton_bench import computed_bounds

pytestmark = computed_bounds


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Blocks so small that a few hundred places are many: the interpreter is slow."""
    for name, number in (("BLOCK", 32), ("SHORT", 16), ("SOME", 4)):
        monkeypatch.setattr(groups, name, number)
    groups._sorting.cache_clear()
    yield
    groups._sorting.cache_clear()


def check(indices, rows):
    for ours, wanted in zip(groups.by_counting(indices, rows), groups.by_sort(indices, rows), strict=True):
        assert ours.dtype is wanted.dtype is torch.int32
        assert torch.equal(ours, wanted)


@pytest.mark.parametrize(
    ("count", "rows"),
    [
        *itertools.product([1, 17, 32, 33, 200], [1, 2, 255, 256, 300]),
        *itertools.product([33, 200], [65535, 65536]),
    ],
)
def test_numbers_and_their_places(count, rows):
    check(torch.arange(count) * 7919 % rows, rows)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_equal_ones_keep_their_order(dtype):
    check(torch.full((150,), 3, dtype=dtype), 7)
    check(torch.where(torch.arange(150) % 4 < 2, 299, torch.arange(150)).to(dtype), 300)


def test_what_is_no_row_comes_last():
    given = torch.tensor([5, -1, 6, 7, 0, -(2**40), 2**40, 6, 2**32 + 3])
    check(given, 7)
    found, order, starts = groups.by_counting(given, 7)
    assert found.tolist() == [0, 5, 6, 6, 7, 7, 7, 7, 7] and order.tolist() == [4, 0, 2, 7, 1, 3, 5, 6, 8]
    assert starts.tolist() == [0, 1, 1, 1, 1, 1, 2, 4]


@pytest.mark.parametrize("rows", [7, 300])
def test_the_padding_is_no_row_and_of_each_other_number_one_place_is_told(rows):
    given = torch.tensor([5, 4, 0, 4, 6, 5, -1, 0, rows])
    who = torch.full((rows,), -7, dtype=torch.int32)
    found, order = groups.ordered(given, rows, 4, who)
    assert found.tolist() == [0, 0, 5, 5, 6, rows, rows, rows, rows]
    assert order.tolist() == [2, 7, 0, 5, 4, 1, 3, 6, 8]
    told = (who != -7).nonzero().flatten()
    assert told.tolist() == [0, 5, 6] and torch.equal(given[who[told].long()], told)


def test_indices_of_any_layout():
    check((torch.arange(120) * 31 % 40).view(10, 12).t(), 40)
    check((torch.arange(200) * 31 % 40)[1::2], 40)
    check(torch.tensor([7]).expand(90), 40)


def test_what_sorts_is_chosen_by_size():
    """Nothing at all, and more than programs can count for each other."""
    assert [t.tolist() for t in groups._groups(torch.empty(0, dtype=torch.long), 2)] == [[], [], [0, 0, 0]]
    many = torch.arange(groups.MOST + 1) % 5
    assert torch.equal(groups._groups(many, 5)[2], groups.by_sort(many, 5)[2])
    assert [t.tolist() for t in torch.ops.braze.groups.default(torch.tensor([1, 0, 1]), 2)] == [
        [0, 1, 1],
        [1, 0, 2],
        [0, 1, 3],
    ]
