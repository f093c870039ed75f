"""What kernels move and compute, counted by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import braze
from braze.inspect import machine
from braze.schedule.facts.work import Work, compiled_groups, work_of
from tests.codegen.triton_bench import planned


def work(fn: Callable[..., Any], *inputs: torch.Tensor, **options: Any) -> list[Work]:
    plan = planned(fn, *inputs, **options)
    return [work_of(group, buffers, {}) for group, buffers in compiled_groups(plan)]


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


def test_each_element_is_read_and_written_once():
    (found,) = work(lambda x, y: x * y + x, empty(64, 100), empty(64, 100))
    assert found == Work(2 * 64 * 100 * 4, 64 * 100 * 4, 2 * 64 * 100)


def test_a_broadcast_operand_is_read_once():
    (found,) = work(lambda x, b: x + b, empty(64, 100), empty(100))
    assert found.read == (64 * 100 + 100) * 4


def test_an_expanded_tensor_has_the_elements_that_are_stored():
    (found,) = work(lambda x, b: x + b, empty(64, 100), empty(100).expand(64, 100))
    assert found.read == (64 * 100 + 100) * 4


def test_of_a_slice_only_its_elements_are_read():
    (found,) = work(lambda x: x.narrow(1, 0, 10) * 2, empty(64, 100))
    assert found == Work(64 * 10 * 4, 64 * 10 * 4, 64 * 10)


def test_half_types_are_half_the_bytes():
    (found,) = work(lambda x: x * 2, empty(64, 100, dtype=torch.bfloat16))
    assert (found.read, found.written) == (64 * 100 * 2, 64 * 100 * 2)


def test_a_softmax_reads_its_rows_once_however_often_it_walks_them():
    (found,) = work(lambda x: torch.softmax(x, -1), empty(512, 1000))
    assert (found.read, found.written) == (512 * 1000 * 4, 512 * 1000 * 4)
    assert found.operations >= 4 * 512 * 1000


def test_a_sum_writes_its_results_alone():
    found = work(lambda x: x.sum(1), empty(2048, 256))
    assert sum(each.written for each in found) == 2048 * 4
    assert sum(each.read for each in found) == 2048 * 256 * 4
    assert sum(each.operations for each in found) == 2048 * 256


def test_rows_that_are_looked_up_are_no_more_than_the_table():
    few = work(
        lambda table, i: F.embedding(i, table) + 1, empty(1000, 64), torch.zeros(10, dtype=torch.int64)
    )[0]
    assert few.read == 10 * 64 * 4 + 10 * 8
    many = work(
        lambda table, i: F.embedding(i, table) + 1, empty(100, 64), torch.zeros(5000, dtype=torch.int64)
    )[0]
    assert many.read == 100 * 64 * 4 + 5000 * 8


def test_what_stays_inside_a_kernel_moves_nothing():
    (found,) = work(lambda x: (x.sin().cos() + x).relu(), empty(64, 100))
    assert (found.read, found.written) == (64 * 100 * 4, 64 * 100 * 4)


@pytest.mark.parametrize("shape", [(0, 100), (1, 1), (1,), ()])
def test_small_and_empty_tensors(shape):
    n = empty(*shape).numel()
    found = work(lambda x: x * 2, empty(*shape))
    assert sum(each.read + each.written for each in found) == 2 * n * 4


def test_a_template_counts_two_for_each_multiplication():
    m, n, k = 32, 48, 64
    half = dict(dtype=torch.bfloat16)
    (found,) = work(
        lambda x, w: F.linear(x, w).relu(), empty(m, k, **half), empty(n, k, **half), matmul_template=True
    )
    assert (found.flops, found.product) == (2 * m * n * k, "bf16")
    assert (found.read, found.written) == ((m * k + n * k) * 2, m * n * 2)
    assert found.operations == m * n


def test_a_batch_counts_all_its_products():
    batch, m, n, k, half = 4, 32, 16, 64, dict(dtype=torch.bfloat16)
    (found,) = work(
        lambda a, b: torch.bmm(a, b).relu(),
        empty(batch, m, k, **half),
        empty(batch, k, n, **half),
        matmul_template=True,
    )
    assert found.flops == 2 * batch * m * n * k
    assert found.read == batch * (m * k + k * n) * 2


def test_sizes_that_are_symbols_count_as_they_were_when_traced(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "bytes_per_second", lambda device: 1e9)
    found = braze.explain(lambda x: x.sin() * 2, dynamic=True)(torch.ones(37, 100))
    (cost,) = found.costs
    assert (cost.read, cost.written) == (37 * 100 * 4, 37 * 100 * 4)
