"""Sums and softmaxes down a few rows of many columns: each thread has whole columns, as many side by side as it reads at once."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from braze.schedule.gpu import column_tiles
from braze.schedule.gpu.kernels import plan_kernel
from tests.codegen.test_triton_forms import check, numbers
from tests.codegen.triton_bench import planned


def cut_of(fn, *shape, dtype=torch.bfloat16):
    """Blocks and warps of a function's only kernel."""
    plan = planned(fn, torch.empty(shape, dtype=dtype, device="meta"))
    (group,) = plan.groups
    cut = plan_kernel(group, {b.name: b for b in plan.program.buffers})
    assert cut.row is not None
    return [tile.block for tile in cut.points], cut.row.block, cut.whole, cut.warps


@pytest.mark.parametrize("rows", [2, 5, 8, 16])
def test_a_thread_has_whole_columns_of_few_rows(rows):
    wide = 1 << 18
    block = 1 << (rows - 1).bit_length()
    assert cut_of(lambda x: x.sum(0), rows, wide) == ([1024], block, True, 4)
    assert cut_of(lambda x: torch.softmax(x, 0), rows, wide) == ([1024], block, True, 4)
    assert cut_of(lambda x: x.sum(1), 8, rows, wide // 8) == ([1024], block, True, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [17, 21, 48])
def test_a_warp_has_whole_columns_of_more_rows(rows, dtype):
    block = 1 << (rows - 1).bit_length()
    for fn in (lambda x: torch.softmax(x, 1), lambda x: torch.logsumexp(x, 1)):
        assert cut_of(fn, 8, rows, 1 << 16, dtype=dtype) == ([128], block, True, 1)


def test_more_rows_and_fewer_columns_are_shared_by_threads():
    assert cut_of(lambda x: torch.softmax(x, 0), 100, 1 << 18) == ([64], 128, True, 4)
    assert cut_of(lambda x: x.argmax(0), 70, 1 << 18)[2:] != (True, 1)
    assert cut_of(lambda x: torch.softmax(x, 0), 50, 1 << 18, dtype=torch.float64)[0] == [64]
    assert cut_of(lambda x: torch.softmax(x, 0), 21, 1 << 15)[0] < [128]
    assert cut_of(lambda x: x.sum(0), 8, 4096)[0] < [1024]
    assert cut_of(lambda x: x.sum(1), 1 << 10, 8, 96)[0] < [1024]


@pytest.mark.parametrize("rows", [2, 5, 8, 16])
@pytest.mark.parametrize("columns", [48, 100, 512])
def test_a_thread_has_columns_of_whatever_block(rows, columns):
    """Blocks of few columns are many: a program of one of them has less on its way than a multiprocessor can hold."""
    blocks, row = (1 << 26) // (rows * columns), 1 << (rows - 1).bit_length()
    assert cut_of(lambda x: x.sum(1), blocks, rows, columns) == ([1024], row, True, 4)
    assert cut_of(lambda x: torch.softmax(x, 1), blocks, rows, columns) == ([1024], row, True, 4)


@pytest.mark.parametrize(("rows", "columns"), [(2, 20), (5, 100), (16, 48), (31, 100), (16, 25), (7, 17)])
def test_what_is_reduced_down_few_rows_of_many_blocks(rows, columns, tmp_path, monkeypatch):
    """Programs take columns of several blocks, and the last one fewer than it has room for."""
    monkeypatch.setattr(column_tiles, "FEW_PROGRAMS", 1)
    monkeypatch.setattr(column_tiles, "ENOUGH_PROGRAMS", 1)
    x = numbers(67, rows, columns)
    x[0, 1, 5], x[1, 0, 7], x[66, 1, :2], x[3, :, 9] = torch.nan, torch.inf, -0.0, -torch.inf

    def fn(x):
        return x.sum(1), x.amax(1), x.softmax(1), x.var(1)

    assert check(fn, tmp_path, x, digits=1e-5) == ["columns"]
    plan = planned(fn, x)
    (cut,) = [plan_kernel(g, {b.name: b for b in plan.program.buffers}) for g in plan.groups]
    assert cut.whole and not cut.outer and [a.extent.value for a in cut.points[0].axes] == [67, columns]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
@pytest.mark.parametrize(("rows", "columns"), [(2, 2048), (7, 1500), (8, 1024)])
def test_what_is_reduced_down_few_rows(dtype, rows, columns, tmp_path, monkeypatch):
    monkeypatch.setattr(column_tiles, "FEW_PROGRAMS", 1)
    x = numbers(rows, columns, dtype=dtype)

    def fn(x):
        return x.sum(0), x.amax(0), x.argmin(0), x - x.amin(0)

    assert check(fn, tmp_path, x, digits=1e-2 if dtype is torch.bfloat16 else 1e-5) == ["columns"]


def test_places_down_columns_are_looked_for_once():
    """A load has columns side by side: the rows among which an extreme lies are not read again."""
    from braze.codegen.triton import generate
    from tests.codegen.triton_bench import context

    plan = planned(lambda x: x.argmax(0), torch.empty(8, 1 << 18, dtype=torch.bfloat16, device="meta"))
    (text,) = generate(plan, context())
    assert text.source.count("tl.load") == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "columns"), [(17, 300), (33, 128)])
def test_what_is_reduced_down_more_rows(dtype, rows, columns, tmp_path, monkeypatch):
    monkeypatch.setattr(column_tiles, "ENOUGH_PROGRAMS", 1)
    x = numbers(2, rows, columns, dtype=dtype)
    x[0, 3, 5], x[1, 16, 7], x[0, 2, :2], x[1, :, 9] = torch.nan, torch.inf, -0.0, -torch.inf

    def fn(x):
        return x.logsumexp(1), x.softmax(1), x.var(1)

    check(fn, tmp_path, x, digits=2e-2 if dtype is torch.bfloat16 else 1e-5)


@pytest.mark.parametrize(("rows", "columns"), [(49, 1 << 18), (64, 1 << 17), (96, 1 << 18)])
def test_a_warp_has_half_as_many_columns_of_still_more_rows(rows, columns):
    block = 1 << (rows - 1).bit_length()
    for fn in (lambda x: torch.softmax(x, 0), lambda x: x.var(0), lambda x: x.sum(0)):
        assert cut_of(fn, rows, columns) == ([64], block, True, 1)
        assert cut_of(fn, rows, columns + 1) != ([128], block, True, 1)


def test_places_of_extremes_take_half_of_a_threads_room():
    for rows, columns in ((20, 128), (32, 128), (49, 64), (64, 64)):
        block = 1 << (rows - 1).bit_length()
        assert cut_of(lambda x: x.argmax(1), 1000, rows, 1000) == ([columns], block, True, 1)


def test_columns_read_one_by_one_and_again_stay_in_their_block():
    """Threads would ask for a sector of each number twice; where a block has few columns, they would ask for little else."""
    for rows in (5, 16):
        assert cut_of(lambda x: torch.softmax(x, 1), 1 << 16, rows, 49)[0] == [64]
        assert cut_of(lambda x: torch.softmax(x, 1), 1 << 18, rows, 25)[0] == [1024]
        assert cut_of(lambda x: x.sum(1), 1 << 16, rows, 49)[0] == [1024]


def test_two_columns_of_many_rows_are_read_as_whole_vectors():
    """Rows after each other lie side by side; parts of rows, which lie far apart, are programs of their own."""
    plan = planned(lambda x: x.argmax(0), torch.empty(1 << 24, 2, dtype=torch.bfloat16, device="meta"))
    first = plan_kernel(plan.groups[0], {b.name: b for b in plan.program.buffers})
    assert [a.extent.value for a in first.points[0].axes] == [8] and first.programs.value >= 512


@pytest.mark.parametrize(("width", "rows"), [(2, 1024), (4, 512), (8, 256), (32, 64), (64, 32)])
def test_shortest_rows_fill_a_program(width, rows):
    """Few programs have fewer rows each."""
    assert cut_of(lambda x: torch.softmax(x, 1), 1 << 22, width) == ([rows], width, True, 4)
    assert cut_of(lambda x: torch.softmax(x, 1), 1 << 12, width)[0] == [min(rows, 64)]
