"""Compile batches of products and sums in parts to sm_90 machine code without a GPU; prints what they need. Run by test_triton_batches.py.

What needs most of each shape, a left operand that is converted first; what needs less of one shape. With ``BRAZE_SWEEP=1`` all of these, in every cut.
Its own process: Triton decides on import whether it interprets.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator, Sequence

import torch
from torch.nn import functional as F

from braze import pipeline
from braze.codegen.records import KernelText
from braze.codegen.triton.gemm import gemm_kernel, tiles_of
from braze.codegen.triton.gemm_tiles import Tiles
from braze.loops.ir import TemplateCall
from braze.products import DeviceProduct, Way
from braze.schedule.facts.records import Schedule
from tests.codegen.machine_code import compile_cuts
from tests.codegen.tilings_offline import empty
from tests.codegen.triton_bench import captured, context, planned

#: (batch, rows, inner, columns); of the first, whose tiles end anywhere, every form
BATCHES = ((128, 77, 64, 77), (64, 512, 64, 512), (64, 512, 512, 64), (32, 1, 128, 4096), (8, 16, 1024, 1024))
#: (rows, inner, columns)
SUMS = ((16, 14336, 4096), (64, 65536, 64), (1, 8192, 1024))


def plans() -> Iterator[Schedule]:
    for b, m, k, n in BATCHES:
        given = empty(b, m, k), empty(b, k, n), empty(b, m, n)
        wide = (empty(b, m, k, dtype=torch.float32), *given[1:])
        yield planned(lambda x, y, r: torch.bmm((x * 0.5).to(y.dtype), y) + r, *wide, matmul_template=True)
        if (b, m, k, n) == BATCHES[0] or os.environ.get("BRAZE_SWEEP") == "1":
            yield planned(lambda x, y, r: torch.bmm(x, y) * 0.125 + r, *given, matmul_template=True)
            turned = empty(b, m, k), empty(b, n, k)
            yield planned(lambda x, y: torch.bmm(x, y.transpose(1, 2)), *turned, matmul_template=True)
    for m, k, n in SUMS:
        ctx = dataclasses.replace(context(), device_products=((DeviceProduct("bf16", m, k, n), Way.PARTS),))
        partition = captured(lambda x, w: F.linear(x, w), ctx, empty(m, k), empty(n, k))
        with torch.no_grad():
            yield pipeline.schedule_program(pipeline.lower_graph(partition, ctx), ctx)


def hardest(cuts: Sequence[Tiles]) -> Sequence[Tiles]:
    """The rule's cut; that with the most sums for a thread, which decide on registers; that with the most on its way, which decides on shared memory."""
    sums = max(cuts, key=lambda t: t.rows * t.columns * t.slices / t.warps)
    way = max(cuts, key=lambda t: (t.rows + t.columns) * t.inner * t.stages)
    return tuple(dict.fromkeys((cuts[0], sums, way)))


def texts() -> Iterator[tuple[str, KernelText]]:
    """Every cut of the first plan; of the others, which differ in sizes and in what is done around the sums, the hardest."""
    for number, plan in enumerate(plans()):
        buffers = {b.name: b for b in plan.program.buffers}
        for group in plan.groups:
            if isinstance(group.call, TemplateCall):
                every = number == 0 or os.environ.get("BRAZE_SWEEP") == "1"
                for tiles in tiles_of(group.call) if every else hardest(tiles_of(group.call)):
                    yield tiles.text(), gemm_kernel(group, buffers, tiles)


if __name__ == "__main__":
    sys.exit(compile_cuts(texts()))
