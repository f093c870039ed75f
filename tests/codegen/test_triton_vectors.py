"""Rows that begin anywhere in memory, walked along whole vectors; in Triton's interpreter."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton")

from braze.codegen.triton import generate
from braze.schedule.facts.choices import Choices
from braze.schedule.gpu import kernels
from braze.schedule.gpu.kernels import plan_kernel
from tests.codegen.test_triton_forms import INF, NAN, check, numbers, small
from tests.codegen.triton_bench import context, interpreted, planned

__all__ = ["small"]


def plan_of(fn, *inputs, **options):
    """The plan of the one kernel with rows."""
    schedule = planned(fn, *inputs, **options)
    buffers = {b.name: b for b in schedule.program.buffers}
    (plan,) = [p for g in schedule.groups if (p := plan_kernel(g, buffers)).row is not None]
    return plan


FUNCTIONS = {
    "log softmax": lambda x: torch.log_softmax(x, 1),
    "several": lambda x: (x.sum(1), x.amax(1), (x > 3).any(1), x.exp().sum(1, keepdim=True) + x),
}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("length", [129, 255, 256 + 7, 700 + 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_rows_that_begin_anywhere(name, dtype, length, tmp_path):
    """Each row begins elsewhere within a vector; neighbours' numbers, some of which are not finite, stay out of its sums and results."""
    x = numbers(9, length, dtype=dtype)
    x[1, 0], x[1, -1], x[3], x[5, 2] = INF, INF, -INF, NAN
    check(FUNCTIONS[name], tmp_path, x, cores=1, digits=4e-3 if dtype is torch.float16 else 1e-5)
    plan = plan_of(FUNCTIONS[name], x, cores=1)
    assert plan.begin is not None and plan.vector == 16 // dtype.itemsize


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("length", [64, 65, 71, 72, 127])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_rows_that_are_hardly_longer_than_a_tile(dtype, length, tmp_path, monkeypatch):
    """Their last tile is their only one, or has no vector."""
    monkeypatch.setattr(Choices, "persistent_bytes", 16)
    x = F.pad(numbers(7, length, dtype=dtype), (1, 2), value=NAN)[:, 1:-2]
    fn = lambda x: (x.sum(1), x.amax(1), (x > 3).any(1), torch.logsumexp(x, 1))
    check(fn, tmp_path, x, cores=1, digits=4e-3 if dtype is torch.float16 else 1e-5)


@pytest.mark.usefixtures("small")
def test_rows_of_a_part_of_a_tensor_begin_where_the_part_does(tmp_path):
    x = numbers(4 * 301 + 3)
    part = torch.as_strided(x, (4, 301), (301, 1), 3)
    check(FUNCTIONS["log softmax"], tmp_path, part, cores=1)
    wide = numbers(4, 303)[:, 1:-1]
    check(lambda x: torch.logsumexp(x, 1), tmp_path, wide, cores=1)


@pytest.mark.usefixtures("small")
def test_walks_of_a_cross_entropy_with_labels(tmp_path):
    x, y = numbers(5, 301), torch.tensor([0, 300, 7, -100, 150])
    check(lambda x, y: F.cross_entropy(x, y), tmp_path, x, y, cores=1)


def test_what_walks_along_whole_vectors():
    """Rows of any number of elements that is no multiple; not places of extremes, variances or random numbers, nor several beginnings."""

    def begins(fn, *inputs):
        return plan_of(fn, *inputs).begin is not None

    odd, even, wide = (
        torch.empty(2048, n, dtype=torch.bfloat16, device="meta") for n in (50257, 50264, 50258)
    )
    assert begins(lambda x: torch.log_softmax(x, 1), odd)
    assert not begins(lambda x: torch.log_softmax(x, 1), even)
    assert not begins(lambda x: x.argmax(1), odd)
    assert not begins(lambda x: torch.var_mean(x.float(), 1), odd)
    assert not begins(lambda x: F.dropout(x, 0.5, True).float().sum(1), odd)
    assert not begins(lambda x, y: (x + y).float().sum(1), odd, wide[:, 1:])


def test_only_the_ends_of_a_row_are_masked():
    inputs = (torch.empty(2048, 50257, dtype=torch.bfloat16, device="meta"),)
    (text,) = generate(planned(FUNCTIONS["log softmax"], *inputs), context())
    loads = [line for line in text.source.splitlines() if "tl.load" in line]
    masks = ["emask" if "emask" in line else "rmask" if "rmask" in line else "" for line in loads]
    # what stays in registers; what lies around whole vectors, walked tiles, the last vectors; and those again
    walked = ["emask", "", "rmask"]
    assert [m for m in masks if m] == ["emask", "rmask", "rmask", "emask"]
    assert masks == [*([""] * plan_of(FUNCTIONS["log softmax"], *inputs).held), *walked, *walked[::-1]]
    edges = next(line for line in loads if "emask" in line)
    assert edges.count("16]") == 1 and kernels.VECTOR == 16  # a vector before and one behind


def firsts(value, rows, length, places):
    """Rows of random numbers, each with a value at some of the places, the least of which counts."""
    x = numbers(rows, length)
    for row, place in enumerate(places):
        x[row, place % length] = x[row, (place + 5) % length] = value
    return x


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("dtype", "length"),
    [
        *itertools.product([torch.float32, torch.float16], [64, 65, 256, 261, 700]),
        *itertools.product([torch.int32, torch.int64, torch.int8], [64, 261, 700]),
    ],
)
def test_places_of_extremes_among_numbers_that_are_read_at_once(dtype, length, tmp_path):
    """The first of equals, within what one instruction reads and between two of them."""
    x = numbers(9, length, dtype=dtype)
    top = 99 if not dtype.is_floating_point else INF
    for row, place in enumerate((0, 1, 7, 8, 63, length - 1)):
        x[row, place] = x[row, (place + 3) % length] = top
        x[row, (place + 11) % length] = x[row, (place + 30) % length] = -top
    x[6], x[7] = 3, -top
    fn = lambda x: (x.argmax(1), x.argmin(1), (x * 2 + 1).argmax(1) if dtype.is_floating_point else x.amax(1))
    check(fn, tmp_path, x, cores=1, digits=4e-3)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("length", [128, 257, 640])
def test_the_first_that_is_no_number_is_the_extreme(length, tmp_path):
    x = torch.cat([firsts(NAN, 8, length, (0, 3, 7, 8, 64, 65, length - 1, length - 9)), numbers(1, length)])
    x[2, 1], x[3, 0] = INF, -INF
    (whole,) = interpreted(lambda x: x.argmax(1), tmp_path, x, cores=1)[1]
    assert torch.equal(whole, x.argmax(1))
    (whole,) = interpreted(lambda x: x.argmin(1), tmp_path, x, cores=1)[1]
    assert torch.equal(whole, x.argmin(1))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_place_of_an_extreme_of_everything_in_parts(dtype, tmp_path):
    x = numbers(4096, dtype=dtype)
    x[1001], x[1003], x[3777] = NAN, NAN, NAN
    for values in (x, x.nan_to_num(7.0), torch.full_like(x, -INF)):
        plan, (place,) = interpreted(lambda x: x.argmax(), tmp_path, values, cores=4)
        assert len(plan.groups) == 2 and place.item() == values.argmax().item()


def test_a_place_is_looked_for_among_what_one_instruction_reads():
    """Once, when all is known; not where a kernel stores along the row too, nor of random numbers or rows that begin between vectors."""
    x, odd = (torch.empty(528, n, dtype=torch.bfloat16, device="meta") for n in (65536, 65537))

    def few(fn, x):
        return any("pindex" in text.source for text in generate(planned(fn, x), context()))

    assert few(lambda x: x.argmax(1), x) and few(lambda x: (x.float() * 2).argmin(1), x)
    assert not few(lambda x: x.argmax(1), odd) and not few(lambda x: x.argmax(1), x.float())
    assert not few(lambda x: F.dropout(x, 0.5, True).argmax(1), x)
    assert not few(lambda x: x.t().contiguous().argmax(0), x.t())
