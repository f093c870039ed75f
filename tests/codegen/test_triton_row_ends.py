"""Loops over what tiles fill have no mask: what is left of rows, of parts of them and of columns is told apart; in Triton's interpreter."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch

pytest.importorskip("triton")

from braze.codegen.triton import generate
from braze.schedule.gpu import column_tiles, cuts, row_ends, tile_sizes
from braze.schedule.gpu.row_ends import last_apart, overlaps, row_end
from tests.codegen.test_triton_forms import INF, NAN, agree, exact, numbers, plans, small
from tests.codegen.triton_bench import context, interpreted, planned

__all__ = ["small"]


def first_text(fn, *inputs, cores):
    """The first kernel's text."""
    return generate(planned(fn, *inputs, cores=cores), context(cores))[0].source


def loops(text):
    """The bodies of a text's loops over rows."""
    return re.findall(r"^    for r\w+ in .*\n((?:        .*\n)+)", text, re.MULTILINE)


def holds(fn, tmp_path, *inputs, digits=1e-4, cores=1):
    agree(interpreted(fn, tmp_path, *inputs, cores=cores)[1], exact(fn, *inputs), digits)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x.sum(1), (x > 3).any(1)),
        lambda x: torch.var_mean(x, 1),
        lambda x: x.argmax(1),
        lambda x: x.logsumexp(1),
    ],
    ids=["sum", "variance", "argmax", "powers"],
)
def test_the_tile_that_a_row_fills_in_part_stands_apart(fn, tmp_path):
    x = numbers(3, 17004)
    x[1, 17003], x[2, 16999] = 1e3, -1e3
    holds(fn, tmp_path, x)
    text = first_text(fn, x, cores=1)
    assert loops(text) and not any("mask" in body for body in loops(text)) and "rmask" in text


def test_so_does_that_of_what_is_stored_along_the_row(tmp_path):
    """Which is written from the row's end on."""
    fn, x = lambda x: x - x.mean(1, keepdim=True), numbers(3, 17004, dtype=torch.float64)
    holds(fn, tmp_path, x)
    text = first_text(fn, x, cores=1)
    assert len(loops(text)) == 2 and not any("mask" in body for body in loops(text))


@pytest.mark.parametrize("rows", [700, 9 * 64 + 1])
def test_so_does_that_of_columns(rows, tmp_path):
    fn = lambda x: (x.sum(1), (x * x).sum(1))
    x = numbers(2, rows, 128, dtype=torch.bfloat16)
    holds(fn, tmp_path, x, digits=0.5)
    text = first_text(fn, x, cores=1)
    assert not any("mask" in body for body in loops(text)) and "rmask" in text


def test_rows_of_less_than_two_tiles_and_of_whole_ones_are_one_loop(tmp_path):
    for length in (5000, 8192, 40000):
        plan = plans(planned(lambda x: x.sum(1), numbers(3, length), cores=1))[0]
        assert last_apart(plan) is (length >= 2 * plan.row.block)
    assert "rmask" not in first_text(lambda x: x.sum(1), numbers(3, 8192), cores=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_last_part_of_a_row_ends_where_the_row_does(dtype, tmp_path):
    """Also where its numbers are infinite or none."""
    fn = lambda x: (x.sum(1), x.square().sum(1))
    for last in (1, INF, NAN):
        x = numbers(1, 72008, dtype=dtype)
        x[0, 72007] = last
        holds(fn, tmp_path, x, digits=1e-3 if dtype is torch.float32 else 300)
    end = row_end(plans(planned(fn, x, cores=1))[0])
    assert end is not None and (end.step, end.spread, end.length) == (1, 0, 72008)
    text = first_text(fn, x, cores=1)
    assert "if full < rnumel:" in text and not any("mask" in body for body in loops(text))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("shape", [(3001, 7), (3001, 2, 5), (3001, 9), (2, 3001, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_side_by_side_of_which_some_are_left_over(dtype, shape, tmp_path, monkeypatch):
    """Of a number of rows that nothing divides the last ones that lie side by side are some that do not exist."""
    monkeypatch.setattr(tile_sizes, "WALK", 256)
    monkeypatch.setattr(column_tiles, "SHORT_COLUMN", 1)
    monkeypatch.setattr(cuts, "TILE_DOWN", 8)
    dim = len(shape) - 2 if shape[0] == 2 else 0
    x = numbers(*shape, dtype=dtype) + 3
    narrow = 1e-4 if dtype is torch.float32 else 1
    for fn in (lambda x: x.sum(dim), lambda x: torch.var_mean(x, dim), lambda x: x.argmin(dim)):
        holds(fn, tmp_path, x, digits=narrow, cores=2)
    plan = plans(planned(lambda x: x.sum(dim), x, cores=2))[0]
    end = row_end(plan)
    assert end is not None and end.step > 1 and plan.points[-1].extent.value % shape[-1] == 0
    x = x.narrow(dim, 0, x.shape[dim] - 1)
    x.select(dim, x.shape[dim] - 1).fill_(INF if dtype.is_floating_point else 9)
    holds(lambda x: (x.amax(dim), x.argmax(dim)), tmp_path, x.contiguous(), digits=narrow, cores=2)


@pytest.mark.parametrize("columns", [65, 100, 130, 201])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_last_tile_of_columns_begins_so_far_back_that_it_is_full(columns, dtype, tmp_path, monkeypatch):
    monkeypatch.setattr(row_ends, "MANY", 1)
    x = numbers(3, 150, columns, dtype=dtype)
    fn = lambda x: (x.sum(1) + 1, x.amax(1))
    holds(fn, tmp_path, x, digits=1e-4 if dtype is torch.float32 else 0.5)
    plan = planned(fn, x, cores=1)
    kernel = plans(plan)[0]
    assert overlaps(plan.groups[0], kernel) is (columns % kernel.points[-1].block > 0)
    assert "xmask" not in first_text(fn, x, cores=1)


def test_tiles_of_columns_that_write_what_they_read_do_not_overlap():
    """What one of them has written another would read again."""
    plan = planned(lambda x: x.sum(0), numbers(40, 5000), cores=1)
    (group,), (kernel,) = plan.groups, plans(plan)
    (step,) = group.steps
    assert overlaps(group, kernel)
    over = dataclasses.replace(step, stores=(dataclasses.replace(step.stores[0], buffer="x"),))
    assert not overlaps(dataclasses.replace(group, steps=(over,)), kernel)


def test_fewer_columns_than_a_tile_do_not_overlap():
    plan = planned(lambda x: x.sum(0), numbers(300, 7), cores=1)
    assert not any(overlaps(g, k) for g, k in zip(plan.groups, plans(plan), strict=True))


def meta(dtype, *shape):
    return torch.empty(shape, dtype=dtype, device="meta")


def test_of_few_columns_each_has_a_program_that_puts_its_parts_together():
    """Sums and the like of columns, as first kernels leave them by the thousand."""
    found = plans(planned(lambda x: x.sum((0, 1)), meta(torch.bfloat16, 3488, 384, 5, 5)))
    assert [p.programs.value for p in found][1:] == [25]
    found = plans(planned(lambda x: torch.var_mean(x, 0), meta(torch.float32, 671088, 25)))
    assert found[1].programs.value < 25


@pytest.mark.parametrize(("rows", "beside"), [(2396743, 36), (2396744, 4)])
def test_rows_of_any_number_lie_side_by_side(rows, beside):
    """The fewest that fill their tiles well, of those that leave none over if there are such."""
    for fn in (lambda x: x.sum(0), lambda x: torch.var_mean(x, 0)):
        found = plans(planned(fn, meta(torch.float32, rows, 7)))
        assert found[0].points[-1].extent.value == beside * 7


def test_rows_left_over_that_few_tiles_would_hold_are_none_beside_others():
    found = plans(planned(lambda x: x.sum(0), meta(torch.bfloat16, 1025, 21845)))
    assert found[0].points[-1].extent.value == 8 * 21845
    found = plans(planned(lambda x: x.sum(0), meta(torch.bfloat16, 1001, 21845)))
    assert found[0].points[-1].extent.value == 21845


def test_rows_of_floats_that_begin_anywhere_leave_room_for_a_program_beside_each():
    """Those of which a mean is taken, up to 160 KB of them, and those of powers, up to 184 KB."""
    norm = lambda x: torch.nn.functional.layer_norm(x, x.shape[1:])
    for length, warps in ((20001, 16), (21845, 16), (40001, 16), (50257, 32)):
        (plan,) = plans(planned(norm, meta(torch.float32, 1024, length)))[-1:]
        assert (plan.warps, plan.registers) == (warps, 64) and plan.held
    for length, warps in ((33001, 16), (45001, 16), (50257, 32)):
        (plan,) = plans(planned(lambda x: x.softmax(-1), meta(torch.float32, 1024, length)))
        assert plan.warps == warps and plan.held


def test_columns_that_tiles_do_not_divide_of_parts_that_end_early_have_few_warps():
    for shape, warps in (((60013, 257), 2), ((60000, 257), 8), ((21851, 768), 8)):
        first, _ = generate(planned(lambda x: x.sum(0), torch.empty(shape, device="meta")), context())
        assert first.launch.num_warps == warps
