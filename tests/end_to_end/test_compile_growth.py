"""Compiling takes time in proportion to the program: counted in calls of Python, which no noise disturbs."""

import cProfile

import pytest
import torch

import braze


def calls_of(program, *args):
    """How many calls Python makes while a program compiles and runs for the first time."""
    braze.reset()
    compiled = braze.compile(program, dynamic=False)
    profile = cProfile.Profile()
    profile.enable()
    result = compiled(*args)
    profile.disable()
    assert torch.equal(result, program(*args))
    return sum(entry.callcount for entry in profile.getstats())


def chain(length):
    """Pointwise operations that end up in one kernel, each value read twice."""

    def program(x, y):
        a = x
        for i in range(length):
            a = a * y + x if i % 3 else torch.relu(a)
        return a

    return program


def rows(length):
    """Kernels one after another, each with a reduction."""

    def program(x, y):
        for _ in range(length):
            x = x - x.amax(-1, keepdim=True)
        return x

    return program


@pytest.mark.parametrize("make", [chain, rows])
def test_four_times_the_program_takes_about_four_times_the_work(make):
    x, y = torch.randn(8, 16), torch.rand(8, 16)
    calls_of(make(10), x, y)  # what is made once
    assert calls_of(make(280), x, y) < 5.5 * calls_of(make(70), x, y)


@pytest.mark.parametrize(
    "pick",
    [
        lambda x: x.split(1)[5] * 2,
        lambda x: torch.split(x, 2, dim=0)[-1] + x[0],
        lambda x: x.unbind()[-2].neg(),
        lambda x: torch.unbind(x, dim=-2)[7].neg(),
        lambda x: x.tensor_split(100)[3] * 3,
        lambda x: x.chunk(100, dim=0)[99].abs(),
        lambda x: x.split([1] * 100 + [x.shape[0] - 100], dim=-2)[100].abs(),
    ],
)
def test_of_many_parts_of_a_tensor_only_those_that_are_read_are_made(pick):
    graphs = []

    def backend(graph, examples):
        graphs.append(graph)
        return graph

    x = torch.randn(400, 3)
    assert torch.equal(braze.compile(pick, backend=backend)(x), pick(x))
    assert len(graphs[0].graph.nodes) < 10
    for n in (200, 400):  # what is made once in a process, and what is remembered of operators
        calls_of(pick, torch.randn(n, 3))
    few, many = (calls_of(pick, torch.randn(n, 3)) for n in (200, 400))
    assert (
        many - few < 200 * 90
    )  # a fake tensor each, and no more: an operation on each of them is a thousand calls


def test_a_part_of_many_has_the_gradient_of_its_rows_alone():
    x = torch.randn(100, 3, requires_grad=True)
    y = x.detach().clone().requires_grad_()

    def program(x):
        parts = x.split(1)
        return (parts[3] * parts[-1]).sum()

    braze.compile(program)(x).backward()
    program(y).backward()
    assert torch.equal(x.grad, y.grad)
