"""The gradient of an embedding's table as sums of segments, in Triton's interpreter beside ATen."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from braze.lower.scatters import segments
from braze.schedule.gpu import kernels
from braze.schedule.gpu.kernels import plan_kernel
from tests.codegen.test_triton_forms import agree, numbers
from tests.codegen.triton_bench import computed_bounds, interpreted, planned

pytestmark = computed_bounds

NAN, INF = torch.nan, torch.inf


@pytest.fixture(autouse=True)
def many(monkeypatch):
    """What few places have is summed by an operator; the loops are looked at with places that the interpreter gets through."""
    monkeypatch.setattr(segments, "FEW", 0)


@pytest.fixture
def few(monkeypatch):
    """A few hundred places are few."""
    monkeypatch.setattr(segments, "FEW", 512)


DIGITS = {torch.float64: 1e-12, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 0.3}


def gradient(rows, padding=-1, then=lambda x: x):
    op = torch.ops.aten.embedding_dense_backward
    return lambda g, i: then(op(g, i, rows, padding, False))


def check(fn, folder, g, i, digits=1e-4):
    plan, results = interpreted(fn, folder, g, i)
    agree(results, [fn(g.double(), i)], digits)
    limits = [
        plan_kernel(k, {b.name: b for b in plan.program.buffers}).limit for k in plan.groups if k.call is None
    ]
    blocks = i.numel() >= segments.SHORT  # of places, which are summed first where they lie in one segment
    assert sum(limit is not None for limit in limits) == (i.numel() > 1) + blocks, (
        "walks that end with their segments"
    )


def places(count, rows, how):
    spread = torch.arange(count) * 7919 % rows
    if how == "one":
        return torch.full((count,), rows // 2)
    return torch.where(torch.arange(count) % 4 < 2, rows - 1, spread) if how == "half" else spread


@pytest.mark.parametrize("how", ["spread", "half", "one"])
@pytest.mark.parametrize("dtype", DIGITS)
def test_rows_are_summed_by_number(dtype, how, tmp_path):
    check(gradient(23), tmp_path, numbers(200, 24, dtype=dtype), places(200, 23, how), DIGITS[dtype])


@pytest.mark.parametrize(
    ("count", "rows", "width"), [(1, 3, 5), (31, 3, 1), (32, 3, 2), (33, 1, 4), (65, 90, 1), (64, 2, 33)]
)
def test_few_of_everything(count, rows, width, tmp_path):
    check(gradient(rows), tmp_path, numbers(count, width), places(count, rows, "spread"))


@pytest.mark.parametrize("padding", [0, 4, 22])
def test_the_padding_has_no_gradient(padding, tmp_path):
    check(gradient(23, padding), tmp_path, numbers(100, 24), places(100, 23, "half"))


def test_places_in_several_dimensions_and_of_int32(tmp_path):
    check(gradient(9), tmp_path, numbers(3, 5, 7, 8), places(105, 9, "half").view(3, 5, 7).int())
    check(gradient(9), tmp_path, numbers(5, 3, 8).transpose(0, 1), places(15, 9, "spread").view(5, 3).t())
    check(gradient(9), tmp_path, numbers(8, 40).t(), places(80, 9, "spread")[::2])
    check(gradient(9), tmp_path, numbers(1, 8).expand(40, 8), places(40, 9, "half"))


def test_numbers_are_ordered_by_one_call():
    plan = planned(
        gradient(65535), torch.empty(64, 8, device="meta"), torch.empty(64, dtype=torch.long, device="meta")
    )
    calls = [g.call for g in plan.groups if g.call is not None]
    assert [c.target for c in calls] == ["braze.groups.default"]
    assert calls[0].args[0].buffer in plan.program.inputs, "numbers that lie in a row are read where they lie"


def test_two_kernels_sum_what_was_ordered():
    """What ends a walk is found out by who walks, not by a kernel of its own that writes it down."""
    given = torch.empty(64, 8, device="meta"), torch.empty(64, dtype=torch.long, device="meta")
    plan = planned(gradient(65535, 3), *given)
    kernels_of = [k for k in plan.groups if k.call is None]
    buffers = {b.name: b for b in plan.program.buffers}
    assert len(kernels_of) == 2 and all(plan_kernel(k, buffers).limit is not None for k in kernels_of)


def test_infinities_and_nans_stay_in_their_rows(tmp_path):
    g = numbers(200, 10)
    g[3, 3], g[50, 4], g[51, 4], g[199, 9] = NAN, INF, -INF, INF
    for how in ("spread", "half", "one"):
        check(gradient(11), tmp_path, g, places(200, 11, how))


def test_what_follows_is_in_the_same_walk(tmp_path):
    check(gradient(23, then=lambda x: x * 2 + 1), tmp_path, numbers(100, 24), places(100, 23, "half"))
    check(
        gradient(24, then=lambda x: (x.view(24, 4, 6) * 0.5).view(6, 4, 24)),
        tmp_path,
        numbers(100, 24),
        places(100, 24, "half"),
    )


@pytest.mark.parametrize("how", ["spread", "half"])
def test_tiles_of_a_large_table(how, tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "FEW_PROGRAMS", 0)
    check(gradient(23, 4), tmp_path, numbers(200, 40), places(200, 23, how))


def test_long_segments_of_few_rows_are_not_cut():
    """Their blocks are short rows already, and a part would not know where its segment ends."""
    plan = planned(gradient(2), torch.empty(16384, 768), torch.empty(16384, dtype=torch.int64))
    buffers = {b.name: b for b in plan.program.buffers}
    assert plan_kernel(plan.groups[-1], buffers).limit is not None


@pytest.mark.parametrize("by_frequency", [True, False])
def test_what_aten_does(by_frequency):
    """Gradients scaled by frequency, and of nothing at all."""
    count = 10 if by_frequency else 0
    fn = lambda g, i: torch.ops.aten.embedding_dense_backward(g, i, 5, -1, by_frequency)
    plan = planned(fn, torch.empty(count, 8), torch.zeros(count, dtype=torch.int64))
    assert [k.call.target for k in plan.groups if k.call] == ["aten.embedding_dense_backward.default"]


def test_two_tables_gradients_that_are_added_each_end_with_their_segments(tmp_path):
    """As of a table that an encoder and a decoder share: one walk for both would end nowhere, and read all places for each row."""
    op = torch.ops.aten.embedding_dense_backward

    def both(g, i, h, j):
        return op(g, i, 23, -1, False) + op(h, j, 23, -1, False)

    given = numbers(200, 24), places(200, 23, "spread"), numbers(200, 24), places(200, 23, "half")
    plan, results = interpreted(both, tmp_path, *given)
    agree(results, [both(*given).double()], 1e-4)
    buffers = {b.name: b for b in plan.program.buffers}
    rows = [k for k in plan.groups if k.call is None and k.row_axes]
    assert len(rows) >= 4 and all(plan_kernel(k, buffers).limit is not None for k in rows)


def calls_of(fn, *given):
    return [k.call.target for k in planned(fn, *given).groups if k.call is not None]


@pytest.mark.parametrize("dtype", DIGITS)
def test_a_gradient_of_which_many_rows_stay_zero_is_one_call(dtype, tmp_path):
    """Its last kernel fills the rows that no number names; doubles are not summed by them. It writes where results of the graph lie."""
    given = numbers(80, 128, dtype=dtype), places(80, 90, "half")
    assert calls_of(gradient(90, 3), *given) == [
        "braze.groups.default" if dtype is torch.float64 else "braze.table_sums.default"
    ]
    if dtype is not torch.float64:
        plan, results = interpreted(gradient(90, 3), tmp_path, *given)
        agree(results, [gradient(90, 3)(given[0].double(), given[1])], DIGITS[dtype])
        assert [k.call.out_variant for k in plan.groups] == ["braze.table_sums.out"]


def test_a_gradient_that_is_worked_on_is_summed_in_a_kernel_that_does_that_too():
    given = numbers(80, 128), places(80, 90, "half")
    assert calls_of(gradient(90, then=lambda x: x * 2), *given) == ["braze.groups.default"]
    assert (
        calls_of(lambda g, i: gradient(90)(g, i) + gradient(90)(g, i + 1), *given)
        == ["braze.groups.default"] * 2
    )


@pytest.mark.parametrize(
    ("count", "rows", "width"),
    [(91, 90, 128), (100, 90, 127), ((1 << 16) + 1, 1 << 17, 128)],
    ids=["few rows", "narrow rows", "more places than are counted"],
)
def test_a_gradient_whose_rows_are_summed_by_loops(count, rows, width):
    given = torch.empty(count, width, device="meta"), torch.empty(count, dtype=torch.long, device="meta")
    assert calls_of(gradient(rows), *given) == ["braze.groups.default"]


# -- few places, by an operator -------------------------------------------------------------------------------


def calls(plan):
    return [k.call.target for k in plan.groups if k.call]


@pytest.mark.usefixtures("few")
def test_few_places_of_a_small_table_are_one_call_whatever_follows(tmp_path):
    op = gradient(23, then=lambda x: x * 2 + 1)
    plan, results = interpreted(op, tmp_path, numbers(40, 8), places(40, 23, "half"))
    agree(results, [op(numbers(40, 8).double(), places(40, 23, "half"))], 1e-4)
    assert calls(plan) == ["braze.table_sums.default"]
    large = planned(gradient(65535, then=lambda x: x * 2), torch.empty(40, 64), places(40, 23, "half"))
    assert calls(large) == ["braze.groups.default"]
