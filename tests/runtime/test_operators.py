"""Operators of ATen called by name: what they give does not depend on where in an arena their arguments lie."""

from __future__ import annotations

import pytest
import torch

import braze

A, B = torch.randn(2, 3), torch.randn(3, 8)
scatter = torch.as_strided_scatter

CASES = {
    "all of it": lambda a, b: scatter(torch.full((16,), 0.0), a @ b, [2, 8], [8, 1], 0),
    "every other": lambda a, b: scatter(torch.full((40,), 1.0), a @ b, [2, 8], [20, 2], 3) * 2,
    "transposed": lambda a, b: scatter(torch.full((5, 8), 1.0), (a @ b).t(), [8, 2], [5, 1], 0) * 2,
    "one element": lambda a, b: scatter((a @ b) * 1, (a @ b)[0, 0], [], [], 5),
}


@pytest.mark.parametrize("name", CASES)
def test_a_strided_scatter_counts_from_its_own_start(name):
    with torch.no_grad():
        expected, got = CASES[name](A, B), braze.compile(CASES[name])(A, B)
    torch.testing.assert_close(got, expected)


def test_the_gradient_of_a_pooled_row_through_a_product():
    def loss(x):
        pooled = torch.nn.functional.adaptive_avg_pool1d(x.transpose(1, 2), 1)
        return (torch.flatten(pooled, 1) @ torch.ones(8, 3)).square().sum()

    x = torch.randn(2, 16, 8)
    grads = []
    for f in (loss, braze.compile(loss)):
        given = x.clone().requires_grad_()
        f(given).backward()
        grads.append(given.grad)
    assert grads[0].abs().max() > 0
    torch.testing.assert_close(grads[1], grads[0])
