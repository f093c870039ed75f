"""Complex numbers that are conjugated, or negated, as they are read: what graphs keep and give of them."""

from __future__ import annotations

import pytest
import torch

import braze
from braze.runtime.call.loader import Runtime


def kron(x, y):
    return x.kron(y.expand(1))


def column(x, y):
    return (x[:, None] * y.expand(1, 1)).reshape(-1)


def turned(x, y):
    return x[:, None].mT * y.expand(1)


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("program", [kron, column, turned])
def test_what_a_backward_keeps_conjugated_stays_so(program, backend):
    """Its dims of one element had other strides than were planned, and were made anew without the conjugation."""
    found = []
    for call in (program, braze.compile(program, backend=backend, options={"verify": 2})):
        x = torch.arange(1.0, 10).requires_grad_()
        y = (torch.tensor(2.0) * (1 - 2j)).requires_grad_()
        parts = torch.view_as_real(call(x, y))
        (parts * torch.arange(parts.numel()).reshape(parts.shape)).sum().backward()
        found.append((parts.detach(), x.grad, y.grad))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("lazy", [torch.conj, lambda x: x.conj().imag])
def test_another_layout_of_lazy_numbers_has_them_as_they_are_read(lazy):
    x = lazy(torch.tensor([[1 + 2j]]))
    made = Runtime.relayout(x, (1, 1), (0, 0), x.dtype)
    assert made.stride() == (0, 0) and torch.equal(made, x) and not (made.is_conj() or made.is_neg())


WRITES = {
    "product": lambda x, y: x.mul_(y),
    "product of a part": lambda x, y: (x[1:].mul_(y), x)[1],
    "product of what is turned": lambda x, y: x.mT.mul_(y[:, None]),
    "quotient": lambda x, y: x.div_(y),
    "addcmul": lambda x, y: x.addcmul_(x.clone(), y),
    "twice": lambda x, y: x.mul_(y).mul_(y),
    "sine": lambda x, y: x.mul_(y).sin_(),
}


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("write", WRITES)
def test_complex_numbers_that_a_product_writes_over_are_kept_as_they_were(write, backend):
    """The backward multiplies by what was conjugated, which is the memory of the input that the graph writes."""
    found = []
    for call in (WRITES[write], braze.compile(WRITES[write], backend=backend, options={"verify": 2})):
        x = (torch.arange(1.0, 10).reshape(3, 3) * (1 - 2j)) / 10
        y = torch.tensor([0.5, -1.0, 2.0]).requires_grad_()
        parts = torch.view_as_real(call(x, y))
        (parts * torch.arange(parts.numel()).reshape(parts.shape)).sum().backward()
        found.append((parts.detach(), y.grad, x.detach()))
    torch.testing.assert_close(*found)
