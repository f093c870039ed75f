"""Vectors whose lanes lie backwards, in two stretches or anywhere in memory are made without a detour through memory."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import braze
from braze import target
from tests.helpers import together

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
def test_values_are_as_in_eager_with_and_without_a_rest(dtype: torch.dtype) -> None:
    calls: list[Any] = []
    for width in (1, 7, 16, 37, 64):
        x, i = some(dtype, 5, width), torch.randint(0, width, (5, width))
        calls += [(turned, x), (rolled, x), (rolled_twice, x), (looked_up, x, i)]
    for (f, *args), ours in zip(calls, together(*calls), strict=True):
        assert torch.equal(ours, f(*args)), (f.__name__, ours.shape)


def test_programs_that_make_one_graph_have_the_kernels_that_each_has_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What tests compile together they have tested."""
    x, i = torch.randn(5, 37), torch.randint(0, 37, (5, 37))
    calls: list[Any] = [(turned, x), (rolled, x), (rolled_twice, x), (looked_up, x, i)]
    calls += [(lambda x: x.amax(1), x), (lambda x: x * 2, x), (lambda x: x.sin() + 1, x)]
    found = []
    for name, make in (
        ("alone", lambda: [braze.compile(f)(*a) for f, *a in calls]),
        ("one", lambda: together(*calls)),
    ):
        (tmp_path / name).mkdir()
        monkeypatch.setenv("BRAZE_DUMP", str(tmp_path / name))
        make()
        text = "".join(path.read_text() for path in (tmp_path / name).glob("*_kernels*.c"))
        bodies = re.findall(r"static void cpu_\w+_body(\(.*?\n}\n)", text, re.DOTALL)
        found.append(sorted(bodies))
    assert found[0] == found[1] and len(found[0]) == len(calls)


def test_a_vector_that_lies_backwards_is_loaded_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = kernels(tmp_path, monkeypatch, turned, torch.randn(4, 64))
    assert "bz_back_f32x" in text and "for (int l = 0" not in text


def test_a_roll_is_two_stretches_of_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = kernels(tmp_path, monkeypatch, rolled, torch.randn(4, 64))
    assert text.count("bz_copy(") == 2 and "%" not in text.replace("rest %", "") and "for (int l" not in text
    text = kernels(tmp_path, monkeypatch, lambda x: rolled(x) * 2, torch.randn(4, 64))
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


@pytest.fixture(params=[False, True], ids=["apart", "at once"])
def gathers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Whether lanes that lie anywhere are read by one instruction, which needs AVX-512."""
    monkeypatch.setattr(target, "_gathers_are_quick", lambda vendor: request.param)
    target.cpu_target.cache_clear()
    if request.param and "gather" not in target.cpu_target().features:
        pytest.skip("a processor without AVX-512")
    yield request.param
    monkeypatch.undo()
    target.cpu_target.cache_clear()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("width", [3, 16, 37])
def test_lanes_of_which_a_mask_holds_are_read_without_a_branch(
    dtype: torch.dtype, width: int, gathers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, i = some(dtype, 30, width), torch.randint(0, 30, (40, width))
    assert torch.equal(braze.compile(from_either_part)(x, i), from_either_part(x, i))
    text = kernels(tmp_path, monkeypatch, from_either_part, x, i)
    whole = text[: text.index("if (i1 <")] if "if (i1 <" in text else text
    assert width < 16 or (("bz_atm_" if gathers else "BZ_WHERE(") in whole and "[l]) g" not in whole)


def across(x: Tensor, i: Tensor) -> Tensor:
    """Of each column the numbers at some places, every third first; some lanes have the place's own neighbour."""
    return x.gather(0, i)[:, ::3] + x.t().gather(1, i.t()).t()[:, ::3]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("index", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_lanes_are_read_anywhere_also_from_an_odd_address_to_the_last_element(
    dtype: torch.dtype,
    index: torch.dtype,
    offset: int,
    gathers: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = some(dtype, 2 * 37 * 24 + 3)
    if dtype.is_floating_point:
        held[:7] = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40, 6e-8]).to(dtype)
    x = held[offset : offset + 37 * 24].view(37, 24)
    i = torch.randint(0, 37, (50, 24))
    i[0], i[1] = 36, 0
    rows = torch.randint(-37, 37, (24,)).to(index)
    rows[0], rows[1] = 36, -37
    columns = torch.randperm(24).to(index)
    calls: list[Any] = [
        (across, x, i),
        (lambda x, i, j: x[i, j], x, rows, columns),
        (lambda x, j: x[:, j], x, columns),
    ]
    for (f, *args), ours in zip(calls, together(*calls), strict=True):
        assert torch.equal(bits(ours), bits(f(*args)))
    text = kernels(tmp_path, monkeypatch, lambda x, i, j: x[i, j], x, rows, columns)
    assert ("bz_at_" in text) is gathers


def bits(x: Tensor) -> Tensor:
    """All of a number but which nan it is."""
    return torch.where(x == x, x, torch.full_like(x, 7)).contiguous().view(torch.uint8)


@pytest.mark.parametrize("sizes", [(0, 16), (1, 1), (5, 0)])
def test_nothing_or_one_is_looked_up(sizes: tuple[int, int], gathers: bool) -> None:
    x, i = torch.randn(3, sizes[1]), torch.randint(0, 3, sizes)
    assert torch.equal(braze.compile(looked_across)(x, i), looked_across(x, i))
    one = torch.randn(1, 1).expand(3, sizes[1])
    assert torch.equal(braze.compile(looked_across)(one, i), looked_across(one, i))


def looked_across(x: Tensor, i: Tensor) -> Tensor:
    return x.gather(0, i) * 2


@pytest.mark.parametrize("wrong", [30, -1, 1 << 40])
@pytest.mark.parametrize("place", [0, 8, 36])
def test_one_index_out_of_range_is_found_in_what_is_left_of_a_row(
    wrong: int, place: int, gathers: bool
) -> None:
    g, x, i = braze.compile(looked_across), torch.randn(30, 37), torch.zeros(4, 37, dtype=torch.int64)
    g(x, i)
    i[2, place] = wrong
    with pytest.raises((IndexError, RuntimeError)):
        g(x, i)


def test_vectors_do_not_lie_along_a_row_of_few_numbers_of_which_much_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of sixteen lanes two would compute."""
    monkeypatch.setenv("BRAZE_DUMP", str(tmp_path))
    x = torch.randn(640, 3)
    x[:5, 0] = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan")])
    for f in (
        lambda x: x.softmax(1),
        lambda x: torch.nn.functional.softplus(torch.stack((x, x + 1), -1).sin()),
    ):
        torch.testing.assert_close(braze.compile(f)(x), f(x), equal_nan=True)
    text = "".join(path.read_text() for path in tmp_path.glob("*_kernels*.c"))
    kernels = text[text.find("static void cpu_") :]
    assert "bz_exp_" in kernels and not re.search(r"n_f32x\d+\(.*, [23]\)|\([23] - ", kernels)


def stepped(x: Tensor) -> tuple[Tensor, ...]:
    """Each second, third, fourth and fifth number, from the first and from the last that such a vector may begin at."""
    return tuple(x[:, first::step].clone() for step in (2, 3, 4, 5) for first in (0, step - 1))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_each_second_to_fourth_number_is_eagers(dtype: torch.dtype) -> None:
    base = some(dtype, 6, 300)
    given = [base[:, :width] for width in (5, 16, 33, 64, 129, 300)] + [base[1:, 7:], base[:1].expand(3, 300)]
    for x, ours in zip(given, together(*((stepped, x) for x in given)), strict=True):
        for mine, theirs in zip(ours, stepped(x), strict=True):
            assert torch.equal(mine, theirs), (x.shape, x.stride())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_each_second_to_fourth_number_is_mixed_in_registers(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a short row is summed, which lies across the vectors, but not where numbers lie further apart."""
    x = some(dtype, 4, 600)
    text = kernels(
        tmp_path, monkeypatch, lambda x: (*stepped(x + 0), x.view(-1, 2).sum(1), x.view(-1, 3).amax(1)), x
    )
    assert {int(step) for step in re.findall(r"bz_every(\d)_", text)} == {2, 3, 4}


_GUARDED = """
import ctypes, mmap, sys, torch, braze
from braze import target
if sys.argv[1] == "avx2":
    line = target._cpu_line
    target._cpu_line = lambda *names: " ".join(f for f in line(*names).split() if not f.startswith(("avx512", "amx")))
page = mmap.PAGESIZE
pages = mmap.mmap(-1, 2 * page)
start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
assert not ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + page), ctypes.c_size_t(page), 0)
for dtype in (torch.uint8, torch.bfloat16, torch.float32, torch.float64):
    every = torch.frombuffer(pages, dtype=torch.uint8, count=page).view(dtype)
    every.copy_(torch.arange(every.numel()) % 100)
    for step in (2, 3, 4):
        for n in (16, 64, 50):
            x = every[every.numel() - 1 - (n - 1) * step :].as_strided((n,), (step,))
            assert torch.equal(braze.compile(lambda x: x + 1)(x), x + 1)
print("whole")
"""


@pytest.mark.parametrize("vectors", ["avx2", "widest"])
def test_nothing_is_read_behind_the_last_of_each_second_to_fourth_number(vectors: str) -> None:
    """The page behind it belongs to nobody."""
    done = subprocess.run(
        [sys.executable, "-c", _GUARDED, vectors], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "whole" in done.stdout, (done.returncode, done.stderr[-2000:])
