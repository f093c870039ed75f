"""Sizes that are expressions of varying ones, and that guards or bounds make 1: what has them is broadcast."""

from __future__ import annotations

import pytest
import torch

import braze
from tests.helpers import logged

PROGRAMS = {
    "quotient": lambda x, n: x[: x.shape[0] // 3] + x,
    "rest": lambda x, n: x.chunk(2)[1].expand(-1)[:1] + x.chunk(3)[2],
    "remainder": lambda x, n: x[: x.shape[0] % 2] + x,
    "quotient_by_a_number": lambda x, n: x[: x.shape[0] // n] + x,
    "remainder_by_a_number": lambda x, n: x[: x.shape[0] % n] + x,
    "product": lambda x, n: x[: n * x.shape[0] - 19] + x,
    "steps": lambda x, n: x[:: n + 1] + x,
    "condition": lambda x, n: torch.where(x[: x.shape[0] // 3] > 0, x, -x),
    "expand": lambda x, n: x[: x.shape[0] // n].expand(7) * 2,
    "window": lambda x, n: x.unfold(0, n, 3).sum(1) + x,
    "pooled": lambda x, n: torch.nn.functional.avg_pool1d(x[None], n) + x,
    "differences": lambda x, n: torch.fmin(x.view(1, -1)[:, : x.shape[0] // n].diff(), x[: x.shape[0] // n]),
    "mask": lambda x, n: x.clone().masked_fill_(x[: x.shape[0] // 3] > 0, 3),
    "number_between": lambda x, n: torch.lerp(x, x[: x.shape[0] // 3], 0.5),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_guards_make_one_element_is_broadcast(program):
    f = PROGRAMS[program]
    compiled = braze.compile(f, dynamic=True, options={"verify": 2})
    with logged() as messages:
        for size in (5, 5):
            x = torch.randn(size)
            assert torch.equal(compiled(x, 4), f(x, 4))
    assert not [m for m in messages if "BZ6013" in m]


def test_a_part_of_rows_that_is_one_row_is_read_in_its_bounds():
    def f(x):
        first, last = x.chunk(2)
        return last.expand(-1, *last.shape[1:]) / first

    compiled = braze.compile(f, dynamic=True, options={"verify": 2})
    with logged() as messages:
        x = torch.randint(1, 5, (3, 4, 6), dtype=torch.uint8)[..., ::2]
        assert torch.equal(compiled(x), f(x))
    assert not [m for m in messages if "BZ6013" in m]


def test_what_bounds_make_one_element_is_broadcast():
    def f(x):
        return x[: x.shape[0] // 3] + x

    compiled = braze.compile(f, shapes={"x": ("3<=B<=5",)}, options={"verify": 2})
    for size in (5, 3, 4):
        x = torch.randn(size)
        assert torch.equal(compiled(x), f(x))


def halves(x, n):
    return x.tensor_split(2)[0][: x.shape[0] // 2 - n]


#: the half of an even number of rows is a symbol of its own where a guard says that the number is even
OF_EVEN_ROWS = {
    "first_of_a_half": lambda x, n: halves(x, n) * x,
    "beside_the_whole": lambda x, n: x * halves(x, n),
    "expanded": lambda x, n: halves(x, n).expand(5, 3),
    "last_of_a_half": lambda x, n: x.tensor_split(2)[1][n:] - x,
    "last_of_thirds": lambda x, n: x.view(2, -1, 3)[:, n:] * x.view(2, -1, 3),
    "remainder": lambda x, n: x.view(2, -1, 3)[:, : (x.shape[0] + n) % 2] + x.view(2, -1, 3),
}


@pytest.mark.parametrize("program", OF_EVEN_ROWS)
def test_what_guards_make_one_element_of_an_even_size_is_broadcast(program):
    f = OF_EVEN_ROWS[program]
    compiled = braze.compile(f, dynamic=True)
    with logged() as messages:
        for size in (12, 24, 36):
            x, n = torch.randn(size, 3), size // 2 - 1
            assert torch.equal(compiled(x, n), f(x, n))
    assert not messages
