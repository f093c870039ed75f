"""Memory that is not PyTorch's own may not be written over, whoever seems to hold the tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import braze
from braze.graph.private.holders import owns_all


def test_memory_of_an_array_is_held() -> None:
    assert owns_all(torch.zeros(4))
    assert not owns_all(torch.from_numpy(np.zeros(4))) and not owns_all(torch.zeros(4)[1:])
    assert not owns_all(torch.frombuffer(bytearray(16), dtype=torch.float32))


def test_a_backward_leaves_the_memory_of_an_array_alone() -> None:
    def f(a: Any, w: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.sin(torch.from_numpy(a) * w) + 1) * 2

    compiled = braze.compile(f)
    n = 1 << 20
    for _ in range(3):
        a = np.full(n, 0.5, np.float32)
        compiled(a, torch.linspace(-1, 1, n).requires_grad_()).sum().backward()
        assert (a == 0.5).all()
