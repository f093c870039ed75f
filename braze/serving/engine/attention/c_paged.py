"""Attention over a paged cache on the processor: a C kernel for requests of few new tokens, the reference for prompts.

A task is a request and a head of the cache. Each row (a token and a head) goes through its request's keys by itself, in their order, so that
its numbers do not depend on who else is in the batch.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache

import torch

from braze import native
from braze.codegen.c.prelude import assemble
from braze.runtime.libraries import functions
from braze.serving.engine.attention import reference
from braze.support.errors import Unsupported
from braze.target import cpu_target

#: new tokens of a request that the kernel takes at most; more are products of matrices, which the reference leaves to PyTorch
MOST_TOKENS = 16
#: numbers of a head at most: a row and what it has found so far lie on the stack
_MOST_WIDTH = 1024
_LABELS = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


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
    """As ``reference.paged_attention``; ``max_query_len`` bounds the tokens of one request."""
    before = query, key_cache, value_cache, output, cu_seqlens_q, seq_lens, block_tables
    run = _kernel(_LABELS[query.dtype]) if _fits(*before) else None
    if run is None:
        reference.paged_attention(*before, scale)
        return
    _, heads, dim = query.shape
    _, page, shared, value_dim = value_cache.shape
    work = int(seq_lens.sum()) * (dim + value_dim) * heads  # 64 K of it are worth a thread
    run(
        *before, seq_lens.shape[0], heads, shared, dim, value_dim, page, MOST_TOKENS, *query.stride()[:2],
        *key_cache.stride()[:3], *value_cache.stride()[:3], *output.stride()[:2], block_tables.stride(0),
        struct.unpack("<i", struct.pack("<f", scale))[0], work,
    )  # fmt: skip
    if max_query_len > MOST_TOKENS:
        reference.paged_attention(*before, scale, over=MOST_TOKENS)


def _fits(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    output: torch.Tensor,
    *tables: torch.Tensor,
) -> bool:
    """Whether the kernel knows how these lie in memory."""
    tensors = query, key_cache, value_cache, output
    return (
        query.dtype in _LABELS
        and all(x.dtype == query.dtype and x.stride(-1) == 1 for x in tensors)
        and all(x.dtype == torch.int32 and x.stride(-1) == 1 for x in tables)
        and max(query.shape[2], value_cache.shape[3]) <= _MOST_WIDTH
    )


@cache
def _kernel(label: str) -> Callable[..., None] | None:
    """``run(7 tensors, 20 numbers)`` for a type; None where there is no C compiler."""
    target = cpu_target()
    try:
        address = functions.address_of(
            "attention", source(label, max(4, target.vector_bytes // 4)), "attend", target.arch
        )
    except Unsupported:
        return None
    return native.Launcher(address, 7, 20)


def source(label: str, w: int) -> str:
    """The translation unit with ``attend`` for elements of a type, by vectors of ``w`` lanes.

    Its numbers ``s``: 0 requests, 1 heads, 2 those of the cache, 3 a key's width, 4 a value's, 5 slots of a block, 6 tokens of a request at most; strides of 7 the query, 9 keys,
    12 values, 15 the output, 17 the block table; 18 the scale's bits, 19 how much work it is.
    """
    element = "float" if label == "f32" else "uint16_t"
    entry = "void attend(void **b, const int64_t *s) { bz_run_free(bz_attend, b, s, s[0] * s[2], s[19]); }"
    return assemble([_row(label, element, w), _tasks(element), entry])


def _row(label: str, element: str, w: int) -> str:
    """One row of queries over all keys that it sees.

    A round takes ``w`` keys: their products with the row, four at a time; what these weigh; their values.
    """
    v, e = f"f32x{w}", f"{label}x{w}"
    fold = " ".join(f"a += bz_rot{h}_{v}(a);" for h in _halves(w))
    return f"""\
static inline float bz_total({v} a) {{ {fold} return a[0]; }}
static void bz_row(const {element} *query, const {element} *keys, const {element} *values, {element} *output,
                   const int32_t *table, int64_t seen, float scale, const int64_t *s) {{
  const int64_t dim = s[3], wide = s[4], page = s[5];
  {v} q[{_MOST_WIDTH} / {w}], found[{_MOST_WIDTH} / {w}];
  const int64_t qs = dim / {w}, left = dim % {w}, vs = wide / {w}, over = wide % {w};
  for (int64_t d = 0; d < qs; ++d) q[d] = bz_load_{e}(query + d * {w}) * scale;
  if (left) q[qs] = bz_loadn_{e}(query + qs * {w}, left) * scale;
  for (int64_t d = 0; d <= vs && d < {_MOST_WIDTH} / {w}; ++d) found[d] = ({v}){{}};
  float most = -__builtin_inff(), sum = 0;
  for (int64_t base = 0; base < seen; base += {w}) {{
    const int64_t n = seen - base < {w} ? seen - base : {w};
    const {element} *at[{w}];
    {v} scores = bz_splat_{v}(-__builtin_inff());
{_products(element, v, e, w)}
{_weights(v, w)}
{_values(v, e, w)}
  }}
  for (int64_t d = 0; d < vs; ++d) bz_store_{e}(output + d * {w}, found[d] / sum);
  if (over) bz_storen_{e}(output + vs * {w}, found[vs] / sum, over);
}}"""


def _halves(w: int) -> list[int]:
    """By how much a vector is turned, step by step, until each lane has met all others."""
    return [w >> k for k in range(1, w.bit_length())]


def _products(element: str, v: str, e: str, w: int) -> str:
    """``scores`` of a round's keys, four at a time; where their values lie is ``at``."""
    return f"""\
    for (int64_t k = 0; k < n; k += 4) {{
      const {element} *key[4];
      for (int64_t j = 0; j < 4; ++j) {{
        const int64_t place = base + (k + j < n ? k + j : n - 1), block = table[place / page], slot = place % page;
        key[j] = keys + block * s[9] + slot * s[10];
        at[k + j] = values + block * s[12] + slot * s[13];
      }}
      {v} a = {{}}, b = {{}}, c = {{}}, e = {{}};
      for (int64_t d = 0; d < qs; ++d) {{
        a += q[d] * bz_load_{e}(key[0] + d * {w}); b += q[d] * bz_load_{e}(key[1] + d * {w});
        c += q[d] * bz_load_{e}(key[2] + d * {w}); e += q[d] * bz_load_{e}(key[3] + d * {w});
      }}
      if (left) {{
        a += q[qs] * bz_loadn_{e}(key[0] + qs * {w}, left); b += q[qs] * bz_loadn_{e}(key[1] + qs * {w}, left);
        c += q[qs] * bz_loadn_{e}(key[2] + qs * {w}, left); e += q[qs] * bz_loadn_{e}(key[3] + qs * {w}, left);
      }}
      scores[k] = bz_total(a);
      if (k + 1 < n) scores[k + 1] = bz_total(b);
      if (k + 2 < n) scores[k + 2] = bz_total(c);
      if (k + 3 < n) scores[k + 3] = bz_total(e);
    }}"""


def _weights(v: str, w: int) -> str:
    """What the scores weigh beside the greatest until now, to which the ``sum`` of weights and what was found are brought."""
    greatest = "\n".join(
        f"    {{ const {v} r = bz_rot{h}_{v}(m); m = bz_sel_{v}(m > r, m, r); }}" for h in _halves(w)
    )
    return f"""\
    {v} m = scores;
{greatest}
    const float more = most > m[0] ? most : m[0];
    {v} faded = bz_exp_{v}(bz_splat_{v}(most - more));
    const {v} weights = bz_exp_{v}(scores - bz_splat_{v}(more));
    sum = sum * faded[0] + bz_total(weights);
    most = more;"""


def _values(v: str, e: str, w: int) -> str:
    """The round's values by their weights, two keys at a time, to what was ``found``."""
    return f"""\
    for (int64_t d = 0; d <= vs; ++d) {{
      if (d == vs && !over) break;
      {v} a = found[d] * faded, b = {{}};
      int64_t k = 0;
      if (d < vs) {{
        for (; k + 1 < n; k += 2) {{
          a += bz_load_{e}(at[k] + d * {w}) * weights[k]; b += bz_load_{e}(at[k + 1] + d * {w}) * weights[k + 1];
        }}
        if (k < n) a += bz_load_{e}(at[k] + d * {w}) * weights[k];
      }} else for (; k < n; ++k) a += bz_loadn_{e}(at[k] + d * {w}, over) * weights[k];
      found[d] = a + b;
    }}"""


def _tasks(element: str) -> str:
    """A task: the rows of a request that share a head of the cache."""
    return f"""\
static void bz_attend(void **b, const int64_t *s, int64_t lo, int64_t hi, int64_t thread) {{
  const int32_t *const starts = (const int32_t *)b[4], *const lengths = (const int32_t *)b[5];
  const int64_t heads = s[1], shared = s[2], group = heads / shared;
  union {{ int32_t i; float f; }} scale = {{(int32_t)s[18]}};
  for (int64_t task = lo; task < hi; ++task) {{
    const int64_t request = task / shared, head = task % shared;
    const int64_t begin = starts[request], count = starts[request + 1] - begin, length = lengths[request];
    if (count > s[6]) continue;
    const int32_t *const table = (const int32_t *)b[6] + request * s[17];
    for (int64_t t = 0; t < count; ++t)
      for (int64_t h = head * group; h < (head + 1) * group; ++h)
        bz_row((const {element} *)b[0] + (begin + t) * s[7] + h * s[8], (const {element} *)b[1] + head * s[11],
               (const {element} *)b[2] + head * s[14], ({element} *)b[3] + (begin + t) * s[15] + h * s[16],
               table, length - count + t + 1, scale.f, s);
  }}
}}"""
