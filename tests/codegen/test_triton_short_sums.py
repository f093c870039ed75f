"""Sums of short rows that begin anywhere: programs of several rows, each read in whole vectors and held to its end; in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from braze.schedule.forms import whole_vectors
from braze.schedule.gpu import kernels
from tests.codegen.test_triton_forms import INF, NAN, agree, exact, numbers
from tests.codegen.test_triton_vectors import plan_of
from tests.codegen.triton_bench import interpreted


@pytest.fixture(autouse=True)
def few_are_enough(monkeypatch):
    monkeypatch.setattr(whole_vectors, "LEAST", 2048)
    monkeypatch.setattr(kernels, "FEW_PROGRAMS", 0)


def cut_of(fn, *inputs):
    """Rows of a program, its warps, and whether they are held to their ends."""
    plan = plan_of(fn, *inputs)
    return [tile.block for tile in plan.points], plan.warps, plan.to_its_end


@pytest.mark.parametrize("length", [263, 300, 513, 1023, 1025, 2047])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_of_several_rows_at_once(dtype, length, tmp_path):
    """Eleven rows are more than one program's, and each begins at another place in a vector."""
    x, y = numbers(11, length, dtype=dtype), numbers(11, length, dtype=dtype, seed=1)
    for fn in (lambda x, y: x.sum(1), lambda x, y: (x * y).sum(1)):
        assert cut_of(fn, x, y) == ([8], 4, True)
        agree(interpreted(fn, tmp_path, x, y)[1], exact(fn, x, y), 2e-2)


#: lengths of rows, and how many a tile has
TILES = [
    (65, 64), (68, 64), (100, 32), (127, 32), (129, 32), (132, 32), (134, 32), (135, 16), (191, 16), (255, 16), (257, 16), (260, 16), (262, 16),
]  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "length", "rows"),
    [
        *((torch.bfloat16, *tile) for tile in TILES),
        *((torch.float16, *tile) for tile in TILES[::4]),
    ],
)
def test_sums_of_rows_that_share_a_warps_lanes(dtype, length, rows, tmp_path):
    """A tile is no longer than what each row fills wherever it begins; rows are more than one program's."""
    x, y = numbers(rows + 3, length, dtype=dtype), numbers(rows + 3, length, dtype=dtype, seed=1)
    for fn in (lambda x, y: x.sum(1), lambda x, y: (x * y).amax(1), lambda x, y: (x * y).sum(1)):
        assert cut_of(fn, x, y) == ([rows], 4, True)
        agree(interpreted(fn, tmp_path, x, y)[1], exact(fn, x, y), 2e-2)


def test_values_at_the_ends_of_rows_that_share_a_warp(tmp_path):
    """The first and last of each count once, and nothing of the neighbours does."""
    x = torch.zeros(35, 129, dtype=torch.bfloat16)
    x[:, 0], x[:, -1] = 1, 2
    x[7], x[9, 0], x[11, -1], x[20, 64] = -INF, INF, NAN, -INF

    def fn(x):
        return x.sum(1), x.amax(1), x.amin(1), (x > 1).any(1), (x >= 0).all(1)

    assert cut_of(fn, x) == ([32], 4, True)
    agree(interpreted(fn, tmp_path, x)[1], exact(fn, x))
    assert torch.equal(
        interpreted(lambda x: x.sum(1), tmp_path, x[:7])[1][0], torch.full((7,), 3.0).bfloat16()
    )


def test_rows_that_are_one_block_stay_so():
    """Shorter than a warp's share; whole vectors; of float32; places and what is stored along rows."""
    for length in (33, 63, 64, 128):
        assert not cut_of(lambda x: x.sum(1), numbers(9000, length, dtype=torch.bfloat16))[2], length
    x = numbers(9000, 129, dtype=torch.bfloat16)
    assert not cut_of(lambda x: x.sum(1), x.float())[2]
    assert not cut_of(lambda x: x.argmax(1), x)[2]
    assert not cut_of(lambda x: x - x.amax(1, keepdim=True), x)[2]


def test_extremes_and_tests_of_several_rows_at_once(tmp_path):
    x = numbers(11, 515, dtype=torch.bfloat16)
    x[1, 0], x[2, -1], x[3], x[5, 2], x[6, 255] = INF, INF, -INF, NAN, -INF

    def fn(x):
        return x.amax(1), x.amin(1), (x > 2).any(1), (x > -3).all(1)

    assert cut_of(fn, x) == ([8], 4, True)
    agree(interpreted(fn, tmp_path, x)[1], exact(fn, x))


def test_what_more_than_sums_is_made_of_is_one_row_a_program():
    """A weight that all rows share, their places, what is stored along them; float32; and rows that are few."""
    x, w = numbers(11, 1025, dtype=torch.bfloat16), numbers(1025, dtype=torch.bfloat16)
    assert cut_of(lambda x, w: (x * w).sum(1), x, w)[0] == [1]
    assert cut_of(lambda x: x - x.mean(1, keepdim=True), x)[0] == [1]
    assert cut_of(lambda x: x.float().var(1), x)[0] == [1]
    assert cut_of(lambda x: x.sum(1), x.float())[0] == [1]


def test_few_rows_are_one_a_program(monkeypatch):
    monkeypatch.setattr(kernels, "FEW_PROGRAMS", 128)
    assert cut_of(lambda x: x.sum(1), numbers(11, 1025, dtype=torch.bfloat16))[0] == [1]
