"""A line whose length is multiplied is repeated on a processor, as eager looks its elements up."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import braze
from tests.helpers import together


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("factor", [1, 2, 4, 3, 2.5, 0.5])
def test_a_line_is_repeated_where_its_length_is_a_multiple(dtype: torch.dtype, factor: float) -> None:
    x = torch.randn(3, 5, 13).to(dtype)
    x[0, 0, :5] = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan")]).to(dtype)

    def f(t: torch.Tensor) -> torch.Tensor:
        return F.interpolate(t, scale_factor=factor, mode="nearest")

    given = (x, x.transpose(0, 2), x[:, :, 1:8:2], x[:1, :1, :2], x[:, :1].expand(3, 5, 13))
    for each, found in zip(given, together(*((f, each) for each in given)), strict=True):
        want = f(each)
        torch.testing.assert_close(found, want, rtol=0, atol=0, equal_nan=True)
        assert found.stride() == want.stride()
        assert torch.equal(found.signbit() & ~found.isnan(), want.signbit() & ~want.isnan())


def test_a_size_is_a_multiple_too() -> None:
    x = torch.randn(2, 3, 7)
    for size in (7, 14, 28, 15):
        f = lambda t, n=size: F.interpolate(t, size=n) + t.sum()
        torch.testing.assert_close(braze.compile(f)(x), f(x))


def test_a_line_that_is_repeated_is_not_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAZE_DUMP", str(tmp_path))
    braze.compile(lambda t: F.interpolate(t, scale_factor=2))(torch.randn(3, 5, 64))
    text = "".join(path.read_text() for path in tmp_path.glob("*_kernels*.c"))
    assert "static void cpu_" in text and "bz_check" not in text
