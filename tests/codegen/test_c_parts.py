"""Parts of vectors and squares of short elements are read, turned and written at once: element by element they cost more than the work."""

from __future__ import annotations

import ctypes
import math
import re
import subprocess
from pathlib import Path

import pytest
import torch

import braze
from braze import target
from braze.codegen import c as codegen
from braze.codegen.c.prelude import REP_BYTES, STORAGE
from braze.runtime.libraries import build
from tests.codegen.c_bench import built
from tests.codegen.test_c_lanes import TYPES, bits, kernels, some
from tests.helpers import together

Tensor = torch.Tensor
ALL = [*TYPES, torch.int8, torch.int16]


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.cat((x[:, x.shape[1] // 3 :], x[:, : x.shape[1] // 3]), 1)
    return y, y.to(torch.float64).sum(1)


def across(x: Tensor) -> Tensor:
    return (x + x).transpose(-1, -2).contiguous()


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_parts_of_rows_are_joined_as_in_eager(dtype: torch.dtype) -> None:
    given = [some(dtype, 5, width) for width in (3, 16, 37, 100)]
    for x, (joined, total) in zip(given, together(*((halves, x) for x in given)), strict=True):
        assert torch.equal(joined, halves(x)[0]), x.shape
        torch.testing.assert_close(total, halves(x)[1])


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_turned_matrices_are_those_of_eager(dtype: torch.dtype) -> None:
    sizes = [(3, 16, 16), (2, 33, 64), (2, 49, 32), (4, 3, 70), (1, 17, 31)]
    given = [each for x in (some(dtype, *size) for size in sizes) for each in (x, x[:, 1:, 1:])]
    for x, ours in zip(given, together(*((across, x) for x in given)), strict=True):
        assert torch.equal(ours, across(x)), x.shape


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


#: bytes of an element in memory
SIZES = {"i8": 1, "bool": 1, "i16": 2, "f16": 2, "bf16": 2, "i32": 4, "f32": 4, "i64": 8, "f64": 8, "u8": 1}


def some_lanes(storage: str, lanes: int) -> str:
    """Kernels that copy the first elements, those of a mask, and all."""
    name = f"{storage}x{lanes}"
    return f"""
void first_{name}(void *to, void *from, int64_t n) {{ bz_storen_{name}(to, bz_loadn_{name}(from, n), n); }}
void masked_{name}(void *to, void *from, i32x{lanes}u *m) {{ bz_store_{name}(to, bz_loadm_{name}(from, *m)); }}
void all_{name}(void *to, void *from) {{ bz_store_{name}(to, bz_load_{name}(from)); }}
"""


def vectors(vector_bytes: int) -> list[tuple[str, int]]:
    """Types and lanes that fit a register."""
    return [
        (s, w) for s, (_, rep) in STORAGE.items() for w in (4, 8, 16) if REP_BYTES[rep] * w <= vector_bytes
    ]


@pytest.mark.parametrize("arch", ["x86-64-sse2", "x86-64-avx2", "x86-64-avx512"])
def test_no_more_is_read_and_written_than_is_wanted(arch: str, tmp_path: Path) -> None:
    """Of each type, by each instruction set: first elements, those of a mask, all of a vector."""
    here = target.cpu_target()
    if {"x86-64-avx2": "avx2", "x86-64-avx512": "avx512bw"}.get(arch, "avx2") not in here.features:
        pytest.skip("not of this processor's instructions")
    found = vectors(64 if arch.endswith("512") else 32)
    path = tmp_path / "lib.so"
    path.write_bytes(built(codegen.assemble([some_lanes(*v) for v in found]), arch))
    library = ctypes.CDLL(str(path))
    for storage, lanes in found:
        size = SIZES[storage]
        numbers = torch.randint(1, 2 if storage == "bool" else 100, (lanes * size,), dtype=torch.uint8)

        def copied(kind: str, *more: object) -> torch.Tensor:
            around = torch.full((lanes * size + 64,), 0x55, dtype=torch.uint8)
            call = getattr(library, f"{kind}_{storage}x{lanes}")
            call(ctypes.c_void_p(around.data_ptr() + 32), ctypes.c_void_p(numbers.data_ptr()), *more)
            assert torch.all(around[:32] == 0x55) and torch.all(around[-32:] == 0x55)
            return around[32:-32]

        assert torch.equal(copied("all"), numbers)
        for n in range(lanes + 1):
            wanted = torch.where(torch.arange(lanes * size) < n * size, numbers, 0x55)
            assert torch.equal(copied("first", ctypes.c_int64(n)), wanted), (storage, lanes, n)
            mask = (torch.randperm(lanes) < n).int()
            wanted = (numbers.view(lanes, size) * mask[:, None]).flatten().to(torch.uint8)
            negative = -mask
            assert torch.equal(copied("masked", ctypes.c_void_p(negative.data_ptr())), wanted), (
                storage,
                lanes,
                n,
            )


def test_what_a_row_leaves_over_is_not_taken_element_by_element_without_wide_masks() -> None:
    """By AVX2 alone, as much as by AVX-512."""
    unit = codegen.assemble([some_lanes(*v) for v in vectors(32)])
    command = (*build.compiler(), "-march=x86-64-v3", "-E", "-x", "c", "-")
    text = subprocess.run(command, input=unit, capture_output=True, text=True, check=True).stdout
    bodies = re.findall(r"bz_(?:loadn|storen)_\w+\(.*?\n}", text, re.DOTALL)
    assert len(bodies) == 2 * len(vectors(32)) and not any("for (" in body for body in bodies)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_rows_shorter_than_a_vector_are_as_in_eager(dtype: torch.dtype) -> None:
    ways = (lambda x: x.roll(1, 1), lambda x: x.amax(1), lambda x: torch.stack((x, x.flip(0)), 1))
    calls = [(f, x) for width in range(1, 18) for x in (some(dtype, 7, width),) for f in ways]
    for (f, x), ours in zip(calls, together(*calls), strict=True):
        assert torch.equal(ours, f(x)), x.shape


def signs(x: Tensor) -> Tensor:
    chosen = torch.where(x > 0.3, x, x.abs())
    return torch.stack((x, -x, x.abs(), x.relu(), x.clamp(-1, 1.5), torch.maximum(x, -x), chosen))


def no_number_of_it(x: Tensor) -> Tensor:
    """What bfloat16 has no number for is rounded: 0.3, 1 + 2^-9, a result of float32, one beyond the largest."""
    return torch.stack(
        (x.clamp(max=0.3), x.clamp(1 + 2**-9), x * 0.3, (x.float() * 1.1).to(x.dtype), -(x * 3))
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_each_number_of_a_half_type_is_as_in_eager(dtype: torch.dtype) -> None:
    numbers = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)
    calls = [(f, numbers[: len(numbers) - rest]) for rest in (0, 1, 5) for f in (signs, no_number_of_it)]
    for (f, x), ours in zip(calls, together(*calls), strict=True):
        eager = f(x)
        assert torch.equal(ours.isnan(), eager.isnan())
        same = ours.view(torch.int16) == eager.view(torch.int16)
        assert torch.all(same | eager.isnan()), f.__name__


def test_what_is_only_moved_or_changes_its_sign_is_not_rounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = kernels(tmp_path, monkeypatch, signs, some(torch.bfloat16, 4, 1000))
    assert "bz_put_bf16" in text and not re.search("bz_(round|narrow|store)_bf16", text)
    text = kernels(tmp_path, monkeypatch, no_number_of_it, some(torch.bfloat16, 4, 1000))
    assert re.search("bz_(round|store)_bf16", text)


@pytest.mark.parametrize("dtype", [t for t in ALL if t.itemsize < 4 and t is not torch.bool], ids=str)
def test_rows_that_only_move_are_not_widened(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randint(-128, 128, (6, 128), dtype=torch.int8).view(dtype)
    text = kernels(tmp_path, monkeypatch, lambda x: x.flip(0), x)
    assert "bz_copy(" in text and not re.search("bz_(put|store|widen|move)_", text)
    text = kernels(tmp_path, monkeypatch, lambda x: x.flip(0, 1), x)
    assert "bz_move_" in text and not re.search("bz_(put|store)_", text)
    moved = braze.compile(lambda x: x.flip(0))(x)
    assert torch.equal(moved.view(torch.int8), x.flip(0).view(torch.int8))


def exchanged(x: Tensor) -> Tensor:
    """Each half is written where the other is read."""
    a, b = x[:64].clone(), x[64:].clone()
    x[:64], x[64:] = b, a
    return x + 0


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_what_moves_within_memory_is_read_before_it_is_written(dtype: torch.dtype) -> None:
    x = some(dtype, 128)
    ours, eager = x.clone(), x.clone()
    assert torch.equal(braze.compile(exchanged)(ours), exchanged(eager)) and torch.equal(ours, eager)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_rows_are_copied_byte_by_byte_and_nothing_beside_them(dtype: torch.dtype) -> None:
    """Also of numbers that are none, whose bits are told, at odd addresses, of one row for all, and of no rows."""
    ways = (
        lambda x: x.flip(0),
        lambda x: torch.cat((x, x.flip(0)), 1),
        lambda x: torch.stack((x, x.flip(0), x), 1),
    )
    for width in (1, 3, 7, 16, 33):
        held = torch.randint(-128, 128, (9 * width + 1, dtype.itemsize), dtype=torch.int8).view(torch.uint8)
        held = held % 2 if dtype is torch.bool else held
        x = held.view(dtype).flatten()[1:].view(9, width)
        calls = [(f, each) for f in ways for each in (x, x[:1].expand(5, width), x[:0], x[2:7])]
        for (f, each), ours in zip(calls, together(*calls), strict=True):
            eager = f(each)
            assert ours.shape == eager.shape
            assert torch.equal(ours.contiguous().view(torch.uint8), eager.contiguous().view(torch.uint8))


def test_what_differs_between_parts_that_are_stacked_is_asked_once_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = kernels(tmp_path, monkeypatch, lambda x: torch.stack((x, -x), 1), some(torch.float32, 6, 64))
    assert "bz_copy(" in text and "bz_sel" not in text
    loop = text[text.index("i2 += ") :]
    assert "if (" not in loop[: loop.index("}")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_few_rows_are_normalized_down_their_columns(dtype: torch.dtype) -> None:
    calls = []
    for rows, columns in ((1, 64), (3, 16), (4, 37), (8, 128), (9, 64)):
        x = torch.randn(6, rows, columns)
        x[0, :, 0], x[1, 0, 1], x[2, 0, 2], x[3] = -math.inf, math.inf, math.nan, 0
        for each in (x.to(dtype), x.to(dtype)[:, :, :1].expand(6, rows, columns), x.to(dtype)[1:, :, 1:]):
            calls += [
                (lambda x: x.softmax(1), each),
                (lambda x: torch.nn.functional.normalize(x, dim=1), each),
            ]
    for (f, each), ours in zip(calls, together(*calls), strict=True):
        torch.testing.assert_close(ours, f(each), equal_nan=True)


def test_few_rows_are_walked_by_one_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = kernels(tmp_path, monkeypatch, lambda x: x.softmax(1), some(torch.float32, 6, 4, 64))
    assert text.count("_body(void") == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.uint8, torch.int8], ids=str)
@pytest.mark.parametrize("count", [1, 3, 64, 101])
def test_numbers_of_few_bytes_are_looked_up_by_places_of_eight(dtype: torch.dtype, count: int) -> None:
    x = torch.randint(-128, 128, (256, dtype.itemsize), dtype=torch.int8).view(dtype).flatten()
    if dtype is torch.float16:  # AVX-512 sets a bit of signalling NaNs of this type (docs/trust.md)
        x[x.isnan()] = math.nan
    i = torch.randint(-256, 256, (count,))
    looked_up = braze.compile(lambda x, i: x[i])
    assert torch.equal(looked_up(x, i).view(torch.uint8), x[i].view(torch.uint8))
    calls = [(f, x, i) for f in (lambda x, i: x[i] * 2, lambda x, i: x[i].to(torch.float32) + i)]
    for (f, *_), ours in zip(calls, together(*calls), strict=True):
        torch.testing.assert_close(ours, f(x, i), equal_nan=True, rtol=0, atol=0)
    for wrong in (256, -257, 1 << 40):
        with pytest.raises((IndexError, RuntimeError)):
            looked_up(x, i.index_fill(0, torch.tensor([count - 1]), wrong))


ENLARGED = {
    "twice": dict(scale_factor=2),
    "four times and once": dict(scale_factor=(4.0, 1.0)),
    "to a size": dict(size=(20, 14)),
    "three times": dict(scale_factor=3),
    "by half": dict(scale_factor=0.5),
    "by a part": dict(scale_factor=(2.5, 2)),
}


@pytest.mark.parametrize("way", ENLARGED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.uint8], ids=str)
def test_pictures_are_enlarged_as_in_eager(dtype: torch.dtype, way: str) -> None:
    def f(x: Tensor) -> Tensor:
        return torch.nn.functional.interpolate(x, **ENLARGED[way])  # type: ignore[arg-type]

    x = some(dtype, 3, 2, 5, 7)
    if dtype.is_floating_point:
        x[0, 0, 0, :4] = torch.tensor([math.nan, math.inf, -math.inf, -0.0])
    given = [x, x[1:, 1:], x[:, :, :, :1].expand(3, 2, 5, 7), x.transpose(0, 1), x[:1, :1], x[:0]]
    wanted = [f(each) for each in given]
    for ours, eager in zip(together(*((f, each) for each in given)), wanted, strict=True):
        assert ours.stride() == eager.stride() and torch.equal(bits(ours), bits(eager))
    if dtype in (torch.float32, torch.float64):
        mine, theirs = ([each.detach().clone().requires_grad_() for each in given[:-1]] for _ in range(2))
        tangents = [torch.randn_like(y) for y in wanted[:-1]]
        torch.autograd.backward(braze.compile(lambda given: [f(each) for each in given])(mine), tangents)
        torch.autograd.backward([f(each) for each in theirs], tangents)
        for ours, eager in zip(mine, theirs, strict=True):
            assert eager.grad is not None
            torch.testing.assert_close(ours.grad, eager.grad)


def test_elements_of_pictures_are_repeated_and_not_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    f = lambda x: torch.nn.functional.interpolate(x, scale_factor=2)
    text = kernels(tmp_path, monkeypatch, f, torch.randn(2, 3, 8, 16))
    assert "_body(void" in text and "bz_check" not in text


def test_parts_of_pairs_are_told_apart_once_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A condition on two axes together, of which one decides."""

    def f(x: Tensor) -> Tensor:
        y = torch.nn.functional.interpolate(x, scale_factor=2)
        return torch.cat((y, y * 2), 2)

    given = (some(torch.bfloat16, 2, 4, 100), some(torch.float32, 1, 1, 1), some(torch.float32, 2, 3, 33))
    for x, ours in zip(given, together(*((f, x) for x in given)), strict=True):
        assert torch.equal(ours, f(x))
    text = kernels(tmp_path, monkeypatch, f, some(torch.bfloat16, 2, 4, 100))
    assert "bz_sel" not in text and "bz_anyx" not in text


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("dim", [1, 2])
def test_what_is_at_one_place_alone_is_told_apart_before_the_loop(
    dtype: torch.dtype, dim: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient of a row, or of a column, is zeros around it."""

    def f(x: Tensor, at: int) -> Tensor:
        return torch.ops.aten.select_backward(x + x, [5, 9, 37], dim, at)

    x = some(dtype, 5, 37 if dim == 1 else 9)
    calls = [
        (f, x, 0),
        (f, x, 3),
        (f, x, -1),
        (f, x[:, :1].expand(x.shape), 3),
        (f, x.t().contiguous().t(), -1),
    ]
    for (_, given, at), ours in zip(calls, together(*calls), strict=True):
        assert torch.equal(bits(ours), bits(f(given, at)))
    text = kernels(tmp_path, monkeypatch, lambda x: f(x, -1), x)
    assert "_body(void" in text and not re.search(r"bz_sel_\w+\(v|bz_anyx\d+\(", text.split("_body(void")[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_place_in_a_dim_of_one_or_that_two_axes_tell_is_as_in_eager(dtype: torch.dtype) -> None:
    one = lambda x: torch.ops.aten.select_backward(x * 2, [7, 1, 33], 1, 0)
    x = some(dtype, 7, 33)
    assert torch.equal(bits(braze.compile(one)(x)), bits(one(x)))

    def diagonal(x: Tensor) -> Tensor:
        i, j = torch.arange(7)[:, None], torch.arange(33)
        return torch.where(i * 4 == j, x * 3, torch.where(j != 2 * i - 5, x, -x))

    assert torch.equal(bits(braze.compile(diagonal)(x)), bits(diagonal(x)))
