"""Gradients of tables of which few rows were looked up: what nobody looked up is not written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import braze
from braze.runtime.operators.tables import untouched_zeros
from braze.support import trace

ROWS, WIDTH = 8192, 64


def gradient(f: Any, table: torch.Tensor, *rest: Any) -> torch.Tensor:
    """The table's gradient of a sum of squares."""
    given = table.clone().requires_grad_()
    f(given, *rest).square().sum().backward()
    assert given.grad is not None
    return given.grad


def assert_as_eager(f: Any, *rest: Any) -> list[str]:
    """Hold the gradient to float64's; returns the operators that the graphs called."""
    table = torch.randn(ROWS, WIDTH)
    with trace.collect() as events:
        found = gradient(braze.compile(f, dynamic=False), table, *rest)
    wide = (r.double() if isinstance(r, torch.Tensor) and r.is_floating_point() else r for r in rest)
    eager, exact = gradient(f, table, *rest), gradient(f, table.double(), *wide)
    assert found.shape == exact.shape and found.stride() == exact.stride()
    assert (found - exact).norm() <= 2 * (eager - exact).norm() + 1e-7 * exact.norm()
    assert bool((found[41:] == 0).all()) == bool((exact[41:] == 0).all())
    return [str(what) for kind, what in events if kind == "aten"]


def places(*sizes: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Numbers of rows, some of them equal."""
    return torch.randint(0, 40, sizes, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("padding", [None, 3])
def test_rows_that_share_a_number_add_up_and_padding_stays_zero(
    dtype: torch.dtype, padding: int | None
) -> None:
    at = places(4, 20, dtype=dtype)
    called = assert_as_eager(lambda w, i: F.embedding(i, w, padding_idx=padding), at)
    assert "braze.table_gradient.default" in called


def test_a_table_looked_up_twice_and_multiplied_has_one_gradient_in_memory() -> None:
    """As tied embeddings of an encoder and a decoder are: the rows are added to the product's result."""

    def tied(w: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        hidden = F.embedding(i, w) + F.embedding(j, w, padding_idx=2).sin()
        return hidden @ w.t()

    called = assert_as_eager(tied, places(6), places(6))
    assert "aten.embedding_dense_backward.default" not in called


def test_two_lookups_add_their_rows_to_the_same_zeros() -> None:
    called = assert_as_eager(lambda w, i, j: F.embedding(i, w) * F.embedding(j, w), places(9), places(9))
    assert called.count("braze.table_gradient.default") == 1


def test_what_somebody_else_reads_is_not_written() -> None:
    """The product's result is also returned."""

    x, at, w = torch.randn(4, 64), places(3), torch.randn(64, 64)

    def whole(w: torch.Tensor, i: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        table = torch.mm(w.repeat(128, 1), x.t() @ x)
        return table + torch.ops.aten.embedding_dense_backward(w[i], i, ROWS, -1, False), table

    for a, b in zip(braze.compile(whole)(w, at, x), whole(w, at, x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("padding", [None, 3])
def test_bags_of_rows(mode: str, padding: int | None) -> None:
    """In rows of equal length, and by offsets with an empty bag and a last offset."""
    called = assert_as_eager(lambda w, i: F.embedding_bag(i, w, mode=mode, padding_idx=padding), places(5, 7))
    assert "braze.bag_gradient.default" in called
    offsets = torch.tensor([0, 4, 4, 9, 15])
    for last in (False, True):
        assert_as_eager(
            lambda w, i, o, last=last: F.embedding_bag(i, w, o, mode=mode, include_last_offset=last),
            places(15),
            offsets,
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zeros_are_writable_memory_of_their_own(dtype: torch.dtype) -> None:
    made = untouched_zeros((300, 7), dtype)
    assert made.shape == (300, 7) and made.is_contiguous() and not made._is_view()
    assert not made.any()
    made[5] = 2
    assert made.sum() == 14 and not untouched_zeros((300, 7), dtype).any()


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux tells what is in memory")
def test_rows_that_nobody_looked_up_take_no_memory() -> None:
    """A gradient of 512 MB of which eight rows were looked up."""
    table = nn.Embedding.from_pretrained(torch.empty(1, 128).expand(1 << 20, 128), freeze=False)
    f = braze.compile(lambda i: table(i).sum())
    before = resident()
    f(torch.arange(0, 1 << 20, 1 << 17)).backward()
    assert table.weight.grad is not None and table.weight.grad[1 << 17].sum() == 128
    assert resident() - before < 200 << 20


def test_sums_of_tables_of_sizes_that_vary_are_not_asked_for() -> None:
    """A sum of as many rows as columns would be compiled once more."""
    add = braze.compile(lambda x, y: x.sin() + y, dynamic=True)
    with trace.collect() as events:
        for rows in (5, 8):
            add(torch.randn(rows, 8), torch.randn(8))
    assert [kind for kind, _ in events].count("compiled") == 1
