"""Compile the optimizers' kernels to sm_90 machine code without a GPU. Run by test_triton.py, in a process of its own."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from braze.optim.triton_kernels import BLOCK, CHUNK, ROWS, WARPS, step_source
from braze.runtime.triton.triton_load import load_module
from tests.optim.kinds import KINDS

STEP = {
    "table": "*i64", "places": "*i64", "scratch": "*fp64", "numbers": "*fp64", "found": "*fp32", "scale": "*fp32",
    "width": "i32",
}  # fmt: skip
ADVANCE = {
    "steps": "*i64",
    "scratch": "*fp64",
    "numbers": "*fp64",
    "logs": "*fp64",
    "found": "*fp32",
    "rows": "i32",
}


def compiled(function, kinds, constants):
    """Triton's stages of one kernel."""
    names = list(function.arg_names)
    signature = {n: kinds.get(n, "constexpr") for n in names}
    given = {(names.index(n),): v for n, v in constants.items()}
    source = ASTSource(fn=function, signature=signature, constexprs=given)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": WARPS}).asm


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        for number, kind in enumerate(KINDS):
            path = Path(folder) / f"kind_{number}.py"
            path.write_text(step_source(kind))
            module = load_module(path)
            for scaled, aligned in ((False, True), (True, False)):
                flags = {
                    "SCALED": scaled,
                    "FOUND": scaled,
                    "ALIGNED": aligned,
                    "CHUNK": CHUNK,
                    "BLOCK": BLOCK,
                }
                asm = compiled(module.step, STEP, flags)
                wide = "ld.global.v4.b32" in asm["ptx"] or "ld.global.v2.b64" in asm["ptx"]
                print(kind.algorithm, kind.dtype, len(asm["cubin"]), "wide" if wide else "narrow", aligned)
                if not asm["cubin"] or ".target sm_90" not in asm["ptx"] or wide != aligned:
                    return 1
            if hasattr(module, "advance"):
                asm = compiled(module.advance, ADVANCE, {"FOUND": True, "ROWS": ROWS})
                if not asm["cubin"]:
                    return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
