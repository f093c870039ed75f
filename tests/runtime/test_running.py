"""Running sums, products and logarithms of sums by kernels, in Triton's interpreter, beside ATen's in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from braze.runtime.gpu import running
from braze.runtime.triton import triton_load
from braze.runtime.triton.triton_build import Builders, build
from tests.codegen.libdevice import libdevice  # noqa: F401  a fixture

pytestmark = pytest.mark.usefixtures("libdevice")

DIGITS = {torch.float64: 1e-13, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
SHAPES = [
    ((1, 7), 1),
    ((5, 1), 1),
    ((3, 65), 1),
    ((40, 33), 0),
    ((2, 21, 5), 1),
    ((2, 300), -1),
    ((3, 70, 2), 1),
    ((2, 7, 33), 1),
]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Tiles so small that a few hundred places are many: the interpreter is slow."""
    for name, number in (("FEW", 1), ("TILE", 64), ("PRODUCT", 32), ("BESIDE", 64), ("CORES", 2)):
        monkeypatch.setattr(running, name, number)
    for known in (running._cores, running._launches):
        known.cache_clear()
    yield
    for known in (running._cores, running._launches):
        known.cache_clear()


def numbers(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def check(x, dim, kind, backwards, *, digits):
    wide = x.double() if x.is_floating_point() else x
    wanted = running.by_aten(wide, dim, kind, backwards)
    made = running.by_kernels(x, dim, kind, backwards)
    assert made.dtype is (x.dtype if x.is_floating_point() else torch.int64)
    assert made.is_contiguous()
    torch.testing.assert_close(made.to(wanted.dtype), wanted, rtol=digits, atol=digits, equal_nan=True)
    into = torch.full_like(made, 7)
    assert running.by_kernels(x, dim, kind, backwards, out=into) is into
    assert torch.equal(into.nan_to_num(), made.nan_to_num()), "the same again, bit by bit"


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(("shape", "dim"), SHAPES, ids=str)
@pytest.mark.parametrize("kind", running.KINDS)
def test_every_way_to_walk(kind, shape, dim, backwards):
    check(numbers(*shape), dim, kind, backwards, digits=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lines_that_are_not_cut_take_no_memory_beside_their_results(monkeypatch, dtype):
    x = numbers(40, 33, dtype=dtype)
    into, taken, empty = torch.empty_like(x), [], torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: taken.append(a) or empty(*a, **k))
    running.by_kernels(x, 1, "prod", False, out=into)
    assert not taken
    torch.testing.assert_close(into, x.cumprod(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
@pytest.mark.parametrize(("shape", "dim"), [((40, 33), 0), ((40, 33), 1), ((2, 300), -1)], ids=str)
def test_what_is_worked_out_for_a_layout_serves_other_numbers(shape, dim, dtype):
    first, second = numbers(*shape, dtype=dtype), numbers(*shape).mul(3).to(dtype)
    wanted = running.by_kernels(second, dim, "sum", True)
    into = torch.empty_like(wanted)
    call = running.worked_out(first, dim, "sum", True, out=torch.empty_like(into))
    assert call is not running.by_kernels
    call(second, dim, "sum", True, out=into)
    assert torch.equal(into, wanted)
    assert running.worked_out(first.t(), dim, "sum", True, out=into.t()) is running.by_kernels


@pytest.mark.parametrize("dtype", DIGITS)
@pytest.mark.parametrize("kind", running.KINDS)
def test_half_types_are_summed_in_float32(kind, dtype):
    for shape, dim in (((2, 90), 1), ((90, 2), 0)):
        check(numbers(*shape, dtype=dtype), dim, kind, False, digits=DIGITS[dtype])


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
)
@pytest.mark.parametrize("kind", ["sum", "prod"])
def test_whole_numbers_are_counted_in_int64(kind, dtype):
    large = torch.iinfo(dtype).max if dtype is not torch.bool else 1
    x = torch.arange(600).reshape(3, 200).remainder(5).to(dtype)
    x[:, ::7] = large
    check(x, 1, kind, False, digits=0)
    check(x.t().contiguous(), 0, kind, True, digits=0)


@pytest.mark.parametrize("kind", running.KINDS)
@pytest.mark.parametrize(("shape", "dim"), [((4, 150), 1), ((150, 4), 0)], ids=str)
def test_special_values(kind, shape, dim):
    x = numbers(*shape) if kind != "prod" else numbers(*shape).sign()
    lines = x if dim == 1 else x.t()
    lines[0, 70] = float("inf")
    lines[1, 60], lines[1, 130] = float("-inf"), float("inf")
    lines[2, 90] = float("nan")
    lines[3, :100], lines[3, 100] = float("-inf") if kind == "logsumexp" else -0.0, 1.0
    check(x, dim, kind, False, digits=1e-4)


def test_a_product_behind_a_zero_is_zero_however_large_what_follows_is():
    x = torch.full((300, 2), 1e30)
    x[0] = 0.0
    assert not running.by_kernels(x, 0, "prod", False).any()


def test_few_numbers_are_atens(monkeypatch):
    monkeypatch.setattr(running, "FEW", 101)
    monkeypatch.setattr(running, "_kernel", None)
    check(numbers(10, 10), 1, "sum", True, digits=1e-5)


def test_nothing_at_all_and_other_layouts():
    for shape in ((0, 5), (5, 0), (0,)):
        assert running.by_kernels(torch.empty(shape), -1, "sum", False).shape == shape
    check(numbers(40, 6).t(), 1, "sum", False, digits=1e-4)
    check(numbers(40, 6)[::2, 1:4], 0, "sum", True, digits=1e-4)


def test_lines_too_few_for_a_gpu_are_cut_and_products_never():
    walk = running.walk_of(1, 4096, 1, 4, 2, "sum")
    assert walk.chunks > 1
    assert walk.chunks * walk.chunk >= 4096 > (walk.chunks - 1) * walk.chunk
    assert running.walk_of(1, 4096, 1, 4, 2, "prod").chunks == 1
    assert running.walk_of(1000, 4096, 1, 4, 2, "sum").chunks == 1


def test_the_kernels_compile_to_machine_code(monkeypatch, tmp_path):
    """Of Hopper, rows and columns, cut and whole."""
    jobs = []
    monkeypatch.undo()
    monkeypatch.setattr(
        triton_load, "load_shared", lambda job, *_: lambda *a: jobs.append(replace(job, sizes=a[-6:]))
    )
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    running._kernel.cache_clear()
    try:
        running.by_kernels(numbers(1 << 10, 128), 0, "sum", False)
        running.by_kernels(numbers(4, 1 << 14, dtype=torch.bfloat16), 1, "sum", True)
        running.by_kernels(torch.ones(64, 1024, dtype=torch.bool), 1, "sum", False)
        running.by_kernels(numbers(1 << 10, 64), 0, "prod", True)
        running.by_kernels(numbers(1 << 10, 128), 0, "logsumexp", False)
    finally:
        running._kernel.cache_clear()
    assert {job.name for job in jobs} == {"running", "totals"}
    assert not build(jobs, Builders(("cuda", 90, 32), 1), seconds=200)


@pytest.mark.parametrize(("shape", "dim"), [((1 << 31,), 0), ((1 << 31, 2), 1), ((2, 1 << 31), 1)])
def test_lines_that_32_bits_do_not_count_are_atens(shape, dim):
    """Of chunks of a line the kernels count the first places in 32 bits."""
    device, far = torch.device("cuda:0"), torch.empty(shape, device="meta")
    assert running._launched(device, far, dim, "sum", False) == []
    assert running.worked_out(far, dim, "sum", False, out=far) is running.by_kernels


@pytest.mark.parametrize(("kind", "itemsize", "most"), [("logsumexp", 4, 4), ("sum", 4, 8), ("sum", 2, 4)])
def test_short_columns_that_are_few_are_walked_whole_by_a_sector_of_them(monkeypatch, kind, itemsize, most):
    """So are there programs enough without a second kernel; longer ones are cut, many are walked side by side, products one after another."""
    monkeypatch.setattr(running, "TILE", 64 if kind == "sum" else 128)
    short = running.walk_of(2, most, 100, itemsize, 132, kind)
    assert (short.lines, short.block, short.chunks) == (running.SECTOR // itemsize, most, 1)
    assert running.walk_of(2, most + 1, 100, itemsize, 132, kind).lines > short.lines
    assert running.walk_of(5000, most, 100, itemsize, 132, kind).lines > short.lines
    assert running.walk_of(2, most, 100, itemsize, 132, "prod").lines > short.lines
