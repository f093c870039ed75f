"""From graphs to machine code of an AMD GPU (gfx942) on a machine without one; prints one line a kernel. Run by test_triton.py.

Its own process: Triton decides on import whether it interprets.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

from braze import pipeline
from braze.context import CompileContext
from braze.options import Options
from braze.runtime.triton.triton_worker import Elsewhere, build
from braze.target import Target
from tests.codegen.triton_models import CASES, on_gpu

CTX = CompileContext(Options(verify=2), Target("cuda", "gfx942"), "g")


def main() -> int:
    """Build every kernel of some graphs as a worker does; nonzero where one has no machine code."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    driver.set_active(Elsewhere(GPUTarget("hip", "gfx942", 64)))
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        for fn, shapes in CASES:
            partition = pipeline.partition_graph(*on_gpu(fn, shapes), CTX)
            plan = pipeline.schedule_program(pipeline.lower_graph(partition, CTX), CTX)
            for text in pipeline.generate_code(plan, CTX).kernels:
                launch = text.launch
                assert launch is not None
                path = Path(folder) / f"{fn.__name__}_{text.name}.py"
                path.write_text(text.source)
                numbers = (1000,) * len(text.sizes)
                how = launch.constants, launch.num_warps, launch.num_stages
                built = build(str(path), text.name, launch.dtypes, numbers, *how)
                print(fn.__name__, text.name, len(built.asm["hsaco"]), "gfx942" in built.asm["amdgcn"])
                if not built.asm["hsaco"] or "gfx942" not in built.asm["amdgcn"]:
                    return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
