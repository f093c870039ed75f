"""Known numbers in the CPU's memory beside tensors of a GPU: `vmap` on PyTorch 2.11 makes such of the numbers of a score_mod."""

from __future__ import annotations

import pytest
import torch
from torch import fx

pytest.importorskip("triton")

from tests.codegen.triton_bench import interpreted


@fx.wrap
def number(like, value, dtype):
    """A tensor of no dims on the CPU, made within the graph that has ``like``."""
    return torch.full((), value, dtype=dtype)


def softcap(x):
    return number(x, 20, torch.float32) * torch.tanh(x / number(x, 20, torch.float32))


def chosen(x):
    return torch.where(x > number(x, 0.5, torch.float32), x, number(x, -float("inf"), torch.float32))


def promoted(x):
    return torch.add(x, number(x, 3, torch.int64)), torch.maximum(number(x, float("nan"), torch.float32), x)


@pytest.mark.parametrize("fn", [softcap, chosen, promoted], ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", [(1021,), (1,), (0,), (), (3, 5)])
def test_a_number_of_the_cpu_is_in_the_kernels_text(fn, shape, tmp_path):
    x = torch.randn(shape)
    plan, found = interpreted(fn, tmp_path, x)
    assert len(plan.groups) <= 2
    want = fn(x)
    for a, b in zip(found, want if isinstance(want, tuple) else (want,), strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)


def test_numbers_alone_are_computed_where_they_are(tmp_path):
    def f(x):
        return x + (number(x, 2, torch.float32) * number(x, 3, torch.float32))

    x = torch.randn(7)
    assert torch.equal(interpreted(f, tmp_path, x)[1][0], x + 6)
