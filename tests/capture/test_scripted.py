"""Functions of TorchScript are nodes of the graph."""

from __future__ import annotations

import pytest
import torch

import braze
from braze.support.errors import BrazeError

X = torch.arange(6.0).reshape(2, 3)


@torch.jit.script
def scaled(x: torch.Tensor, n: int):
    return x * torch.sqrt(torch.tensor(x.size(-1), dtype=torch.float) * n)


@torch.jit.script
def by_size(x: torch.Tensor, n: int):
    return x.reshape(x.size(0) * x.size(1)) * n


@torch.jit.script
def both(x: torch.Tensor):
    return x + 1, [x.sin(), x.cos()]


@torch.jit.script
def by_data(x: torch.Tensor):
    if bool(x.sum() > 3):
        return x * 2
    return x


traced = torch.jit.trace(lambda x: x.sin() * 2, X)


def program(x):
    a, (b, c) = both(scaled(x, 3))
    return traced(a) + b, c


@pytest.mark.parametrize("backend", ["eager", "braze"])
def test_one_graph_holds_the_calls(backend):
    compiled = braze.compile(program, backend=backend, fullgraph=True)
    for x in (X, X + 1):
        torch.testing.assert_close(compiled(x), program(x))


def test_sizes_stay_symbols_where_python_is_at_hand():
    def f(x):
        return both(by_size(x, 2))[0]

    graphs = []
    compiled = braze.compile(
        f, backend=lambda g, _: graphs.append(g) or g.forward, dynamic=True, fullgraph=True
    )
    for n in (3, 4, 5):
        x = torch.rand(2, n)
        torch.testing.assert_close(compiled(x), f(x))
    assert len(graphs) == 1


def test_what_the_data_decide_runs_outside():
    def f(x):
        return by_data(x + 1) * 2

    compiled = braze.compile(f, backend="eager")
    for x in (X, X * 0):
        torch.testing.assert_close(compiled(x), f(x))
    with pytest.raises(BrazeError, match="BZ1002"):
        braze.compile(f, backend="eager", fullgraph=True)(X)


def test_gradients_go_through():
    compiled = braze.compile(program, backend="eager", fullgraph=True)
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    compiled(x)[0].sum().backward()
    program(y)[0].sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
