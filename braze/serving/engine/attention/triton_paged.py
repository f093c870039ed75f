"""Attention over a paged cache on a GPU: one kernel for prefill, decode and latent caches, and the sum of its parts.

The rows of a request are its (token, head) pairs that share a head of the cache. A program takes a block of rows and walks the keys that
these may see, by the request's row of the block table. Where there are too few rows for the device, the keys are split among
programs, and a second kernel adds up what they found.

All that varies is read from device memory by the programs themselves: which request a program works for, how long it is, where its
blocks lie. The host knows upper bounds alone, so a launch can be recorded and replayed for other lengths.
"""

# kernels are typed by their launches
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

#: splits at most, and keys that a split is worth
_MOST_SPLITS = 32
_LOG2E = 1.4426950408889634


@triton.jit
def _request_of(block, cu_seqlens, requests, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):
    """The last request whose first block of rows is not behind ``block``: request i begins at block ``rows before it // BLOCK_M + i``."""
    low = 0
    high = requests
    while high - low > 1:
        middle = (low + high) // 2
        first = tl.load(cu_seqlens + middle) * GROUP // BLOCK_M + middle
        if first <= block:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def _queries(query, rows, real, DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_R: tl.constexpr):
    """The queries of these rows: their first BLOCK_D numbers, and the rest where there is one."""
    d = tl.arange(0, BLOCK_D)
    q = tl.load(query + rows[:, None] + d[None, :], mask=real[:, None] & (d < DIM)[None, :], other=0.0)
    q_rest = q
    if BLOCK_R > 0:
        r = BLOCK_D + tl.arange(0, BLOCK_R)
        q_rest = tl.load(
            query + rows[:, None] + r[None, :], mask=real[:, None] & (r < DIM)[None, :], other=0.0
        )
    return q, q_rest


@triton.jit
def _keys(
    q, q_rest, at, there, DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_R: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """The first BLOCK_D numbers of the keys at these places, and all their products with the queries."""
    d = tl.arange(0, BLOCK_D)
    k = tl.load(at[:, None] + d[None, :], mask=there[:, None] & (d < DIM)[None, :], other=0.0)
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if BLOCK_R > 0:
        r = BLOCK_D + tl.arange(0, BLOCK_R)
        rest = tl.load(at[:, None] + r[None, :], mask=there[:, None] & (r < DIM)[None, :], other=0.0)
        scores += tl.dot(q_rest, tl.trans(rest), input_precision=PRECISION)
    return k, scores


@triton.jit
def _attended(
    q, q_rest, key_cache, value_cache, table, place, low, high, scale, head, v_dim,
    key_block, key_slot, key_head, value_block, value_slot, value_head,
    PAGE: tl.constexpr, DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SHARED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What rows find in the keys from ``low`` to ``high`` of one head: the greatest score, the sum of weights relative to it, and of weighted values.
    ``place``: the last key that each row sees."""
    most = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    found = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    for start in range(low, high, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        there = key < high
        page = tl.load(table + key // PAGE, mask=there, other=0).to(tl.int64)
        at = key_cache + page * key_block + (key % PAGE) * key_slot + head * key_head
        k, scores = _keys(q, q_rest, at, there, DIM, BLOCK_D, BLOCK_R, PRECISION)
        seen = there[None, :] & (key[None, :] <= place[:, None])
        scores = tl.where(seen, scores * scale, float("-inf"))
        more = tl.maximum(most, tl.max(scores, 1))
        base = tl.where(more == float("-inf"), 0.0, more)
        weights = tl.exp2(scores - base[:, None])
        faded = tl.exp2(most - base)
        total = total * faded + tl.sum(weights, 1)
        if SHARED:
            v = k
        else:
            at = value_cache + page * value_block + (key % PAGE) * value_slot + head * value_head
            v = tl.load(
                at[:, None] + v_dim[None, :], mask=there[:, None] & (v_dim < VALUE_DIM)[None, :], other=0.0
            )
        found = found * faded[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        most = more
    return most, total, found


@triton.jit
def paged_attention_kernel(
    query, key_cache, value_cache, output, parts, sums,
    cu_seqlens, seq_lens, block_tables, scale, requests,
    query_token, query_head, key_block, key_slot, key_head,
    value_block, value_slot, value_head, out_token, out_head, table_row,
    GROUP: tl.constexpr, PAGE: tl.constexpr, DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr,
    SHARED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One block of rows over one split of its keys. A key has BLOCK_D numbers, and BLOCK_R more where DIM is no power of two;
    SHARED: a value is the first BLOCK_D numbers of its key."""
    block = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.program_id(2)
    request = _request_of(block, cu_seqlens, requests, GROUP, BLOCK_M)
    begin = tl.load(cu_seqlens + request)
    tokens = tl.load(cu_seqlens + request + 1) - begin
    first_row = (block - (begin * GROUP // BLOCK_M + request)) * BLOCK_M
    if first_row >= tokens * GROUP:
        return
    length = tl.load(seq_lens + request)
    row = first_row + tl.arange(0, BLOCK_M)
    real = row < tokens * GROUP
    token = row // GROUP
    place = length - tokens + token  # the last key that a row sees
    rows = (begin + token).to(tl.int64) * query_token + (head * GROUP + row % GROUP) * query_head
    q, q_rest = _queries(query, rows, real, DIM, BLOCK_D, BLOCK_R)
    v_dim = tl.arange(0, BLOCK_V)

    last_token = tl.minimum(first_row + BLOCK_M - 1, tokens * GROUP - 1) // GROUP
    limit = length - tokens + last_token + 1
    share = tl.cdiv(tl.cdiv(limit, SPLITS), BLOCK_N) * BLOCK_N
    low = split * share
    high = tl.minimum(low + share, limit)

    most, total, found = _attended(
        q, q_rest, key_cache, value_cache, block_tables + request.to(tl.int64) * table_row, place, low, high, scale, head, v_dim,
        key_block, key_slot, key_head, value_block, value_slot, value_head,
        PAGE, DIM, VALUE_DIM, BLOCK_D, BLOCK_R, BLOCK_V, BLOCK_M, BLOCK_N, SHARED, PRECISION,
    )  # fmt: skip

    kept = real[:, None] & (v_dim < VALUE_DIM)[None, :]
    if SPLITS == 1:
        result = found / tl.where(total == 0.0, 1.0, total)[:, None]
        into = (begin + token).to(tl.int64) * out_token + (head * GROUP + row % GROUP) * out_head
        tl.store(output + into[:, None] + v_dim[None, :], result.to(output.dtype.element_ty), mask=kept)
    else:
        heads = tl.num_programs(1) * GROUP
        index = ((begin + token).to(tl.int64) * heads + head * GROUP + row % GROUP) * SPLITS + split
        tl.store(parts + index[:, None] * VALUE_DIM + v_dim[None, :], found, mask=kept)
        tl.store(sums + index * 2, most, mask=real)
        tl.store(sums + index * 2 + 1, total, mask=real)


@triton.jit
def add_splits_kernel(
    parts, sums, output, cu_seqlens, requests, out_token, out_head,
    VALUE_DIM: tl.constexpr, BLOCK_V: tl.constexpr, SPLITS: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """One (token, head): the splits' sums brought to one maximum and added. Tokens of no request are left."""
    token = tl.program_id(0)
    head = tl.program_id(1)
    if token >= tl.load(cu_seqlens + requests):
        return
    s = tl.arange(0, BLOCK_S)
    v = tl.arange(0, BLOCK_V)
    index = (token.to(tl.int64) * tl.num_programs(1) + head) * SPLITS + s
    there = s < SPLITS
    most = tl.load(sums + index * 2, mask=there, other=float("-inf"))
    total = tl.load(sums + index * 2 + 1, mask=there, other=0.0)
    top = tl.max(most, 0)
    faded = tl.exp2(most - tl.where(top == float("-inf"), 0.0, top))
    part = tl.load(
        parts + index[:, None] * VALUE_DIM + v[None, :],
        mask=there[:, None] & (v < VALUE_DIM)[None, :], other=0.0,
    )  # fmt: skip
    weight = tl.sum(total * faded, 0)
    result = tl.sum(part * faded[:, None], 0) / tl.where(weight == 0.0, 1.0, weight)
    into = token.to(tl.int64) * out_token + head * out_head
    tl.store(output + into + v, result.to(output.dtype.element_ty), mask=v < VALUE_DIM)


@triton.jit
def write_cache_kernel(
    key, value, key_cache, value_cache, slot_mapping,
    key_token, key_head, value_token, value_head,
    cache_block, cache_slot, cache_head, values_block, values_slot, values_head,
    PAGE: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, HAS_VALUE: tl.constexpr,
):  # fmt: skip
    """One token's key and value into its slot; a slot below zero is padding."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token)
    if slot < 0:
        return
    page, place = slot // PAGE, slot % PAGE
    at = tl.arange(0, BLOCK_K)
    head, d = at // DIM, at % DIM
    numbers = tl.load(key + token * key_token + head * key_head + d, mask=at < HEADS * DIM)
    into = key_cache + page * cache_block + place * cache_slot + head * cache_head + d
    tl.store(into, numbers, mask=at < HEADS * DIM)
    if HAS_VALUE:
        at = tl.arange(0, BLOCK_V)
        head, d = at // VALUE_DIM, at % VALUE_DIM
        numbers = tl.load(value + token * value_token + head * value_head + d, mask=at < HEADS * VALUE_DIM)
        into = value_cache + page * values_block + place * values_slot + head * values_head + d
        tl.store(into, numbers, mask=at < HEADS * VALUE_DIM)


def write_cache(
    key: torch.Tensor,
    value: torch.Tensor | None,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor | None,
    slot_mapping: torch.Tensor,
) -> None:
    """As ``reference.write_cache``, by one launch."""
    tokens = min(slot_mapping.shape[0], key.shape[0])
    if not tokens:
        return
    _, heads, dim = key.shape
    has_value = value is not None
    v, v_cache = (value, value_cache) if value is not None and value_cache is not None else (key, key_cache)
    value_dim = v.shape[2]
    write_cache_kernel[(tokens,)](
        key, v, key_cache, v_cache, slot_mapping,
        key.stride(0), key.stride(1), v.stride(0), v.stride(1),
        key_cache.stride(0), key_cache.stride(1), key_cache.stride(2),
        v_cache.stride(0), v_cache.stride(1), v_cache.stride(2),
        PAGE=key_cache.shape[1], HEADS=heads, DIM=dim, VALUE_DIM=value_dim,
        BLOCK_K=triton.next_power_of_2(heads * dim), BLOCK_V=triton.next_power_of_2(heads * value_dim),
        HAS_VALUE=has_value,
    )  # fmt: skip


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    output: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seq_lens: torch.Tensor,
    block_tables: torch.Tensor,
    scale: float,
    max_query_len: int,
) -> None:
    """As ``reference.paged_attention``; ``max_query_len`` bounds the tokens of one request, and chooses the form."""
    tokens, heads, dim = query.shape
    requests, groups, value_dim = seq_lens.shape[0], key_cache.shape[2], value_cache.shape[3]
    if not tokens or not requests:
        return
    group = heads // groups
    form = form_of(dim, value_dim, min(max_query_len, tokens) * group, query.dtype.itemsize)
    blocks = tokens * group // form["BLOCK_M"] + requests
    splits = splits_of(blocks * groups, max_query_len, _processors(query.device))
    shared = value_cache.data_ptr() == key_cache.data_ptr() and value_dim == form["BLOCK_D"]
    if splits > 1:
        parts = torch.empty(tokens, heads, splits, value_dim, dtype=torch.float32, device=query.device)
        sums = torch.empty(tokens, heads, splits, 2, dtype=torch.float32, device=query.device)
    else:
        parts = sums = output
    paged_attention_kernel[(blocks, groups, splits)](
        query, key_cache, value_cache, output, parts, sums,
        cu_seqlens_q, seq_lens, block_tables, scale * _LOG2E, requests,
        query.stride(0), query.stride(1), *key_cache.stride()[:3], *value_cache.stride()[:3],
        output.stride(0), output.stride(1), block_tables.stride(0),
        GROUP=group, PAGE=key_cache.shape[1], DIM=dim, VALUE_DIM=value_dim, SPLITS=splits, SHARED=shared,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32", **form,
    )  # fmt: skip
    if splits > 1:
        add_splits_kernel[(tokens, heads)](
            parts, sums, output, cu_seqlens_q, requests, output.stride(0), output.stride(1),
            VALUE_DIM=value_dim, BLOCK_V=form["BLOCK_V"], SPLITS=splits, BLOCK_S=triton.next_power_of_2(splits),
        )  # fmt: skip


def form_of(dim: int, value_dim: int, rows: int, itemsize: int) -> dict[str, int]:
    """Sizes of blocks: rows by how many a request has at most, keys by how many numbers a key has."""
    whole = 1 << (dim.bit_length() - 1)
    rest = dim - whole
    wide = max(whole, value_dim) * itemsize > 512  # a latent cache, or float32 of more than 128 numbers
    return {
        "BLOCK_D": max(16, whole),
        "BLOCK_R": max(16, triton.next_power_of_2(rest)) if rest and dim > 16 else 0,
        "BLOCK_V": max(16, triton.next_power_of_2(value_dim)),
        "BLOCK_M": 16 if rows <= 16 or wide else 32 if rows <= 64 else 64,
        "BLOCK_N": 16 if wide and itemsize > 2 else 32 if wide or itemsize > 2 else 64,
        "num_warps": 4,
        "num_stages": 1 if wide else 2,
    }


def splits_of(programs: int, max_query_len: int, processors: int, times: int = 2) -> int:
    """How many programs share the keys of one block of rows: as fill the device so many times. Prompts have rows enough."""
    if max_query_len > 16:
        return 1
    wanted = -(-times * processors // max(programs, 1))
    return max(1, min(_MOST_SPLITS, triton.next_power_of_2(wanted)))


@functools.cache
def _processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; Triton's interpreter is given few, so that tests split."""
    if device.type != "cuda":
        return 8
    return torch.cuda.get_device_properties(device).multi_processor_count
