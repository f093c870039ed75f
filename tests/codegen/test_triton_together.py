"""Short rows that vectors do not divide, read as one block of memory, in Triton's interpreter: eager's results, and which rows are read so."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton")

from braze.codegen.triton import generate
from braze.schedule.gpu import together
from tests.codegen.test_triton_extremes import rows_of, same
from tests.codegen.test_triton_forms import agree, exact, numbers
from tests.codegen.triton_bench import context, interpreted, planned


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """A handful of rows are programs enough."""
    monkeypatch.setattr(together, "FEW_PROGRAMS", 0)


def reads_blocks(fn, *inputs):
    """How many loads of a function's kernels read rows as one block."""
    texts = generate(planned(fn, *inputs), context())
    return sum(text.source.split("def triton")[-1].count("bz_rows(") for text in texts)


@pytest.mark.parametrize("length", [3, 33, 257])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int32])
def test_places_of_extremes_of_short_rows(dtype, length, tmp_path):
    x = rows_of(length, dtype)
    assert reads_blocks(lambda x: x.max(1), x) == 1
    same(lambda x: (x.argmax(1), x.argmin(1)), tmp_path, x)
    same(lambda x: x.max(1, keepdim=True), tmp_path, x)


@pytest.mark.parametrize(("rows", "length"), [(2, 5), (700, 3), (300, 33), (40, 201)])
def test_sums_and_sums_of_powers_of_short_rows(rows, length, tmp_path):
    """The last program's rows end where memory does."""
    x, y, w = numbers(rows, length), numbers(rows, length, seed=1), numbers(length, seed=2)

    def fn(x, y, w):
        return (x * y).sum(1), torch.logsumexp(x + w, 1), x.amax(1), y.mean(1, keepdim=True), y.var(1)

    results = interpreted(fn, tmp_path, x, y, w)[1]
    agree(results, exact(fn, x, y, w), 1e-4)
    assert reads_blocks(fn, x, y, w) >= 2


def test_rows_over_several_axes_and_rows_that_begin_further_on(tmp_path):
    x = numbers(40, 3, 11)
    for fn in (
        lambda x: x.sum((1, 2)),
        lambda x: x.amax(2),
        lambda x: x.narrow(0, 8, 32).sum(2),
        lambda x: x.narrow(0, 1, 39).sum(2),
    ):
        agree(interpreted(fn, tmp_path, x)[1], exact(fn, x))
    assert reads_blocks(lambda x: x.narrow(0, 8, 32).sum(2), x) == 1


@pytest.mark.parametrize(("rows", "length"), [(600, 9), (150, 33), (20, 257)])
def test_what_is_stored_along_short_rows(rows, length, tmp_path):
    x, w, b = numbers(rows, length), numbers(length, seed=1), numbers(length, seed=2)
    for fn in (
        lambda x, w, b: torch.softmax(x * 2, 1),
        lambda x, w, b: (F.layer_norm(x, (length,), w, b), x.amax(1)),
        lambda x, w, b: x - (x * w + b).mean(1, keepdim=True),
    ):
        agree(interpreted(fn, tmp_path, x, w, b)[1], exact(fn, x, w, b), 1e-4)
        assert reads_blocks(fn, x, w, b)


def test_a_row_that_is_written_over_itself(tmp_path):
    """All of a program's rows are read before the first is written."""
    x = numbers(100, 33)
    fn = lambda x: x.sub_(x.mean(1, keepdim=True))
    wanted = x.double() - x.double().mean(1, keepdim=True)
    agree(interpreted(fn, tmp_path, x.clone())[1][:1], [wanted])


def test_which_rows_are_read_one_by_one():
    """Those that vectors divide, that lie apart, long ones, two of which a third is made, and those under a condition."""
    x = torch.empty(4096, 33, dtype=torch.bfloat16, device="meta")
    assert reads_blocks(lambda x: x.sum(1), x) == 1
    assert not reads_blocks(lambda x: x.sum(1), torch.empty(4096, 32, dtype=torch.bfloat16, device="meta"))
    assert not reads_blocks(lambda x: x.narrow(1, 1, 31).sum(1), x)
    assert not reads_blocks(lambda x: x.narrow(0, 1, 4095).sum(1), x)
    assert not reads_blocks(lambda x: x.t().sum(1), x)
    assert not reads_blocks(lambda x, y: torch.softmax(x * y, 1), x, x)
    assert not reads_blocks(lambda x: x.sum(1), torch.empty(4096, 513, dtype=torch.bfloat16, device="meta"))
    assert not reads_blocks(lambda x: torch.nn.functional.pad(x, (1, 1)).amax(1), x)
    assert not reads_blocks(lambda x: x.sum(1), torch.empty(4096, 33, dtype=torch.bool, device="meta"))


def test_few_rows_are_read_one_by_one(monkeypatch):
    monkeypatch.setattr(together, "FEW_PROGRAMS", 128)
    assert not reads_blocks(lambda x: x.sum(1), torch.empty(4096, 33, dtype=torch.bfloat16, device="meta"))
