"""Gradients of activations, losses and views: eager's values, also where the function has a corner or a pole."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from tests.lower.conftest import check

aten = torch.ops.aten
CORNERS = torch.tensor(
    [0.0, -0.0, 3.0, -3.0, 6.0, 1.0, -1.0, 0.5, -0.5, 0.25, 20.0, 25.0, -25.0, 1e-30, -1e-30]
    + [float("inf"), -float("inf"), float("nan"), 0.1, 0.9, 1.5, 100.0, -100.0]
)

ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "threshold": lambda dy, x: aten.threshold_backward(dy, x, 0),
    "threshold_half": lambda dy, x: aten.threshold_backward(dy, x, 0.5),
    "gelu": lambda dy, x: aten.gelu_backward(dy, x),
    "gelu_tanh": lambda dy, x: aten.gelu_backward(dy, x, approximate="tanh"),
    "silu": aten.silu_backward,
    "elu": lambda dy, x: aten.elu_backward(dy, 1.5, 1.1, 0.7, False, x),
    "elu_result": lambda dy, x: aten.elu_backward(dy, 1.5, 1.1, 0.7, True, x),
    "hardswish": aten.hardswish_backward,
    "hardsigmoid": aten.hardsigmoid_backward,
    "hardtanh": lambda dy, x: aten.hardtanh_backward(dy, x, -1.0, 0.5),
    "leaky_relu": lambda dy, x: aten.leaky_relu_backward(dy, x, 0.1, False),
    "rrelu": lambda dy, x: aten.rrelu_with_noise_backward(dy, x, x, 0.1, 0.3, False, False),
    "rrelu_train": lambda dy, x: aten.rrelu_with_noise_backward(dy, x, x, 0.1, 0.3, True, False),
    "rrelu_train_of_slopes_both_ways": lambda dy, x: aten.rrelu_with_noise_backward(
        dy, x, x, -0.3, 0.1, True, False
    ),
    "softplus": lambda dy, x: aten.softplus_backward(dy, x, 2.0, 20.0),
    "mish": aten.mish_backward,
    "prelu": lambda dy, x: aten._prelu_kernel_backward(dy, x, torch.full_like(x, 0.3)),
    "log_sigmoid": lambda dy, x: aten.log_sigmoid_backward(dy, x, (-x.abs()).exp()),
    "log_sigmoid_of_what_was_written_since": lambda dy, x: aten.log_sigmoid_backward(
        dy, x, (-x.abs() / 2).exp()
    ),
    "sigmoid": aten.sigmoid_backward,
    "tanh": aten.tanh_backward,
    "logit": lambda dy, x: aten.logit_backward(dy, x),
    "logit_eps": lambda dy, x: aten.logit_backward(dy, x, 0.2),
    "hardshrink": lambda dy, x: aten.hardshrink_backward(dy, x, 0.5),
    "softshrink": lambda dy, x: aten.softshrink_backward(dy, x, 0.5),
    "glu": lambda dy, x: aten.glu_backward(dy[: x.shape[0] // 2], x, 0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_of_activations(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    if name == "hardsigmoid" and dtype is torch.float64:
        pytest.skip("eager's sixth is that of float32")
    room = 256 if dtype is torch.float64 else 16
    x = (torch.randn(16, 9) * 3).to(dtype)
    check(ACTIVATIONS[name], torch.randn(16, 9).to(dtype), x, room=room)
    if name != "glu":
        turned = (torch.randn(9, 16) * 3).to(dtype).t()
        check(ACTIVATIONS[name], torch.randn(9, 16).to(dtype).t(), turned, room=room)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_of_activations_at_corners(name: str) -> None:
    x = CORNERS[: len(CORNERS) // 2 * 2]
    # eager's sixth for hardsigmoid is that of float32 also in double precision
    for dtype in (torch.float64, torch.float32)[name == "hardsigmoid" :]:
        check(ACTIVATIONS[name], torch.full_like(x, 0.7).to(dtype), x.to(dtype), room=16)


LOSSES: dict[str, Callable[..., Any]] = {
    "mse": aten.mse_loss_backward,
    "huber": lambda dy, x, t, r: aten.huber_loss_backward(dy, x, t, r, 0.5),
    "smooth_l1": lambda dy, x, t, r: aten.smooth_l1_loss_backward(dy, x, t, r, 0.5),
    "bce": lambda dy, x, t, r: aten.binary_cross_entropy_backward(dy, x, t, None, r),
    "bce_weighted": lambda dy, x, t, r: aten.binary_cross_entropy_backward(dy, x, t, t * 2, r),
    "soft_margin": aten.soft_margin_loss_backward,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("name", LOSSES)
def test_of_losses(name: str, reduction: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, t = (torch.rand(12, 5).to(dtype) for _ in range(2))
    dy = torch.randn(12, 5) if reduction == 0 else torch.tensor(1.5)
    check(lambda dy, x, t: LOSSES[name](dy, x, t, reduction), dy.to(dtype), x, t)


def test_of_gelu_where_its_bell_is_no_normal_number_it_is_0_as_in_eagers_vectors() -> None:
    """A processor takes a hundred cycles for a vector with one denormal number in it."""
    x = torch.linspace(-16, 16, 4096)
    x[:3] = torch.tensor([-float("inf"), float("inf"), float("nan")])
    exact = aten.gelu_backward(torch.ones(4096, dtype=torch.float64), x.double())
    eager = aten.gelu_backward(torch.ones(4096), x)
    found = braze.compile(lambda dy, x: aten.gelu_backward(dy, x))(torch.ones(4096), x)
    assert torch.equal(found.isnan(), exact.isnan())
    numbers = ~exact.isnan()
    off, eagers = ((each.double() - exact)[numbers].abs() for each in (found, eager))
    deep = x[numbers] < -13
    assert off.max() <= 2 * eagers.max() and off[deep].max() <= eagers[deep].max() < 1e-35
    denormal = (found != 0) & (found.abs() < torch.finfo(torch.float32).tiny)
    assert not denormal.any() and not found[(x < -13.3) & (x > -16)].any()
    doubles = braze.compile(lambda dy, x: aten.gelu_backward(dy, x))(torch.ones(4096).double(), x.double())
    torch.testing.assert_close(doubles, exact, rtol=1e-12, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", [n for n in LOSSES if n != "soft_margin"])
def test_of_losses_at_corners(name: str) -> None:
    x = torch.tensor([0.0, 1.0, 0.5, 1.0, 0.25, float("nan"), 0.75])
    t = torch.tensor([0.0, 1.0, 1.0, 0.5, 0.75, 0.5, 0.25])
    check(lambda dy, x, t: LOSSES[name](dy, x, t, 0), torch.ones(7), x, t)


def test_of_the_smooth_l1_loss_that_has_no_smooth_part() -> None:
    """Eager tells the lower side first, so equal numbers have its sign."""
    x = torch.tensor([0.0, 1.0, -1.0, float("nan"), -0.0])
    check(lambda dy, x, t: aten.smooth_l1_loss_backward(dy, x, t, 0, 0.0), torch.ones(5), x, torch.zeros(5))


def test_the_mean_of_a_loss_whose_size_varies() -> None:
    x, t = torch.rand(6, 5), torch.rand(6, 5)
    fn = LOSSES["mse"]
    check(
        lambda dy, x, t: fn(dy, x, t, 1), torch.tensor(1.0), x, t,
        dynamic=[(1, 0), (2, 0)], at=[torch.tensor(1.0), torch.rand(9, 5), torch.rand(9, 5)],
    )  # fmt: skip


SLICES = [(0, 2, 1), (1, 5, 2), (3, 3, 1), (-4, -1, 1), (0, 9223372036854775807, 3), (2, 100, 1)]


@pytest.mark.parametrize(("dim", "cut"), list(itertools.product((0, 1, -1), SLICES)))
def test_of_slices(dim: int, cut: tuple[int, int, int]) -> None:
    sizes = [6, 5, 7]
    start, end, step = cut
    grad = torch.randn(torch.empty(sizes).movedim(dim, 0)[start:end:step].movedim(0, dim).shape)
    check(lambda dy: aten.slice_backward(dy, sizes, dim, start, end, step), grad)
    check(lambda dy: aten.slice_backward(dy * 2 + 1, sizes, dim, start, end, step).sum(0), grad)


@pytest.mark.parametrize("at", [0, 2, -1])
def test_of_selects(at: int) -> None:
    check(lambda dy: aten.select_backward(dy, [4, 3, 5], 1, at), torch.randn(4, 5))
    check(lambda dy: aten.select_backward(dy, [3], 0, at), torch.randn(()))


@pytest.mark.parametrize("offset", [0, 1, -2])
def test_of_diagonals(offset: int) -> None:
    length = torch.empty(4, 3, 5).diagonal(offset, 0, 2).shape[-1]
    check(lambda dy: aten.diagonal_backward(dy, [4, 3, 5], offset, 0, 2), torch.randn(3, length))


@pytest.mark.parametrize(("size", "step"), [(2, 2), (2, 3), (1, 1), (3, 4)])
def test_of_windows(size: int, step: int) -> None:
    shape = torch.empty(3, 9).unfold(1, size, step).shape
    check(lambda dy: aten.unfold_backward(dy, [3, 9], 1, size, step), torch.randn(shape))


def test_of_windows_that_overlap() -> None:
    check(
        lambda dy: aten.unfold_backward(dy, [9], 0, 3, 1),
        torch.randn(7, 3),
        allow=["aten.unfold_backward.default"],
    )
