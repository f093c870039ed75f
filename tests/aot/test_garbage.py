"""What a compile makes goes with the compiled function: autograd holds fakes where the garbage collector does not look."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.checkpoint import checkpoint

import braze

pytestmark = pytest.mark.usefixtures("alone")


@pytest.fixture
def alone():
    braze.reset()
    yield
    braze.reset()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.1), nn.BatchNorm1d(8), nn.Linear(8, 2))


def plain(model, x):
    return model(x).sum()


def writes(model, x):
    y = x.clone()
    y[0] = model[0].bias[:4]
    return (model(y) * y.detach().sum()).exp().sum()


def regions(model, x):
    return checkpoint(model[:3], x, use_reentrant=False).sum()


def refused(model, x):
    y = model(x).exp()
    z = y * y
    y.add_(1)  # what the product saved
    return z.sum()


def apart(model, x):
    return model(x).sum() + model[0].bias.sum(), (model[4].bias * 2).exp().sum()


@pytest.mark.parametrize(
    ("loss", "dynamic"),
    [(plain, False), (plain, True), (writes, False), (regions, False), (refused, False), (apart, False)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_graphs_go_with_their_function(loss, dynamic):
    def once():
        model = network()
        out = braze.compile(lambda x: loss(model, x), dynamic=dynamic, backend="aot_eager")(torch.randn(5, 4))
        if loss is not refused:
            (out[0] if isinstance(out, tuple) else out).backward()

    def left():
        gc.collect()
        gc.collect()  # what weak references call may leave more
        kinds = (FakeTensor, torch.fx.GraphModule, torch.fx.Graph)
        return [o for o in gc.get_objects() if issubclass(type(o), kinds)]

    once()
    braze.reset()
    before = len(left())
    for _ in range(3):
        once()
    braze.reset()
    assert len(left()) <= before
