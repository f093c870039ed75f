"""Places in a tensor that change from call to call: negative ones, zero, ones beyond its ends."""

from __future__ import annotations

import math
import re

import pytest
import torch

import braze
from tests.helpers import explained

CASES = {
    "from the end": lambda x, n: x[-n:] * 2,
    "to the end": lambda x, n: x[:-n] * 2,
    "between": lambda x, n: x[-n:-2] * 2,
    "in steps": lambda x, n: x[-n::2] * 2,
    "reduced": lambda x, n: x[n:].exp().sum(),
    "of what is computed": lambda x, n: x.exp()[-n:].tanh(),
    "one": lambda x, n: x[-n] * 2,
    "narrowed": lambda x, n: x.narrow(0, n - 1, 2) * 2,
    "narrowed from the end": lambda x, n: x.narrow(0, -n, 2) * 2,
    "joined": lambda x, n: torch.cat([x[-n:], x]),
    "padded": lambda x, n: torch.nn.functional.pad(x, (-n, 1)),
    "put back": lambda x, n: x.select_scatter(x[0] + 1, 0, n),
    "put back from the end": lambda x, n: x.slice_scatter(x[-n:] + 1, 0, -n),
    "a window": lambda x, n: x[2:].as_strided((n, 2), (1, 2)) + 1,
    "a window at an offset": lambda x, n: x.as_strided((n, 2), (1, 2), 1) + 1,
    "that window itself": lambda x, n: x.as_strided((n, 2), (1, 2), 1)[1:],
    "a value": lambda x, n: x.clone().fill_(n) + n,
    "degrees of freedom": lambda x, n: x.var(correction=n),
}


@pytest.mark.parametrize("case", CASES)
def test_places_that_change_are_eagers(case):
    """In values, in shape, and in what is refused: within the tensor, from its other end, at its ends and beyond."""
    fn = CASES[case]
    compiled = braze.compile(fn, options={"verify": 2})
    x = torch.arange(11.0)[3:]
    for n in (3, 4, 5, 9, -2, 0):
        try:
            wanted = fn(x, n)
        except (RuntimeError, IndexError) as error:
            with pytest.raises(type(error)):
                compiled(x, n)
            continue
        found = compiled(x, n)
        assert found.stride() == wanted.stride() or not wanted.numel()
        torch.testing.assert_close(found, wanted)


def test_a_number_beyond_64_bits_is_refused():
    """As eager refuses it, where the loop would compute with what is left of it."""
    compiled = braze.compile(lambda x, n: x * (n * n))
    x = torch.arange(3.0)
    for n in (3, 4):
        torch.testing.assert_close(compiled(x, n), x * n * n)
    with pytest.raises(OverflowError):
        compiled(x, 2**40)


def test_a_size_that_becomes_zero():
    """Of what is repeated there is nothing to count in."""
    compiled = braze.compile(lambda x: x.repeat(2, 2) + 1, options={"verify": 2})
    for n in (2, 3, 0, 1):
        x = torch.rand(n, 3)
        torch.testing.assert_close(compiled(x), x.repeat(2, 2) + 1)


def column(x, i):
    y = x.clone()
    y[:, i] = 5.0
    return y


def last(x, i):
    y = x.clone()
    y[..., i] = x[..., 0] * 2
    return y


def row(x, i):
    x = x + 1
    x[i] *= 3
    return x


@pytest.mark.parametrize("function", [column, last, row])
def test_one_capture_writes_to_all_places(function):
    """But for the first call, for which the place is a number, and those whose place is 0 or 1."""
    seen = []

    def backend(graph, examples):
        seen.append(graph)
        return graph.forward

    compiled, x = braze.compile(function, backend=backend), torch.arange(30.0).reshape(5, 6)
    for i in (2, 3, 4, 2, 3):
        assert torch.equal(compiled(x, i), function(x, i))
    assert len(seen) == 2
    for i in (0, 1, -1, 5, -5):
        try:
            wanted = function(x, i)
        except IndexError:
            with pytest.raises(IndexError):
                compiled(x, i)
            continue
        assert torch.equal(compiled(x, i), wanted)


#: what goes through numbers of more than 64 bits, and itself fits
THROUGH_LARGE_NUMBERS = {
    "a float": lambda x, n: x * float(n * n),
    "a quotient": lambda x, n: x * (n * n / 3),
    "beside a float": lambda x, n: x + (n * n + 0.5),
    "a root": lambda x, n: x * math.sqrt(n * n),
    "a value": lambda x, n: torch.full_like(x, n * n / 3),
    "a rest": lambda x, n: x + (n * n) % 7,
    "a whole quotient": lambda x, n: x + (n * n) // 2**50,
    "of both": lambda x, n: x + n**3 // (n * n + 1),
    "shifted": lambda x, n: x + ((n * n) >> 60),
    "a size": lambda x, n: torch.full(((n * n) % 3,), 1.0),
    "a length": lambda x, n: x[: (n * n) % 3] * 2,
    "of a size": lambda x, n: x * float(x.size(0) ** 31 + n),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", THROUGH_LARGE_NUMBERS)
@pytest.mark.provokes("BZ6013")
def test_numbers_on_the_way_have_no_end_as_in_python(name, dynamic):
    """Loops compute with 64 bits, in which they came back from the other side."""
    function = THROUGH_LARGE_NUMBERS[name]
    compiled, x = braze.compile(function, dynamic=dynamic), torch.arange(4.0, dtype=torch.float64)
    for n in (2, 3, 2**40 + 1, -(2**40) - 3, 2**62 + 1, 2**63 - 1, 5, -(2**63), 2**64 + 3):
        try:
            wanted = function(x, n)
        except (RuntimeError, OverflowError) as refused:
            with pytest.raises(type(refused), match=re.escape(str(refused))):
                compiled(x, n)
            continue
        torch.testing.assert_close(compiled(x, n), wanted, rtol=1e-14, atol=0)


def test_bits_of_a_number_that_changes(caplog):
    compiled, x = braze.compile(lambda x, n: x * (n ^ 1), backend="eager"), torch.arange(3.0)
    for n in (5, 6, 7):
        assert torch.equal(compiled(x, n), x * (n ^ 1))
    assert "BZ2010" not in caplog.text


def test_the_list_of_a_tensor_breaks_the_graph_once():
    """Fakes have a ``tolist`` of their own, in Python: nothing of it is the program's."""

    def lists(x):
        return (x * 2).tolist(), x + 1

    found = explained(lists, torch.ones(3, 3))
    assert len(found.breaks) == 1
    assert len(found.graphs) == 2
