"""Operators of the program's whose gradient asks what tensors hold: they stand between graphs, and the rest is compiled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import braze
from tests.helpers import logged

NAME = "braze_formulas_that_ask::grouped"


@torch.library.custom_op(NAME, mutates_args=())
def grouped(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Rows of [rows, in] up to each end times their own of the weights [groups, in, out]."""
    made, start = x.new_zeros(x.size(0), weights.size(2)), 0
    for i, end in enumerate(ends.tolist()):
        made[start:end] = x[start:end] @ weights[i]
        start = end
    return made


@grouped.register_fake
def _(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.size(0), weights.size(2))


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(inputs[0], inputs[1])
    ctx.ends = inputs[2]


def _formula(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
    x, weights = ctx.saved_tensors
    of_x, of_weights, start = torch.zeros_like(x), torch.zeros_like(weights), 0
    for i, end in enumerate(ctx.ends.tolist()):
        of_x[start:end] = gradient[start:end] @ weights[i].T
        of_weights[i] = x[start:end].T @ gradient[start:end]
        start = end
    return of_x, of_weights, None


grouped.register_autograd(_formula, setup_context=_save)


class Layer(nn.Module):
    """Experts beside what can be compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.weights, self.linear = nn.Parameter(torch.randn(3, 8, 8)), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return x + grouped(torch.relu(self.linear(x)), self.weights, ends).tanh()


class Net(nn.Module):
    """Some layers, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, ends)
        return x.sigmoid()


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    braze.reset()
    yield
    braze.reset()


def _step(fn: Any, model: nn.Module, x: torch.Tensor, ends: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    made = fn(x, ends)
    made.square().sum().backward()
    return [made.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


ENDS = ([2, 4, 6], [1, 5, 6], [0, 0, 6])


def test_an_operator_whose_gradient_asks_for_data_stands_between_compiled_graphs() -> None:
    model, x = Net(), torch.randn(6, 8)
    fn = braze.compile(model)
    with logged() as log:
        for ends in map(torch.tensor, ENDS):
            for mine, its in zip(_step(fn, model, x, ends), _step(model, model, x, ends), strict=True):
                torch.testing.assert_close(mine, its)
    assert "runs eagerly, as captured" not in str(log)
    assert len(_step(fn, model, x, ends)) == 1 + 9
    told = braze.explain(model)(x, ends)
    assert {one.code for one in told.breaks} == {"BZ1019"}
    with torch.no_grad():
        torch.testing.assert_close(fn(x, ends), model(x, ends))


def test_where_the_graph_may_not_break_it_runs_as_captured() -> None:
    model, x, ends = Net(), torch.randn(6, 8), torch.tensor(ENDS[0])
    with logged() as log:
        fn = braze.compile(model, fullgraph=True)
        for mine, its in zip(_step(fn, model, x, ends), _step(model, model, x, ends), strict=True):
            torch.testing.assert_close(mine, its)
    assert "BZ2021" in str(log)


def test_without_gradients_it_is_in_the_graph() -> None:
    model, x, ends = Net(), torch.randn(6, 8), torch.tensor(ENDS[0])
    _step(braze.compile(model), model, x, ends)
    fn = braze.compile(model, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(fn(x, ends), model(x, ends))
