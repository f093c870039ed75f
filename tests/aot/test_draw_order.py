"""Random numbers are eager's, each at its place, also of tensors that lie otherwise once writes are removed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import braze


def _written(x):
    """In the usual order; the value that is written into it is turned."""
    v = torch.empty(x.shape[1], x.shape[0])
    v.copy_(x.t())
    return v


def _turned(x):
    """Turned; the value that is written into it lies in the usual order."""
    v = torch.empty_like(x.t().contiguous().t())
    v.copy_(x)
    return v


DRAWN = {
    "rand_like": torch.rand_like,
    "of what is computed": lambda v: torch.randn_like(v.mul_(2) + 1),
    "randint_like": lambda v: torch.randint_like(v, 0, 100),
    "in the usual order": lambda v: torch.rand_like(v, memory_format=torch.contiguous_format),
    "uniform_": lambda v: v.uniform_() * 1,
    "normal_": lambda v: v.normal_(),
    "exponential_": lambda v: torch.empty_like(v).exponential_(),
    "bernoulli": lambda v: torch.bernoulli(v.abs().clamp(0, 1)),
    "normal": lambda v: torch.normal(v, 1.0),
    "normal of deviations": lambda v: torch.normal(0.5, v.abs()),
    "gamma": lambda v: torch._standard_gamma(v.abs() + 1),
    "poisson": lambda v: torch.poisson(v.abs()),
    "rrelu": lambda v: F.rrelu(v, training=True),
}


@pytest.mark.parametrize("made", [_written, _turned])
@pytest.mark.parametrize("draw", list(DRAWN))
def test_numbers_drawn_for_what_is_written_lie_where_eager_has_them(draw, made):
    def f(x):
        v = made(x)
        return DRAWN[draw](v), v

    x = torch.randn(4, 3)
    torch.manual_seed(0)
    wanted = f(x)
    for backend, dynamic in (("aot_eager", None), ("braze", None), ("braze", True)):
        torch.manual_seed(0)
        found = braze.compile(f, backend=backend, dynamic=dynamic, options={"verify": 2})(x)
        for w, g in zip(wanted, found, strict=True):
            torch.testing.assert_close(g, w)
            assert g.stride() == w.stride()


def test_numbers_drawn_behind_an_operator_whose_functional_form_lies_otherwise():
    def f(x):
        h = F.rrelu(x, training=True)
        return h, torch.rand_like(h), h.stride()

    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    torch.manual_seed(0)
    wanted = f(x)
    for dynamic in (None, True):
        torch.manual_seed(0)
        found = braze.compile(f, dynamic=dynamic)(x)
        torch.testing.assert_close(found[:2], wanted[:2], rtol=0, atol=0)
        assert found[2] == wanted[2]


def test_what_a_branch_is_given_lies_as_it_was_traced_for():
    def f(x, y):
        x.fill_(2)  # a number repeated, which would lie in order
        v = torch.cond(y.sum() > 0, lambda t, u: t * u, lambda t, u: t - u, (x, y))
        return v.mul_(2)

    y = torch.arange(36.0).view(6, 6)
    wanted = f(torch.zeros(6, 6).t(), y)
    for backend, dynamic in (("aot_eager", None), ("braze", True)):
        found = braze.compile(f, backend=backend, dynamic=dynamic, options={"verify": 2})(
            torch.zeros(6, 6).t(), y
        )
        torch.testing.assert_close(found, wanted)
        assert found.stride() == wanted.stride()
