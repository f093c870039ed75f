"""Compile the kernels that clip to sm_90 machine code without a GPU. Run by test_triton_clip.py, in a process of its own."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from braze.optim.triton_clip import BLOCK, CHUNK, FOLDED, clip_source
from braze.runtime.triton.triton_load import load_module
from braze.support.dtypes import LONG
from tests.optim.triton_offline import compiled

TABLE = {"table": "*i64", "places": "*i64", "width": "i32"}
#: what each type's norm is stored in, as Triton names it
KINDS = {"f32": "*fp32", "f64": "*fp64", "bf16": "*bf16", "f16": "*fp16"}


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        for dtype, total in KINDS.items():
            path = Path(folder) / f"clip_{dtype}.py"
            path.write_text(clip_source(dtype))
            module = load_module(path)
            cut = {"CHUNK": CHUNK, "BLOCK": BLOCK, "ALIGNED": True}
            for flag in (False, True):
                measured = compiled(module.measure, {**TABLE, "parts": "*fp64"}, {**cut, "LARGEST": flag})
                changed = compiled(module.change, {**TABLE, "number": "*fp64"}, {**cut, "CLAMP": flag})
                wide = all(
                    "ld.global.v4.b32" in x["ptx"] or "ld.global.v2.b64" in x["ptx"]
                    for x in (measured, changed)
                )
                kinds = {"parts": "*fp64", "count": "i32", "numbers": "*fp64", "total": total}
                folded = compiled(module.fold, kinds, {"LARGEST": flag, "FOLDED": FOLDED})
                print(LONG[dtype], flag, "wide" if wide else "narrow")
                if not all(x["cubin"] and ".target sm_90" in x["ptx"] for x in (measured, changed, folded)):
                    return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
