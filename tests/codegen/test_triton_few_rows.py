"""Sums and softmaxes down a few rows of many columns: each thread has whole columns, as many side by side as it reads at once."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from braze.schedule import kernels
from braze.schedule.kernels import plan_kernel
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
    for many in (49, 100):
        assert cut_of(lambda x: torch.softmax(x, 0), many, 1 << 18)[0] == [64]
    assert cut_of(lambda x: x.argmax(0), 21, 1 << 18)[0] == [64]
    assert cut_of(lambda x: torch.softmax(x, 0), 30, 1 << 18, dtype=torch.float64)[0] == [64]
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


@pytest.mark.parametrize(("rows", "columns"), [(2, 20), (5, 100), (16, 48), (31, 100), (16, 49), (7, 17)])
def test_what_is_reduced_down_few_rows_of_many_blocks(rows, columns, tmp_path, monkeypatch):
    """Programs take columns of several blocks, and the last one fewer than it has room for."""
    monkeypatch.setattr(kernels, "FEW_PROGRAMS", 1)
    monkeypatch.setattr(kernels, "DEEP_PROGRAMS", 1)
    x = numbers(23, rows, columns)
    x[0, 1, 5], x[1, 0, 7], x[22, 1, :2], x[3, :, 9] = torch.nan, torch.inf, -0.0, -torch.inf

    def fn(x):
        return x.sum(1), x.amax(1), x.softmax(1), x.var(1)

    assert check(fn, tmp_path, x, digits=1e-5) == ["columns"]
    plan = planned(fn, x)
    (cut,) = [plan_kernel(g, {b.name: b for b in plan.program.buffers}) for g in plan.groups]
    assert cut.whole and not cut.outer and [a.extent.value for a in cut.points[0].axes] == [23, columns]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
@pytest.mark.parametrize(("rows", "columns"), [(2, 2048), (7, 1500), (8, 1024)])
def test_what_is_reduced_down_few_rows(dtype, rows, columns, tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "FEW_PROGRAMS", 1)
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
    monkeypatch.setattr(kernels, "DEEP_PROGRAMS", 1)
    x = numbers(2, rows, columns, dtype=dtype)
    x[0, 3, 5], x[1, 16, 7], x[0, 2, :2], x[1, :, 9] = torch.nan, torch.inf, -0.0, -torch.inf

    def fn(x):
        return x.logsumexp(1), x.softmax(1), x.var(1)

    check(fn, tmp_path, x, digits=2e-2 if dtype is torch.bfloat16 else 1e-5)
