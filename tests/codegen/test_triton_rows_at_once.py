"""Sums down some hundred rows, all of which are on their way at once, and of few columns of many; in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from braze.schedule.gpu import column_tiles
from tests.codegen.test_triton_forms import INF, NAN, agree, exact, numbers, plans
from tests.codegen.triton_bench import interpreted, planned


@pytest.mark.parametrize("length", [100, 200, 400])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_some_hundred_rows_are_on_their_way_at_once(dtype, length, tmp_path, monkeypatch):
    """Of few threads, which have all of their columns; where programs are many, and not of what is looked at twice."""
    monkeypatch.setattr(column_tiles, "ENOUGH_PROGRAMS", 1)
    x = numbers(3, length, 40, dtype=dtype)
    x[0, 5, 3], x[1, length - 1, 7], x[2, 0, 39] = NAN, INF, -INF
    digits = 1e-4 if dtype is torch.float32 else 0.5
    for fn in (lambda x: x.sum(1), lambda x: (x.amax(1), (x > 2).any(1))):
        agree(interpreted(fn, tmp_path, x, cores=1)[1], exact(fn, x), digits)
    y, spread = numbers(3, length, 40, dtype=dtype) + 100, lambda x: torch.var_mean(x, 1)
    agree(interpreted(spread, tmp_path, y, cores=1)[1], exact(spread, y), digits)

    def whole(fn):
        return plans(planned(fn, x, cores=1))[0].whole

    narrow = dtype is torch.bfloat16
    assert whole(lambda x: x.sum(1)) is (length < 256 or not narrow)
    assert narrow or whole(spread) is (length < 256)


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "at_once"),
    [
        (21851, 768, torch.float32, False),
        (8009, 2000, torch.float32, True),
        (20011, 800, torch.bfloat16, False),
        (1536, 10920, torch.float32, True),
    ],
)
def test_parts_of_which_some_end_early_are_at_once_on_their_way_where_they_are_short(
    rows, columns, dtype, at_once
):
    """Each of their loads asks whether there is such a row."""
    x = torch.empty(rows, columns, dtype=dtype, device="meta")
    part = plans(planned(lambda x: x.sum(0), x))[0]
    assert part.whole is at_once


@pytest.mark.parametrize(("dtype", "turns"), [(torch.bfloat16, 2), (torch.float32, 1)])
def test_two_turns_of_parts_of_16_bits_that_end_early_are_on_their_way(dtype, turns):
    x = torch.empty(40013, 768, dtype=dtype, device="meta")
    part = plans(planned(lambda x: x.sum(0), x))[0]
    assert (part.whole, part.unrolled) == (False, turns)


def test_few_columns_of_many_parts_have_a_program_each(tmp_path):
    """And no more rows than are parts: of those past the end nothing counts."""
    x = numbers(1000, 7) + 1
    for fn in (lambda x: x.sum(0), lambda x: torch.var_mean(x, 0), lambda x: x.amin(0)):
        agree(interpreted(fn, tmp_path, x, cores=1)[1], exact(fn, x), 1e-4)
        plan = plans(planned(fn, x, cores=1))[0]
        assert (plan.points[-1].block, plan.row.block) == (1, 1024)
