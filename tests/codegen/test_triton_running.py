"""Running sums and products over a few places are operations on elements on a GPU; in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from braze.codegen.triton import generate
from braze.lower.reductions.running import SHORT
from tests.codegen.test_triton_forms import numbers
from tests.codegen.test_triton_segments import calls
from tests.codegen.triton_bench import context, interpreted, planned

DIGITS = {torch.float32: 1e-6, torch.float64: 1e-12, torch.bfloat16: 1e-2, torch.float16: 1e-3}
FUNCTIONS = {
    "sums": lambda x, d: x.cumsum(d),
    "products": lambda x, d: x.cumprod(d),
    "of what is computed": lambda x, d: (x * 2).cumsum(d) + 1,
    "from the end": lambda x, d: x.flip(d).cumsum(d).flip(d),
}


@pytest.mark.parametrize("dtype", [*DIGITS, torch.int32, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("length", [1, 2, 3, SHORT])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_few_places_are_written_out(name, length, dtype, tmp_path):
    x, fn = numbers(9, length, 5, dtype=dtype), FUNCTIONS[name]
    plan, (found,) = interpreted(lambda x: fn(x, 1), tmp_path, x)
    assert not calls(plan) and len(plan.groups) == 1
    wanted = fn(x.double() if dtype in DIGITS else x, 1)
    assert found.dtype is fn(x, 1).dtype and found.stride() == fn(x, 1).stride()
    digits = DIGITS.get(dtype, 0)
    torch.testing.assert_close(found.to(wanted.dtype), wanted, rtol=digits, atol=digits)


@pytest.mark.parametrize("name", ["sums", "products"])
@pytest.mark.parametrize("shape", [(9, 3, 5), (3, 45), (45, 3)])
def test_what_has_no_number_stays_at_its_place_and_those_behind_it(shape, name, tmp_path):
    x, dim = numbers(*shape), shape.index(3)
    special = torch.tensor([float("inf"), float("nan"), 0.0, -0.0, 1e30]).repeat(9)
    x.select(dim, 1).copy_(special.view(x.select(dim, 1).shape))
    _, (found,) = interpreted(lambda x: FUNCTIONS[name](x, dim), tmp_path, x)
    torch.testing.assert_close(found, FUNCTIONS[name](x, dim), rtol=1e-6, atol=1e-6, equal_nan=True)


def test_what_stands_behind_a_place_is_not_read_for_it():
    """Of places apart from each other: of those side by side a load has several."""
    x = torch.empty(3, 4096, device="meta")

    def masked(fn, x):
        (text,) = generate(planned(fn, x), context())
        return text.source.count("~(t")

    assert masked(lambda x: x.cumsum(0), x) == 2 and masked(lambda x: x.cumsum(1), x.t().contiguous()) == 0


def test_logarithms_of_sums_of_one_place_are_what_stands_there(tmp_path):
    x = torch.tensor([[float("inf")], [float("-inf")], [float("nan")], [3.0]])
    plan, (found,) = interpreted(lambda x: x.logcumsumexp(1) * 1.0, tmp_path, x)
    assert not calls(plan)
    torch.testing.assert_close(found, x, equal_nan=True)


def test_more_places_are_walked():
    x = numbers(2000, SHORT + 1, 50)
    assert calls(planned(lambda x: x.cumsum(1), x)) == ["braze.running.default"]
