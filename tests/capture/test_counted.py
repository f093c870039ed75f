"""An integer that changes goes through text and subscripts without a variant for each value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.support import trace

X = torch.arange(30.0).view(3, 10)


def compiled(f, **kwargs):
    """The function compiled, and the list of its graphs."""
    graphs = []

    def backend(gm, inputs):
        graphs.append(gm)
        return gm

    return braze.compile(f, backend=backend, **kwargs), graphs


def test_a_number_that_changes_is_printed_without_a_variant_for_each(capsys):
    def f(x, n):
        print("n is", n)
        return x + n

    c, graphs = compiled(f)
    for n in range(2, 12):
        assert torch.equal(c(X, n), X + n)
    assert len(graphs) == 2
    assert capsys.readouterr().out == "".join(f"n is {n}\n" for n in range(2, 12))


@pytest.mark.parametrize(
    "f",
    [
        lambda x, i: x[:, i],
        lambda x, i: x[i % 3, i] * 2,
        lambda x, i: (x[:, i].exp(), x[:, i] + x[:, 0]),
        lambda x, i: x[0][-i - 1],
    ],
)
@pytest.mark.parametrize("x", [X, X.t().contiguous().t(), torch.arange(40.0)[7:37].view(3, 10)])
def test_a_place_that_changes_has_no_variant_for_each(f, x):
    c, graphs = compiled(f)
    for i in range(2, 10):
        assert repr(c(x, i)) == repr(f(x, i))
    assert len(graphs) == 2
    for i in (0, 1, -1, -10, -3, 10, 40, -11):
        assert told(c, x, i) == told(f, x, i)


def told(f, *args):
    try:
        return repr(f(*args))
    except IndexError as error:
        return str(error)


# -- loops that break the graph each time


def decoded(x: torch.Tensor, limit: int) -> Any:
    tokens = [1, 2]
    for _ in range(limit):
        tokens.append(int((x[0, torch.tensor(tokens) % 10].sum() * 7).item()) % 13)
    return tokens


def from_a_place(x: torch.Tensor, limit: int) -> Any:
    total, start = 0.0, limit - 3
    for i in range(start, limit):
        total += x.sum().item() + i
    else:
        start = "done"
    return total, start


def left_early(x: torch.Tensor, limit: int) -> Any:
    found = []
    for i in range(limit):
        x = x + 1
        if x[0, 0].item() > 3:
            break
        found.append(i)
    return found, x


def looked_at(x: torch.Tensor, limit: int) -> Any:
    half = limit // 2
    braze.graph_break()
    x = x + 1
    braze.graph_break()
    return x, locals()["half"]


@pytest.mark.parametrize(
    ("function", "most"), [(decoded, 12), (from_a_place, 10), (left_early, 10), (looked_at, 8)]
)
def test_a_loop_around_a_break_has_no_variant_for_each_number_of_times(
    function: Callable[..., Any], most: int
) -> None:
    """The range was made of the number that the call was given, which was guarded, and so was what each variable held that nothing reads any more."""
    c = braze.compile(function, backend="eager")
    trace.reset_counters()
    for limit in range(5, 15):
        assert repr(c(X, limit)) == repr(function(X, limit))
    assert trace.COUNTERS["captures"] <= most


@pytest.mark.parametrize("function", [decoded, from_a_place, left_early, looked_at])
def test_a_loop_around_a_break_runs_as_often_as_in_eager(function: Callable[..., Any]) -> None:
    c = braze.compile(function, backend="eager", options={"recompile_limit": 20})
    for limit in (4, 5, 3, 2, 1, 0, -1, -7, True, 6):
        assert repr(c(X, limit)) == repr(function(X, limit))


def test_what_nothing_reads_any_more_may_be_of_another_type() -> None:
    def f(x: torch.Tensor, n: Any) -> Any:
        name = x * n if n is None else n
        braze.graph_break()
        name = x + 1
        braze.graph_break()
        return name

    c = braze.compile(f, backend="eager")
    for n in (1, "a", 2.5, True, 1 << 70, "b"):
        assert torch.equal(c(X, n), X + 1)
