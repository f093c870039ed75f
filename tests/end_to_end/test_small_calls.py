"""Small operations on a CPU: what a call of ATen would cost more than the work is a kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import braze
from tests.helpers import assert_like_eager


def externs(fn: Callable[..., object], *args: torch.Tensor) -> list[str]:
    """The operators of ATen's that a compiled call runs."""
    with torch.no_grad():
        report = braze.explain(fn)(*args)
    return [name for name, _ in report.aten]


def by_vector(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return a @ x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_a_small_matrix_by_a_vector_is_a_kernel(dtype: torch.dtype) -> None:
    a, x = torch.randn(31, 17).mul(9).to(dtype), torch.randn(17).mul(9).to(dtype)
    assert_like_eager(by_vector, a, x)
    assert_like_eager(by_vector, a.t().contiguous().t(), x)
    assert externs(by_vector, a, x) == []


def test_a_large_one_is_atens() -> None:
    a, x = torch.randn(1024, 512), torch.randn(512)
    assert_like_eager(by_vector, a, x)
    assert externs(by_vector, a, x) == ["aten.mm.default"]


def test_the_conjugated_product_of_real_vectors_is_a_kernel() -> None:
    a, x = torch.randn(100), torch.randn(100)
    assert_like_eager(torch.vdot, a, x)
    assert externs(lambda a, x: torch.vdot(a, x), a, x) == []
