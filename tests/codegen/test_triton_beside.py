"""Columns that lie side by side are one axis of a program's tile, and scatters go as their places lie; in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from braze.loops.ir import ReduceKind
from braze.schedule.facts.plans import Form
from braze.schedule.gpu.kernels import plan_kernel
from tests.codegen.test_triton_forms import numbers
from tests.codegen.triton_bench import interpreted


def widths(plan):
    """Of each kernel that walks down columns the axes of its tile: what each is long."""
    buffers = {b.name: b for b in plan.program.buffers}
    plans = [plan_kernel(g, buffers) for g in plan.groups if g.row_axes]
    return [[a.extent.value for a in p.points[-1].axes] for p in plans if p.form is Form.COLUMNS]


def last(n, *sizes):
    """Pictures whose channels lie side by side."""
    return numbers(n, *sizes).contiguous(memory_format=torch.channels_last)


#: name -> (function, inputs, the axes of columns that programs take side by side)
COLUMNS = {
    "a number for three columns each": (lambda x, y: x.mean(0, keepdim=True) + y, lambda: (numbers(900, 16, 3), numbers(1, 16, 1)), [48]),
    "of a whole matrix": (lambda x, y: (x * 2).amax(0) * y, lambda: (numbers(40, 40, 5), numbers(40, 1)), [200]),
    "three axes": (lambda x, y: x.sum(0) * y, lambda: (numbers(50, 4, 5, 6), numbers(4, 1, 6)), [120]),
    "rows of pictures": (lambda x: x.sum(2), lambda: (last(6, 3, 14, 14),), [6, 42]),
    "variances of these": (lambda x: x.var(2), lambda: (last(6, 3, 14, 14),), [6, 42]),
    "results that lie otherwise": (lambda x, y: x.permute(2, 1, 0).sum(2, keepdim=True) * y, lambda: (numbers(5, 7, 9), numbers(9, 7, 1)), [63]),
    "short even columns that lie apart": (lambda x: x.prod(1), lambda: (numbers(70, 3, 14),), [70, 14]),
    "those that fill a tile stay": (lambda x: x.prod(1), lambda: (numbers(70, 28, 28),), [28]),
    "odd ones stay": (lambda x: x.sum(1), lambda: (numbers(70, 3, 13),), [13]),
    "odd ones of several rows each stay": (lambda x: x.sum((0, 2)), lambda: (numbers(9, 20, 30, 3),), [3]),
}  # fmt: skip


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_beside_each_other(name, tmp_path):
    fn, inputs, wanted = COLUMNS[name]
    xs = inputs()
    plan, results = interpreted(fn, tmp_path, *xs)
    assert widths(plan)[0] == wanted
    exact = fn(*(x.double() for x in xs))
    torch.testing.assert_close(results[0].double(), exact, rtol=1e-5, atol=1e-5)
    assert results[0].stride() == fn(*xs).stride()


#: name -> (function, inputs, the axes of the kernel that stores, as they are walked)
PLACES = {
    "channels of pictures": (lambda x, i: x.index_fill(1, i, 0.5), lambda: (last(3, 16, 5, 5), torch.arange(8) * 5 % 16), [3, 25, 8]),
    "rows of pictures": (lambda x, i: x.index_fill(2, i, 0.5), lambda: (last(3, 16, 5, 6), torch.arange(3) * 2), [3, 3, 6, 16]),
    "rows that lie so": (lambda x, i: x.index_fill(0, i, 0.5), lambda: (numbers(40, 12), torch.arange(8) * 5), [8, 12]),
}  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
def test_places_are_walked_as_they_lie(name, tmp_path):
    fn, inputs, wanted = PLACES[name]
    x, i = inputs()
    plan, (found,) = interpreted(fn, tmp_path, x, i)
    storing = [g for g in plan.groups if any(s.args for n in g.steps for s in n.stores)]
    assert [[a.extent.value for a in g.axes] for g in storing] == [wanted]
    assert torch.equal(found, fn(x, i)) and found.stride() == fn(x, i).stride()


@pytest.mark.parametrize("looked_up", [False, True])
def test_parts_of_rows_of_which_a_variance_is_taken_are_full_where_they_can_be(looked_up, tmp_path):
    """Each number is then looked up once: a part that is not full wants its sum first, and its squares by another walk."""

    def fn(x, i):
        return ((x.index_select(1, i) if looked_up else x) * x).var(1)

    x, i = numbers(2, 16 * 60 * 239), torch.arange(16 * 60 * 239) * 7 % 1000
    plan, (found,) = interpreted(fn, tmp_path, x, i, cores=8)
    parts = [g for g in plan.groups if "parts" in g.reason]
    assert [[r.kind for n in g.steps for r in n.reductions] for g in parts][0] == [ReduceKind.WELFORD]
    torch.testing.assert_close(found.double(), fn(x.double(), i), rtol=1e-5, atol=1e-5)
