"""Attention over a paged cache in plain PyTorch: what the kernels are measured by, and what runs where there are none.

It reads lengths on the host, one request after another, so on a GPU it cannot be part of a recording.
"""

from __future__ import annotations

import torch


def write_cache(
    key: torch.Tensor,
    value: torch.Tensor | None,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor | None,
    slot_mapping: torch.Tensor,
) -> None:
    """Put each token's key and value into its slot of the cache; a slot of -1 is padding and writes nothing.

    ``key`` (tokens, kv heads, dim), ``key_cache`` (blocks, block size, kv heads, dim), ``slot_mapping`` (at most tokens) int64: block *
    block size + place. Values alike, or None where the cache keeps them inside its keys.
    """
    real = (slot_mapping >= 0).nonzero().squeeze(1)
    slots = slot_mapping[real]
    size = key_cache.shape[1]
    where = slots // size, slots % size
    key_cache[where] = key[real]
    if value is not None and value_cache is not None:
        value_cache[where] = value[real]


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    output: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seq_lens: torch.Tensor,
    block_tables: torch.Tensor,
    scale: float,
    over: int = 0,
) -> None:
    """Write causal attention of each request's newest tokens over all its tokens in the cache.

    ``query`` (tokens, heads, dim) holds request after request; ``cu_seqlens_q`` (requests + 1) says where each begins, ``seq_lens``
    (requests) how many tokens of it the cache holds, these included. Heads share those of the cache in equal groups. Rows of
    ``output`` (tokens, heads, value dim) that belong to no request keep what they hold, and so do those of requests of ``over`` tokens or fewer.
    """
    # one by one, through the dispatcher: a recording sees that, and ends
    ends = [int(end) for end in cu_seqlens_q]
    for i, length in enumerate([int(length) for length in seq_lens]):
        begin, end = ends[i], ends[i + 1]
        if end - begin <= over:
            continue
        blocks = block_tables[i, : -(-length // key_cache.shape[1])].long()
        keys = key_cache[blocks].flatten(0, 1)[:length]
        values = value_cache[blocks].flatten(0, 1)[:length]
        output[begin:end] = _causal(query[begin:end], keys, values, scale)


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
    cu_seqlens_q: torch.Tensor,
    seq_lens: torch.Tensor,
    block_tables: torch.Tensor,
    slot_mapping: torch.Tensor,
    scale: float,
    eps: float,
) -> None:
    """Attention from the merged projection: queries and keys are normalised and turned, keys and values put into the cache.

    ``qkv`` (tokens, (heads + 2 * kv heads) * dim). ``positions`` (tokens) are rows of ``cos`` and ``sin`` (positions, dim / 2). ``q_weight``,
    ``k_weight`` (dim): of the norms of each head, or None. The rest as in ``write_cache`` and ``paged_attention``.
    """
    heads, shared, dim = output.shape[1], key_cache.shape[2], output.shape[2]
    rows = qkv.view(qkv.shape[0], heads + 2 * shared, dim)
    q, k, v = rows.split((heads, shared, shared), 1)
    c, s = cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)
    q, k = (turned(normalised(x, w, eps), c, s) for x, w in ((q, q_weight), (k, k_weight)))
    write_cache(k, v, key_cache, value_cache, slot_mapping)
    paged_attention(q, key_cache, value_cache, output, cu_seqlens_q, seq_lens, block_tables, scale)


def normalised(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """Rows divided by their root mean square, computed in float32 at least, times a weight; without one as they are."""
    if weight is None:
        return x
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding: number ``i`` of the first half is turned with number ``i`` of the second."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def _causal(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
    """(tokens, heads, value dim) of one request; half types are computed in float32."""
    tokens, heads, dim = query.shape
    length, groups, _ = keys.shape
    wide = torch.promote_types(query.dtype, torch.float32)
    rows = query.to(wide).view(tokens, groups, heads // groups, dim)
    scores = torch.einsum("tghd,lgd->tghl", rows, keys.to(wide)) * scale
    place = torch.arange(length, device=query.device)
    seen = place <= place[length - tokens :, None]
    weights = scores.masked_fill(~seen[:, None, None], float("-inf")).softmax(-1)
    found = torch.einsum("tghl,lgd->tghd", weights, values.to(wide))
    return found.reshape(tokens, heads, -1).to(query.dtype)
