"""Compile scatters to sm_90 machine code without a GPU; prints what each kernel does to memory. Run by test_triton_scatters.py.

Its own process: Triton decides on import whether it interprets.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from pathlib import Path

import torch

from braze.codegen.triton import generate
from tests.codegen.machine_code import compile_offline
from tests.codegen.tilings_offline import empty
from tests.codegen.triton_bench import context, planned

aten = torch.ops.aten
F32, BF16, I64 = torch.float32, torch.bfloat16, torch.int64
ROWS = empty(1 << 20, dtype=I64)

CASES = {
    "rows": (lambda v, i: aten.index_add(v.new_zeros(10000, 64), 0, i, v), [empty(1 << 20, 64, dtype=F32), ROWS]),
    "halves": (lambda v, i: aten.index_put(v.new_zeros(10000, 64), [i], v, True), [empty(1 << 20, 64, dtype=BF16), ROWS]),
    "counts": (lambda v, i: aten.scatter_add(v.new_zeros(1000), 0, i, v), [empty(1 << 20, dtype=I64), ROWS]),
    "doubles": (lambda v, i: aten.scatter_add(v.new_zeros(99, 7), 0, i, v), [empty(8192, 7, dtype=torch.float64), empty(8192, 7, dtype=I64)]),
    "stored": (lambda x, v, i: aten.index_put(x, [i], v * 2), [empty(1 << 20, 256, dtype=BF16), empty(1 << 20, 256, dtype=BF16), ROWS]),
    "one each": (lambda x, v, i: aten.scatter(x, 1, i, v), [empty(4096, 512, dtype=F32), empty(4096, 1, dtype=F32), empty(4096, 1, dtype=I64)]),
}  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, (fn, inputs) in CASES.items():
            for text in generate(planned(fn, *inputs), context()):
                ptx = compile_offline(text, Path(folder))["ptx"]
                assert ".target sm_90" in ptx
                done = Counter(re.findall(r"(?:red|atom|st)\.global[\w.]*", ptx))
                print(name, text.name, *(f"{count}x{what}" for what, count in done.items()))


if __name__ == "__main__":
    main()
