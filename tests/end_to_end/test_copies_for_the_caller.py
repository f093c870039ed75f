"""A result that the program copies last is the caller's to write: the backward keeps nothing in its memory, though passes find it equal to what is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze

pytestmark = pytest.mark.usefixtures("fresh")


def alone(x: torch.Tensor) -> Any:
    return (x.exp().clone(),)


def beside_a_loss(x: torch.Tensor) -> Any:
    y = x.exp()
    return y.clone(), y.sum()


def twice(x: torch.Tensor) -> Any:
    y = x.tanh()
    return y.clone(), y.clone()


def read_by_another(x: torch.Tensor) -> Any:
    y = x * 2
    return y.clone(), (y * y).sum()


def a_part(x: torch.Tensor) -> Any:
    return x.softmax(-1).clone()[:, ::2], x.sum()


def whole_and_part(x: torch.Tensor) -> Any:
    y = x.sigmoid().clone()
    return y, y[1:]


def kept_itself(x: torch.Tensor) -> Any:
    """Eager refuses the backward of this one."""
    y = x.exp().clone()
    return y, (y * y).sum()


def written_and_led_back(fn: Callable[..., Any]) -> Any:
    x = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
    results = fn(x)
    results[0].mul_(3)
    laid_out = [(r.stride(), r.storage_offset()) for r in results]
    try:
        sum(r.sum() for r in results).backward()
    except RuntimeError as error:
        return "inplace" in str(error)
    return laid_out, [r.detach() for r in results], x.grad


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize(
    "fn", [alone, beside_a_loss, twice, read_by_another, a_part, whole_and_part, kept_itself]
)
def test_what_the_program_copies_for_its_caller_may_be_written_before_the_backward(fn, backend, dynamic):
    ours = written_and_led_back(braze.compile(fn, backend=backend, dynamic=dynamic))
    theirs = written_and_led_back(fn)
    if isinstance(theirs, bool):
        assert ours is theirs
        return
    assert ours[0] == theirs[0]
    torch.testing.assert_close(ours[1:], theirs[1:])
