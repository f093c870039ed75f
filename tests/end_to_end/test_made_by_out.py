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


REDUCTIONS = {
    "sum": torch.sum, "nansum": torch.nansum, "prod": torch.prod, "mean": torch.mean, "cumsum": torch.cumsum, "cumprod": torch.cumprod,
    "var": torch.var, "std": torch.std, "logsumexp": torch.logsumexp, "amax": torch.amax, "any": torch.any,
}  # fmt: skip


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16, torch.int32, torch.bool])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_what_is_reduced_is_so_in_the_type_of_out(name, given, backend):
    """`torch.sum(x, 0, out=y)` of floats adds up whole numbers where `y` holds such, and float64 where it holds that (`rare` 7410005527)."""

    def reduced(x, y):
        REDUCTIONS[name](x, 0, out=y)
        return y * 1

    x = (torch.arange(45.0).reshape(9, 5).sin() * 3).to(given)
    compiled = braze.compile(reduced, backend=backend)
    for kind in (torch.int64, torch.int8, torch.float64, torch.float32, torch.bfloat16, torch.complex64):
        found = []
        for call in (reduced, compiled):
            y = torch.zeros((9, 5) if "cum" in name else 5, dtype=kind)
            try:
                found.append(call(x, y))
            except RuntimeError:
                found.append(None)
        assert (found[0] is None) == (found[1] is None), kind
        if found[0] is not None:
            near = {} if not kind.is_floating_point else {"rtol": 4 * torch.finfo(kind).eps, "atol": 1e-6}
            torch.testing.assert_close(found[1], found[0], **near)
