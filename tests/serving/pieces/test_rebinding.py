"""Tensors of a model that are replaced after it was recorded are the ones that its next steps compute with."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

import braze
from braze.serving.pieces.decorator import compiled_forward, support_torch_compile
from braze.serving.pieces.pools import GraphPools
from braze.serving.pieces.wrapper import CUDAGraphWrapper
from braze.serving.policy.config import CompilationConfig
from braze.serving.policy.dispatch import BatchDescriptor
from braze.serving.policy.modes import CUDAGraphMode
from braze.serving.step.context import forward_context
from tests.helpers import logged

PIECEWISE, FULL = CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL
EIGHT = BatchDescriptor(8)
OPS = ["aten::cumsum"]


class Scaled(nn.Module):
    """Reads tensors of every kind that a module may hold, on both sides of an operator at which it is split."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("offset", torch.randn(4))
        self.scale, self.listed = torch.randn(4), [torch.randn(4)]

    def forward(self, x: torch.Tensor):
        y = (self.first(x) * self.scale).cumsum(0).tanh()
        return self.last((y + self.offset) * self.listed[0]).cumsum(0) * self.scale


def replace(module, way):
    """Put other tensors in the place of some, whose memory is free then, and overwritten."""
    if way == "attribute":
        module.scale = torch.randn(4)
    elif way == "parameter":
        module.last.weight = nn.Parameter(torch.randn(4, 4))
    elif way == "buffer":
        module.offset = torch.randn(4)
    elif way == "assign":
        module.load_state_dict({k: torch.randn_like(x) for k, x in module.state_dict().items()}, assign=True)
    elif way == "data":
        module.last.weight.data = torch.randn(4, 4)
    elif way == "listed":
        module.listed[0] = torch.randn(4)
    else:
        module.last = nn.Linear(4, 4)
    filled()


def filled():
    """Memory that was freed holds other numbers."""
    return [torch.full((4, 4), 1e9) for _ in range(64)] + [torch.full((4,), 1e9) for _ in range(64)]


@pytest.fixture(autouse=True)
def unverified(monkeypatch):
    """As users have it: with BRAZE_VERIFY all addresses are compared."""
    monkeypatch.setenv("BRAZE_VERIFY", "0")


def run(module, x, mode=PIECEWISE):
    with torch.inference_mode(), forward_context(cudagraph_runtime_mode=mode, batch_descriptor=EIGHT):
        return module(x).clone()


def expected(module, x):
    with torch.inference_mode():
        return PLAIN(module, x)


PLAIN = Scaled.forward
WAYS = ["attribute", "parameter", "buffer", "assign", "data", "listed", "module"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("split", ["graph", "capture", "schedule"])
def test_pieces_compute_with_what_a_tensor_was_replaced_by(split, way, simulated):
    config = CompilationConfig(level=3, cudagraph_mode="PIECEWISE", splitting_ops=OPS, split=split)
    module = support_torch_compile(
        type("Scaled", (Scaled,), {"forward": PLAIN}), dynamic_arg_dims={"x": 0}, config=config
    )()
    x = torch.randn(8, 4)
    for _ in range(3):
        run(module, x)
    replace(module, way)
    for _ in range(3):
        filled()
        torch.testing.assert_close(run(module, x), expected(module, x))
    assert all(EIGHT in wrapper.captured() for wrapper in compiled_forward(module).backend.wrappers)


@pytest.mark.parametrize("way", WAYS)
def test_a_whole_recording_computes_with_what_a_tensor_was_replaced_by(way, simulated):
    module = Scaled()
    wrapped = CUDAGraphWrapper(module, FULL)
    x = torch.randn(8, 4)
    for _ in range(2):
        run(wrapped, x, FULL)
    replace(module, way)
    for _ in range(3):
        filled()
        torch.testing.assert_close(run(wrapped, x, FULL), expected(module, x))
    assert wrapped.captured() == (EIGHT,)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("level", "mode"), [(0, "FULL"), (0, "PIECEWISE"), (2, "FULL"), (3, "FULL_AND_PIECEWISE")]
)
def test_a_served_model_computes_with_what_a_tensor_was_replaced_by(level, mode, way, simulated):
    module = Scaled()
    served = braze.serve(
        module,
        level=level,
        cudagraph_mode=mode,
        capture_sizes=[4, 8],
        max_num_seqs=8,
        split_ops=OPS,
        **({"split": "capture"} if level == 0 and mode == "PIECEWISE" else {}),
    )
    x = torch.randn(7, 4)
    for q in (1, 7):
        with braze.forward_context(uniform_q=q):
            served(x)
    for n in (7, 3):
        replace(module, way)
        for _ in range(3):
            for q in (1, n):
                filled()
                with braze.forward_context(uniform_q=q):
                    torch.testing.assert_close(served(x[:n]), expected(module, x[:n]))


def test_what_was_replaced_is_told_once_and_goes(simulated):
    module = Scaled()
    wrapped = CUDAGraphWrapper(module, FULL, name="scaled")
    x = torch.randn(8, 4)
    run(wrapped, x, FULL)
    old = weakref.ref(module.offset)
    with logged() as said:
        for _ in range(3):
            replace(module, "buffer")
            run(wrapped, x, FULL)
    gc.collect()
    assert old() is None
    assert sum("BZ7219: scaled" in text and "offset" in text for text in said) == 1


def test_pieces_behind_one_that_runs_as_it_is_are_recorded_in_a_later_step(simulated):
    """What they are given in such a step lies nowhere that stays."""
    pools, failing = GraphPools(), [True]
    first, second, third = (
        CUDAGraphWrapper(f, PIECEWISE, pools=pools)
        for f in (lambda x: x * 2, lambda x: (x + 1).sin(), lambda x: x.cos() + 3)
    )
    x = torch.randn(4, 4)
    for _ in range(5):
        x.copy_(torch.randn(4, 4))
        with forward_context(cudagraph_runtime_mode=PIECEWISE, batch_descriptor=BatchDescriptor(4)):
            between = first(x)
            if failing:
                failing.pop()
                continue
            found = third(second(between)).clone()
        del between
        filled()
        torch.testing.assert_close(found, (x * 2 + 1).sin().cos() + 3, rtol=0, atol=0)
    assert first.captured() == second.captured() == third.captured() == (BatchDescriptor(4),)
