"""Sums and products in small integer types wrap, also for what is fused with them."""

from __future__ import annotations

import pytest
import torch

import braze

MADE = {
    "sum": lambda x, t: x.sum(1, dtype=t),
    "sum down": lambda x, t: x.sum(0, dtype=t),
    "of all": lambda x, t: x.sum(dtype=t),
    "of that type": lambda x, t: x.to(t).sum(-1, dtype=t),
    "product": lambda x, t: x.prod(1, dtype=t),
    "running sum": lambda x, t: x.cumsum(1, dtype=t),
    "running product": lambda x, t: x.cumprod(1, dtype=t),
    "put together": lambda x, t: torch.zeros(3, x.shape[1], dtype=t).index_add(0, x[:, 0].abs() % 3, x.to(t)),
    "scattered": lambda x, t: torch.zeros(3, x.shape[1], dtype=t).scatter_add(0, x.abs() % 3, x.to(t)),
}
READ = {
    "halved": lambda s: torch.div(s, 2, rounding_mode="trunc"),
    "compared": lambda s: s > 100,
    "widened": lambda s: s.long() * 3,
    "a float": lambda s: s.float() / 7,
    "bounded": lambda s: s.clamp(max=100),
}


TYPES = (torch.uint8, torch.int8, torch.int16, torch.int32)


@pytest.mark.parametrize(("first", "dynamic"), [(0, False), (1, True), (2, False), (3, True)])
def test_a_sum_of_small_integers_wraps_for_what_is_fused_with_it(first, dynamic):
    """The ways to make one have types in turn, of which each begins once."""

    def program(given):
        """Each has numbers of its own, so that nothing else is fused."""
        types = [TYPES[(first + i) % len(TYPES)] for i in range(len(given))]
        made = {name: way(x, t) for (name, way), x, t in zip(MADE.items(), given, types)}
        return {name: [read(value) for read in READ.values()] for name, value in made.items()}

    compiled = braze.compile(program, dynamic=dynamic, options={"verify": 2})
    for rows in (9, 70, 1, 0):
        generator = torch.Generator().manual_seed(rows)
        x = torch.randint(-(1 << 30), 1 << 30, (rows, 37), generator=generator) | 1
        given = [x.clone() for _ in MADE]
        torch.testing.assert_close(compiled(given), program(given), rtol=0, atol=0)
