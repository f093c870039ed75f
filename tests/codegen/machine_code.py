"""Triton's machine code without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from braze.runtime.triton_worker import load_module


def compile_offline(
    path: Path,
    name: str,
    dtypes: Sequence[str],
    sizes: Sequence[str],
    constants: Sequence[tuple[str, int]],
    num_warps: int,
    capability: int = 90,
    num_stages: int = 3,
) -> dict[str, Any]:
    """Compile a kernel to machine code of ``sm_<capability>`` without a GPU: Triton's stages by name, and its bytes of ``shared`` memory.

    Raises Triton's own CompilationError where the text is not valid.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(load_module(path), name)
    names = list(function.arg_names)
    blocks = dict(constants)
    kinds = [*dtypes, *("i32" for _ in sizes), *("constexpr" for _ in blocks)]
    signature = dict(zip(names, kinds, strict=True))
    constexprs = {(names.index(b),): v for b, v in blocks.items()}
    aligned = {(k,): [["tt.divisibility", 16]] for k in range(len(dtypes))}  # as most tensors are
    built = triton.compile(
        ASTSource(fn=function, signature=signature, constexprs=constexprs, attrs=aligned),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": num_warps, "num_stages": num_stages},
    )
    return {**built.asm, "shared": built.metadata.shared}
