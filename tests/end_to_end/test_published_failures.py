"""Wrong results without an error that users of graph compilers have published: none of them here.

Each names the report; numbers are issues of https://github.com/pytorch/pytorch.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import braze
from tests.end_to_end.writes import hold_to_eager, numbers

Tensor = torch.Tensor


@torch.library.custom_op("published::cleared_sum", mutates_args={"out"})
def cleared_sum(out: Tensor, x: Tensor) -> None:
    """out = 2 x, by way of clearing ``out`` first."""
    out.zero_()
    out.add_(x)
    out.add_(x)


@torch.library.custom_op("published::count_both", mutates_args={"a", "b"})
def count_both(a: Tensor, b: Tensor) -> None:
    a.add_(1)
    b.add_(10)


cleared_sum.register_fake(lambda out, x: None)
count_both.register_fake(lambda a, b: None)


pytestmark = pytest.mark.usefixtures("fresh")


def two() -> list[Tensor]:
    return [numbers(6), numbers(6, seed=1)]


def test_198031_a_clone_given_to_an_operator_that_writes_it():
    """``y = x.clone(); op(y, x)`` became ``op(x, x)``: the operator read what it had cleared."""

    def f(x, y):
        z = x.clone()
        cleared_sum(z, x)
        return z

    hold_to_eager(braze.compile(f, fullgraph=True), f, two)


def test_197829_a_clone_of_an_input_that_is_written_later():
    def f(x, y):
        z = x.clone()
        cleared_sum(z, x)
        x.add_(y)
        return z, x * 1

    hold_to_eager(braze.compile(f, fullgraph=True), f, two)


def test_156786_a_view_of_what_was_cloned():
    def f(x, y):
        z = x[2:].clone()
        cleared_sum(z, x[2:])
        return z, x[2:] * 1

    hold_to_eager(braze.compile(f, fullgraph=True), f, two)


def test_196657_one_tensor_written_under_two_names():
    """Each name got a clone of its own, and one of the writes was lost."""

    def f(x, y):
        z = x * 1
        count_both(z, z)
        count_both(z[:3], z[:3])
        return z

    hold_to_eager(braze.compile(f, fullgraph=True), f, two)


def test_132196_two_results_of_one_call_in_one_memory():
    """Equal buffers, made once: both results were the sum of both writes."""

    def f(x, y):
        a, b = torch.zeros_like(x), torch.zeros_like(x)
        count_both(a, b)
        return a, b

    hold_to_eager(braze.compile(f, fullgraph=True), f, two)


def test_185382_an_optimizer_by_hand_around_a_graph_break():
    """From the third iteration on the numbers were others: breaks promise to cost only time."""

    def steps(w, x):
        m, v = torch.zeros_like(w), torch.zeros_like(w)
        losses = []
        for t in range(1, 7):
            g = 2 * x.t() @ (x @ w - 1)
            m.mul_(0.9).add_(g, alpha=0.1)
            v.mul_(0.999).addcmul_(g, g, value=0.001)
            norm = g.norm().item()
            scale = 0.1 / max(norm, 1.0)
            w = w - scale * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
            losses.append((x @ w - 1).square().sum())
        return w, torch.stack(losses)

    hold_to_eager(braze.compile(steps), steps, lambda: [numbers(3), numbers(5, 3, seed=1)])


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
def test_181696_batch_norm_in_eval_mode_before_group_norm(backend):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GroupNorm(4, 8), nn.ReLU())
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(4, 3, 12, 12) * 5 + 3)
        for p in model.parameters():
            p.add_(torch.randn_like(p))
        model.eval()
        x = torch.randn(2, 3, 12, 12)
        exact = copy.deepcopy(model).double()(x.double())
        ours = braze.compile(model, backend=backend)(x)
        theirs = (model(x).double() - exact).abs().max()
    assert (ours.double() - exact).abs().max() <= 2 * theirs + 1e-5


def test_138908_duplicate_indices_read_before_they_are_written():
    """``y[x] += y[x]`` with an index twice doubles, and does not double twice."""

    def f(y, x):
        y[x] += y[x]
        return y

    make = lambda: [numbers(5), torch.tensor([0, 0, 3, 3, 3])]
    hold_to_eager(braze.compile(f, fullgraph=True), f, make)
    y, x = make()
    assert torch.equal(braze.compile(f, fullgraph=True)(y.clone(), x)[0], 2 * y[0])


def test_174172_the_sign_of_zero_is_copied():
    def f(x):
        return torch.copysign(x, -0.0), torch.copysign(x, torch.tensor(-0.0)), torch.copysign(x, 0.0)

    x = torch.tensor([1.0, -1.0, 0.0, -0.0, float("inf"), float("nan"), 3.5, -2.0] * 5)
    with torch.no_grad():
        ours, theirs = braze.compile(f, fullgraph=True)(x), f(x)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(torch.signbit(a), torch.signbit(b))
        assert torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


def test_136662_gradients_of_functions_inside_compiled_code():
    def loss(w, x):
        return (x @ w).tanh().square().sum()

    def f(w, x):
        g = torch.func.grad(loss)(w, x)
        return w - 0.1 * g, g

    def make() -> list[Tensor]:
        return [numbers(3), numbers(5, 3, seed=1)]

    hold_to_eager(braze.compile(f), f, make)
