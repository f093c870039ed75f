"""Compile batches of products and sums in parts, in every cut, to sm_90 machine code without a GPU; prints what they need. Run by test_triton_batches.py.

Its own process: Triton decides on import whether it interprets.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.nn import functional as F

from braze import pipeline
from braze.codegen.records import KernelText
from braze.codegen.triton.gemm import gemm_kernel, tiles_of
from braze.loops.ir import TemplateCall
from braze.products import DeviceProduct, Way
from braze.schedule.records import Schedule
from tests.codegen.machine_code import compile_offline
from tests.codegen.tilings_offline import SHARED, empty, resources
from tests.codegen.triton_bench import captured, context, planned

#: (batch, rows, inner, columns)
BATCHES = ((64, 512, 64, 512), (64, 512, 512, 64), (32, 1, 128, 4096), (8, 16, 1024, 1024), (128, 77, 64, 77))
#: (rows, inner, columns)
SUMS = ((16, 14336, 4096), (64, 65536, 64), (1, 8192, 1024))


def plans() -> Iterator[Schedule]:
    for b, m, k, n in BATCHES:
        given = empty(b, m, k), empty(b, k, n), empty(b, m, n)
        yield planned(lambda x, y, r: torch.bmm(x, y) * 0.125 + r, *given, matmul_template=True)
        wide = (empty(b, m, k, dtype=torch.float32), *given[1:])
        yield planned(lambda x, y, r: torch.bmm((x * 0.5).to(y.dtype), y) + r, *wide, matmul_template=True)
        turned = empty(b, m, k), empty(b, n, k)
        yield planned(lambda x, y: torch.bmm(x, y.transpose(1, 2)), *turned, matmul_template=True)
    for m, k, n in SUMS:
        ctx = dataclasses.replace(context(), device_products=((DeviceProduct("bf16", m, k, n), Way.PARTS),))
        partition = captured(lambda x, w: F.linear(x, w), ctx, empty(m, k), empty(n, k))
        with torch.no_grad():
            yield pipeline.schedule_program(pipeline.lower_graph(partition, ctx), ctx)


def texts() -> Iterator[tuple[str, KernelText]]:
    for plan in plans():
        buffers = {b.name: b for b in plan.program.buffers}
        for group in plan.groups:
            if isinstance(group.call, TemplateCall):
                for tiles in tiles_of(group.call):
                    yield tiles.text(), gemm_kernel(group, buffers, tiles)


def main() -> int:
    """Compile all; nonzero where one does not fit a multiprocessor."""
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, text) in enumerate(texts()):
            launch = text.launch
            assert launch is not None
            path = Path(folder) / f"cut_{number}.py"
            path.write_text(text.source)
            built = compile_offline(
                path, text.name, launch.dtypes, text.sizes, launch.constants, launch.num_warps, num_stages=launch.num_stages
            )  # fmt: skip
            (registers, stack), shared = resources(built["cubin"], Path(folder)), built["shared"]
            cores = "wgmma" in built["ptx"]
            print(
                f"cut {text.name} [{name}]: {registers} registers, {stack} bytes of stack, {shared} shared, wgmma {cores}"
            )
            if shared > SHARED or registers * 32 * launch.num_warps > 65536:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
