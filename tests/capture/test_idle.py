"""Python that goes on for long without tensors is left to Python."""

from __future__ import annotations

import pytest
import torch

import braze
from braze.capture.python import unwinding
from braze.capture.trace import tracer
from tests.helpers import explained

X = torch.ones(3)


@pytest.fixture(autouse=True)
def small_budget(monkeypatch):
    monkeypatch.setattr(unwinding, "BUDGET", 2_000)


def spin(n):
    total = 0
    for i in range(n):
        total += i % 7
    return total


def descend(n):
    return 0 if n == 0 else 1 + descend(n - 1) + descend(n - 2) if n > 1 else 1


@pytest.mark.parametrize(
    "work", [lambda: spin(1_000), lambda: descend(12), lambda: len(sorted(range(900), key=lambda i: -i))]
)
def test_a_long_call_runs_as_it_is_between_two_graphs(work):
    def f(x):
        y = x * 2
        n = work()
        return (y + n) * 3

    told = explained(f, X)
    assert torch.equal(braze.compile(f, backend="eager")(X), f(X))
    assert len(told.graphs) >= 2
    assert {b.code for b in told.breaks} == {"BZ1016"}


@pytest.mark.parametrize(
    "work", [lambda: sum(i for i in range(900)), lambda: len(sorted(range(900), key=lambda i: -i))]
)
def test_a_call_into_c_that_calls_back_often_is_left_at_once(work, monkeypatch):
    """Not at one call back after the other, each by a trace of its own."""
    traces = []
    trace = tracer._trace
    monkeypatch.setattr(tracer, "_trace", lambda *args: (traces.append(1), trace(*args))[1])
    compiled = braze.compile(lambda x: x + work(), backend="eager")
    assert torch.equal(compiled(X), X + work())
    assert len(traces) < 20


def test_a_long_loop_of_the_function_itself_leaves_it_to_python():
    def f(x):
        y = x * 2
        total = 0
        for i in range(1_000):
            total += i % 7
        return y + total

    compiled = braze.compile(f, backend="eager")
    assert torch.equal(compiled(X), f(X))
    assert torch.equal(compiled(X), f(X))
    assert {b.code for b in explained(f, X).breaks} == {"BZ1016"}


def count_while(n):
    i = 0
    while i < n:
        i += 1
    return i


def count_while_not(n):
    i = n
    while not i < 1:
        i -= 1
    return n


def count_until_none(n):
    rest = iter(range(n))
    i = next(rest)
    while i is not None:
        i = next(rest, None)
    return n


def count_while_none(n):
    found = None
    left = iter([None] * n + [n])
    while found is None:
        found = next(left)
    return found


@pytest.mark.parametrize("count", [count_while, count_while_not, count_until_none, count_while_none])
def test_a_while_that_ends_with_its_condition_is_left_to_python(count):
    """On 3.11 its jump back is the one of its condition, and no other: in the function itself, and in one that it calls."""

    def calls(x):
        return x * 2 + count(1_000)

    told = explained(calls, X)
    assert {b.code for b in told.breaks} == {"BZ1016"}
    assert torch.equal(braze.compile(calls, backend="eager")(X), calls(X))


def test_a_while_of_the_function_itself_leaves_it_to_python():
    def f(x):
        i = 0
        while i < 1_000:
            i += 1
        return x + i

    assert torch.equal(braze.compile(f, backend="eager")(X), f(X))
    assert {b.code for b in explained(f, X).breaks} == {"BZ1016"}


def test_a_loop_that_computes_with_tensors_is_captured_however_long_it_is():
    def f(x):
        for i in range(60):
            x = x + sum(k % 3 for k in range(i))
        return x

    told = explained(f, X)
    assert len(told.graphs) == 1 and not told.breaks
