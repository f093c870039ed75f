"""Numbers that a program keeps from call to call: counters, learning rates, running values."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

import braze
from tests.helpers import logged


class State:
    def __init__(self) -> None:
        self.a, self.b, self.n, self.d = 0.75, 1.25, 1, {"c": 2.5}


def counted(x: torch.Tensor, s: State) -> Any:
    braze.graph_break()  # what follows is a graph of numbers alone
    s.n += 1
    s.d["c"] = s.d["c"] * 0.5
    return s.n


def decided(x: torch.Tensor, s: State) -> Any:
    """A root and a quotient decide about the number that is written."""
    s.a = s.a * 2.0
    s.d["c"] = s.a * 1.5
    return x * 2, math.sqrt(s.a), s.d["c"] // 1


def a_sum_of_three(x: torch.Tensor, s: State) -> Any:
    s.a, s.b = s.n + s.a, s.b * s.n
    mean = (s.a + s.b) / 2
    s.d["c"] = mean - s.n
    s.a = s.d["c"] + 1.5
    s.n += 1
    return x * 2, s.a, s.b


def a_product_with_zero(x: torch.Tensor, s: State) -> Any:
    s.b = float(int(s.b * 0.5))
    s.a = s.n * s.b
    s.n += 1
    return x * 2, s.a


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
@pytest.mark.parametrize("fn", [counted, decided, a_sum_of_three, a_product_with_zero])
def test_numbers_are_pythons(fn, backend):
    """Their values, and their types: no symbol of the capture gets out."""
    results = []
    for run in (fn, braze.compile(fn, backend=backend)):
        s, found = State(), []
        for _ in range(5):
            found.append(run(torch.ones(2), s))
            found.append([(type(v), v) for v in (s.a, s.b, s.n, s.d["c"])])
        results.append(found)
    assert repr(results[0]) == repr(results[1])


def test_a_graph_of_numbers_alone_is_compiled_in_silence():
    s, compiled = State(), braze.compile(counted)
    with logged() as said:
        assert [compiled(torch.ones(2), s) for _ in range(4)] == [2, 3, 4, 5]
    assert not said


SCHEDULERS = {
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 4),
    "cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.3, total_steps=12),
    "restarts": lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 3, 2),
    "plateau": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "averaging": lambda o: torch.optim.swa_utils.SWALR(o, 0.01, anneal_epochs=3),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_and_a_scaler_in_a_compiled_step(name):
    """They run between graphs: no variant for each rate, scale or step, nothing said, and eager's numbers."""
    results = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        scheduler = SCHEDULERS[name](optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)

        def step(x, model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler):
            optimizer.zero_grad()
            loss = model(x).square().sum()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step(*([1.0] if name == "plateau" else []))
            return loss.detach()

        run = braze.compile(step) if compiled else step
        found = []
        with logged() as said:
            for turn in range(11):
                x = torch.full((2, 4), float("inf") if turn == 3 else 0.1)
                found.append((run(x), scaler.get_scale(), optimizer.param_groups[0]["lr"]))
        assert not said
        results.append([found, *model.parameters()])
    torch.testing.assert_close(results[1], results[0], equal_nan=True)
