"""Kernels of attention from a layer's merged projection on a GPU; ``triton_rope.py`` launches them.

A decoding step is one kernel. A program has all new tokens of one request that share a head of the cache, and a split of the keys that the
cache holds already; the last split has the new keys too, which it makes itself and puts into the cache. Where there are several splits, the program
that ends last adds them up: nobody waits for another. Longer steps make queries and write the cache by one kernel, and attend by another.

From Hopper on that kernel begins while the projection ahead of it still runs: it reads what the cache holds, and waits for the projection. From then on what is behind
it may begin, when all that was ahead is done, and read its weights meanwhile.

A head's numbers are handled in two halves, which the rotary embedding turns against each other. A cache of keys or of values is one
argument of the functions: its memory, and how far apart its blocks, slots and heads lie.
"""

# kernels are typed by their launches
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _turned(a, b, weight_a, weight_b, cos, sin, eps, HALF: tl.constexpr, NORM: tl.constexpr):
    """Rows in halves, divided by their root mean square and weighted where NORM, and turned."""
    if NORM:
        scale = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / (2 * HALF) + eps)[:, None]
        a = a * scale * weight_a
        b = b * scale * weight_b
    return a * cos - b * sin, b * cos + a * sin


@triton.jit
def _halves(base, at, there, HALF: tl.constexpr, BLOCK_H: tl.constexpr):
    """The halves of the rows that begin at these places."""
    h = tl.arange(0, BLOCK_H)
    mask = there[:, None] & (h < HALF)[None, :]
    first = base + at[:, None] + h[None, :]
    return tl.load(first, mask=mask, other=0.0), tl.load(first + HALF, mask=mask, other=0.0)


@triton.jit
def _store_halves(base, at, a, b, there, h, HALF: tl.constexpr):
    """Rows in halves of numbers ``h`` go to where these places begin."""
    mask = there[:, None] & (h < HALF)[None, :]
    first = base + at[:, None] + h[None, :]
    tl.store(first, a, mask=mask)
    tl.store(first + HALF, b, mask=mask)


@triton.jit
def _angles(
    there, weight, position, cos, sin, HALF: tl.constexpr, NORM: tl.constexpr, BLOCK_H: tl.constexpr
):  # fmt: skip
    """What rows at these positions are turned by, and the halves of their norm's weight, in float32."""
    h = tl.arange(0, BLOCK_H)
    mask = there[:, None] & (h < HALF)[None, :]
    table = position[:, None] * HALF + h[None, :]
    c = tl.load(cos + table, mask=mask, other=0.0).to(tl.float32)
    s = tl.load(sin + table, mask=mask, other=0.0).to(tl.float32)
    weight_a = c
    weight_b = c
    if NORM:
        weight_a = tl.load(weight + h, mask=h < HALF, other=0.0).to(tl.float32)[None, :]
        weight_b = tl.load(weight + HALF + h, mask=h < HALF, other=0.0).to(tl.float32)[None, :]
    return c, s, weight_a, weight_b


@triton.jit
def _heads(
    qkv, at, there, c, s, weight_a, weight_b, eps, HALF: tl.constexpr, NORM: tl.constexpr, BLOCK_H: tl.constexpr
):  # fmt: skip
    """Rows of the projection as queries or keys, float32 in halves."""
    a, b = _halves(qkv, at, there, HALF, BLOCK_H)
    return _turned(a.to(tl.float32), b.to(tl.float32), weight_a, weight_b, c, s, eps, HALF, NORM)


@triton.jit
def _place(cache, block, slot, head, PAGE: tl.constexpr):
    """Where a head's numbers begin in a cache, of a slot that counts on from block to block."""
    return block * cache[1] + (slot % PAGE) * cache[2] + head * cache[3]


@triton.jit
def _kept(
    table, key, high, head, keys, values, PAGE: tl.constexpr, HALF: tl.constexpr, BLOCK_H: tl.constexpr
):
    """Keys and values that the caches hold of these places below ``high``, in halves."""
    there = key < high
    page = tl.load(table + key // PAGE, mask=there, other=0).to(tl.int64)
    k_a, k_b = _halves(keys[0], _place(keys, page, key, head, PAGE), there, HALF, BLOCK_H)
    v_a, v_b = _halves(values[0], _place(values, page, key, head, PAGE), there, HALF, BLOCK_H)
    return there, k_a, k_b, v_a, v_b


@triton.jit
def _products(q_a, q_b, k_a, k_b, PRECISION: tl.constexpr):
    """All products of queries and keys, which come in halves."""
    found = tl.dot(q_a, tl.trans(k_a), input_precision=PRECISION)
    return found + tl.dot(q_b, tl.trans(k_b), input_precision=PRECISION)


@triton.jit
def _added(scores, v_a, v_b, most, total, found_a, found_b, PRECISION: tl.constexpr):
    """A row's weighted values with those of more keys."""
    more = tl.maximum(most, tl.max(scores, 1))
    base = tl.where(more == float("-inf"), 0.0, more)
    weights = tl.exp2(scores - base[:, None])
    faded = tl.exp2(most - base)
    total = total * faded + tl.sum(weights, 1)
    weights = weights.to(v_a.dtype)
    found_a = found_a * faded[:, None] + tl.dot(weights, v_a, input_precision=PRECISION)
    found_b = found_b * faded[:, None] + tl.dot(weights, v_b, input_precision=PRECISION)
    return more, total, found_a, found_b


@triton.jit
def _walked(
    q_a, q_b, there, k_a, k_b, v_a, v_b, table, low, high, head, keys, values, scale,
    PAGE: tl.constexpr, HALF: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """What queries find in the keys that the cache holds from ``low`` to ``high``, of which the first block has been read: the greatest score, the sum of weights
    relative to it, and of weighted values."""
    most = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    found_a = tl.zeros([BLOCK_M, BLOCK_H], tl.float32)
    found_b = tl.zeros([BLOCK_M, BLOCK_H], tl.float32)
    scores = _products(q_a, q_b, k_a, k_b, PRECISION)
    scores = tl.where(there[None, :], scores * scale, float("-inf"))
    most, total, found_a, found_b = _added(scores, v_a, v_b, most, total, found_a, found_b, PRECISION)
    for start in range(low + BLOCK_N, high, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        there, k_a, k_b, v_a, v_b = _kept(table, key, high, head, keys, values, PAGE, HALF, BLOCK_H)
        scores = _products(q_a, q_b, k_a, k_b, PRECISION)
        scores = tl.where(there[None, :], scores * scale, float("-inf"))
        most, total, found_a, found_b = _added(scores, v_a, v_b, most, total, found_a, found_b, PRECISION)
    return most, total, found_a, found_b


@triton.jit
def _new(
    qkv, positions, cos, sin, k_weight, keys, values, slot_mapping, eps, begin, head, shared, t, new, h, qkv_row,
    HEADS: tl.constexpr, PAGE: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """Keys and values of a request's new tokens ``t``, as far as they are ``new``, for one head of the caches, which have them from now on."""
    new_at = (begin + t) * qkv_row + (HEADS + head) * (2 * HALF)
    new_place = tl.load(positions + begin + t, mask=new, other=0)
    slot = tl.load(slot_mapping + begin + t, mask=new, other=-1)
    w_a, w_b = _halves(qkv, new_at + shared * (2 * HALF), new, HALF, BLOCK_H)
    n_c, n_s, n_w_a, n_w_b = _angles(new, k_weight, new_place, cos, sin, HALF, NORM, BLOCK_H)
    n_a, n_b = _heads(qkv, new_at, new, n_c, n_s, n_w_a, n_w_b, eps, HALF, NORM, BLOCK_H)
    n_a = n_a.to(keys[0].dtype.element_ty)
    n_b = n_b.to(keys[0].dtype.element_ty)
    kept = slot >= 0
    _store_halves(keys[0], _place(keys, slot // PAGE, slot, head, PAGE), n_a, n_b, kept, h, HALF)
    _store_halves(values[0], _place(values, slot // PAGE, slot, head, PAGE), w_a, w_b, kept, h, HALF)
    return n_a, n_b, w_a, w_b


@triton.jit
def _with_new(
    q_a, q_b, token, most, total, found_a, found_b,
    qkv, positions, cos, sin, k_weight, keys, values, slot_mapping, scale, eps, begin, tokens, head, shared, h, qkv_row,
    HEADS: tl.constexpr, PAGE: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_T: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What queries have found with what they find in the new tokens, each up to its own ``token``."""
    t = tl.arange(0, BLOCK_T)
    new = t < tokens
    n_a, n_b, w_a, w_b = _new(
        qkv, positions, cos, sin, k_weight, keys, values, slot_mapping, eps, begin, head, shared, t, new, h, qkv_row,
        HEADS, PAGE, HALF, NORM, BLOCK_H,
    )  # fmt: skip
    scores = _products(q_a, q_b, n_a, n_b, PRECISION)
    seen = new[None, :] & (t[None, :] <= token[:, None])
    scores = tl.where(seen, scores * scale, float("-inf"))
    return _added(scores, w_a, w_b, most, total, found_a, found_b, PRECISION)


@triton.jit
def _both(a, b, c, d):
    return a + c, b + d


@triton.jit
def _normed(q_a, q_b, n_a, n_b, qw_a, qw_b, kw_a, kw_b, eps, HALF: tl.constexpr):
    """A query and a key, in halves, each divided by its root mean square and weighted; both sums are one reduction."""
    q_sum, n_sum = tl.reduce((q_a * q_a + q_b * q_b, n_a * n_a + n_b * n_b), 0, _both)
    q_scale = tl.rsqrt(q_sum / (2 * HALF) + eps)
    n_scale = tl.rsqrt(n_sum / (2 * HALF) + eps)
    q_a = q_a * q_scale * qw_a
    q_b = q_b * q_scale * qw_b
    n_a = n_a * n_scale * kw_a
    n_b = n_b * n_scale * kw_b
    return q_a, q_b, n_a, n_b


@triton.jit
def _one_token(
    qkv, positions, cos, sin, q_weight, k_weight, keys, values, output, table, slot_mapping, scale, eps,
    begin, tokens, old, own, head, shared, part, writes, qkv_row, out_token, out_head,
    HEADS: tl.constexpr, PAGE: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_V: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One head of a request's one new token, if it has any, with all keys that are there already and a part of their values, without tensor cores, which take rows by
    sixteen."""
    dtype = keys[0].dtype.element_ty
    h = tl.arange(0, BLOCK_H)
    v = part * BLOCK_V + tl.arange(0, BLOCK_V)
    real = h < tl.where(tokens > 0, HALF, 0)
    valued = v < tl.where(tokens > 0, 2 * HALF, 0)
    key = tl.arange(0, BLOCK_N)
    there = key < old
    page = tl.load(table + key // PAGE, mask=there, other=0).to(tl.int64)
    k_a, k_b = _halves(keys[0], _place(keys, page, key, head, PAGE), there, HALF, BLOCK_H)
    value_at = values[0] + _place(values, page, key, head, PAGE)[:, None] + v[None, :]
    value = tl.load(value_at, mask=there[:, None] & (v < 2 * HALF)[None, :], other=0.0)
    place = tl.load(positions + begin, mask=tokens > 0, other=0)
    slot = tl.load(slot_mapping + begin, mask=tokens > 0, other=-1)
    c = tl.load(cos + place * HALF + h, mask=real, other=0.0).to(tl.float32)
    s = tl.load(sin + place * HALF + h, mask=real, other=0.0).to(tl.float32)
    if NORM:
        qw_a = tl.load(q_weight + h, mask=real, other=0.0).to(tl.float32)
        qw_b = tl.load(q_weight + HALF + h, mask=real, other=0.0).to(tl.float32)
        kw_a = tl.load(k_weight + h, mask=real, other=0.0).to(tl.float32)
        kw_b = tl.load(k_weight + HALF + h, mask=real, other=0.0).to(tl.float32)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()

    q = qkv + begin * qkv_row + own * (2 * HALF) + h
    n = qkv + begin * qkv_row + (HEADS + head) * (2 * HALF) + h
    w = qkv + begin * qkv_row + (HEADS + shared + head) * (2 * HALF) + v
    q_a = tl.load(q, mask=real, other=0.0).to(tl.float32)
    q_b = tl.load(q + HALF, mask=real, other=0.0).to(tl.float32)
    n_a = tl.load(n, mask=real, other=0.0).to(tl.float32)
    n_b = tl.load(n + HALF, mask=real, other=0.0).to(tl.float32)
    own_value = tl.load(w, mask=valued, other=0.0)
    if NORM:
        q_a, q_b, n_a, n_b = _normed(q_a, q_b, n_a, n_b, qw_a, qw_b, kw_a, kw_b, eps, HALF)
    turned = (q_a * c - q_b * s).to(dtype)
    q_b = (q_b * c + q_a * s).to(dtype).to(tl.float32)
    q_a = turned.to(tl.float32)
    key_a = (n_a * c - n_b * s).to(dtype)
    key_b = (n_b * c + n_a * s).to(dtype)
    new = tl.sum(q_a * key_a.to(tl.float32) + q_b * key_b.to(tl.float32), 0) * scale
    scores = tl.sum(k_a.to(tl.float32) * q_a[None, :] + k_b.to(tl.float32) * q_b[None, :], 1)
    scores = tl.where(there, scores * scale, float("-inf"))
    most = tl.maximum(new, tl.max(scores, 0))
    weights = tl.exp2(scores - most)
    new = tl.exp2(new - most)
    total = new + tl.sum(weights, 0)
    found = tl.sum(weights[:, None] * value.to(tl.float32), 0) + new * own_value.to(tl.float32)
    into = output + begin * out_token + own * out_head + v
    tl.store(into, (found / total).to(output.dtype.element_ty), mask=valued)
    kept = writes & (slot >= 0)
    key_to = keys[0] + _place(keys, slot // PAGE, slot, head, PAGE) + h
    tl.store(key_to, key_a, mask=h < tl.where(kept & (part == 0), HALF, 0))
    tl.store(key_to + HALF, key_b, mask=h < tl.where(kept & (part == 0), HALF, 0))
    value_to = values[0] + _place(values, slot // PAGE, slot, head, PAGE) + v
    tl.store(value_to, own_value, mask=v < tl.where(kept, 2 * HALF, 0))


@triton.jit
def _store_divided(base, at, a, b, weight, there, h, HALF: tl.constexpr):
    """Rows in halves, divided by the sums of their weights, go to where these places begin, in that memory's type."""
    first = base + at[:, None] + h[None, :]
    mask = there[:, None] & (h < HALF)[None, :]
    tl.store(first, (a / weight).to(base.dtype.element_ty), mask=mask)
    tl.store(first + HALF, (b / weight).to(base.dtype.element_ty), mask=mask)


@triton.jit
def _sum_of_splits(
    parts, sums, into, first, real, active, HALF: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_S: tl.constexpr
):  # fmt: skip
    """Some heads of one token of all splits, brought to one maximum and added. What others wrote is read past the multiprocessor's own cache,
    all of it before any of it is needed."""
    s = tl.arange(0, BLOCK_S)
    h = tl.arange(0, BLOCK_H)
    there = real[:, None] & (s < active)[None, :]
    index = first[:, None] + s[None, :]
    most = tl.load(sums + index * 2, mask=there, other=float("-inf"), cache_modifier=".cg")
    total = tl.load(sums + index * 2 + 1, mask=there, other=0.0, cache_modifier=".cg")
    mask = there[:, :, None] & (h < HALF)[None, None, :]
    part = parts + index[:, :, None] * (2 * HALF) + h[None, None, :]
    a = tl.load(part, mask=mask, other=0.0, cache_modifier=".cg")
    b = tl.load(part + HALF, mask=mask, other=0.0, cache_modifier=".cg")
    greatest = tl.max(most, 1)
    faded = tl.exp2(most - tl.where(real, greatest, 0.0)[:, None])
    weight = tl.where(real, tl.sum(total * faded, 1), 1.0)[:, None]
    kind = into.dtype.element_ty
    wanted = real[:, None] & (h < HALF)[None, :]
    into = into[:, None] + h[None, :]
    tl.store(into, (tl.sum(a * faded[:, :, None], 1) / weight).to(kind), mask=wanted)
    tl.store(into + HALF, (tl.sum(b * faded[:, :, None], 1) / weight).to(kind), mask=wanted)


@triton.jit
def _handed_over(
    found_a, found_b, most, total, parts, sums, arrivals, output, begin, tokens, token, own, real, h,
    request, head, split, active, shared, out_token, out_head,
    HEADS: tl.constexpr, GROUP: tl.constexpr, HALF: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_G: tl.constexpr,
):  # fmt: skip
    """What a split has found goes to memory, where the program that comes last adds all of them up."""
    index = ((begin + token) * HEADS + own) * SPLITS + split
    _store_halves(parts, index * (2 * HALF), found_a, found_b, real, h, HALF)
    tl.store(sums + index * 2, most, mask=real)
    tl.store(sums + index * 2 + 1, total, mask=real)
    tl.debug_barrier()  # all of this program's writes are made before it is counted
    arrival = arrivals + request * shared + head
    if tl.atomic_add(arrival, 1, sem="acq_rel") == active - 1:
        tl.store(arrival, 0)
        TURNS: tl.constexpr = (GROUP + BLOCK_G - 1) // BLOCK_G
        for i in range(tokens * TURNS):
            one = (i % TURNS) * BLOCK_G + tl.arange(0, BLOCK_G)
            at = begin + i // TURNS
            number = head * GROUP + one
            _sum_of_splits(
                parts, sums, output + at * out_token + number * out_head, (at * HEADS + number) * SPLITS,
                one < GROUP, active, HALF, BLOCK_H, BLOCK_S,
            )  # fmt: skip


@triton.jit
def rope_decode_kernel(
    qkv, positions, cos, sin, q_weight, k_weight, key_cache, value_cache, output, parts, sums, arrivals,
    cu_seqlens, seq_lens, block_tables, slot_mapping, scale, eps,
    qkv_row, key_block, key_slot, key_head, value_block, value_slot, value_head, out_token, out_head, table_row,
    HEADS: tl.constexpr, GROUP: tl.constexpr, PAGE: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_G: tl.constexpr, WHOLE: tl.constexpr, PARTS: tl.constexpr,
    PRECISION: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One request, one head of the cache, one split of the keys that are there already; where these are no more than WHOLE, one head of one new token instead."""
    keys = (key_cache, key_block, key_slot, key_head)
    values = (value_cache, value_block, value_slot, value_head)
    request = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.program_id(2)
    shared = tl.num_programs(1)
    begin = tl.load(cu_seqlens + request).to(tl.int64)
    tokens = (tl.load(cu_seqlens + request + 1) - begin).to(tl.int32)
    old = tl.load(seq_lens + request) - tokens
    if WHOLE:
        if old <= WHOLE:
            if split < GROUP * PARTS:
                _one_token(
                    qkv, positions, cos, sin, q_weight, k_weight, keys, values, output,
                    block_tables + request.to(tl.int64) * table_row, slot_mapping, scale, eps,
                    begin, tokens, old, head * GROUP + split // PARTS, head, shared, split % PARTS, split < PARTS,
                    qkv_row, out_token, out_head,
                    HEADS, PAGE, HALF, NORM, BLOCK_H, WHOLE, 2 * BLOCK_H // PARTS, EARLY,
                )  # fmt: skip
            return
    share = tl.maximum(tl.cdiv(tl.cdiv(old, SPLITS), BLOCK_N), 1) * BLOCK_N
    active = tl.maximum(tl.cdiv(old, share), 1)
    # never all of a request: who waits for this kernel waits for what its first split waits for
    if split >= active:
        return

    # what no kernel of this step writes is read before the wait
    h = tl.arange(0, BLOCK_H)
    row = tl.arange(0, BLOCK_M)
    real = row < tokens * GROUP
    token = row // GROUP
    own = head * GROUP + row % GROUP
    table = block_tables + request.to(tl.int64) * table_row
    low = split * share
    high = tl.minimum(low + share, old)
    key = low + tl.arange(0, BLOCK_N)
    there, k_a, k_b, v_a, v_b = _kept(table, key, high, head, keys, values, PAGE, HALF, BLOCK_H)
    place = tl.load(positions + begin + token, mask=real, other=0)
    c, s, weight_a, weight_b = _angles(real, q_weight, place, cos, sin, HALF, NORM, BLOCK_H)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    if tokens <= 0:
        return

    q_at = (begin + token) * qkv_row + own * (2 * HALF)
    q_a, q_b = _heads(qkv, q_at, real, c, s, weight_a, weight_b, eps, HALF, NORM, BLOCK_H)
    q_a = q_a.to(key_cache.dtype.element_ty)
    q_b = q_b.to(key_cache.dtype.element_ty)
    most, total, found_a, found_b = _walked(
        q_a, q_b, there, k_a, k_b, v_a, v_b, table, low, high, head, keys, values, scale,
        PAGE, HALF, BLOCK_H, BLOCK_M, BLOCK_N, PRECISION,
    )  # fmt: skip

    if split == active - 1:
        most, total, found_a, found_b = _with_new(
            q_a, q_b, token, most, total, found_a, found_b,
            qkv, positions, cos, sin, k_weight, keys, values, slot_mapping, scale, eps, begin, tokens, head, shared, h, qkv_row,
            HEADS, PAGE, HALF, NORM, BLOCK_H, BLOCK_T, PRECISION,
        )  # fmt: skip
    if active == 1:
        weight = tl.where(total == 0.0, 1.0, total)[:, None]
        at = (begin + token) * out_token + own * out_head
        _store_divided(output, at, found_a, found_b, weight, real, h, HALF)
    elif SPLITS > 1:
        _handed_over(
            found_a, found_b, most, total, parts, sums, arrivals, output, begin, tokens, token, own, real, h,
            request, head, split, active, shared, out_token, out_head,
            HEADS, GROUP, HALF, SPLITS, BLOCK_H, BLOCK_S, BLOCK_G,
        )  # fmt: skip


@triton.jit
def rope_write_kernel(
    qkv, positions, cos, sin, q_weight, k_weight, query, key_cache, value_cache, slot_mapping,
    rows, slots, eps, qkv_row, key_block, key_slot, key_head, value_block, value_slot, value_head,
    HEADS: tl.constexpr, SHARED: tl.constexpr, PAGE: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Rows of (token, head): queries into memory of their own, keys and values into the tokens' slots; a slot below zero is padding."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    real = row < rows
    token = row // (HEADS + 2 * SHARED)
    head = row % (HEADS + 2 * SHARED)
    is_q = head < HEADS
    is_v = head >= HEADS + SHARED
    h = tl.arange(0, BLOCK_H)
    mask = real[:, None] & (h < HALF)[None, :]
    a, b = _halves(qkv, token * qkv_row + head * (2 * HALF), real, HALF, BLOCK_H)
    place = tl.load(positions + token, mask=real, other=0)
    table = place[:, None] * HALF + h[None, :]
    c = tl.load(cos + table, mask=mask, other=0.0).to(tl.float32)
    s = tl.load(sin + table, mask=mask, other=0.0).to(tl.float32)
    weight_a = c
    weight_b = c
    if NORM:
        kinds = is_q[:, None]
        half = h < HALF
        q_a = tl.load(q_weight + h, mask=half, other=0.0).to(tl.float32)[None, :]
        q_b = tl.load(q_weight + HALF + h, mask=half, other=0.0).to(tl.float32)[None, :]
        k_a = tl.load(k_weight + h, mask=half, other=0.0).to(tl.float32)[None, :]
        k_b = tl.load(k_weight + HALF + h, mask=half, other=0.0).to(tl.float32)[None, :]
        weight_a = tl.where(kinds, q_a, k_a)
        weight_b = tl.where(kinds, q_b, k_b)
    t_a, t_b = _turned(a.to(tl.float32), b.to(tl.float32), weight_a, weight_b, c, s, eps, HALF, NORM)
    t_a = tl.where(is_v[:, None], a, t_a.to(a.dtype))
    t_b = tl.where(is_v[:, None], b, t_b.to(b.dtype))
    into = query + ((token * HEADS + head) * (2 * HALF))[:, None] + h[None, :]
    tl.store(into, t_a, mask=mask & is_q[:, None])
    tl.store(into + HALF, t_b, mask=mask & is_q[:, None])
    slot = tl.load(slot_mapping + token, mask=real & (token < slots), other=-1)
    kept = mask & ((slot >= 0) & (head >= HEADS))[:, None]
    key_at = (slot // PAGE) * key_block + (slot % PAGE) * key_slot + (head - HEADS) * key_head
    value_at = (
        (slot // PAGE) * value_block + (slot % PAGE) * value_slot + (head - HEADS - SHARED) * value_head
    )
    into = key_cache + key_at[:, None] + h[None, :]
    tl.store(into, t_a, mask=kept & (~is_v)[:, None])
    tl.store(into + HALF, t_b, mask=kept & (~is_v)[:, None])
    into = value_cache + value_at[:, None] + h[None, :]
    tl.store(into, t_a, mask=kept & is_v[:, None])
    tl.store(into + HALF, t_b, mask=kept & is_v[:, None])
