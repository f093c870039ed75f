"""Convolutions of inference on the CPU: weights that oneDNN has ordered once, pictures that lie by channels where that is as exact."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import braze
from tests.helpers import as_double, assert_like_eager

LAST = torch.channels_last


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    with torch.no_grad():
        yield
    braze.reset()


def network(**more):
    """A convolution of a long window between kernels of ours."""
    return nn.Sequential(nn.ReLU(), nn.Conv2d(32, 48, 3, **more), nn.Hardtanh(-3, 3))


def called(fn, *args):
    """How often a call orders a weight, and how often it uses one that is in order."""
    with torch.autograd.profiler.profile() as profile:
        fn(*args)
    names = [event.name for event in profile.function_events]
    return names.count("braze::convolution_weight"), names.count("mkldnn::_convolution_pointwise")


def test_a_weight_is_put_in_order_once():
    model, x = network(), torch.randn(2, 32, 9, 8)
    compiled = braze.compile(model)
    compiled(x)
    assert called(compiled, x) == (0, 1)
    model[1].weight.add_(1)
    assert called(compiled, x) == (1, 1)


@pytest.mark.parametrize(
    "write",
    [
        lambda model: model[1].weight.mul_(2),
        lambda model: model[1].weight.data.mul_(2),
        lambda model: model.load_state_dict({k: v * 2 for k, v in model.state_dict().items()}),
        lambda model: setattr(model[1], "weight", nn.Parameter(model[1].weight * 2)),
        lambda model: setattr(model[1].weight, "data", model[1].weight * 2),
    ],
    ids=["in place", "uncounted", "loaded", "replaced", "given memory"],
)
def test_a_weight_that_changes_is_put_in_order_again(write):
    model, x = network(), torch.randn(2, 32, 9, 8)
    compiled = braze.compile(model)
    before = compiled(x)
    write(model)
    torch.testing.assert_close(compiled(x), model(x))
    assert not torch.allclose(compiled(x), before)


def test_a_weight_that_the_graph_writes_is_not_put_in_order():
    model, x = network(), torch.randn(2, 32, 9, 8)
    other = copy.deepcopy(model)

    def step(model, x):
        out = model(x)
        model[1].weight.add_(1)
        return out + model(x)

    compiled = braze.compile(lambda x: step(model, x))
    for _ in range(2):
        torch.testing.assert_close(compiled(x), step(other, x))
    assert called(compiled, x) == (0, 0)


@pytest.mark.parametrize("option", ["hoist", "channels_last"])
def test_options_leave_weights_as_they_lie(option):
    compiled = braze.compile(network(), options={option: False})
    compiled(torch.randn(2, 32, 9, 8))
    assert called(compiled, torch.randn(2, 32, 9, 8)) == (0, 0)


def test_training_and_varying_sizes_leave_weights_as_they_lie():
    model, x = network(), torch.randn(2, 32, 9, 8)
    with torch.enable_grad():
        assert called(braze.compile(model), x) == (0, 0)
    assert called(braze.compile(model, dynamic=True), x) == (0, 0)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"bias": False},
        {"stride": 2, "padding": 1},
        {"padding": (2, 0), "dilation": (1, 2)},
        {"padding": "same"},
        {"padding": 1, "padding_mode": "reflect"},
        {"groups": 2, "padding": 1},
        {"groups": 16},
    ],
    ids=str,
)
def test_values_and_strides_are_eagers(more, size):
    assert_like_eager(network(**more), torch.randn(size, 32, 9, 8))


@pytest.mark.parametrize(
    "lay",
    [
        lambda t: t.to(memory_format=LAST),
        lambda t: t.mT.contiguous().mT,
        lambda t: F.pad(t, (1, 2))[..., 1:-2],
        lambda t: t[:1].expand(t.shape),
        lambda t: t.flatten().as_strided(t.shape, t.stride()),
    ],
    ids=["by channels", "turned", "inside its memory", "stride 0", "a view"],
)
def test_weights_and_pictures_lie_anywhere(lay):
    def f(x, w, b):
        return F.conv2d(x.relu(), w, b, padding=1).sigmoid()

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.b = nn.Parameter(lay(torch.randn(40, 32, 3, 3))), nn.Parameter(torch.randn(40))

        def forward(self, x):
            return f(x, self.w, self.b)

    assert_like_eager(Layer(), lay(torch.randn(2, 32, 9, 8)))


def test_numbers_that_are_none_and_infinities_stay():
    model, x = network(padding=1), torch.randn(2, 32, 9, 8)
    x[0, 0, 0, 0], x[0, 5, 3, 3], x[1, 7, 8, 7] = torch.nan, torch.inf, -torch.inf
    model[1].weight[3, 4, 1, 1] = torch.inf
    model[1].weight[5] = torch.nan
    torch.testing.assert_close(braze.compile(model)(x), model(x), equal_nan=True)


def test_nothing_is_computed_of_nothing():
    assert braze.compile(network())(torch.empty(0, 32, 9, 8)).shape == (0, 48, 7, 6)


def test_a_result_that_the_caller_sees_lies_as_in_eager():
    assert_like_eager(network()[:2], torch.randn(2, 32, 9, 8))
    assert braze.compile(network()[:2])(torch.randn(2, 32, 9, 8)).is_contiguous()


def test_a_classifier_is_as_near_to_double_as_eager():
    layers = [
        nn.Conv2d(3, 16, 3, 2, 1),
        nn.Hardswish(),
        nn.Conv2d(16, 16, 3, 1, 1, groups=16),
        nn.BatchNorm2d(16),
    ]
    layers += [nn.Conv2d(16, 96, 1), nn.ReLU(), nn.Conv2d(96, 96, 3, 2, 1), nn.BatchNorm2d(96), nn.ReLU()]
    layers += [nn.Conv2d(96, 128, 3, 1, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)]
    model, x = nn.Sequential(*layers).eval(), torch.randn(64, 3, 32, 32)
    exact = copy.deepcopy(model).double()(as_double(x))
    compiled = braze.compile(model)
    compiled(x)
    assert called(compiled, x) == (0, 2)
    error = (compiled(x) - exact).abs().mean()
    assert error <= 1.5 * (model(x) - exact).abs().mean()
