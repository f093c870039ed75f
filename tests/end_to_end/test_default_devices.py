"""``with torch.device(...)`` and ``set_default_device`` inside a compiled function: tensors are made where eager makes them, and the caller's default stays."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import braze
from tests.helpers import logged

X = torch.arange(12.0).reshape(3, 4)


def modes() -> int:
    return torch._C._len_torch_function_stack()


@pytest.fixture(autouse=True)
def no_default_device() -> Iterator[None]:
    yield
    torch.set_default_device(None)
    while modes():
        torch._C._pop_torch_function_stack()


def waits(x: torch.Tensor) -> torch.Tensor:
    time.time()
    return x * 2


def made(x: torch.Tensor) -> Any:
    with torch.device("meta"):
        y, z = torch.ones(3), torch.zeros_like(x)
    return y, z, torch.ones(1)


def of_numbers(x: torch.Tensor) -> Any:
    with torch.device("meta"):
        return torch.tensor([1.0, 2.0]), torch.arange(3, device="cpu"), torch.as_tensor(3), x.new_ones(2)


def nested(x: torch.Tensor) -> Any:
    with torch.device("meta"):
        with torch.device("cpu"):
            a = torch.ones(2)
        b = torch.rand(3)
    return a, b, torch.get_default_device()


def a_layer(x: torch.Tensor) -> Any:
    with torch.device("meta"):
        layer = torch.nn.Linear(2, 2)
    return layer.weight, torch.empty(2)


def broken(x: torch.Tensor) -> Any:
    with torch.device("meta"):
        y = torch.ones(3)
        time.time()
        z = torch.ones(3)
    return y, z, torch.ones(2), x + 1


def broken_below(x: torch.Tensor) -> Any:
    with torch.device("meta"):
        x = waits(x)
        y = torch.ones(2)
    return x, y, torch.as_tensor(x), torch.ones(2)


def broken_in_two(x: torch.Tensor) -> Any:
    with torch.device("cpu"), torch.device("meta"):
        x = waits(x)
        y = torch.ones(2)
    return x, y, torch.ones(2)


def left_by_an_error(x: torch.Tensor) -> Any:
    try:
        with torch.device("meta"):
            x = waits(x)
            raise ValueError
    except ValueError:
        return x, torch.ones(2)


def returned_from(x: torch.Tensor) -> Any:
    with torch.device("meta"):
        return torch.get_default_device(), torch.empty(2)


def set_and_set_back(x: torch.Tensor) -> Any:
    torch.set_default_device("meta")
    y = torch.ones(3)
    torch.set_default_device(None)
    return y, torch.ones(2)


def left_set(x: torch.Tensor) -> Any:
    torch.set_default_device("meta")
    return torch.ones(3), x + 1


PROGRAMS = [
    made, of_numbers, nested, a_layer, broken, broken_below, broken_in_two, left_by_an_error, returned_from,
    set_and_set_back, left_set,
]  # fmt: skip


def seen(fn: Callable[..., Any]) -> Any:
    """Where a call makes what it gives, and what default device it leaves."""
    try:
        found = [v.device.type if isinstance(v, torch.Tensor) else str(v) for v in fn(X)]
        return found, modes(), torch.get_default_device()
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("outside", [None, "cpu"])
@pytest.mark.parametrize("backend", ["eager", "braze"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_default_device_is_for_what_is_made_within(program: Any, backend: str, outside: Any) -> None:
    """Graphs made everything on the caller's default device, and a break inside such a block left the block's device to the caller."""

    def asked(fn: Callable[..., Any]) -> Any:
        if outside is None:
            return seen(fn)
        with torch.device(outside):
            return seen(fn) if program not in (set_and_set_back, left_set) else None

    wanted = asked(program)
    compiled = braze.compile(program, backend=backend)
    with logged() as said:
        assert [asked(compiled) for _ in range(3)] == [wanted] * 3
    assert modes() == 0 and not [message for message in said if "BZ9" in message]
