"""Vectors whose lanes lie backwards, in two stretches or anywhere in memory are made without a detour through memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import braze

Tensor = torch.Tensor
TYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


def some(dtype: torch.dtype, *sizes: int) -> Tensor:
    return (torch.randn(sizes) * 50).to(dtype)


def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, f: Callable[..., Any], *args: Any) -> str:
    """The bodies of the kernels of what one call compiles."""
    monkeypatch.setenv("BRAZE_DUMP", str(tmp_path))
    braze.compile(f)(*args)
    texts = [path.read_text() for path in sorted(tmp_path.glob("*_kernels*.c"))]
    return "\n".join(text[text.find("static void cpu_") :] for text in texts if "static void cpu_" in text)


def turned(x: Tensor) -> Tensor:
    return x.flip(1)


def rolled(x: Tensor) -> Tensor:
    return x.roll(3, 1)


def rolled_twice(x: Tensor) -> Tensor:
    return x.roll((-2, 5, 1), (0, 1, 0))


def looked_up(x: Tensor, i: Tensor) -> Tensor:
    return x.gather(1, i)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("width", [1, 7, 16, 37, 64])
def test_values_are_as_in_eager_with_and_without_a_rest(dtype: torch.dtype, width: int) -> None:
    x, i = some(dtype, 5, width), torch.randint(0, width, (5, width))
    for f, args in ((turned, (x,)), (rolled, (x,)), (rolled_twice, (x,)), (looked_up, (x, i))):
        assert torch.equal(braze.compile(f)(*args), f(*args)), f.__name__


def test_a_vector_that_lies_backwards_is_loaded_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = kernels(tmp_path, monkeypatch, turned, torch.randn(4, 64))
    assert "bz_back_f32x" in text and "for (int l = 0" not in text


def test_a_roll_is_two_stretches_of_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = kernels(tmp_path, monkeypatch, rolled, torch.randn(4, 64))
    assert "bz_load_f32x" in text and "%" not in text.replace("rest %", "") and "for (int l = 0" not in text


def test_indices_are_looked_at_together_and_lanes_written_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = kernels(tmp_path, monkeypatch, looked_up, torch.randn(4, 64), torch.randint(0, 64, (4, 64)))
    assert "bz_check_i64x" in text and "for (int l = 0" not in text


@pytest.mark.parametrize("wrong", [64, -1, 1 << 40, -(1 << 62)])
@pytest.mark.parametrize("place", [0, 5, 15, 63])
def test_one_index_out_of_range_in_a_vector_is_found(wrong: int, place: int) -> None:
    g, x, i = braze.compile(looked_up), torch.randn(4, 64), torch.zeros(4, 64, dtype=torch.int64)
    g(x, i)
    i[2, place] = wrong
    with pytest.raises((IndexError, RuntimeError)):
        g(x, i)


def rows_looked_up(x: Tensor, i: Tensor) -> Tensor:
    return x[i] * 2


def planes_looked_up(x: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Of each plane that the rows share, the column that each has for itself, and its own last place."""
    return x.index_select(0, i).index_select(1, j).diagonal(0, 1, 2) * 2


@pytest.mark.parametrize("width", [16, 37])
def test_neighbours_are_loaded_whole_also_at_a_place_that_all_share(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, i = torch.randn(6, width), torch.tensor([5, 0, 0, 3])
    text = kernels(tmp_path, monkeypatch, lambda x: x * 2 + 1, x)
    text += kernels(tmp_path, monkeypatch, rows_looked_up, x, i)
    assert "bz_load_f32x" in text and "bz_check" in text and "for (int l = 0" not in text


@pytest.mark.parametrize("width", [5, 16, 37])
def test_a_place_that_each_lane_has_for_itself_is_no_neighbour(width: int) -> None:
    x, i, j = torch.randn(4, 9, width), torch.tensor([3, 0, 1]), torch.randint(0, 9, (width,))
    assert torch.equal(braze.compile(planes_looked_up)(x, i, j), planes_looked_up(x, i, j))


def from_either_part(x: Tensor, i: Tensor) -> Tensor:
    return torch.cat(x.chunk(2)[::-1]).gather(0, i)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("width", [3, 16, 37])
def test_lanes_of_which_a_mask_holds_are_read_without_a_branch(
    dtype: torch.dtype, width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, i = some(dtype, 30, width), torch.randint(0, 30, (40, width))
    assert torch.equal(braze.compile(from_either_part)(x, i), from_either_part(x, i))
    text = kernels(tmp_path, monkeypatch, from_either_part, x, i)
    whole = text[: text.index("if (i1 <")] if "if (i1 <" in text else text
    assert width < 16 or ("BZ_WHERE(" in whole and "[l]) g" not in whole)
