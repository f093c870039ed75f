"""Load Triton kernels from their text, and compile them without a GPU."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from braze.runtime.triton_launch import Launch


def load_module(path: Path) -> ModuleType:
    """The Python module of a kernel text. Triton reads the source back from its file, so there is one."""
    module_name = f"braze_triton_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return module


def load(
    path: Path,
    name: str,
    sizes: Sequence[str],
    grid: str,
    constants: Sequence[tuple[str, int]],
    num_warps: int,
    num_stages: int,
) -> Callable[..., None]:
    """The kernel ``name`` of the file ``path`` as a callable ``(*buffers, *sizes)`` that launches on the current stream. No launch of zero programs."""
    function = getattr(load_module(path), name)
    blocks = dict(constants)
    programs = eval(f"lambda {', '.join(sizes)}: {grid}", {"max": max, "min": min})
    return Launch(function, programs, len(sizes), blocks, num_warps, num_stages).launcher()


def compile_offline(
    path: Path,
    name: str,
    dtypes: Sequence[str],
    sizes: Sequence[str],
    constants: Sequence[tuple[str, int]],
    num_warps: int,
    capability: int = 90,
) -> dict[str, Any]:
    """Compile a kernel to machine code of ``sm_<capability>`` without a GPU: Triton's stages by name.

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
        options={"num_warps": num_warps},
    )
    return dict(built.asm)
