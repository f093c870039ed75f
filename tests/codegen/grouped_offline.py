"""Compile grouped products to machine code of several GPUs without one; prints what they need. Run by test_triton_grouped.py.

A gated layer's two products, in the tiles of few and of many rows. Its own process: Triton decides on import whether it interprets.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.nn import functional as F

from benchmarks.machine_code import compile_offline, resources
from braze.codegen.records import KernelText
from braze.codegen.triton.grouped import grouped_kernel, grouped_tiles_of
from braze.loops.ir import TemplateCall
from tests.codegen.machine_code import compile_cuts
from tests.codegen.tilings_offline import empty
from tests.codegen.triton_bench import planned

#: (rows, groups, inner, columns, whether both halves meet)
CASES = ((64, 8, 4096, 28672, True), (16384, 64, 2048, 2816, True), (1024, 128, 768, 2048, False))


def gated(x, w, ends):
    gate, up = torch._grouped_mm(x, w, offs=ends).chunk(2, -1)
    return F.silu(gate) * up


def scaled(x, w, ends, s):
    return torch._grouped_mm(x, w, offs=ends) * s.unsqueeze(1)


def texts(most: int) -> Iterator[tuple[str, KernelText]]:
    for rows, groups, inner, columns, halved in CASES:
        bf16 = torch.bfloat16
        x, w = empty(rows, inner, dtype=bf16), empty(groups, columns, inner, dtype=bf16).transpose(1, 2)
        ends = empty(groups, dtype=torch.int32)
        given = (x, w, ends) if halved else (x, w, ends, empty(rows, dtype=bf16))
        plan = planned(gated if halved else scaled, *given, grouped_template=True)
        buffers = {b.name: b for b in plan.program.buffers}
        for group in plan.groups:
            if isinstance(group.call, TemplateCall):
                for tiles in grouped_tiles_of(group.call)[:most]:
                    yield tiles.text(), grouped_kernel(group, buffers, tiles)


def elsewhere() -> None:
    """Tiles of few rows, which are small enough, for other GPUs."""
    (*_, (name, text)) = texts(2)
    for arch in ("sm_80", "sm_100", "gfx942"):
        with tempfile.TemporaryDirectory() as folder:
            built = compile_offline(text, Path(folder), arch)
            (registers, stack), shared = resources(built, Path(folder)), built["shared"]
            print(
                f"{arch} {text.name} [{name}]: {registers} registers, {stack} bytes of stack, {shared} shared"
            )


if __name__ == "__main__":
    found = compile_cuts(texts(int(sys.argv[1]) if len(sys.argv) > 1 else 2))
    elsewhere()
    sys.exit(found)
