"""Programs that use ``torch.compile`` too: what it changes in PyTorch when it runs is not braze's concern.

In a process of its own: what ``torch.compile`` has changed stays so.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import torch, braze
from torch import nn
from braze.support import trace

torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))

    def forward(self, x):
        for layer in self.layers[:2]:  # a slice is a module made in the frame
            x = layer(x)
        return x

model, x = Model(), torch.ones(2, 3)
compiled = braze.compile(model, backend="eager", fullgraph=True)
with torch.no_grad():
    assert torch.equal(compiled(x), model(x))
    assert torch.equal(torch.compile(model, backend="eager")(x), model(x))
    assert torch.equal(compiled(x * 2), model(x * 2))
assert trace.snapshot()[0]["captures"] == 1
# its wrappers, one for each class of optimizers, do not hide that AdamW steps as Adam does
optimizer = braze.compile_optimizer(torch.optim.AdamW(model.parameters()))
assert isinstance(optimizer, torch.optim.AdamW)
print("one graph")
"""


def test_a_model_is_one_graph_after_torch_compile_has_run() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=150,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "one graph"
