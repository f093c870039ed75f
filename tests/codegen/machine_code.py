"""Triton's machine code without a GPU."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from benchmarks.machine_code import compile_offline, resources
from braze.codegen.records import KernelText

#: bytes of shared memory that a program may have, and registers of a multiprocessor
SHARED, REGISTERS = 227 << 10, 65536


def compile_cuts(cuts: Iterable[tuple[str, KernelText]]) -> int:
    """Compile kernels, each with its cut's name, and print what they need; nonzero where one does not fit a multiprocessor."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in cuts:
            built = compile_offline(text, Path(folder))
            (registers, stack), shared = resources(built, Path(folder)), built["shared"]
            cores = "wgmma" in built["ptx"]
            print(
                f"cut {text.name} [{name}]: {registers} registers, {stack} bytes of stack, {shared} shared, wgmma {cores}"
            )
            assert text.launch is not None
            if shared > SHARED or registers * 32 * text.launch.num_warps > REGISTERS:
                return 1
    return 0
