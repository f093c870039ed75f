"""An integer that changes goes through text and subscripts without a variant for each value."""

from __future__ import annotations

import pytest
import torch

import braze

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
