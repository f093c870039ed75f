"""``with torch.device(...)`` and ``set_default_device`` inside a compiled function: tensors are made where eager makes them, also where a graph breaks
there, and the caller's default stays."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import braze
from braze.graph.private.torch_settings import function_modes, set_modes_back
from tests.helpers import logged

pytestmark = pytest.mark.usefixtures("fresh")

X = torch.arange(12.0).reshape(3, 4)


@pytest.fixture(autouse=True)
def no_default_device() -> Iterator[None]:
    yield
    torch.set_default_device(None)
    set_modes_back([])


def waits(x: torch.Tensor) -> torch.Tensor:
    time.time()
    return x * 2


def breaks(x: torch.Tensor) -> torch.Tensor:
    braze.graph_break()
    return torch.empty(3)


def made(x: torch.Tensor) -> Any:
    with torch.device("meta"):
        y, z = torch.ones(3), torch.zeros_like(x)
    return y, z, torch.ones(1), x * 2


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


def broken_before_a_function_makes_it(x: torch.Tensor) -> Any:
    with torch.device("meta"):
        a = breaks(x)
    return a, torch.empty(1), x * 2


def broken_in_two(x: torch.Tensor) -> Any:
    with torch.device("cpu"), torch.device("meta"):
        x = waits(x)
        y = torch.ones(2)
    return x, y, torch.ones(2)


def broken_within_another(x: torch.Tensor) -> Any:
    with torch.device("cpu"):
        y = torch.ones(4) + x
        with torch.device("meta"):
            braze.graph_break()
            a = torch.empty(2)
        b = torch.empty(3)
    return a, b, torch.empty(1), y


def broken_in_a_loop(x: torch.Tensor) -> Any:
    found = []
    for device in ("meta", "cpu"):
        with torch.device(device):
            found.append(torch.empty(2))
            braze.graph_break()
            found.append(torch.empty(3))
    return (*found, x * 2)


def left_by_an_error(x: torch.Tensor) -> Any:
    try:
        with torch.device("meta"):
            a = torch.empty(2)
            braze.graph_break()
            raise ValueError
    except ValueError:
        return a, torch.empty(1), x * 2


def left_by_an_error_behind_a_function(x: torch.Tensor) -> Any:
    try:
        with torch.device("meta"):
            x = waits(x)
            raise ValueError
    except ValueError:
        return x, torch.ones(2)


def returned_from(x: torch.Tensor) -> Any:
    with torch.device("meta"):
        return torch.get_default_device(), torch.empty(2)


def entered_by_hand(x: torch.Tensor) -> Any:
    device = torch.device("meta")
    device.__enter__()
    a = torch.empty(1)
    braze.graph_break()
    b = torch.empty(1)
    device.__exit__(None, None, None)
    return a, b, torch.empty(1), x * 2


def on_a_stack(x: torch.Tensor) -> Any:
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.device("meta"))
        a = torch.empty(1)
        braze.graph_break()
        b = torch.empty(1)
    return a, b, torch.empty(1), x * 2


def set_and_set_back(x: torch.Tensor) -> Any:
    torch.set_default_device("meta")
    y = torch.ones(3)
    torch.set_default_device(None)
    return y, torch.ones(2)


def set_and_broken(x: torch.Tensor) -> Any:
    torch.set_default_device("meta")
    braze.graph_break()
    y = torch.empty(1)
    torch.set_default_device("cpu")
    return y, torch.empty(1), x * 2


def left_set(x: torch.Tensor) -> Any:
    before = torch.get_default_device()
    torch.set_default_device("meta")
    return before, torch.get_default_device(), torch.ones(3), x + 1


BLOCKS = [
    made, of_numbers, nested, a_layer, broken, broken_below, broken_before_a_function_makes_it, broken_in_two, broken_within_another,
    broken_in_a_loop, left_by_an_error, left_by_an_error_behind_a_function, returned_from, entered_by_hand, on_a_stack,
]  # fmt: skip
SETTERS = [set_and_set_back, set_and_broken, left_set]


def told(value: Any) -> Any:
    """What is compared of a result: where it is, and its numbers, if it has those of the argument."""
    if not isinstance(value, torch.Tensor):
        return str(value)
    return (
        value.device.type,
        value.tolist() if value.shape == X.shape and value.device.type == "cpu" else None,
    )


def seen(fn: Callable[..., Any]) -> Any:
    """Where a call makes what it gives, and what default device it leaves."""
    found = [told(value) for value in fn(X)]
    return found, len(function_modes()), torch.get_default_device()


@pytest.mark.parametrize("outside", [None, "cpu"])
@pytest.mark.parametrize("backend", ["eager", "braze"])
@pytest.mark.parametrize("program", BLOCKS)
def test_the_block_of_a_device_is_for_what_is_made_within(program: Any, backend: str, outside: Any) -> None:
    """Graphs made everything on the caller's default device, and a break inside such a block left the block's device to the caller."""
    compiled = braze.compile(program, backend=backend)
    with torch.device(outside) if outside else contextlib.nullcontext(), logged() as said:
        wanted = seen(program)
        assert [seen(compiled) for _ in range(3)] == [wanted] * 3
    assert not function_modes() and not [message for message in said if "BZ9" in message]


@pytest.mark.parametrize("devices", [(None, None, None), ("cpu", "meta", "cpu")], ids=["none", "some"])
@pytest.mark.parametrize("backend", ["eager", "braze"])
@pytest.mark.parametrize("program", [broken, broken_in_a_loop, *SETTERS])
def test_the_default_device_is_set_and_found_as_in_eager(program: Any, backend: str, devices: Any) -> None:
    compiled = braze.compile(program, backend=backend)
    with logged() as said:
        for device in devices:
            found = []
            for call in (program, compiled):
                torch.set_default_device(device)
                found.append(seen(call))
            assert found[0] == found[1]
    assert not [message for message in said if "BZ9" in message]


def test_what_kernels_keep_lies_where_their_arguments_do():
    """Packed weights, and what a step of an optimizer sends: a default device of another kind had the process die, which wrote there."""
    frozen, trained = (torch.nn.Linear(64, 64, bias=False) for _ in range(2))
    frozen.requires_grad_(False)
    plain = copy.deepcopy(trained)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.5) for model in (trained, plain)]
    braze.compile_optimizer(optimizers[0])
    x = torch.linspace(-1, 1, 256).view(4, 64)
    for model in (trained, plain):
        model.weight.grad = torch.ones(64, 64)
    compiled = braze.compile(frozen)
    with torch.device("meta"):
        found = [compiled(x) for _ in range(2)]
        for optimizer in optimizers:
            optimizer.step()
    for made in found:
        torch.testing.assert_close(made, frozen(x))
    assert torch.equal(trained.weight, plain.weight)
