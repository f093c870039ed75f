"""Compile kernels that hold a part of their rows to sm_90 machine code without a GPU; prints registers and spilled bytes. Run by test_triton_held.py.

Of norms' backwards those that leave a thread fewest registers, hold most numbers or take most shared memory; all with ``BRAZE_SWEEP=1``.
Its own process: Triton decides on import whether it interprets.
"""

from __future__ import annotations

import os
import sys

import torch
from torch.nn import functional as F

from braze.codegen.triton import generate
from braze.schedule.gpu.held import DOWN_CUTS
from tests.codegen.machine_code import compile_cuts
from tests.codegen.test_triton_mixed import layer_norm as norm_backward
from tests.codegen.tilings_offline import F32, empty
from tests.codegen.triton_bench import context, planned

#: the widths of norms whose backwards are compiled: few registers for many programs (768, 2560), many numbers (3584, 5120), large tiles
WIDTHS = [w for w in DOWN_CUTS if w in (768, 2560, 3584, 5120, 8192) or os.environ.get("BRAZE_SWEEP") == "1"]

CASES = {
    "log softmax of bfloat16": (lambda x: torch.log_softmax(x, 1), (empty(8192, 50257),)),
    "log softmax of float32": (lambda x: torch.log_softmax(x, 1), (empty(8192, 50257, dtype=F32),)),
    "layer norm": (
        lambda x, w, b: F.layer_norm(x, (65536,), w, b),
        (empty(2048, 65536), empty(65536), empty(65536)),
    ),
    "layer norm of two programs side by side": (
        lambda x, w, b: F.layer_norm(x, (20000,), w, b),
        (empty(8192, 20000), empty(20000), empty(20000)),
    ),
    "softmax's gradient": (
        lambda g, y: ((g.float() - (g.float() * y.float()).sum(1, keepdim=True)) * y.float()).to(g.dtype),
        (empty(4096, 50257), empty(4096, 50257)),
    ),
}
CASES |= {
    f"norm's backward of {width}": (
        norm_backward,
        (empty(65536, width), empty(65536, width), empty(width), *(empty(65536, 1, dtype=F32) for _ in "ms")),
    )
    for width in (*WIDTHS, 8191)
}
CASES["softmax between vectors"] = (lambda x: torch.softmax(x, 1), (empty(8192, 8191),))


def main() -> int:
    """Compile each; nonzero where one does not fit a multiprocessor."""
    return compile_cuts(
        (name, text)
        for name, (fn, inputs) in CASES.items()
        for text in generate(planned(fn, *inputs), context())
        if "rest" not in text.name
    )


if __name__ == "__main__":
    sys.exit(main())
