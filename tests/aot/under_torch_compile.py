"""``torch.compile`` with a backend that calls ``braze.aot``: run as a script, since what Dynamo changes in a process stays so.

A backend that raises has it leave its frame evaluator in place for good, beneath which Python calls hold their arguments
once more than without.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from braze import aot


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.GELU(), nn.Linear(4, 2)).double()


def trained(call, state, steps=3):
    torch.manual_seed(1)
    for _ in range(steps):
        call(torch.randn(5, 3, dtype=torch.float64)).square().sum().backward()
        with torch.no_grad():
            for p in state.parameters():
                p -= 0.1 * p.grad
                p.grad = None
    return state.state_dict()


def backend(gm, example_inputs):
    return aot.aot_module_simplified(gm, example_inputs, aot.nop)


def training() -> None:
    ours, theirs = model(), model()
    compiled = torch.compile(ours, backend=backend, dynamic=False)
    torch.testing.assert_close(trained(compiled, ours), trained(theirs, theirs))


def symbolic_sizes() -> None:
    compiled = torch.compile(lambda x: x.sin() * x.shape[0], backend=backend, dynamic=True)
    with pytest.raises(Exception, match="BZ0043"):
        compiled(torch.randn(7))


if __name__ == "__main__":
    training()
    print("trains as eager")
    symbolic_sizes()
    print("symbolic sizes are refused")
