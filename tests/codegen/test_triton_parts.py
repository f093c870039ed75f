"""Places of extremes of long rows, which are found in parts that one short kernel puts together; in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from tests.codegen.test_triton_forms import INF, NAN, numbers, small
from tests.codegen.triton_bench import interpreted

__all__ = ["small"]


def extremes(dim):
    return lambda x: (x.argmax(dim), x.argmin(dim))


def places(tmp_path, x):
    """The places of extremes of everything and along the longer side, each beside eager's; all are in parts."""
    for dim in (None, 0 if x.shape[0] > x.shape[1] else 1):
        plan, found = interpreted(extremes(dim), tmp_path, x, cores=4)
        assert "parts" in plan.groups[0].reason
        for place, wanted in zip(found, extremes(dim)(x), strict=True):
            assert torch.equal(place, wanted), dim


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.int64])
def test_of_equal_extremes_in_several_parts_the_first_is_found(dtype, tmp_path):
    """Also where all are equal, or all are the least that there is."""
    x = numbers(400, 3, dtype=dtype)
    x[17], x[250], x[399] = 100, 100, 100
    x[60], x[61], x[300] = -100, -100, -100
    least = -INF if dtype.is_floating_point else torch.iinfo(dtype).min
    for values in (x, torch.full_like(x, 3), torch.full_like(x, least)):
        places(tmp_path, values)
        places(tmp_path, values.t().contiguous())


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_zeros_of_either_sign_are_equal_and_a_number_that_is_none_comes_first(dtype, tmp_path):
    zeros = torch.zeros(3, 400, dtype=dtype)
    zeros[0, ::2], zeros[1, 1::2], zeros[2, 200:] = -0.0, -0.0, -0.0
    late = numbers(3, 400, dtype=dtype)
    late[0, 399], late[1, 130], late[1, 390], late[2, 250] = NAN, NAN, NAN, INF
    late[:, 7], late[:, 395] = -INF, INF
    for values in (zeros, late, late.nan_to_num(nan=-INF), torch.full_like(late, NAN)):
        places(tmp_path, values)


@pytest.mark.usefixtures("small")
def test_places_in_parts_of_what_does_not_lie_side_by_side(tmp_path):
    """One row that stands for three, rows that are a part of others, and such as begin anywhere."""
    x = numbers(4, 900)
    places(tmp_path, x[:1].expand(3, 900))
    places(tmp_path, x[:3, 1::2])
    places(tmp_path, x[:, 3:].t())
