"""Attention from a layer's merged projection on a GPU: norms of heads, rotary embedding, the cache's write and attention, by the kernels of
``triton_rope_kernels.py``. Which kernel a step takes, in how many splits, and what is built into it, is decided here.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton

from braze import native
from braze.serving.engine.attention.triton_paged import _LOG2E, _processors, paged_attention, splits_of
from braze.serving.engine.attention.triton_rope_kernels import rope_decode_kernel, rope_write_kernel

#: rows (tokens times heads that share one of the cache) that one program takes at most
_MOST_ROWS = 64
#: bytes of a head's keys that one program has in its registers, of narrow heads and of wide ones, and the programs that have a part of a wide head's values each
_HELD, _HELD_WIDE, _PARTS = 1 << 15, 1 << 15, 1
#: how many of a decoding kernel's arguments are tensors, the first ones; two floats and whole numbers follow
_TENSORS = 16
#: what Triton has built, by all that it builds apart for: the form, whole numbers, types -> (kernel, constants, the form, whose number is part of the key)
_built: dict[Any, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {}
_MOST_BUILT = 1024
#: numbers of a head up to which programs that share its keys fill the device twice: of 128 an H100 had 8 requests of 500 to 4,000 tokens done in 0.77 to 0.89 of the
#: time by once as many
_NARROW = 64


def rope_attention(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    output: torch.Tensor,
    arrivals: torch.Tensor | None,
    cu_seqlens_q: torch.Tensor,
    seq_lens: torch.Tensor,
    block_tables: torch.Tensor,
    slot_mapping: torch.Tensor,
    scale: float,
    eps: float,
    max_query_len: int,
) -> None:
    """As ``reference.rope_attention``. ``max_query_len`` bounds the tokens of one request, and chooses the form.

    ``arrivals``: zeros, one for each request and head of the cache, and zeros again afterwards; without it keys are not split.
    """
    tokens, heads, dim = output.shape
    requests, shared = seq_lens.shape[0], key_cache.shape[2]
    if not tokens or not requests:
        return
    kept = (*key_cache.stride()[:3], *value_cache.stride()[:3])
    norms = (q_weight, k_weight) if q_weight is not None and k_weight is not None else (cos, cos)
    if max_query_len > 16 or min(max_query_len, tokens) * (heads // shared) > _MOST_ROWS:
        sizes = sizes_of(heads, key_cache.shape[1], dim, q_weight is not None)
        query = torch.empty(tokens, heads, dim, dtype=qkv.dtype, device=qkv.device)
        many = tokens * (heads + 2 * shared)
        rope_write_kernel[(triton.cdiv(many, 32),)](
            qkv, positions, cos, sin, *norms, query, key_cache, value_cache, slot_mapping,
            many, slot_mapping.shape[0], eps, qkv.stride(0), *kept, SHARED=shared, BLOCK_M=32, **sizes,
        )  # fmt: skip
        paged_attention(
            query, key_cache, value_cache, output, cu_seqlens_q, seq_lens, block_tables, scale, max_query_len
        )
        return
    room = 0 if arrivals is None else arrivals.numel()
    splits, form = decode_launch(
        tokens, requests, heads, shared, dim, key_cache.shape[1], max_query_len, room >= requests * shared,
        q_weight is not None, qkv.dtype, qkv.device,
    )  # fmt: skip
    parts = sums = output
    if splits > 1:
        parts = torch.empty(tokens, heads, splits, dim, dtype=torch.float32, device=qkv.device)
        sums = torch.empty(tokens, heads, splits, 2, dtype=torch.float32, device=qkv.device)
    arguments = (
        qkv, positions, cos, sin, *norms, key_cache, value_cache, output, parts, sums,
        cu_seqlens_q if arrivals is None else arrivals,
        cu_seqlens_q, seq_lens, block_tables, slot_mapping, scale * _LOG2E, eps,
        qkv.stride(0), *kept, output.stride(0), output.stride(1), block_tables.stride(0),
    )  # fmt: skip
    _decode((requests, shared, splits), arguments, form)


def _decode(grid: tuple[int, int, int], arguments: tuple[Any, ...], form: dict[str, Any]) -> None:
    """Launch a decoding step's kernel. What Triton has built for a form is launched itself from then on: Triton looks at each of fifty arguments anew.

    ``form``: as ``decode_launch`` gives it, the same object for the same launch on one device.
    """
    tensors, numbers = arguments[:_TENSORS], arguments[_TENSORS + 2 :]
    if not _aligned(tensors):  # built apart, and rare
        rope_decode_kernel[grid](*arguments, **form)
        return
    key = id(form), numbers, tuple([x.dtype for x in tensors])
    found = _built.get(key)
    if found is not None:
        kernel, constants, _ = found
        kernel[grid](*arguments, *constants)
        return
    kernel = rope_decode_kernel[grid](*arguments, **form)
    if kernel is None:  # it is interpreted
        return
    if len(_built) >= _MOST_BUILT:
        _built.clear()
    names = rope_decode_kernel.arg_names[len(arguments) :]
    _built[key] = kernel, tuple([form[name] for name in names]), form


def _aligned(tensors: tuple[torch.Tensor, ...]) -> bool:
    """Whether all lie as kernels take it of each that is a multiple of 16."""
    return sum([native.data_ptr(x) % 16 for x in tensors]) == 0


def sizes_of(heads: int, page: int, dim: int, norm: bool) -> dict[str, Any]:
    """What is built into both kernels."""
    block = max(16, triton.next_power_of_2(dim // 2))
    return dict(HEADS=heads, PAGE=page, HALF=dim // 2, NORM=norm, BLOCK_H=block)


@functools.lru_cache(1024)
def decode_launch(
    tokens: int,
    requests: int,
    heads: int,
    shared: int,
    dim: int,
    page: int,
    max_query_len: int,
    counted: bool,
    norm: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[int, dict[str, Any]]:
    """Into how many splits a decoding step's keys go, and what is built into its kernel: the same for every layer, and for every step of these sizes. ``counted``: there is
    room to count splits."""
    processors, rows = _processors(device), min(max_query_len, tokens) * (heads // shared)
    splits = (
        splits_of(requests * shared, max_query_len, processors, 1 if dim > _NARROW else 2) if counted else 1
    )
    early = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
    sizes = sizes_of(heads, page, dim, norm)
    keys = keys_at_once(requests, heads, shared, splits, dim, max_query_len, dtype.itemsize, processors)
    form = dict(
        GROUP=heads // shared,
        SPLITS=splits,
        BLOCK_S=splits,
        EARLY=early,
        PRECISION="ieee" if dtype == torch.float32 else "tf32",
        BLOCK_G=heads_at_once(heads // shared, splits, sizes["BLOCK_H"]),
        **keys,
        **decode_form(rows, max_query_len, dim, dtype, splits),
        **sizes,
    )
    return splits, form | ({"launch_pdl": True} if early else {})


def heads_at_once(group: int, splits: int, half: int) -> int:
    """Heads whose splits a program adds up at once: as many as fit into its registers."""
    return min(triton.next_power_of_2(group), max(1, 4096 // (splits * half)))


def keys_at_once(
    requests: int,
    heads: int,
    shared: int,
    splits: int,
    dim: int,
    max_query_len: int,
    itemsize: int,
    processors: int,
) -> dict[str, int]:
    """Up to how many keys one program takes at once for one head of a single token, 0: none does; and in how many parts the values are. It has them in its registers
    when the projection ends. These leave a multiprocessor room for two programs of longer requests: where heads fill the device, those were slower for it."""
    parts = _PARTS if dim > _NARROW else 1
    few = 4 * requests * heads <= processors and requests * shared * splits <= 2 * processors
    if max_query_len > 1 or not few or splits < heads // shared * parts:
        return {"WHOLE": 0, "PARTS": 1}
    keys = (_HELD_WIDE if dim > _NARROW else _HELD) // (triton.next_power_of_2(dim) * itemsize)
    return {"WHOLE": keys, "PARTS": parts}


def decode_form(rows: int, max_query_len: int, dim: int, dtype: torch.dtype, splits: int) -> dict[str, int]:
    """Sizes of blocks of a decoding step. Wide heads that nobody shares are taken by few keys at once: an H100 had 64 requests of 60 to 1,000 tokens done in 0.73 to 0.88
    of the time."""
    wide = dim * dtype.itemsize > 512
    few = dtype.itemsize > 2 or (dim > _NARROW and splits == 1)
    return {
        "BLOCK_M": max(16, triton.next_power_of_2(rows)),
        "BLOCK_T": max(16, triton.next_power_of_2(max_query_len)),
        "BLOCK_N": 16 if wide else 32 if few else 64,
        "num_warps": 4,
        "num_stages": 1 if wide else 2,
    }
