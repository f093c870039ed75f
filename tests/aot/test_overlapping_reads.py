"""A write that reads the same memory beside: element for element, apart from what is written, or in an order that is eager's own."""

from __future__ import annotations

import pytest
import torch

import braze
from tests.helpers import logged


def shifted_down(x):
    x[1:] = x[:-1]
    return x * 1


def shifted_along(x):
    v = x * 1
    v[:, 1:] = v[:, :-1]
    return v


def halves(x):
    v = x * 1
    n = v.shape[0] // 2
    v[:n].add_(v[n : 2 * n])
    return v


def itself(x):
    v = x * 1
    v[1:].mul_(v[1:])
    return v


LAYOUTS = {
    "rows": lambda n: torch.arange(4.0 * n).view(n, 4),
    "turned": lambda n: torch.arange(4.0 * n).view(4, n).t(),
    "in steps": lambda n: torch.arange(8.0 * n).view(4, 2 * n)[:, ::2].t(),
}


def outcome(call, x):
    try:
        return str(call(x)), str(x)
    except RuntimeError as error:
        return str(error).split("\n")[0], str(x)


@pytest.mark.parametrize("fn", [shifted_down, shifted_along, halves, itself])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_what_is_read_is_what_eager_reads(fn, layout, backend):
    compiled = braze.compile(fn, dynamic=True, backend=backend, options={"verify": 2})
    for n in (4, 6, 5, 2):
        ours, theirs = LAYOUTS[layout](n), LAYOUTS[layout](n)
        assert outcome(compiled, ours) == outcome(fn, theirs)


def test_parts_of_varying_sizes_that_lie_apart_are_compiled():
    with logged() as messages:
        compiled = braze.compile(halves, dynamic=True, options={"verify": 2})
        for n in (4, 8, 6):
            x = LAYOUTS["rows"](n)
            assert torch.equal(compiled(x), halves(x))
    assert not any("BZ2027" in message for message in messages)


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("start", [0, 1])
def test_an_input_that_sees_anothers_memory_turned_sees_what_was_written_wherever_that_begins(backend, start):
    """What ATen scatters into begins in its memory where that which it copies did; a window counts from there."""

    def f(x, turned):
        x[:, 0].mul_(10)
        turned.add_(2)

    def window():
        return torch.arange(15.0).view(5, 3)[start : start + 3]

    wanted, ours = window(), window()
    f(wanted[...], wanted.mT)
    braze.compile(f, backend=backend)(ours[...], ours.mT)
    assert torch.equal(ours, wanted)
