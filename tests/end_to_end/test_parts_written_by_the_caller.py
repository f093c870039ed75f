"""A part of a value that a call returns, and the caller writes, where the backward keeps the whole of it: autograd refuses that backward, as in eager."""

from __future__ import annotations

import re
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


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("whole", WHOLES)
@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_the_caller_writes_is_not_read_by_the_backward(part, whole, dynamic):
    program = parts_and_loss(part, whole)
    compiled = braze.compile(program, dynamic=dynamic)
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


def made_without_gradients(x):
    whole = x * 2
    with torch.no_grad():
        part = whole[1:]
    return part[:1], whole.exp()


def both_ways(x):
    whole = x.exp()
    first, second = whole.chunk(2)
    return first, (first * second).sum()


def of_one_with_its_own_sizes(x):
    first, *_, last = x.sin().split(1)
    return last, (first + last).exp(), x.cos()


GUARDED = {
    "a chunk": lambda x: ((v := x * 2).chunk(2)[1], v.pow(2).sum()),
    "one of many": lambda x: ((v := x * 2).unbind()[1], v.exp()),
    "a part of a chunk": lambda x: ((v := x.exp()).chunk(2)[1][:1], v * 3),
    "one of sizes": lambda x: ((p := x.sin().split([1, x.shape[0] - 1])), (p[1], p[1] * p[0]))[1],
    "of one made without gradients": made_without_gradients,
    "taken by the loss": both_ways,
    "beside others of the argument": of_one_with_its_own_sizes,
    "twice": lambda x: ((v := (w := x * 2).chunk(2)[1]), v, w.sin()),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("program", GUARDED.values(), ids=GUARDED)
def test_a_part_that_eager_lets_nobody_write_is_refused_beside_what_is_made_of_the_whole(
    program, backend, dynamic
):
    """It raises as in eager but for the operation's name, is written without gradients, and its gradient goes where it went."""
    compiled = braze.compile(program, backend=backend, dynamic=dynamic, fullgraph=True)
    for size in (3, 3, 4):
        found = []
        for call in (program, compiled):
            x = torch.arange(1.0, size + 1).requires_grad_()
            part, *more = call(x)
            with pytest.raises(RuntimeError, match="is being modified inplace") as refused:
                part.mul_(2)
            seen = []
            part.register_hook(seen.append)
            ((part * 3).sum() + sum(each.sum() for each in more)).backward()
            words = re.sub(r"Output \d+ of \w+", "", str(refused.value))
            assert x.grad is not None
            found.append(([words, len(seen), part.requires_grad, part._is_view()], [part.clone(), x.grad]))
            with torch.no_grad():
                assert part.zero_().count_nonzero() == 0
        assert found[1][0] == found[0][0]
        torch.testing.assert_close(found[1][1], found[0][1])


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_a_view_made_without_gradients_takes_none_beside_what_is_made_of_the_whole(backend):
    weight = torch.ones(1, requires_grad=True)
    for call in (made_without_gradients, braze.compile(made_without_gradients, backend=backend)):
        part, _ = call(torch.ones(3))
        part.mul_(2)
        with pytest.raises(RuntimeError, match="view was created in no_grad mode"):
            part.mul_(weight)


def test_a_part_of_a_recordings_memory_that_eager_lets_nobody_write_is_refused():
    register("cpu", SimulatedGraphs)
    try:
        compiled = braze.compile(both_ways, options={"cudagraphs": True, "cudagraph_launches": 1})
        for k in range(6):
            x = (torch.arange(4.0) + k).requires_grad_()
            part, loss = compiled(x)
            with pytest.raises(RuntimeError, match="a function that returns multiple views"):
                part.mul_(2)
            (wanted,) = torch.autograd.grad(both_ways(x)[1], x)
            torch.testing.assert_close(torch.autograd.grad(loss, x)[0], wanted)
    finally:
        register("cpu", None)
