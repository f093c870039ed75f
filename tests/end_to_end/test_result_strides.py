"""Results lie in memory as eager's do, for inputs of unusual layouts; and have its types."""

from __future__ import annotations

import pytest
import torch

import braze

F = torch.nn.functional


def normalized(x):
    return F.batch_norm(x, torch.zeros(x.shape[1]), torch.ones(x.shape[1])), F.batch_norm(
        x, None, None, training=True
    )


CASES = {
    "a window of a copy": (lambda x: x.clone()[::3, :, 0, -1], [(7, 3, 2, 4)]),
    "xlogy": (torch.xlogy, [(3, 4), (4, 3)]),
    "logaddexp": (torch.logaddexp, [(4, 5), (5, 4, 3)]),
    "heaviside": (torch.heaviside, [(3, 1, 1), (5, 4, 3)]),
    "batch_norm of rows": (normalized, [(3, 4)]),
    "batch_norm of sequences": (normalized, [(2, 4, 3)]),
    "batch_norm of pictures": (normalized, [(5, 3, 2, 4)]),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("turned", range(2))
def test_strides_are_eagers(case, turned):
    """One of the operands, or a half of them, runs the other way."""
    fn, sizes = CASES[case]
    given = [torch.rand(size) for size in sizes]
    order = list(range(given[-1].dim()))[::-1]
    given[-1] = given[-1].permute(order)
    if turned and len(given) == 1:
        given[0] = given[0].mT if given[0].dim() > 1 else given[0]
    elif turned:
        given = given[::-1]
    found, wanted = braze.compile(fn, options={"verify": 2})(*given), fn(*given)
    for ours, theirs in zip(*((r if isinstance(r, tuple) else (r,)) for r in (found, wanted)), strict=True):
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours, theirs)


def test_ldexp_of_an_integer_has_the_type_of_the_power():
    x, half = torch.arange(3, dtype=torch.int16), torch.tensor(2.0, dtype=torch.half)
    found = braze.compile(torch.ldexp)(x, half)
    assert found.dtype is torch.half
    torch.testing.assert_close(found, torch.ldexp(x, half))
