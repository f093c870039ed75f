"""``with torch.device(...)``: tensors are made there in the block and nowhere else, also where a graph breaks in it."""

from __future__ import annotations

import contextlib

import pytest
import torch

import braze
from braze.graph.torch_settings import function_modes

pytestmark = pytest.mark.usefixtures("fresh")


def whole(x):
    with torch.device("meta"):
        a = torch.empty(2)
    return a.device, torch.empty(1).device, x * 2


def broken(x):
    with torch.device("meta"):
        a = torch.empty(2)
        braze.graph_break()
        b = torch.empty(3)
    return a.device, b.device, torch.empty(1).device, x * 2


def broken_within_another(x):
    with torch.device("cpu"):
        y = torch.ones(2) + x
        with torch.device("meta"):
            braze.graph_break()
            a = torch.empty(2)
        b = torch.empty(3)
    return a.device, b.device, torch.empty(1).device, y


def broken_in_a_loop(x):
    found = []
    for device in ("meta", "cpu"):
        with torch.device(device):
            found.append(torch.empty(2).device)
            braze.graph_break()
            found.append(torch.empty(3).device)
    return (*found, x * 2)


def left_by_an_error(x):
    try:
        with torch.device("meta"):
            a = torch.empty(2)
            braze.graph_break()
            raise ValueError
    except ValueError:
        return a.device, torch.empty(1).device, x * 2


def breaks(x):
    braze.graph_break()
    return torch.empty(3)


def broken_in_a_function(x):
    with torch.device("meta"):
        a = breaks(x)
    return a.device, torch.empty(1).device, x * 2


def entered_by_hand(x):
    device = torch.device("meta")
    device.__enter__()
    a = torch.empty(1)
    braze.graph_break()
    b = torch.empty(1)
    device.__exit__(None, None, None)
    return a.device, b.device, torch.empty(1).device, x * 2


def on_a_stack(x):
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.device("meta"))
        a = torch.empty(1)
        braze.graph_break()
        b = torch.empty(1)
    return a.device, b.device, torch.empty(1).device, x * 2


PROGRAMS = [
    whole,
    broken,
    broken_within_another,
    broken_in_a_loop,
    left_by_an_error,
    broken_in_a_function,
    entered_by_hand,
    on_a_stack,
]


@pytest.mark.parametrize("backend", ["eager", "braze"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_block_of_a_device_is_entered_and_left_as_in_eager(program, backend):
    before = len(function_modes())
    x = torch.ones(2)
    compiled = braze.compile(program, backend=backend)
    *theirs, value = program(x)
    for _ in range(3):
        *ours, mine = compiled(x)
        assert ours == theirs
        assert torch.equal(mine, value)
        assert len(function_modes()) == before


def set_for_good(x):
    before = torch.get_default_device()
    torch.set_default_device("meta")
    return before, torch.get_default_device(), torch.empty(1).device, x * 2


def set_and_set_back(x):
    torch.set_default_device("meta")
    braze.graph_break()
    made = torch.empty(1).device
    torch.set_default_device("cpu")
    return made, torch.empty(1).device, x * 2


@pytest.mark.parametrize("backend", ["eager", "braze"])
@pytest.mark.parametrize("program", [broken, broken_in_a_loop, set_for_good, set_and_set_back])
def test_the_default_device_is_set_as_in_eager(program, backend):
    x = torch.ones(2)
    compiled = braze.compile(program, backend=backend)
    try:
        for device in ("cpu", "meta", "cpu"):
            found = []
            for call in (program, compiled):
                torch.set_default_device(device)
                *facts, value = call(x)
                found.append((facts, value.device, torch.get_default_device(), len(function_modes())))
            assert found[0] == found[1]
    finally:
        torch.set_default_device(None)
