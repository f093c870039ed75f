"""What a graph for a GPU is known to need while it is recorded: pieces of memory are made for that alone."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from braze import pipeline
from braze.cudagraphs.device import LARGE
from tests.codegen.triton_bench import captured, context


def plan_of(fn, *shapes):
    """The plan of a function of tensors of float32, recorded on a GPU."""
    ctx = context(cudagraphs=True, cudagraph_launches=1, arena=False)
    partition = captured(fn, ctx, *[torch.empty(shape) for shape in shapes])
    with torch.no_grad():
        schedule = pipeline.schedule_program(pipeline.lower_graph(partition, ctx), ctx)
    return pipeline.divided(partition, schedule, ctx).whole


def test_convolutions_and_kernels_of_ours_need_no_workspace_of_cublas():
    def block(x, w):
        return F.max_pool2d(F.relu(F.conv2d(F.relu(F.conv2d(x, w, None, 1, 1)), w, None, 1, 1)), 3, 2, 1)

    plan = plan_of(block, (1, 16, 14, 14), (16, 16, 3, 3))
    assert not plan.products and plan.values == 0


@pytest.mark.parametrize("fn", [torch.mm, lambda x, y: torch.sort(x)[0] + y])
def test_what_is_not_known_to_need_none_may_need_one(fn):
    assert plan_of(lambda x, y: fn(x.relu(), y).exp(), (8, 8), (8, 8)).products


def test_values_between_inputs_and_results_are_counted_where_they_are_large():
    rows, large = LARGE // 4096 + 1, (LARGE // 4096 + 1) * 4096

    def two_at_once(x, w):
        return torch.softmax(torch.softmax(x @ w, -1) @ w, -1) @ w

    assert plan_of(two_at_once, (rows, 1024), (1024, 1024)).values == pytest.approx(2 * large, abs=128)
    assert plan_of(two_at_once, (rows // 2, 1024), (1024, 1024)).values == 0, "small ones share small pieces"
    assert plan_of(lambda x, w: x @ w, (rows, 1024), (1024, 1024)).values == 0, "a result lies elsewhere"
