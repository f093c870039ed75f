"""``out=`` of tensors that have no memory yet: what is returned of them, and of their views."""

from __future__ import annotations

import pytest
import torch

import braze


def whole_and_view(x):
    y = torch.empty(0, dtype=x.dtype)
    torch.cat([x, x], out=y)
    return y, y[:1]


def views_alone(x):
    y = torch.minimum(x[:0], x[:0])
    torch.cat([x, x], out=y)
    first, second = y.chunk(2)
    return second, first


def two_at_once(x):
    values, places = torch.empty(0), torch.empty(0, dtype=torch.int64)
    torch.sort(x, -1, out=(values, places))
    return values, places, values.t(), places[0]


def turned(x):
    y = torch.empty(0)
    torch.add(x, 1, out=y)
    y.t_()
    return y, y[0]


def written(x):
    y = torch.empty(0)
    torch.add(x, 1, out=y)
    row = y[0]
    y.mul_(2)
    row.add_(1)
    return y, row


def twice(x):
    y = torch.empty(0)
    torch.add(x, 1, out=y)
    torch.add(x, 2, out=y)
    return y, y.view(-1), y


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", [whole_and_view, views_alone, two_at_once, turned, written, twice])
def test_views_of_what_out_has_given_memory_see_it(program, dynamic, backend):
    """Their base is what the operator gives, not the empty tensor."""
    compiled = braze.compile(program, backend=backend, dynamic=dynamic)
    for shape in ((2, 3), (4, 5)):
        x = torch.arange(1.0, 1 + shape[0] * shape[1]).reshape(shape)
        found, wanted = compiled(x), program(x)
        for ours, theirs in zip(found, wanted, strict=True):
            assert torch.equal(ours, theirs) and ours.stride() == theirs.stride()
            assert ours._is_view() == theirs._is_view()
        ours, theirs = ([part.untyped_storage().data_ptr() for part in each] for each in (found, wanted))
        assert [n == ours[0] for n in ours] == [n == theirs[0] for n in theirs]
