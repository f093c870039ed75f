"""The gradient of a table by kernels that order its numbers and clear its other rows, in Triton's interpreter, beside ATen's sums."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from braze.runtime.gpu import counted_sums, groups, table_sums
from braze.runtime.triton import triton_load
from braze.runtime.triton.triton_build import Builders, build
from tests.codegen.triton_bench import computed_bounds

pytestmark = computed_bounds

RULE = counted_sums.are_worth
DIGITS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def forget():
    """What is known of kernels, which are made otherwise here."""
    for known in (groups.kernel, groups._sorting, table_sums._last, table_sums._few, counted_sums._kernels):
        known.cache_clear()


#: of numbers that are counted without an order
SMALL = dict(
    NOTED=4, BLOCK=16, COUNTED=64, MARKED=64, LISTERS=3, ADDERS=3, ENDERS=2, WORDS=8, LAST_ROWS=4, SHARE=4, COLUMNS=8, ROWS=64,
)  # fmt: skip


@pytest.fixture(params=["ordered", "counted"])
def way(request):
    """Numbers are put in order, or counted, whatever the rule says."""
    return request.param


@pytest.fixture(autouse=True)
def small(monkeypatch, way):
    """Blocks so small that a few hundred places are many, and memory that holds what looks like places: the interpreter is slow."""
    monkeypatch.setattr(counted_sums, "are_worth", lambda *sizes: way == "counted")
    for name, number in SMALL.items():
        monkeypatch.setattr(counted_sums, name, number)
    for name, number in (("BLOCK", 32), ("SHORT", 16), ("SOME", 4)):
        monkeypatch.setattr(groups, name, number)
    for name, number in (("BLOCK", 16), ("AT_ONCE", 4), ("COLUMNS", 8), ("ROWS", 512), ("FEW", 0)):
        monkeypatch.setattr(table_sums, name, number)
    empty = torch.empty

    def dirty(*args, **kwargs):
        made = empty(*args, **kwargs)
        return made.copy_(torch.arange(made.numel()).view(made.shape) % 50)

    monkeypatch.setattr(torch, "empty", dirty)
    forget()
    yield
    forget()


def check(grad, indices, rows, padding=-1):
    ours = table_sums.by_kernels(grad, indices, rows, padding)
    wanted = table_sums.by_adding(grad.double().float(), indices, rows, padding)
    assert ours.dtype is grad.dtype
    torch.testing.assert_close(
        ours.float(), wanted, rtol=0, atol=DIGITS[grad.dtype] * (1 + wanted.abs().max())
    )
    into = torch.full_like(ours, 7)
    assert table_sums.by_kernels(grad, indices, rows, padding, out=into) is into
    assert torch.equal(ours, into), "the same again, bit by bit"


def numbers(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def places(count, rows, how):
    spread = torch.arange(count) * 7919 % rows
    if how == "one":
        return torch.full((count,), rows // 2)
    return torch.where(torch.arange(count) % 4 < 3, rows - 1, spread) if how == "most" else spread


@pytest.mark.parametrize(
    ("dtype", "how"), [(torch.float32, "most"), (torch.float32, "one"), (torch.float16, "most"), (torch.bfloat16, "one")]
)  # fmt: skip
def test_rows_are_summed_by_number(dtype, how):
    check(numbers(200, 12, dtype=dtype), places(200, 90, how), 90)


def test_rows_of_which_most_get_nothing():
    check(numbers(70, 12), places(70, 1500, "spread"), 1500)


@pytest.mark.parametrize("count", [1, 2, 15, 16, 33])
@pytest.mark.parametrize("rows", [1, 15, 255, 256, 300])
def test_few_of_everything(count, rows):
    check(numbers(count, 4), places(count, rows, "spread"), rows)


def test_a_table_of_more_rows_than_two_bytes_number(monkeypatch):
    monkeypatch.setattr(counted_sums, "ROWS", 1024)
    check(numbers(40, 4), torch.arange(40) * 1690, 66000)


@pytest.mark.parametrize("padding", [0, 40, 79])
def test_the_padding_has_no_gradient(padding):
    check(numbers(100, 8), torch.arange(100) % 80, 80, padding)
    check(numbers(100, 8), torch.full((100,), padding), 80, padding)


def test_what_is_no_row_is_left_out():
    given = torch.tensor([5, -1, 6, 7, 0, -(2**40), 2**40, 6, 2**32 + 3])
    check(numbers(9, 8), given, 7)
    check(numbers(9, 8), torch.full((9,), 7), 7)


def test_places_in_several_dimensions_and_of_int32():
    check(numbers(3, 5, 7, 8), places(105, 200, "most").view(3, 5, 7).int(), 200)
    check(numbers(5, 3, 8).transpose(0, 1), places(15, 90, "spread").view(5, 3).t(), 90)
    check(numbers(1, 8).expand(80, 8), places(160, 90, "spread")[::2], 90)


def test_infinities_and_nans_stay_in_their_rows():
    grad, at = numbers(200, 8), places(200, 90, "most")
    grad[3, 3], grad[49, 4], grad[50, 4] = torch.nan, torch.inf, -torch.inf
    ours, wanted = (f(grad, at, 90, -1) for f in (table_sums.by_kernels, table_sums.by_adding))
    assert torch.equal(ours.isnan(), wanted.isnan()) and torch.equal(ours.isinf(), wanted.isinf())
    assert ours.isnan().sum() == 2


def test_more_places_than_are_counted_are_sorted(monkeypatch):
    monkeypatch.setattr(groups, "MOST", 99)
    check(numbers(100, 8), torch.arange(100) % 70, 90, 3)
    check(numbers(30, 8), torch.arange(30), 90, 3)


def test_numbers_are_counted_where_rows_are_short_and_neither_they_nor_places_are_many_more():
    assert RULE(32768, 50304, 2048) and RULE(65536, 32000, 512)
    assert not RULE(8192, 32000, 8192), "long rows"
    assert not RULE(4096, 128256, 2048), "mostly rows that no number names"
    assert not RULE(32768, 1024, 2048), "numbers that stand more often than is noted"


def test_nothing_at_all():
    made = table_sums.by_kernels(numbers(0, 8), torch.empty(0, dtype=torch.long), 5, -1)
    assert torch.equal(made, torch.zeros(5, 8))


@pytest.fixture
def few(monkeypatch, way):
    """Programs of one kernel have all places, in tiles that a table fills several times: there are no ways to choose from."""
    for name, number in (("FEW", 99), ("FEW_AT_ONCE", 16), ("FEW_COLUMNS", 8), ("FEW_ROWS", 512)):
        monkeypatch.setattr(table_sums, name, number)
    monkeypatch.setattr(counted_sums, "are_worth", None)


def of_few(test):
    """A test of that kernel."""
    return pytest.mark.usefixtures("few")(pytest.mark.parametrize("way", ["one kernel"], indirect=True)(test))


@of_few
@pytest.mark.parametrize(
    ("dtype", "how"),
    [*((torch.float32, how) for how in ("most", "one", "spread")), (torch.float16, "most"), (torch.bfloat16, "spread")],
)  # fmt: skip
def test_few_places_are_summed_by_one_kernel(dtype, how, monkeypatch):
    monkeypatch.setattr(groups, "ordered", None)
    check(numbers(99, 12, dtype=dtype), places(99, 50, how), 50)
    check(numbers(3, 1, dtype=dtype), places(3, 2, how), 2)
    check(numbers(33, 5, dtype=dtype), places(33, 700, how).int(), 700, 699)


@of_few
@pytest.mark.parametrize("shape", [(99,), (3, 33)], ids=str)
def test_what_is_worked_out_for_few_places_of_a_layout_serves_other_numbers(shape):
    first, at = numbers(*shape, 12), places(99, 50, "most").view(shape)
    into = torch.full((50, 12), 7.0)
    call = table_sums.worked_out(first, at, 50, -1, out=into)
    assert call is not table_sums.by_kernels
    grad, other = first + 1, places(99, 50, "spread").view(shape)
    call(grad, other, 50, -1, out=into)
    assert torch.equal(into, table_sums.by_kernels(grad, other, 50, -1))
    turned = first.transpose(0, -1).contiguous().transpose(0, -1)
    for given, where in ((turned, at), (numbers(100, 12), places(100, 50, "most"))):
        assert table_sums.worked_out(given, where, 50, -1, out=into) is table_sums.by_kernels


@of_few
def test_few_places_that_are_no_rows_or_the_padding_are_left_out():
    given = torch.tensor([5, -1, 6, 7, 0, -(2**40), 2**40, 6, 2**32 + 3])
    for padding in (-1, 6, 0):
        check(numbers(9, 8), given, 7, padding)
    check(numbers(9, 8), torch.full((9,), 7), 7)


@of_few
def test_infinities_and_nans_of_few_places_stay_in_their_rows():
    grad, at = numbers(60, 8), places(60, 40, "most")
    grad[3, 3], grad[49, 4], grad[50, 4], grad[7] = torch.nan, torch.inf, -torch.inf, -0.0
    ours, wanted = (f(grad, at, 40, -1) for f in (table_sums.by_kernels, table_sums.by_adding))
    assert torch.equal(ours.isnan(), wanted.isnan()) and torch.equal(ours.isinf(), wanted.isinf())
    assert ours.isnan().sum() == 2 and torch.equal(ours.signbit(), wanted.signbit())


@pytest.mark.parametrize(
    ("way", "dtype", "rows"),
    [("ordered", torch.bfloat16, 50304), ("counted", torch.float32, 200)],
    indirect=["way"],
)
def test_the_kernels_compile_to_machine_code(dtype, rows, way, monkeypatch, tmp_path):
    """Of Hopper, as they are launched there: each but the first begins early."""
    jobs = []
    monkeypatch.undo()
    monkeypatch.setattr(counted_sums, "are_worth", lambda *sizes: way == "counted")
    monkeypatch.setattr(
        triton_load, "load_shared", lambda job, *_: lambda *a: jobs.append(replace(job, sizes=a[-2:]))
    )
    monkeypatch.setattr(groups, "begins_early", lambda device: True)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    forget()
    try:
        for count in (table_sums.FEW, table_sums.FEW + 1):
            table_sums.by_kernels(numbers(count, 1024, dtype=dtype), places(count, rows, "spread"), rows, 3)
    finally:
        forget()
    ordered = ["count", *["place"] * groups.passes_of(rows), "sums"]
    assert [job.name for job in jobs] == [
        "few",
        *(ordered if way == "ordered" else ["blank", "tally", "table"]),
    ]
    constants = [dict(job.constants) for job in jobs]
    assert [c.get("EARLY", 0) for c in constants] == [0, 0] + [1] * (len(jobs) - 2)
    lets = [c.get("LETS", 0) for c in constants]
    assert lets == ([0] * len(jobs) if way == "ordered" else [0, 1, 1, 0]), "the next may begin"
    assert not build(jobs, Builders(("cuda", 90, 32), 1), seconds=200)
