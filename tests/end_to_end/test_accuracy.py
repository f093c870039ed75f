"""How far compiled results are from float64, where eager's kernels add up in double or round once."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import braze
from tests.helpers import threads


def seeded(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def far(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The difference from the float64 result, relative to it."""
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("value", [1, -1, 0.3])
def test_the_product_in_addcmul_is_not_rounded(value):
    x, a, b = seeded(3, 4099)
    got = braze.compile(lambda x, a, b: torch.addcmul(x, a, b, value=value))(x, a, b)
    exact = (x.double() + (a * value).double() * b.double()).float()
    assert torch.equal(got, exact)


@pytest.mark.parametrize("alpha", [0.3, -2, 3])
def test_the_product_in_a_sum_with_alpha_is_not_rounded(alpha):
    x, y = seeded(2, 4099)
    got = braze.compile(lambda x, y: (torch.add(x, y, alpha=alpha), torch.sub(y, x, alpha=alpha)))(x, y)
    factor = float(torch.tensor(alpha, dtype=torch.float32))
    exact = x.double() + factor * y.double(), y.double() - factor * x.double()
    assert torch.equal(got[0], exact[0].float()) and torch.equal(got[1], exact[1].float())


def test_a_product_beyond_its_type_is_met_halfway_by_what_it_is_taken_of():
    """Twice the largest number has no place in its type; the largest number less that has."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        x = torch.full((37,), torch.finfo(dtype).max, dtype=dtype)
        assert torch.equal(braze.compile(lambda x: torch.sub(x, x, alpha=2))(x), -x)


ROUNDED_ONCE = {
    "lerp": lambda x: x.lerp(x, 0.5),
    "addcmul": lambda x: torch.addcmul(x, x, x),
    "a sum with alpha": lambda x: torch.add(x, x, alpha=-0.5),
    "a difference with alpha": lambda x: torch.sub(x, x, alpha=0.5),
}
NEGATED = {"-y": lambda y: -y, "y * -1": lambda y: y * -1, "y / -1": lambda y: y / -1}


@pytest.mark.parametrize("negated", NEGATED)
@pytest.mark.parametrize("made", ROUNDED_ONCE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_zero_that_is_rounded_once_is_negated_to_one_of_the_other_sign(made, negated, dtype):
    """GCC has one instruction for ``-fma(a, b, c)``, which computes ``-(a * b) - c``: of single numbers, too, that is not ours."""
    compiled = braze.compile(lambda x: NEGATED[negated](ROUNDED_ONCE[made](x)))
    for sizes in ((), (1,), (19,)):
        for zero in (0.0, -0.0):
            x = torch.full(sizes, zero, dtype=dtype)
            theirs = NEGATED[negated](ROUNDED_ONCE[made](x))
            assert torch.equal(compiled(x).signbit(), theirs.signbit())


LAYERS = {
    "batch norm": (lambda: nn.BatchNorm2d(32), (32, 32, 8, 8)),
    "batch norm by channels": (lambda: nn.BatchNorm2d(32), (32, 32, 8, 8)),
    "layer norm": (lambda: nn.LayerNorm(96), (1024, 96)),
    "group norm": (lambda: nn.GroupNorm(4, 32), (16, 32, 8, 8)),
    "linear": (lambda: nn.Linear(256, 128), (1024, 256)),
    "linear, silu": (lambda: nn.Sequential(nn.Linear(256, 128), nn.SiLU()), (1024, 256)),
}


@pytest.fixture
def two_threads():
    """Eager adds up as many parts as there are threads, so that its sums are nearer the more cores a machine has."""
    with threads(2):
        yield


@pytest.mark.parametrize("name", LAYERS)
def test_results_and_gradients_of_layers_are_as_near_as_eagers(name, two_threads):
    """Over four inputs, so that chance weighs less; a quarter is left to it."""
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    layer = make()
    double, compiled = copy.deepcopy(layer).double(), braze.compile(copy.deepcopy(layer))
    ours, eagers = [], []
    for seed in range(4):
        x, towards = seeded(*shape, seed=seed), seeded(*layer(seeded(*shape)).shape, seed=9)
        if name == "batch norm by channels":
            x = x.contiguous(memory_format=torch.channels_last)
        exact = gradients(double, x.double(), towards.double())
        ours.append([far(g, e) for g, e in zip(gradients(compiled, x, towards), exact, strict=True)])
        eagers.append([far(g, e) for g, e in zip(gradients(layer, x, towards), exact, strict=True)])
    for k, (a, b) in enumerate(zip(zip(*ours, strict=True), zip(*eagers, strict=True), strict=True)):
        assert sum(a) <= 1.25 * sum(b), f"number {k}: {sum(a) / 4:.2e}, eager {sum(b) / 4:.2e}"


def gradients(layer: nn.Module, x: torch.Tensor, towards: torch.Tensor) -> list[torch.Tensor]:
    """The result, and the gradients of the input and of each parameter."""
    x = x.detach().requires_grad_()
    y = layer(x)
    return [y.detach(), *torch.autograd.grad(y, [x, *layer.parameters()], towards)]


def test_the_loss_of_many_classes_is_as_near_as_eagers():
    logits, y = seeded(256, 1000), torch.arange(256) % 1000
    exact = F.cross_entropy(logits.double(), y)
    ours, eager = (
        abs(float(f(logits, y)) - float(exact)) for f in (braze.compile(F.cross_entropy), F.cross_entropy)
    )
    assert ours <= eager + 1e-7 * float(exact)
