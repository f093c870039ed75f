"""Functions that take gradients themselves: what they get has gradients where they ask for that (``create_graph=True``)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.functional import jacobian

import braze
from braze.support import trace
from braze.support.errors import CaptureError
from tests.helpers import logged


@pytest.fixture(autouse=True)
def seeded(fresh: None) -> None:
    torch.manual_seed(0)


def captured_runs() -> int:
    """How many graphs run as they were captured."""
    return trace.COUNTERS["graphs_run_as_captured"]


def both(step: Callable[..., torch.Tensor], model: nn.Module, *inputs: torch.Tensor) -> None:
    """Three calls of a step give eager's loss, and its gradients of the model and of the inputs."""
    found = []
    for compiled in (False, True):
        own, given = (
            copy.deepcopy(model),
            [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs],
        )
        run = braze.compile(step) if compiled else step
        losses = []
        for _ in range(3):
            loss = run(own, *given)
            loss.backward()
            losses.append(loss.detach())
        found.append([*losses, *(p.grad for p in own.parameters()), *(x.grad for x in given)])
    for wanted, have in zip(*found, strict=True):
        torch.testing.assert_close(have, wanted)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))


def test_a_penalty_on_a_gradient_has_a_gradient():
    def step(model, real, fake):
        mixed = (0.3 * real + 0.7 * fake).requires_grad_()
        (gradient,) = torch.autograd.grad(model(mixed).sum(), mixed, create_graph=True)
        return model(fake).mean() - model(real).mean() + (gradient.norm(dim=1) - 1).square().mean()

    both(step, network(), torch.randn(4, 3), torch.randn(4, 3))


def test_an_equation_of_second_derivatives_is_solved():
    def step(model, x):
        u = model(x)
        (first,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        return (second + u).square().mean()

    both(step, network(), torch.randn(5, 3, requires_grad=True))


def test_forces_are_trained_that_are_gradients_of_an_energy():
    def step(model, places, wanted):
        places = places.detach().requires_grad_()
        energy = model(places).sum()
        (gradient,) = torch.autograd.grad(energy, places, create_graph=True)
        return energy.square() + (gradient + wanted).square().mean()

    both(step, network(), torch.randn(6, 3), torch.randn(6, 3))


def test_a_step_of_gradient_descent_has_a_gradient():
    def step(model, x, y):
        weights = dict(model.named_parameters())
        loss = (torch.func.functional_call(model, weights, x) - y).square().mean()
        gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        taken = {name: w - 0.1 * g for (name, w), g in zip(weights.items(), gradients, strict=True)}
        return (torch.func.functional_call(model, taken, x) - y).square().mean()

    both(step, network(), torch.randn(4, 3), torch.randn(4, 1))


@pytest.mark.parametrize(
    "differentiate",
    [
        lambda loss, x: torch.autograd.grad(loss, x, None, None, True)[0],
        lambda loss, x: (loss.backward(create_graph=True, inputs=[x]), x.grad)[1],
        lambda loss, x: (torch.autograd.backward(loss, None, None, True, inputs=[x]), x.grad)[1],
    ],
    ids=["grad", "Tensor.backward", "autograd.backward"],
)
def test_every_way_to_ask_is_seen(differentiate: Callable[..., Any]):
    def step(x):
        gradient = differentiate((x**3).sum(), x)
        return torch.autograd.grad(gradient.sum(), x)[0]

    x = torch.randn(3, requires_grad=True)
    torch.testing.assert_close(braze.compile(step)(x), 6 * x)


def test_the_graph_before_runs_as_captured_which_is_said_once():
    def step(x, twice):
        (gradient,) = torch.autograd.grad((x**3).sum(), x, create_graph=twice)
        return gradient * 2

    x, run = torch.randn(3, requires_grad=True), braze.compile(step)
    before = captured_runs()
    with logged() as heard:
        torch.testing.assert_close(run(x, False), 6 * x**2)
        assert captured_runs() == before
        for _ in range(3):
            result = run(x, True)
    assert captured_runs() == before + 1
    assert len([m for m in heard if "BZ2023" in m and "create_graph=True" in m]) == 1
    torch.testing.assert_close(torch.autograd.grad(result.sum(), x)[0], 12 * x)


def test_a_whole_graph_is_refused_with_a_way_out():
    @braze.compile(fullgraph=True)
    def refused(x):
        return torch.autograd.grad((x**3).sum(), x, create_graph=True)[0] * 2

    @braze.compile(fullgraph=True)
    def instead(x):
        return torch.func.grad(lambda x: (x**3).sum())(x) * 2

    x = torch.randn(3, requires_grad=True)
    with pytest.raises(CaptureError, match="BZ1025") as found:
        refused(x)
    assert "torch.func.grad" in str(found.value)
    torch.testing.assert_close(instead(x), 6 * x**2)


@pytest.mark.parametrize("n", [3, 1])
@pytest.mark.parametrize(
    "rows",
    [
        lambda x: torch.autograd.grad(x.sin() * x, x, torch.eye(len(x)), is_grads_batched=True)[0],
        lambda x: jacobian(lambda t: t.sin() * t.sum(), x, vectorize=True),
        lambda x: jacobian(lambda t: t.sin() * t.sum(), x, vectorize=True, strategy="forward-mode"),
    ],
    ids=["grad", "jacobian", "jacobian forward"],
)
def test_many_gradients_at_once_are_no_fault_of_a_compiled_step(rows: Callable[..., torch.Tensor], n: int):
    """What stands for many under the ``vmap`` of ``torch.autograd`` has no memory of its own, which a capture would ask for."""
    run = braze.compile(rows, options={"verify": 2})
    with logged() as heard:
        for seed in range(2):
            x = torch.linspace(seed, 2, n).requires_grad_()
            torch.testing.assert_close(run(x), rows(x))
    assert not [message for message in heard if "BZ9" in message]
