"""The greatest logit of each row by one kernel: as ``argmax`` finds it."""

from __future__ import annotations

import pytest
import torch

from tests.codegen.triton_bench import computed_bounds

kernels = pytest.importorskip("braze.serving.engine.triton_greatest")


def rows_of(kind: str, rows: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(0)
    x = torch.randn(rows, size).to(dtype)
    if kind == "equal ones in several parts":
        x[:, 3::7] = x.max()
    elif kind == "no numbers":
        x[:, size // 3 :: 50] = float("nan")
        x[:, 0] = float("inf")
    elif kind == "nothing but minus infinity":
        x.fill_(float("-inf"))
    elif kind == "both zeros above all":
        x = -x.abs() - 1
        x[:, 5], x[:, 9] = -0.0, 0.0
    elif kind == "infinity last":
        x[:, -1] = float("inf")
    return x


@computed_bounds
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "kind",
    ["numbers", "equal ones in several parts", "no numbers", "nothing but minus infinity", "both zeros above all", "infinity last"],
)  # fmt: skip
def test_the_greatest_is_where_argmax_finds_it(kind, dtype, monkeypatch):
    monkeypatch.setattr(kernels, "_PART", 64)
    for rows, size in ((1, 500), (3, 129), (2, 64), (2, 10)):
        x = rows_of(kind, rows, size, dtype)
        best, found = torch.full((rows,), -1), torch.zeros(rows + 1, 2, dtype=torch.int64)
        kernels.greatest(x, best, found)
        assert torch.equal(best, x.argmax(-1))
        assert not found.any(), "the next step counts from zero"


@computed_bounds
def test_rows_may_lie_apart(monkeypatch):
    monkeypatch.setattr(kernels, "_PART", 64)
    x = torch.randn(4, 300)[:, :200]
    best, found = torch.full((4,), -1), torch.zeros(4, 2, dtype=torch.int64)
    kernels.greatest(x, best, found)
    assert torch.equal(best, x.argmax(-1))
