"""Weights that are set anew after steps were recorded: later steps compute with them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from braze import serve
from braze.serving.engine.loading import fill_random
from braze.serving.engine.sampling import SamplingParams
from tests.helpers import logged
from tests.serving.engine.tiny import engine, tiny
from tests.serving.served.test_serve import Rows, batch

pytestmark = pytest.mark.usefixtures("simulated")


def by_attribute(model: nn.Module) -> None:
    model.linear.weight = nn.Parameter(model.linear.weight * 2 + 1)


def by_state(model: nn.Module) -> None:
    model.load_state_dict({k: v * 2 + 1 for k, v in model.state_dict().items()}, assign=True)


def by_memory(model: nn.Module) -> None:
    for p in model.parameters():
        p.data = p.data * 2 + 1


def in_place(model: nn.Module) -> None:
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2).add_(1)


def no_bias(model: nn.Module) -> None:
    model.linear.bias = None


WAYS = {
    "whole": dict(level=0, cudagraph_mode="FULL"),
    "whole, compiled": dict(level=3, cudagraph_mode="FULL"),
    "by pieces": dict(level=3, cudagraph_mode="PIECEWISE"),
    "broken": dict(level=0, cudagraph_mode="PIECEWISE", split="capture"),
}


@pytest.mark.parametrize("change", [by_attribute, by_state, by_memory, in_place, no_bias])
@pytest.mark.parametrize("way", WAYS)
def test_steps_compute_with_the_weights_that_the_model_has(way, change):
    if change is no_bias and WAYS[way]["level"]:
        pytest.skip("it was captured with a bias")
    model = Rows().requires_grad_(False)
    m = serve(model, capture_sizes=[1, 2, 4], max_num_seqs=4, max_num_batched_tokens=8, **WAYS[way])
    told = []
    for _ in range(2):
        for n in (3, 1, 4):
            inputs = batch(n)
            torch.testing.assert_close(m(*inputs), model(*inputs))
        change(model)
        with logged() as said:
            inputs = batch(3)
            torch.testing.assert_close(m(*inputs), model(*inputs))
        told += ["BZ7219" in text for text in said]
    assert any(told) is (change is not in_place), "once"
    replayed = sum(dict(m.stats().replayed).values())
    m(*batch(4))
    assert sum(dict(m.stats().replayed).values()) == replayed + 1, "others are recorded"


@pytest.mark.parametrize("mode", ["FULL", "FULL_AND_PIECEWISE"])
def test_an_engine_computes_with_the_weights_that_its_model_has(simulated, mode):
    def tokens(served):
        request = served.add([5, 6, 7, 8, 9], SamplingParams(12))
        while not served.scheduler.idle():
            served.step()
        return request.output

    split = "graph" if mode != "FULL" else None
    served = engine(tiny(), graphs=simulated, cudagraph_mode=mode, split=split)
    first = tokens(served)
    other = tiny()
    fill_random(other, seed=7)
    served.runner.model.load_state_dict(other.state_dict(), assign=True)
    wanted = tokens(engine(other))
    assert first != wanted
    assert tokens(served) == wanted
    served.runner.capture_cudagraph()
    assert tokens(served) == wanted
    assert served.runner.counts["steps_full"] > 0
