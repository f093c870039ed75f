"""Backward hooks that ``torch.nn`` puts around modules of a compiled model: eager's calls, and no compile at each step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import braze
from tests.helpers import logged

pytestmark = pytest.mark.usefixtures("fresh")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.block = nn.Sequential(nn.LayerNorm(5), nn.Tanh())
        self.last = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.block(self.first(x)))


def hooked(kind: str, where: str, seen: list[Any]) -> tuple[Model, Any]:
    """A model with one hook that notes what it gets."""
    torch.manual_seed(0)
    model = Model().double()
    module = model if where == "" else model.get_submodule(where)

    def before(module: nn.Module, outer: Any) -> Any:
        seen.append([g.clone() for g in outer])
        return tuple(2 * g for g in outer)

    def full(module: nn.Module, inner: Any, outer: Any) -> Any:
        seen.append([None if g is None else g.clone() for g in (*inner, *outer)])
        return tuple(None if g is None else 3 * g for g in inner)

    if kind == "before":
        return model, module.register_full_backward_pre_hook(before)
    return model, module.register_full_backward_hook(full)


def steps(kind: str, where: str, compiled: bool) -> list[Any]:
    """What a hook saw and the gradients, over more steps than a function has variants."""
    seen: list[Any] = []
    model, handle = hooked(kind, where, seen)
    call = braze.compile(model) if compiled else model
    for k in range(12):
        x = torch.randn(
            4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(k), requires_grad=True
        )
        with torch.no_grad():
            seen.append(call(x))
        call(x).square().sum().backward()
        seen.append([x.grad, *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
        if k == 9:
            handle.remove()
    return seen


@pytest.mark.parametrize("where", ["", "first", "block", "block.1"])
@pytest.mark.parametrize("kind", ["before", "full"])
def test_hooks_of_modules(kind: str, where: str) -> None:
    """They see eager's gradients and change them as in eager, and the log stays empty."""
    with logged() as lines:
        have = steps(kind, where, True)
    torch.testing.assert_close(have, steps(kind, where, False), rtol=1e-11, atol=1e-12)
    assert not [line for line in lines if "BZ11" in line or "BZ20" in line], lines
