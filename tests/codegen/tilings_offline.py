"""Compile the cuts that need most of the benchmark's kinds of kernels to sm_90 machine code without a GPU; prints registers, spilled bytes and shared memory. Run by test_triton_tilings.py.

Every cut with ``BRAZE_SWEEP=1``. Its own process: Triton decides on import whether it interprets.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Sequence

import torch
from torch.nn import functional as F

from braze.codegen.records import KernelText
from braze.codegen.triton.kernels import kernel
from braze.schedule.gpu.tilings import Tiling, planned_as, tilings
from tests.codegen.machine_code import compile_cuts
from tests.codegen.test_triton_mixed import layer_norm as norm_backward
from tests.codegen.triton_bench import planned


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


F32 = torch.float32
CASES = (
    (lambda x: torch.softmax(x, -1), (empty(8192, 8192),)),
    (lambda x: torch.softmax(x, -1), (empty(512, 131072),)),
    (lambda x: torch.softmax(x, -1), (empty(1 << 20, 64),)),
    (lambda x: torch.log_softmax(x, -1), (empty(4096, 50257),)),
    (lambda x: torch.log_softmax(x, -1), (empty(4096, 32000),)),
    (lambda x, w, b: F.layer_norm(x, (4096,), w, b), (empty(16384, 4096), empty(4096), empty(4096))),
    (rms_norm, (empty(16384, 4096), empty(4096))),
    (lambda x, y: F.silu(x) * y, (empty(16384, 11008), empty(16384, 11008))),
    (lambda x, y: x + y.t(), (empty(8192, 8192), empty(8192, 8192))),
    (lambda x: x.sum(0), (empty(65536, 1024),)),
    (lambda x: x.sum(1), (empty(65536, 1024),)),
    (lambda x: x.argmax(), (empty(1 << 26),)),
    (lambda x: torch.var_mean(x.float(), (0, 2, 3)), (empty(64, 256, 56, 56),)),
    (lambda x: torch.linalg.vector_norm(x, 2, (1, 2)), (empty(64, 56, 56, 640),)),
    (lambda x, y: F.cross_entropy(x.float(), y), (empty(4096, 128256), empty(4096, dtype=torch.int64))),
    (
        norm_backward,
        (empty(65536, 1024), empty(65536, 1024), empty(1024), empty(65536, 1, dtype=F32), empty(65536, 1, dtype=F32)),
    ),
)  # fmt: skip


def hardest(cuts: Sequence[Tiling]) -> Sequence[Tiling]:
    """The rule's cut; of each way to go over rows that with the most elements for a thread, which decide on registers; the largest tile, which decides on shared memory."""
    by_way: dict[str, list[Tiling]] = {}
    for cut in cuts:
        by_way.setdefault(cut.rows, []).append(cut)
    most = [max(way, key=lambda t: math.prod(t.blocks) / t.warps) for way in by_way.values()]
    return tuple(dict.fromkeys((cuts[0], *most, max(cuts, key=lambda t: math.prod(t.blocks)))))


def texts() -> Iterator[tuple[str, KernelText]]:
    """The cuts of each kernel once."""
    chosen = tuple if os.environ.get("BRAZE_SWEEP") == "1" else hardest
    for fn, inputs in CASES:
        plan = planned(fn, *inputs)
        buffers = {b.name: b for b in plan.program.buffers}
        for group in plan.groups:
            if group.steps:
                for tiling in chosen(tilings(group, buffers)):
                    yield tiling.text(), kernel(group, planned_as(group, buffers, tiling), plan)


if __name__ == "__main__":
    sys.exit(compile_cuts(texts()))
