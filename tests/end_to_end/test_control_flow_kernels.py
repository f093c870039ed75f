"""Control flow on data in graphs that become kernels: an operator chooses, its subgraphs are compiled too."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

import braze
from braze.graph import subgraph_ops
from braze.support import trace
from tests.capture import test_control_flow as programs
from tests.capture.test_control_flow import INPUTS, PROGRAMS, X, expected  # noqa: F401  (a fixture)


@pytest.fixture(autouse=True)
def afresh():
    braze.reset()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_results_are_those_of_python(program, backend, dynamic, expected):  # noqa: F811
    compiled = braze.compile(program, backend=backend, fullgraph=True, dynamic=dynamic)
    with torch.no_grad():
        for x in INPUTS:
            torch.testing.assert_close(compiled(x), expected(program, x))


def test_branches_have_kernels():
    with torch.no_grad(), trace.collect() as events:
        braze.compile(programs.two_ways)(X)
    names = [payload.name for kind, payload in events if kind == "compiled"]
    assert names == ["graph_part", "graph_part", "graph"]
    assert all(payload.kernels for kind, payload in events if kind == "compiled")


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 3)) for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.cond(x.mean() > 1, *self.experts, (x,))
        return torch.relu(y * 2) + x


def test_modules_are_branches(expected):  # noqa: F811
    module = Router().eval()
    compiled = braze.compile(module, fullgraph=True)
    with torch.no_grad():
        for x in INPUTS:
            torch.testing.assert_close(compiled(x), expected(module, x))
        module.experts[0][0].weight.mul_(2)  # not baked in
        torch.testing.assert_close(compiled(X), expected(module, X))


def test_training_runs_as_captured(expected):  # noqa: F811
    module, found = Router(), []
    for run in (braze.compile(module, fullgraph=True), lambda x: expected(module, x)):
        module.zero_grad()
        run(X).sum().backward()
        found.append([p.grad.clone() for p in module.experts[0].parameters()])
    torch.testing.assert_close(*found)


def test_random_branches_draw_at_each_call():
    def f(x):
        return torch.cond(x.sum() > 0, lambda x: x + torch.rand(2, 3), lambda x: x - torch.rand(2, 3), (x,))

    compiled = braze.compile(f, fullgraph=True)
    with torch.no_grad():
        first, second = compiled(X), compiled(X)
    assert not torch.equal(first, second)
    assert ((first >= X) & (first <= X + 1)).all()


def test_only_the_chosen_branch_runs():
    def f(x, i):
        return torch.cond(i < 2, lambda x: x[i.reshape(1)] * 1, lambda x: x[0:1] - 1, (x,))

    compiled = braze.compile(f, fullgraph=True)
    with torch.no_grad():
        assert torch.equal(compiled(X, torch.tensor(1)), X[1:2])
        assert torch.equal(compiled(X, torch.tensor(7)), X[0:1] - 1)  # the other branch has no row 7


def test_nothing_keeps_the_subgraphs_of_a_dropped_function():
    gc.collect()
    before = len(subgraph_ops._entries)
    compiled = braze.compile(programs.two_ways, fullgraph=True)
    with torch.no_grad():
        compiled(X)
    assert len(subgraph_ops._entries) == before + 1
    del compiled
    braze.reset()
    gc.collect()
    assert len(subgraph_ops._entries) == before
