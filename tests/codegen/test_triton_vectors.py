"""Rows that begin anywhere in memory, walked along whole vectors; in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton")

from braze.codegen.triton import generate
from braze.schedule import kernels
from braze.schedule.choices import Choices
from braze.schedule.kernels import plan_kernel
from tests.codegen.test_triton_forms import INF, NAN, check, numbers, small
from tests.codegen.triton_bench import context, planned

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
