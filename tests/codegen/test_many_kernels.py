"""What is asked of a program's buffers for each of its kernels."""

from __future__ import annotations

import torch

import braze
from braze.loops.ir import DType


def test_a_kernel_asks_for_the_types_of_its_own_buffers_alone(monkeypatch):
    asked = [0]
    of = DType.stored.fget

    def counted(kind):
        asked[0] += 1
        return of(kind)

    monkeypatch.setattr(DType, "stored", property(counted))
    many = 48
    a, b = ([torch.randn(4 + i % 3) for i in range(many)] for _ in range(2))
    made = braze.compile(lambda a, b: torch._foreach_add(a, b), fullgraph=True)(a, b)
    assert all(map(torch.equal, made, torch._foreach_add(a, b)))
    assert asked[0] < 12 * many  # of all for each: 3 * many * many
