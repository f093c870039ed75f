"""Parts of vectors and squares of short elements are read, turned and written at once: element by element they cost more than the work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import braze
from tests.codegen.test_c_lanes import TYPES, kernels, some

Tensor = torch.Tensor
ALL = [*TYPES, torch.int8, torch.int16]


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.cat((x[:, x.shape[1] // 3 :], x[:, : x.shape[1] // 3]), 1)
    return y, y.to(torch.float64).sum(1)


def across(x: Tensor) -> Tensor:
    return (x + x).transpose(-1, -2).contiguous()


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("width", [3, 16, 37, 100])
def test_parts_of_rows_are_joined_as_in_eager(dtype: torch.dtype, width: int) -> None:
    x = some(dtype, 5, width)
    joined, total = braze.compile(halves)(x)
    assert torch.equal(joined, halves(x)[0])
    torch.testing.assert_close(total, halves(x)[1])


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("sizes", [(3, 16, 16), (2, 33, 64), (2, 49, 32), (4, 3, 70), (1, 17, 31)], ids=str)
def test_turned_matrices_are_those_of_eager(dtype: torch.dtype, sizes: tuple[int, ...]) -> None:
    x = some(dtype, *sizes)
    assert torch.equal(braze.compile(across)(x), across(x))
    assert torch.equal(braze.compile(across)(x[:, 1:, 1:]), across(x[:, 1:, 1:]))


@pytest.mark.parametrize("dtype", ["u8", "i8", "i16", "f16", "bf16", "bool"])
def test_masked_loads_of_short_elements_have_an_instruction(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = {
        "u8": torch.uint8,
        "i8": torch.int8,
        "i16": torch.int16,
        "f16": torch.float16,
        "bf16": torch.bfloat16,
    }
    x = some(of.get(dtype, torch.bool), 8, 100)
    kernels(
        tmp_path,
        monkeypatch,
        lambda x: torch.cat((x[:, 33:], x[:, :33]), 1).to(torch.float32).softmax(1),
        x,
    )
    text = "".join(path.read_text() for path in tmp_path.glob("*_kernels*.c"))
    if f"bz_loadm_{dtype}x16" not in text:
        pytest.skip("vectors of this processor are shorter")
    loads = re.findall(rf"bz_loadm_{dtype}x16\(const void.*?\n}}", text, re.DOTALL)
    assert loads and all("__builtin_ia32_load" in load for load in loads)


def test_loads_are_turned_rather_than_stores_scattered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = kernels(tmp_path, monkeypatch, across, some(torch.bfloat16, 4, 197, 64))
    assert "bz_turn_bf16" in text and "[l] = " not in text and "bz_tobf16_s" not in text


def test_numbers_that_are_scattered_are_rounded_by_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = kernels(tmp_path, monkeypatch, across, some(torch.bfloat16, 4, 3, 4096))
    assert "bz_tobf16_s" not in text
