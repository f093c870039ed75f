"""Compile depthwise convolutions to sm_90 machine code without a GPU; prints what they need. Run by test_triton_depthwise.py.

The rule's cuts, of the largest windows, too, whose text is longest. Its own process: Triton decides on import whether it interprets.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
from torch.nn import functional as F

from braze.codegen.records import KernelText
from braze.codegen.triton.depthwise import depthwise_kernel, depthwise_of
from braze.codegen.triton.depthwise_tiles import strips_of
from braze.loops.ir import TemplateCall
from tests.codegen.machine_code import compile_cuts
from tests.codegen.tilings_offline import empty
from tests.codegen.triton_bench import planned

#: (samples, channels, high, window, step, channels last)
CASES = (
    (64, 96, 56, 7, 1, True),
    (128, 72, 56, 5, 2, True),
    (128, 480, 14, 3, 1, True),
    (64, 96, 57, 7, 1, False),
)


def block(channels, window, step, form):
    def convolved(x, w, b):
        return F.gelu(F.conv2d(x, w, b, step, window // 2, 1, channels)).clone(memory_format=form)

    return convolved


def texts() -> Iterator[tuple[str, KernelText]]:
    for n, c, h, k, step, last in CASES:
        form = torch.channels_last if last else torch.contiguous_format
        dtype = torch.bfloat16 if last else torch.float32
        x = torch.empty((n, c, h, h), dtype=dtype, device="meta", memory_format=form)

        given = x, empty(c, 1, k, k, dtype=dtype), empty(c, dtype=dtype)
        plan = planned(block(c, k, step, form), *given, depthwise_template=True, channels_last=last)
        buffers = {b.name: b for b in plan.program.buffers}
        for group in plan.groups:
            if isinstance(group.call, TemplateCall):
                strips = strips_of(depthwise_of(group.call))[0]
                yield strips.text(), depthwise_kernel(group, buffers, strips)


if __name__ == "__main__":
    sys.exit(compile_cuts(texts()))
