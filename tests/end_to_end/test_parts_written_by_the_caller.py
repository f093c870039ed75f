"""A part of a value that a call returns, and the caller writes, where the backward keeps the whole of it: autograd refuses that backward, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.cudagraphs.registry import register
from braze.cudagraphs.simulated import SimulatedGraphs

PARTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rows": lambda v: v[1:],
    "first rows": lambda v: v[:2],
    "a column": lambda v: v[:, 1],
    "columns in steps": lambda v: v[:, ::2],
    "turned": lambda v: v[1:].mT,
    "diagonal": lambda v: v.diagonal(),
    "a chunk": lambda v: v.chunk(2)[1],
    "one of many": lambda v: v.unbind()[2],
    "repeated": lambda v: v[1:2].expand(3, 3),
    "detached": lambda v: v.detach()[1:],
    "in another type": lambda v: v.view(torch.int32)[1:],
    "a number": lambda v: v[1, 1],
}

WHOLES: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "a product": lambda x: ((v := x @ x.mT), v.pow(2).sum()),
    "a softmax": lambda x: ((v := x.softmax(-1)), (v * v.log()).sum()),
    "of a library": lambda x: ((v := torch.linalg.inv(x @ x.mT + torch.eye(3))), v.exp().sum()),
}


def parts_and_loss(part: str, whole: str) -> Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        v, loss = WHOLES[whole](x)
        return PARTS[part](v), loss

    return program


def gradient(call: Any, x: torch.Tensor, written: bool) -> torch.Tensor | None:
    """The loss's gradient where the part is written before; None where autograd refuses."""
    x = x.clone().requires_grad_()
    part, loss = call(x)
    if written:
        part.detach().view(part.shape).zero_()
    try:
        return torch.autograd.grad(loss, x)[0]
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        return None


def numbers() -> torch.Tensor:
    return torch.arange(9.0).reshape(3, 3).sin() + 1.5


@pytest.mark.parametrize("options", [{}, {"verify": 2}], ids=["plain", "verified"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("whole", WHOLES)
@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_the_caller_writes_is_not_read_by_the_backward(part, whole, dynamic, options):
    program = parts_and_loss(part, whole)
    compiled = braze.compile(program, dynamic=dynamic, options=options)
    right = gradient(program, numbers(), written=False)
    torch.testing.assert_close(gradient(compiled, numbers(), written=False), right)
    found = gradient(compiled, numbers(), written=True)
    if found is not None:  # another number was kept
        torch.testing.assert_close(found, right)
    else:
        assert gradient(program, numbers(), written=True) is None


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_a_recordings_memory_that_the_caller_writes_is_not_read_by_the_backward(part):
    program = parts_and_loss(part, "a product")
    register("cpu", SimulatedGraphs)
    try:
        compiled = braze.compile(program, options={"cudagraphs": True, "cudagraph_launches": 1})
        for k in range(8):
            x = numbers() + k
            right = gradient(program, x, written=False)
            found = gradient(compiled, x, written=k % 2 == 1)
            if k % 2 == 0 or found is not None:
                torch.testing.assert_close(found, right)
    finally:
        register("cpu", None)
