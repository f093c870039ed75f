"""What a served model's compile imports, in a process of its own."""

from __future__ import annotations

from tests import processes

PROGRAM = """
import sys
import torch
from tests.serving.engine.tiny import engine, tiny
from braze.serving.engine.sampling import SamplingParams

model = tiny("qwen3")
served = engine(model, split="graph")
served.generate([[1, 2, 3], [4]], SamplingParams(3))
print(*(name for name in ("torch.distributed.tensor", "transformers", "rich", "fastapi", "torch._inductor.graph") if name in sys.modules))
"""


def test_a_start_imports_nothing_that_it_has_no_use_for():
    """Of a fake that is turned or cut outside of its mode PyTorch imports torch.distributed.tensor, to see whether it is of that kind."""
    found = processes.run(PROGRAM)
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() == ""
