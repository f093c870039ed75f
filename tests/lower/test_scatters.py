"""Scatters: eager's results, the target unchanged, and no copy besides the result."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

import braze
from braze.lower.stage.program import lower
from tests.aot.cuda_fakes import CTX, partition_on_gpu
from tests.helpers import logged
from tests.lower.conftest import lowered

INDEX = torch.tensor([2, 0, 2, 1])

CALLS: dict[str, Any] = {
    "index_put": lambda x, v, i: torch.index_put(x * 2, [i], v, accumulate=True),
    "index_put_columns": lambda x, v, i: torch.ops.aten.index_put(x * 2, [None, i], v[:, 0], False),
    "index_add": lambda x, v, i: (x * 2).index_add(0, i, v, alpha=0.5),
    "index_copy": lambda x, v, i: x.index_copy(0, i[1:], v[1:]),
    "scatter": lambda x, v, i: x.scatter(0, i[:, None].expand(4, 5), v),
    "scatter_value": lambda x, v, i: torch.zeros_like(x).scatter(1, i[:, None], 1.5),
    "scatter_add": lambda x, v, i: torch.zeros_like(x).scatter_add(0, i[:, None].expand(4, 5), v),
    "scatter_reduce": lambda x, v, i: x.scatter_reduce(0, i[:, None].expand(4, 5), v, "amax"),
    "put": lambda x, v, i: x.put(i, v[0, :4], accumulate=True),
    "masked_scatter": lambda x, v, i: x.masked_scatter(x > 0, v),
    "twice": lambda x, v, i: torch.index_put(torch.index_put(x, [i], v, True), [i + 1], v, True) + x,
}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_what_eager_gives(name: str, turned: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 4).t() if turned else torch.randn(4, 5)
    v = torch.randn(4, 5)
    given, fn = x.clone(), CALLS[name]
    braze.reset()
    compiled = braze.compile(fn, options={"verify": 2})
    with torch.no_grad():
        for _ in range(2):
            ours, eager = compiled(x, v, INDEX), fn(x, v, INDEX)
            torch.testing.assert_close(ours, eager, rtol=1e-6, atol=1e-6)
            assert ours.stride() == eager.stride()
            assert torch.equal(x, given)


@pytest.mark.parametrize("shape", [(), (1,), (4, 1), (3, 1)])
@pytest.mark.parametrize("mask", [(), (5,), (3, 5), (4, 1)])
def test_what_is_written_by_a_mask_is_as_large_as_both(shape: tuple[int, ...], mask: tuple[int, ...]) -> None:
    """Or refused, in eager's words."""
    braze.reset()
    compiled = braze.compile(torch.masked_scatter)
    given = torch.zeros(shape), torch.ones(mask, dtype=torch.bool), torch.arange(20.0)
    try:
        eager = torch.masked_scatter(*given)
    except RuntimeError as error:
        with pytest.raises(RuntimeError, match=re.escape(str(error))):
            compiled(*given)
        return
    with logged() as said:
        ours = compiled(*given)
    assert torch.equal(ours, eager) and ours.stride() == eager.stride()
    assert not said


def test_the_result_is_the_only_copy() -> None:
    fn = CALLS["scatter_add"]
    program = lowered(fn, [torch.randn(4, 5), torch.randn(4, 5), INDEX])
    targets = [step.target for step in program.steps if hasattr(step, "target")]
    assert targets == ["aten.scatter_add_.default"]
    assert sum(1 for b in program.buffers if b.name.startswith("buf")) == 1


@pytest.mark.parametrize(
    ("rows", "parameters", "others", "in_place"),
    [
        (8, (), {}, True),
        (8, (), {"cudagraphs": True}, False),
        (8, (0,), {"cudagraphs": True}, True),
        (4096, (), {"cudagraphs": True}, True),
        (4096, (0,), {"recordable": True}, False),
    ],
)
def test_a_recorded_graph_writes_large_inputs_of_a_gpu_and_its_module_s_own_where_they_lie(
    rows: int, parameters: tuple[int, ...], others: dict[str, bool], in_place: bool
) -> None:
    """A small one that may be made anew for each call is copied: the graph could not be recorded."""

    def f(cache: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        cache.narrow(1, 3, 1).add_(k)
        return cache.narrow(1, 0, 8).sum()

    settings = {name: value for name, value in others.items() if name != "recordable"}
    ctx = replace(CTX, recordable="recordable" in others, options=replace(CTX.options, verify=2, **settings))
    inputs = [torch.zeros(8, rows, 64), torch.zeros(8, 1, 64)]
    program = lower(partition_on_gpu(f, inputs, parameters, ctx), ctx)
    assert bool(program.again) is in_place
