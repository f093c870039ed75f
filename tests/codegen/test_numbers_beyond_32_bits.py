"""Wide whole numbers that are computed of narrow ones once for a row, or once at all, are computed in 64 bits."""

from __future__ import annotations

import operator

import pytest
import torch

import braze

READ = {
    "a constant": lambda v: v.long() * 3,
    "a large constant": lambda v: v.long() * 3_000_000,
    "itself": lambda v: v.long() * v.long(),
    "a sum": lambda v: v.long() + v.long() + v.long(),
    "a difference": lambda v: v.long() - 2_000_000_000 - v.long() - v.long(),
    "turned": lambda v: -(v.long() * 2),
    "a remainder": lambda v: (v.long() * 5) % 7,
    "shifted": lambda v: v.long() << 20,
    "compared": lambda v: v.long() * 3 > 1 << 31,
}


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16])
@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("combine", [operator.add, lambda wide, row: wide], ids=["beside a row", "alone"])
def test_what_is_computed_once_for_a_row_of_narrow_numbers_is_wide(read, combine, dtype):
    limits = torch.iinfo(dtype)
    numbers = torch.tensor([limits.min, limits.max, 77, -1, 0], dtype=dtype)
    for column, row in (
        (numbers[:, None], torch.arange(40)),
        (numbers[1], torch.arange(40)),
        (numbers[:1], torch.arange(1)),
        (numbers.repeat(9), torch.arange(45)),
    ):

        def program(column, row):
            return combine(READ[read](column), row)

        compiled = braze.compile(program, options={"verify": 2})
        torch.testing.assert_close(compiled(column, row), program(column, row), rtol=0, atol=0)
