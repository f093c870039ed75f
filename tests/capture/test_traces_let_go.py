"""When a call has been compiled, a trace that asked what tensors hold, or met an operation's error, keeps none of the call's values."""

from __future__ import annotations

import gc
import inspect
import random
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import braze

X = torch.ones(3)
ENDS: list[str] = []
SIGNATURE = inspect.signature(lambda x, by=2: None)


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """What waits for the collector stays."""
    on = gc.isenabled()
    gc.disable()
    yield
    if on:
        gc.enable()


class Sized(nn.Module):
    """Sizes in a buffer, by which it cuts."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sizes", torch.tensor([2, 1]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.split(self.sizes.tolist())[0] * self.sizes[0] + x.reshape(self.sizes[1], -1).sum()


def reads_a_number_it_does_not_know(x: torch.Tensor) -> Any:
    return x.sum().item() + 1


def draws_more_than_there_are(x: torch.Tensor) -> Any:
    try:
        return x + random.sample(range(3), 9)[0]
    except ValueError as error:
        return x + 1, str(error)


def binds_too_much(x: torch.Tensor) -> Any:
    try:
        return SIGNATURE.bind(x, 1, 2)
    except TypeError as error:
        return x + 1, error


@pytest.mark.parametrize(
    "function",
    [reads_a_number_it_does_not_know, Sized(), draws_more_than_there_are, binds_too_much],
    ids=["a function", "a module", "a draw that fails", "an error behind another"],
)
def test_a_compiled_call_keeps_none_of_its_tensors(function: Callable[[torch.Tensor], Any]) -> None:
    compiled = braze.compile(function, backend="eager")
    x = torch.ones(3)
    seen = weakref.ref(x)
    compiled(x)
    del x
    assert seen() is None


def suspended(x: torch.Tensor, times: int) -> Iterator[torch.Tensor]:
    try:
        for k in range(times):
            yield x + k
    finally:
        ENDS.append("closed")


def through_another(x: torch.Tensor, times: int) -> Iterator[torch.Tensor]:
    yield from suspended(x, times)


@pytest.mark.parametrize("make", [suspended, through_another])
def test_a_generator_that_a_broken_call_leaves_ends_with_the_call(make: Any) -> None:
    def f(x: torch.Tensor, times: int) -> tuple[torch.Tensor, float]:
        made = make(x, times)
        first = next(made)
        return first, first.sum().item()

    compiled = braze.compile(f, backend="eager")
    for call in (f, compiled, compiled):
        ENDS.clear()
        call(X, 4)
        assert ENDS == ["closed"]


def test_a_generator_ends_with_a_call_that_is_traced_again_for_its_text() -> None:
    """What stands for the text names its place, from which the values of the call are reached."""

    def f(x: torch.Tensor, step: int) -> tuple[torch.Tensor, int]:
        made = suspended(x, 4)
        next(made)
        text = str(step)
        braze.graph_break()
        return x, len(text)

    compiled = braze.compile(f, backend="eager")
    for step in range(8, 13):
        ENDS.clear()
        compiled(X, step)
        assert ENDS == ["closed"], step


@pytest.mark.parametrize("refused", [lambda x, y: torch.stack([x, y]), lambda x, y: x.view(7)])
def test_a_generator_ends_with_a_call_whose_handler_of_a_refused_operation_breaks(refused: Any) -> None:
    """The error of the operation, as fakes raise it, leads to the frames of the trace."""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        made = suspended(x, 4)
        next(made)
        try:
            refused(x, y)
        except RuntimeError:
            braze.graph_break()
        return x

    compiled = braze.compile(f, backend="eager")
    for call in (f, compiled, compiled):
        ENDS.clear()
        call(X, torch.ones(4))
        assert ENDS == ["closed"]


def test_a_generator_ends_with_a_call_that_has_thrown_through_another() -> None:
    """The thrown exception comes through the tracer's frames, which a broken trace leaves."""

    def f(x: torch.Tensor) -> None:
        made = suspended(x, 4)
        other = through_another(next(made), 4)
        next(other)
        try:
            other.throw(KeyError(1))
        except KeyError:
            pass

    compiled = braze.compile(f, backend="eager")
    for call in (f, compiled, compiled):
        ENDS.clear()
        call(X)
        assert ENDS == ["closed", "closed"]
