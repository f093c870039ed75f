"""Compile the kernels of attention to sm_90 machine code without a GPU; prints one line a kernel. Run by test_offline.py.

Its own process: Triton decides on import whether it interprets.
"""

from __future__ import annotations

import functools
import os
import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from braze.serving.engine import triton_greatest
from braze.serving.engine.attention import triton_paged as paged
from braze.serving.engine.attention import triton_rope

NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
#: name: (dim, value dim, heads that share one of the cache, whether values lie in the keys)
MODELS = {
    "llama": (64, 64, 4, False),
    "qwen3": (128, 128, 2, False),
    "odd": (80, 80, 1, False),
    "mla": (576, 512, 16, True),
}
#: model, type, tokens of a request, splits
FORMS: tuple[tuple[str, torch.dtype, int, int], ...] = (
    ("llama", torch.bfloat16, 1, 8),
    ("qwen3", torch.bfloat16, 512, 1),
    ("odd", torch.bfloat16, 1, 8),
    ("mla", torch.bfloat16, 1, 8),
    ("mla", torch.float32, 512, 1),
)
#: of decoding steps from the merged projection: heads, heads of the cache, dim, norms, type, tokens of a request, splits
DECODES = {
    "qwen3": (16, 8, 128, True, torch.bfloat16, 1, 32),
    "qwen3 more rows than tokens": (16, 8, 128, True, torch.bfloat16, 16, 4),
    "llama float32": (32, 8, 64, False, torch.float32, 1, 1),
}
if (
    os.environ.get("BRAZE_SWEEP") == "1"
):  # between others: one row and many, another model's prefill, wider heads of float32
    DECODES["qwen3 float32"] = (16, 8, 128, True, torch.float32, 1, 8)
    DECODES["qwen3 drafts"] = (16, 8, 128, True, torch.bfloat16, 4, 4)
    FORMS += (("llama", torch.float32, 512, 1),)
#: bytes of a block's shared memory on Hopper
SHARED_MEMORY = 227 * 1024


def built(kernel, kinds: dict[str, str], constants: dict[str, object], warps: int = 4, stages: int = 2):
    """The kernel's machine code; arguments without a kind are 32-bit integers."""
    names = kernel.arg_names
    signature = {n: "constexpr" if n in constants else kinds.get(n, "i32") for n in names}
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(n),): v for n, v in constants.items()},
        attrs={
            (k,): [["tt.divisibility", 16]] for k, n in enumerate(names) if kinds.get(n, "").startswith("*")
        },
    )
    options = {"num_warps": warps, "num_stages": stages}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def attention(model: str, dtype: torch.dtype, rows: int, splits: int):
    dim, value_dim, group, shared = MODELS[model]
    form = paged.form_of(dim, value_dim, rows * group, dtype.itemsize)
    of = f"*{NAMES[dtype]}"
    kinds = dict.fromkeys(("query", "key_cache", "value_cache", "output"), of) | {"scale": "fp32"}
    kinds |= dict.fromkeys(("parts", "sums"), "*fp32" if splits > 1 else of)
    kinds |= dict.fromkeys(("cu_seqlens", "seq_lens", "block_tables"), "*i32")
    warps, stages = form.pop("num_warps"), form.pop("num_stages")
    constants = dict(
        GROUP=group, PAGE=16, DIM=dim, VALUE_DIM=value_dim, SPLITS=splits, SHARED=shared,
        PRECISION="ieee" if dtype == torch.float32 else "tf32", **form,
    )  # fmt: skip
    return built(paged.paged_attention_kernel, kinds, constants, warps, stages)


def decode(model: str):
    heads, shared, dim, norms, dtype, tokens, splits = DECODES[model]
    form = triton_rope.decode_form(tokens * heads // shared, tokens, dim, dtype, splits)
    warps, stages = form.pop("num_warps"), form.pop("num_stages")
    of = f"*{NAMES[dtype]}"
    kinds = dict.fromkeys(TENSORS, of) | {"scale": "fp32", "eps": "fp32"}
    kinds |= dict.fromkeys(("parts", "sums"), "*fp32" if splits > 1 else of)
    kinds |= dict.fromkeys(("arrivals", "cu_seqlens", "seq_lens", "block_tables"), "*i32")
    kinds |= dict.fromkeys(("positions", "slot_mapping"), "*i64")
    constants = dict(
        HEADS=heads, GROUP=heads // shared, PAGE=16, HALF=dim // 2, NORM=norms, BLOCK_H=dim // 2, SPLITS=splits,
        BLOCK_S=splits, EARLY=True, **triton_rope.keys_at_once(1, heads, shared, splits, dim, tokens, dtype.itemsize, 132), BLOCK_G=triton_rope.heads_at_once(heads // shared, splits, dim // 2), PRECISION="ieee" if dtype == torch.float32 else "tf32", **form,
    )  # fmt: skip
    return built(triton_rope.rope_decode_kernel, kinds, constants, warps, stages)


TENSORS = "qkv", "cos", "sin", "q_weight", "k_weight", "query", "key_cache", "value_cache", "output"


def rope_write():
    kinds = (
        dict.fromkeys(TENSORS, "*bf16")
        | dict.fromkeys(("positions", "slot_mapping"), "*i64")
        | {"eps": "fp32"}
    )
    constants = dict(HEADS=16, SHARED=8, PAGE=16, HALF=64, NORM=True, BLOCK_H=64, BLOCK_M=32)
    return built(triton_rope.rope_write_kernel, kinds, constants)


def main() -> int:
    """Compile every form; nonzero where one gives no machine code."""
    cases = {
        f"attention {model} {NAMES[dtype]} rows {rows} splits {splits}": functools.partial(
            attention, model, dtype, rows, splits
        )
        for model, dtype, rows, splits in FORMS
    }
    cases |= {f"decode {model}": functools.partial(decode, model) for model in DECODES}
    cases["rope_write"] = rope_write
    sums = {"parts": "*fp32", "sums": "*fp32", "output": "*bf16", "cu_seqlens": "*i32"}
    cases["add_splits"] = lambda: built(
        paged.add_splits_kernel, sums, dict(VALUE_DIM=128, BLOCK_V=128, SPLITS=8, BLOCK_S=8)
    )
    caches = dict.fromkeys(("key", "value", "key_cache", "value_cache"), "*bf16") | {"slot_mapping": "*i64"}
    sizes = dict(PAGE=16, HEADS=8, DIM=128, VALUE_DIM=128, BLOCK_K=1024, BLOCK_V=1024, HAS_VALUE=True)
    cases["write_cache"] = lambda: built(paged.write_cache_kernel, caches, sizes)
    logits = {"logits": "*bf16", "best": "*i64", "found": "*i64"}
    cases["greatest"] = lambda: built(triton_greatest.greatest_kernel, logits, dict(BLOCK=2048))
    for name, make in cases.items():
        made = make()
        right = bool(made.asm["cubin"]) and ".target sm_90" in made.asm["ptx"]
        fits = made.metadata.shared <= SHARED_MEMORY
        print(name, len(made.asm["cubin"]), made.metadata.shared, right and fits)
        if not (right and fits):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
