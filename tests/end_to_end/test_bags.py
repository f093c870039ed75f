"""Bags of rows of a table are planned as the kernels leave them, so that no call is begun twice (BZ6013, which fails a test)."""

import pytest
import torch
import torch.nn.functional as F

import braze

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bags_run_compiled(dtype, mode, ends, padding, learns):
    def bags(table, rows, begin):
        return (
            F.embedding_bag(rows, table, begin, mode=mode, include_last_offset=ends, padding_idx=padding) * 2
        )

    rows, begin = torch.tensor([1, 2, 3, 4, 5, 2]), torch.tensor([0, 3, 6] if ends else [0, 3])
    compiled, found = braze.compile(bags), []
    for call in (bags, compiled):
        torch.manual_seed(0)
        table = torch.randn(10, 4).to(dtype).requires_grad_(learns)
        with torch.set_grad_enabled(learns):
            result = call(table, rows, begin)
        if learns:
            result.float().square().sum().backward()
        found.append((result.detach(), table.grad))
    for eager, ours in zip(*found, strict=True):
        assert (eager is None) == (ours is None)
        if eager is not None:
            torch.testing.assert_close(ours, eager)
