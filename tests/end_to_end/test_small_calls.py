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


@pytest.mark.parametrize("pads", [(1, 2), (3, 0, 0, 2), (1, 1, 2, 2, 0, 1), (-1, 2), (-1, -1, 2, -2)])
@pytest.mark.parametrize("turned", [False, True])
def test_padding_in_circles_is_one_kernel(pads: tuple[int, ...], turned: bool) -> None:
    x = torch.randn(2, 3, 4, 5, 6)[(0,) * (3 - len(pads) // 2)]
    x = x.transpose(-1, -2).contiguous().transpose(-1, -2) if turned and len(pads) > 2 else x

    def pad(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(x, pads, mode="circular")

    compiled = braze.compile(pad)
    with torch.no_grad():
        ours, theirs = compiled(x), pad(x)
    assert torch.equal(ours, theirs)
    assert ours.stride() == theirs.stride()
    assert externs(pad, x) == ([] if min(pads) >= 0 else ["aten._pad_circular.default"])


@pytest.mark.parametrize(
    ("by", "dtype"),
    [
        (by, dtype)
        for by in (1, 2, 7, 64, 100, 2**31 - 1, 2**40)
        for dtype in (torch.int64, torch.int32, torch.int8, torch.uint8)
        if by <= torch.iinfo(dtype).max
    ],
)
def test_whole_numbers_are_divided_by_a_known_one_as_in_eager(by: int, dtype: torch.dtype) -> None:
    """Without a division, where it is positive: by shifts, masks or a multiplication."""
    info = torch.iinfo(dtype)
    near = [n for n in (by, 2 * by, -by) if info.min < n < info.max]
    given = [info.min, info.min + 1, info.max, *(n + d for n in near for d in (-1, 0, 1)), *range(20)]
    x = torch.tensor([n for n in given if info.min <= n <= info.max], dtype=dtype)
    for fn in (lambda x: x % by, lambda x: x // by, lambda x: x[:3] % by + x[:3] // by):
        assert torch.equal(braze.compile(fn)(x), fn(x))
