"""Parts that are dear to compute and then joined, in Triton's interpreter: one loop, which stores each where it belongs."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from tests.codegen.test_triton_forms import agree, check, exact, numbers
from tests.codegen.test_triton_gemm import planned_for
from tests.codegen.triton_bench import interpreted

NAN, INF = torch.nan, torch.inf


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_of_a_gate_is_one_kernel(dim, dtype, tmp_path):
    x, half = numbers(4, 6, 10, dtype=dtype), [4, 6, 10]
    half[dim] //= 2
    x[0, 0, 0], x[1, 2, 3], x[3, 5, 9], x[2, 0, 4] = NAN, INF, -INF, -0.0
    fn = lambda g, x: torch.ops.aten.glu_backward(g, x, dim)
    digits = 2e-2 if dtype is torch.bfloat16 else 1e-5
    assert check(fn, tmp_path, numbers(*half, seed=1, dtype=dtype), x, digits=digits) == ["flat"]


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_results_of_several_operations_are_stacked_by_one_kernel(dim, tmp_path):
    fn = lambda x, y: torch.stack([x.exp(), y.sin(), (x + y).sigmoid()], dim)
    plan, results = interpreted(fn, tmp_path, numbers(5, 7), numbers(5, 7, seed=1))
    agree(results, exact(fn, numbers(5, 7), numbers(5, 7, seed=1)))
    assert len(plan.groups) == 1 and len(plan.groups[0].steps[0].stores) == 3


def test_what_follows_reads_what_was_joined(tmp_path):
    given = numbers(6, 10), numbers(6, 10, seed=1)
    check(lambda x, y: torch.cat([x.exp(), y.sin()], 1) * 2, tmp_path, *given)
    check(lambda x, y: torch.cat([x.exp(), y.t().sin().t()], 0).softmax(1), tmp_path, *given)
    check(lambda x, y: (torch.cat([x.exp(), y.sin()], 0).t() + 1, x.exp()), tmp_path, *given)


def test_parts_of_other_sizes_are_joined_element_by_element(tmp_path):
    fn = lambda x, y: torch.cat([x.exp(), y.sin()], 1)
    plan, results = interpreted(fn, tmp_path, numbers(6, 10), numbers(6, 4))
    agree(results, exact(fn, numbers(6, 10), numbers(6, 4)))
    assert all(len(step.stores) == 1 for g in plan.groups for step in g.steps)


def test_of_nothing_nothing_is_joined(tmp_path):
    check(lambda x, y: torch.cat([x.exp(), y.sin()], 1), tmp_path, numbers(6, 0), numbers(6, 0))


@pytest.mark.parametrize("dim", [0, 1])
def test_parts_of_a_size_that_changes_are_joined_by_one_kernel(dim):
    fn = lambda x, y: torch.cat([x.exp(), y.sin()], dim)
    plan = planned_for(fn, {0: (2, 500), 1: (2, 500)}, torch.empty(30, 8), torch.empty(30, 8))
    assert len(plan.groups) == 1 and len(plan.groups[0].steps[0].stores) == 2
