"""Control flow on data in graphs that become kernels: an operator chooses, its subgraphs are compiled too."""

from __future__ import annotations

import functools
import gc

import pytest
import torch
from torch import nn
from torch._higher_order_ops import scan
from torch.utils._pytree import tree_flatten

import braze
from braze.graph.calls import subgraph_ops
from braze.support import trace
from tests.capture import test_control_flow as programs
from tests.capture.test_control_flow import INPUTS, PROGRAMS, X, expected  # noqa: F401  (a fixture)
from tests.helpers import logged

ZERO = torch.tensor(0)
DIFFERENTIABLE = [
    programs.two_ways,
    programs.nested,
    programs.several_results,
    programs.given_back,
    programs.choice_in_a_loop,
    programs.steps,
    programs.steps_back_along_columns,
    programs.each_row,
    programs.sizes_inside,
]


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


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("program", DIFFERENTIABLE)
def test_gradients_are_those_of_python(program, backend, expected):  # noqa: F811
    compiled = braze.compile(program, backend=backend, fullgraph=True)
    with logged() as said:
        for x in INPUTS:
            found = []
            for run in (compiled, functools.partial(expected, program)):
                leaf = x.clone().requires_grad_()
                results = tree_flatten(run(leaf))[0]
                sum(y.sin().sum() for y in results if y.requires_grad).backward()
                found.append((leaf.grad, [y.detach() for y in results]))
            torch.testing.assert_close(*found)
    assert "as captured" not in "".join(said)


def test_parameters_of_branches_train(expected):  # noqa: F811
    module, found = Router(), []
    for run in (braze.compile(module, fullgraph=True), lambda x: expected(module, x)):
        for x in INPUTS:
            module.zero_grad()
            run(x).sum().backward()
            found.append([torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters()])
    torch.testing.assert_close(found[: len(INPUTS)], found[len(INPUTS) :])


def test_random_branches_train_as_captured():
    def f(x):
        return torch.cond(x.sum() > 0, lambda x: x * torch.rand(2, 3), lambda x: x - 1, (x,)).sum()

    x = X.clone().requires_grad_()
    with logged() as said:
        braze.compile(f, fullgraph=True)(x).backward()
    assert "BZ2022" in "".join(said)
    assert ((x.grad >= 0) & (x.grad <= 1)).all()


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


def test_autocast_around_it_is_kept(expected):  # noqa: F811
    module = Router()

    def f(x):
        with torch.autocast("cpu", torch.bfloat16):
            return module(x)

    compiled = braze.compile(f, fullgraph=True)
    with torch.no_grad():
        for x in INPUTS:
            torch.testing.assert_close(compiled(x), expected(f, x), rtol=0, atol=0)


WIDENED = [
    lambda x: torch.nn.functional.pad(x * 2, (1, 2)),
    lambda x: torch.cat([x, x], 1),
    lambda x: torch.nn.functional.pad(x, (0, 0, 0, 3)).sin(),
    lambda x: x.reshape(-1) * 2,
    lambda x: x[1:] + 1,
]


@pytest.mark.parametrize(
    ("chosen", "plain"),
    [
        (
            lambda t: torch.cond(t.sum() > 0, lambda u: (u + u).cos(), lambda u: u * u, (t,)),
            lambda t: (t + t).cos() if t.sum() > 0 else t * t,
        ),
        (
            lambda t: torch.while_loop(lambda i, u: i < 3, lambda i, u: (i + 1, u.tanh() + u), (ZERO, t))[1],
            lambda t: functools.reduce(lambda u, _: u.tanh() + u, range(3), t),
        ),
        (
            lambda t: scan(lambda c, u: (c + u.sin(), c * u), t[0], t, dim=0)[1],
            lambda t: (torch.cat([t[:1], t[0] + t.sin().cumsum(0)[:-1]])) * t,
        ),
    ],
    ids=["cond", "while_loop", "scan"],
)
def test_operands_whose_sizes_are_computed_of_others_have_kernels(chosen, plain):
    """A subgraph is told of the symbols in `s + 3`, which it cannot read from its inputs."""

    def f(given, chosen=chosen):
        return [chosen(widened(x)) * 2 for widened, x in zip(WIDENED, given)]

    compiled = braze.compile(f, dynamic=True, fullgraph=True, options={"verify": 2})
    with logged() as heard, torch.no_grad():
        for rows, columns in ((9, 4), (5, 7)):
            x = torch.linspace(-1, 2, rows * columns, dtype=torch.float64).reshape(rows, columns)
            given = [x.clone() for _ in WIDENED]
            torch.testing.assert_close(compiled(given), f(given, plain))
    assert not [message for message in heard if "runs eagerly" in message]


def test_gradients_of_operands_whose_sizes_are_computed_of_others():
    def f(x, python=False):
        y = torch.nn.functional.pad(x * 2, (1, 2))
        if python:
            return (y.sin() if y.sum() > 0 else y * y).sum()
        return torch.cond(y.sum() > 0, lambda u: u.sin(), lambda u: u * u, (y,)).sum()

    compiled = braze.compile(f, dynamic=True)
    for rows, columns in ((9, 4), (5, 7)):
        for sign in (1, -1):
            x = (torch.linspace(-1, 2, rows * columns).reshape(rows, columns) * sign).requires_grad_()
            (found,), (wanted,) = (torch.autograd.grad(out, x) for out in (compiled(x), f(x, python=True)))
            torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
@pytest.mark.parametrize("comes_in", [-0.0, 0.0])
def test_gradients_of_a_loop_keep_the_signs_of_their_zeros(comes_in, backend, expected):  # noqa: F811
    def f(x):
        return programs.while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, t.sin()), (ZERO, x))[1]

    found = []
    for run in (braze.compile(f, backend=backend, fullgraph=True), functools.partial(expected, f)):
        leaf = X.double().requires_grad_()
        run(leaf).backward(torch.full((2, 3), comes_in, dtype=torch.float64))
        found.append(leaf.grad.signbit())
    assert torch.equal(*found)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
def test_an_operand_that_a_branch_does_not_use_adds_nothing_to_its_gradient(backend, expected):  # noqa: F811
    def f(x, y):
        return torch.cond(x.sum() > 0, lambda t, u: t * 2, lambda t, u: t * u, (x, y)), y * 1

    found = []
    for run in (braze.compile(f, backend=backend, fullgraph=True), functools.partial(expected, f)):
        x, y = X.clone().requires_grad_(), (X + 1).requires_grad_()
        torch.autograd.backward(run(x, y), [torch.ones(2, 3), torch.full((2, 3), -0.0)])
        found.append(y.grad.signbit())
    assert found[1].all() and torch.equal(*found)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
@pytest.mark.parametrize("comes_in", [1.0, -1.0])
@pytest.mark.parametrize("kept", [0, 1])
def test_a_result_of_a_scan_that_gets_no_gradient_adds_no_zeros_to_anothers(kept, comes_in, backend):
    """The gradients here are zeros of either sign."""

    def step(c, t):
        return c * 0.5 + t.sin(), c.tanh() * t

    def f(c, rows):
        return scan(step, c, rows, dim=0)[kept] * 0

    def by_hand(c, rows):
        made = []
        for row in rows.unbind():
            c, result = step(c, row)
            made.append(result)
        return (torch.stack(made) if kept else c) * 0

    found = []
    for run in (braze.compile(f, backend=backend, fullgraph=True), by_hand):
        start, rows = (X[0] - 2).requires_grad_(), (X * torch.tensor([[1.0], [-1.0]]) + 0.5).requires_grad_()
        out = run(start, rows)
        out.backward(torch.full_like(out, comes_in))
        found.append(torch.cat([start.grad[None], rows.grad]).signbit())
    assert torch.equal(*found)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("differentiated", [False, True])
def test_an_operand_that_was_written_lies_as_the_branches_read_it(dynamic, differentiated):
    """The functional form of a write makes a value of its own, in row-major order; the branches were compiled for the memory that is written."""

    def program(x):
        x.mul_(2)
        return torch.cond(x.max() > 100, lambda: x * 2, lambda: x + 1, ())

    compiled = braze.compile(program, dynamic=dynamic)
    for size in (6, 8):
        leaf = torch.rand(4, size, requires_grad=differentiated)
        found, wanted = compiled((leaf * 1)[..., ::2]), (leaf * 1)[..., ::2] * 2 + 1
        torch.testing.assert_close(found, wanted)
        if differentiated:
            grads = [torch.autograd.grad((result * result).sum(), leaf)[0] for result in (found, wanted)]
            torch.testing.assert_close(*grads)


def test_an_operand_is_turned_in_place_behind_its_branches():
    """What a branch was compiled for is what it was given, not what has become of that since."""

    def program(x):
        doubled = x * 2
        chosen = torch.cond(x.sum() > 100, lambda t: t - 1, lambda t: t + 1, (doubled,))
        doubled.t_()
        return chosen, doubled

    x = torch.rand(3, 5)
    torch.testing.assert_close(braze.compile(program)(x), (x * 2 + 1, (x * 2).t()))
