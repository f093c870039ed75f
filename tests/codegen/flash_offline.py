"""Compile the kernels of flex_attention to sm_90 machine code without a GPU; prints one line a kernel. Run by test_flash.py.

Its own process: Triton decides on import whether it interprets.
"""

from __future__ import annotations

import os
import sys
import warnings

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import braze
from braze import flex_kernels
from braze.graph.calls import flex, flex_ops

KINDS = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.int32: "i32",
    torch.int64: "i64",
}


#: type, width of a head, rows and columns of a block of the mask: the most memory that is shared, no blocks, the widest
CASES = ((torch.float16, 128, 128), (torch.float32, 64, 48), (torch.bfloat16, 256, 128))
#: narrower than one and of another's type
MORE = ((torch.bfloat16, 64, 128),)


def built(dtype: torch.dtype, width: int, blocks: int) -> list[flex_kernels.Kernels]:
    """The kernels of a training step, whose calls are PyTorch's operators."""
    made: list[flex_kernels.Kernels] = []
    slopes = torch.rand(4)
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 256, 256, device="cpu", BLOCK_SIZE=blocks)
    functions = (lambda s, b, h, i, j: torch.tanh(s / 20) * 20 + slopes[h] * (i - j)), mask

    def forward(self, q, k, v, blocks, others):
        made.append(self)
        return flex.forward(self.entry.score, self.entry.mask, self.entry.scale, q, k, v, others)

    flex_kernels.Kernels.forward = forward
    flex_ops.takes, flex.reads_blocks = (lambda *_: True), (lambda *_: True)
    q, k, v = (torch.randn(1, h, 256, width, dtype=dtype, requires_grad=True) for h in (4, 2, 2))
    compiled = braze.compile(lambda *x: flex_attention(*x, *functions, enable_gqa=True), fullgraph=True)
    compiled(q, k, v)
    return made


def main() -> int:
    """Compile every case; nonzero where one gives no cubin."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    warnings.simplefilter("ignore")
    for dtype, width, blocks in CASES + MORE * (os.environ.get("BRAZE_SWEEP") == "1"):
        (kernels,) = built(dtype, width, blocks)
        for name in ("flex_forward", "flex_queries", "flex_keys"):
            function = getattr(kernels.module, name)
            rows, columns, warps, stages = (
                kernels.forward_tile if name == "flex_forward" else kernels.backward_tile
            )
            constants = {
                "YBLOCK": rows,
                "XBLOCK": columns,
                "D": width,
                "E": width,
                "DBLOCK": width,
                "EBLOCK": width,
            }
            constants |= {"ROWS": blocks, "COLUMNS": blocks} if kernels.sparse else {}
            constants |= dict.fromkeys(("sqd", "skd", "svd", "soe"), 1)
            signature = {}
            for argument in function.arg_names:
                kind = "i32"
                if argument in constants:
                    kind = "constexpr"
                elif argument == "scale":
                    kind = "fp32"
                elif argument in ("q", "k", "v", "out", "do", "dq", "dk", "dv"):
                    kind = f"*{KINDS[dtype]}"
                elif argument in ("lse", "most", "delta") or argument.startswith("table"):
                    kind = "*fp32"
                elif "counts" in argument or "places" in argument:
                    kind = "*i32"
                signature[argument] = kind
            places = {name: i for i, name in enumerate(function.arg_names)}
            aligned = {
                (i,): [["tt.divisibility", 16]]
                for name, i in places.items()
                if signature[name][0] == "*"
                or (name[0] == "s" and name[1:2] in "qkvo" and name not in constants and name != "scale")
            }
            made = triton.compile(
                ASTSource(
                    fn=function,
                    signature=signature,
                    constexprs={(places[n],): v for n, v in constants.items() if n in places},
                    attrs=aligned,
                ),
                target=GPUTarget("cuda", 90, 32),
                options={"num_warps": warps, "num_stages": stages},
            )
            print(
                name,
                dtype,
                width,
                kernels.sparse,
                len(made.asm["cubin"]),
                made.metadata.shared,
                "wgmma" in made.asm["ptx"],
            )
            if not made.asm["cubin"] or made.metadata.shared > 227 * 1024:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
