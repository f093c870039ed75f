"""Sizes as symbols: one graph for many shapes, with what was assumed of them as guards."""

from __future__ import annotations

import numbers

import pytest
import torch
from captured import same

from braze.capture.dispatch.session import compile_callable
from braze.capture.trace.tracer import trace_frame
from braze.options import Options


def runs(fn, calls, dynamic=None):
    """How many graphs some calls take; each is compared with eager."""
    graphs = []

    def backend(graph, examples):
        graphs.append(graph)
        return graph.forward

    entry = compile_callable(fn, backend, Options(dynamic=dynamic))
    for args in calls:
        assert same(fn(*args), entry(*args))
    return len(graphs)


def reshaping(x, y):
    rows, columns = x.shape
    if columns > 4:
        x = x * columns
    return (
        x.reshape(columns * rows) + y.sum(),
        columns + 1,
        torch.arange(columns),
        x.view(-1, columns // 2)[:rows],
    )


SHAPES = [
    (torch.ones(3, 6), torch.ones(5)),
    (torch.ones(4, 8), torch.ones(7)),
    (torch.ones(5, 10), torch.ones(2)),
]


def test_one_graph_for_many_shapes():
    assert runs(reshaping, SHAPES, dynamic=True) == 1


def test_static_first_then_symbolic():
    assert runs(reshaping, SHAPES) <= 3


def test_never_symbolic():
    assert runs(reshaping, SHAPES, dynamic=False) == 3


def test_a_branch_on_a_size_is_a_guard():
    other = [(torch.ones(5, 4), torch.ones(2))]
    assert runs(reshaping, SHAPES + other, dynamic=True) == 2


def test_symbolic_ints():
    def f(x, k):
        return x * k, k + 1, [10, 20][k % 2]

    assert runs(f, [(torch.ones(3), k) for k in (4, 5, 6, 7, 8)]) <= 4


@pytest.mark.parametrize("kinds", [numbers.Integral, (str, numbers.Number), int | None, object])
def test_a_symbolic_int_is_an_instance_of_what_ints_are(kinds):
    def fn(x, n):
        return x * n if isinstance(n, kinds) and isinstance(x.shape[0], kinds) else x - n

    assert runs(fn, [(torch.ones(3), 5), (torch.ones(4), 6)], dynamic=True) == 1


@pytest.mark.parametrize("size", [0, 1])
def test_sizes_zero_and_one_are_never_symbols(size):
    def f(x):
        return x + x.shape[0]

    assert runs(f, [(torch.ones(5),), (torch.ones(size),), (torch.ones(6),)], dynamic=True) == 2


def test_inputs_of_a_symbolic_graph_carry_symbols():
    captured = trace_frame(reshaping, SHAPES[0], Options(), symbolic="all")
    assert all(isinstance(s, str) for s in captured.specs[0].sizes)
    assert captured.graph_break is None


class Watched(torch.Tensor):
    """A subclass that notes what is asked of its tensors."""

    asked: list[str] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.asked.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_subclass_does_not_see_that_its_sizes_are_read():
    def double(x):
        return (x + 1).relu()

    told = []
    for fn in (double, compile_callable(double, lambda graph, _: graph.forward, Options(dynamic=True))):
        Watched.asked.clear()
        for size in (2, 3, 4):
            fn(torch.ones(size).as_subclass(Watched))
        told.append(list(Watched.asked))
    assert told == [["add", "relu"] * 3] * 2
