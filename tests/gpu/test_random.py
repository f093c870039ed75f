"""Dropout on a GPU: the same numbers for the same seed, in the forward, the backward and what a checkpoint makes again."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import braze
from tests.end_to_end.test_random_numbers import DRAWING, check_fallback, check_seeds

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("name", DRAWING)
def test_the_same_seed_gives_the_same_numbers_and_calls_differ(name):
    check_seeds(name, torch.randn(4, 64, 33, device="cuda"))


@pytest.mark.parametrize("name", DRAWING)
def test_fallback_random_gives_eagers_numbers(name):
    check_fallback(name, torch.randn(4, 64, 33, device="cuda"))


@pytest.mark.parametrize("again", [False, True])
def test_the_backward_drops_what_the_forward_dropped(again):
    def block(x):
        return F.dropout(x, 0.4)

    def step(x):
        return checkpoint(block, x, use_reentrant=False) if again else block(x)

    x = torch.randn(300, 257, device="cuda").abs().add(1).requires_grad_()
    y = braze.compile(step)(x)
    y.sum().backward()
    kept = y != 0
    assert torch.equal(x.grad != 0, kept)
    torch.testing.assert_close(x.grad[kept], torch.full_like(x.grad[kept], 1 / 0.6))
    torch.testing.assert_close(y[kept], x.detach()[kept] / 0.6)
    assert abs(kept.float().mean().item() - 0.6) < 0.01
