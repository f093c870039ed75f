"""Modules sharded by FSDP train as uncompiled, compiled before or after, and PyTorch's own machinery is not captured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import braze
from braze.support import trace


@pytest.fixture
def mesh(tmp_path: Any) -> Iterator[Any]:
    dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{tmp_path}/rendezvous")
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        dist.destroy_process_group()


def losses(mesh: Any, order: str) -> list[float]:
    """The losses of some steps, with the first part compiled ("c") and sharded ("s"), and all sharded ("a"), in this order."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), nn.Linear(8, 2))
    for what in order:
        if what == "c":
            model[0] = braze.compile(model[0], backend="aot_eager")
        else:
            fully_shard(model[0] if what == "s" else model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for step in range(6):
        loss = model(torch.full((3, 4), step + 1.0)).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("order", ["cs", "sc", "csa", "sca", "sac", "ca"])
def test_a_sharded_module_trains_as_uncompiled(mesh: Any, order: str) -> None:
    expected = losses(mesh, order.replace("c", ""))
    braze.reset()
    assert losses(mesh, order) == pytest.approx(expected, rel=1e-5)
    counts = trace.snapshot()[0]
    assert counts["graphs"] >= 1
    assert counts["recompiles"] == 0
