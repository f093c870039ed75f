"""Triton's machine code without a GPU."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from braze.codegen.records import KernelText
from braze.runtime.triton_worker import asked, load_module

#: bytes of shared memory that a program may have, and registers of a multiprocessor
SHARED, REGISTERS = 227 << 10, 65536


def compile_offline(text: KernelText, folder: Path) -> dict[str, Any]:
    """Compile a kernel as it is launched to machine code of ``sm_90`` without a GPU: Triton's stages by name, and its bytes of ``shared`` memory.

    Raises Triton's own CompilationError where the text is not valid.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    launch = text.launch
    assert launch is not None
    path = folder / f"kernel_{len(list(folder.iterdir()))}.py"
    path.write_text(text.source)
    function = getattr(load_module(path), text.name)
    names = list(function.arg_names)
    blocks = dict(launch.constants)
    kinds = [*launch.dtypes, *("i32" for _ in text.sizes), *("constexpr" for _ in blocks)]
    signature = dict(zip(names, kinds, strict=True))
    constexprs = {(names.index(b),): v for b, v in blocks.items()}
    aligned = {(k,): [["tt.divisibility", 16]] for k in range(len(launch.dtypes))}  # as most tensors are
    built = triton.compile(
        ASTSource(fn=function, signature=signature, constexprs=constexprs, attrs=aligned),
        target=GPUTarget("cuda", 90, 32),
        options={"num_warps": launch.num_warps, "num_stages": launch.num_stages, **asked(launch.constants)},
    )
    return {**built.asm, "shared": built.metadata.shared}


def compile_cuts(cuts: Iterable[tuple[str, KernelText]]) -> int:
    """Compile kernels, each with its cut's name, and print what they need; nonzero where one does not fit a multiprocessor."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in cuts:
            built = compile_offline(text, Path(folder))
            (registers, stack), shared = resources(built["cubin"], Path(folder)), built["shared"]
            cores = "wgmma" in built["ptx"]
            print(
                f"cut {text.name} [{name}]: {registers} registers, {stack} bytes of stack, {shared} shared, wgmma {cores}"
            )
            assert text.launch is not None
            if shared > SHARED or registers * 32 * text.launch.num_warps > REGISTERS:
                return 1
    return 0


def resources(cubin: bytes, folder: Path) -> tuple[int, int]:
    """(registers, bytes of the stack: spilled ones) of a kernel's machine code."""
    import triton.backends.nvidia

    dump = Path(triton.backends.nvidia.__file__).parent / "bin" / "cuobjdump"
    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    told = subprocess.run([dump, "-res-usage", path], capture_output=True, text=True, check=True).stdout
    found = [re.search(rf"{name}:(\d+)", told) for name in ("REG", "STACK")]
    return tuple(int(match[1]) for match in found if match)  # type: ignore[return-value]
