"""The operators of attention with a paged cache: ``braze::unified_attention_with_output``, ``braze::rope_attention_with_output`` and
``braze::mla_attention``.

All write into an output that the caller provides, and take the step's metadata and their layer's cache from the forward context, by the
layer's number: so a graph may be split at them, and what lies between two of them is the same for each layer.

They do nothing but look these up. What touches memory are inner operators whose arguments are all that they read:
``braze::write_kv_cache``, ``braze::paged_attention`` and ``braze::rope_paged_attention``. These are what a recording of a whole model holds: the tensors that the metadata
named when it was recorded, whose contents are read at each replay. On a GPU, which records kernels, what is behind these operators is called without them: between two pieces the host is all
that takes time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from braze.cudagraphs.simulated import on_the_host
from braze.serving.engine.attention import c_paged, reference
from braze.serving.engine.attention.kernels import kernels
from braze.serving.pieces.custom_ops import on_every_device
from braze.serving.step.context import get_forward_context
from braze.support.errors import UserError


@dataclass
class KVCache:
    """One layer's cache: ``key`` and ``value`` (blocks, block size, kv heads, dim).

    A latent cache is one head whose values are the first ``value_dim`` numbers of its keys; it is written once. ``arrivals``: zeros, one for each
    request and head, by which programs that share a request's keys are counted; without them they do not share.
    """

    key: torch.Tensor
    value: torch.Tensor
    latent: bool = False
    arrivals: torch.Tensor | None = None


def layer_key(layer: int) -> str:
    """The name under which a layer's cache stands in ``ForwardContext.kv_cache_data``."""
    return f"layer_{layer}"


def write_kv_cache(
    key: torch.Tensor,
    value: torch.Tensor | None,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor | None,
    slot_mapping: torch.Tensor,
) -> None:
    """Keys and values of the step's tokens into their slots: see ``reference.write_cache``."""
    write = reference.write_cache if key.device.type == "cpu" else kernels(key.device).write_cache
    write(key, value, key_cache, value_cache, slot_mapping)


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
    """Causal attention of the step's tokens over their requests' tokens in the cache: see ``reference.paged_attention``."""
    arguments = (
        query,
        key_cache,
        value_cache,
        output,
        cu_seqlens_q,
        seq_lens,
        block_tables,
        scale,
        max_query_len,
    )
    if query.device.type == "cpu":
        c_paged.paged_attention(*arguments)
    else:
        kernels(query.device).paged_attention(*arguments)


def rope_paged_attention(
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
    """Norms, rotary embedding, the cache's write and attention: see ``reference.rope_attention``."""
    before = qkv, positions, cos, sin, q_weight, k_weight, key_cache, value_cache, output
    behind = cu_seqlens_q, seq_lens, block_tables, slot_mapping, scale, eps
    if qkv.device.type == "cpu":
        reference.rope_attention(*before, *behind)
    else:
        kernels(qkv.device).rope_attention(*before, arrivals, *behind, max_query_len)


def unified_attention_with_output(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    layer: int,
    scale: float,
) -> None:
    """Write the step's keys and values into the layer's cache, and attention over the cache into ``output``.

    ``query`` (tokens, heads, dim), ``key`` and ``value`` (tokens, kv heads, dim), ``output`` as the query with the values' dim. In a
    step without metadata, such as one that measures memory, the output is zeros. Raises BZ7401 where the layer has no cache.
    """
    metadata = get_forward_context().attn_metadata
    if metadata is None:
        output.zero_()
        return
    cache = _cache_of(layer)
    _inner(write_kv_cache, key)(key, value, cache.key, cache.value, metadata.slot_mapping)
    _attend(query, cache, metadata, output, scale)


def rope_attention_with_output(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None,
    output: torch.Tensor,
    layer: int,
    scale: float,
    eps: float,
) -> None:
    """``unified_attention_with_output`` from a layer's merged projection, whose queries and keys are normalised (with weights) and turned first.

    ``qkv`` (tokens, (heads + 2 * kv heads) * dim), ``output`` (tokens, heads, dim); ``cos`` and ``sin`` (positions, dim / 2) of all positions. On a GPU
    a decoding step is one kernel. In a step without metadata the output is zeros. Raises BZ7401 where the layer has no cache.
    """
    metadata = get_forward_context().attn_metadata
    if metadata is None:
        output.zero_()
        return
    cache = _cache_of(layer)
    _inner(rope_paged_attention, qkv)(
        qkv,
        positions,
        cos,
        sin,
        q_weight,
        k_weight,
        cache.key,
        cache.value,
        output,
        cache.arrivals,
        metadata.cu_seqlens_q,
        metadata.seq_lens,
        metadata.block_tables,
        metadata.slot_mapping,
        scale,
        eps,
        metadata.max_seqlen_q,
    )


def mla_attention(
    query: torch.Tensor, latent: torch.Tensor, output: torch.Tensor, layer: int, scale: float
) -> None:
    """Multi-head latent attention in its absorbed form, over a cache of one latent a token.

    ``query`` (tokens, heads, rank + rope dim): the projection from latents to keys is multiplied into it. ``latent`` (tokens, rank +
    rope dim): what the cache keeps. ``output`` (tokens, heads, rank): weighted latents, of which the caller makes values. In a step
    without metadata the output is zeros. Raises BZ7401 where the layer has no cache.
    """
    metadata = get_forward_context().attn_metadata
    if metadata is None:
        output.zero_()
        return
    cache = _cache_of(layer)
    _inner(write_kv_cache, latent)(latent.unsqueeze(1), None, cache.key, None, metadata.slot_mapping)
    _attend(query, cache, metadata, output, scale)


def _inner(function: Callable[..., None], x: torch.Tensor) -> Callable[..., None]:
    """What is called on a tensor's device: the operator of a function's name, or the function itself where kernels are recorded."""
    return getattr(torch.ops.braze, function.__name__) if x.device.type == "cpu" else function  # type: ignore[no-any-return]


def _attend(query: torch.Tensor, cache: KVCache, metadata: Any, output: torch.Tensor, scale: float) -> None:
    _inner(paged_attention, query)(
        query,
        cache.key,
        cache.value,
        output,
        metadata.cu_seqlens_q,
        metadata.seq_lens,
        metadata.block_tables,
        scale,
        metadata.max_seqlen_q,
    )


def _cache_of(layer: int) -> KVCache:
    """The cache of a layer in this step."""
    data = get_forward_context().kv_cache_data
    found = data.get(layer_key(layer))
    if found is None:
        raise UserError(
            "BZ7401",
            f"attention of layer {layer} has no cache in this step",
            why=f"the forward context has {len(data)} caches: {', '.join(sorted(data)[:4]) or 'none'}",
            hints=("call the model through a ModelRunner, or pass kv_cache_data= to set_forward_context",),
        )
    return found


on_every_device(write_kv_cache, "key_cache", "value_cache")
on_every_device(paged_attention, "output")
on_every_device(rope_paged_attention, "key_cache", "value_cache", "output", "arrivals")
# a recording holds what these have the device do, not them
on_the_host(on_every_device(unified_attention_with_output, "output"), unified_attention_with_output)
on_the_host(on_every_device(rope_attention_with_output, "output"), rope_attention_with_output)
on_the_host(on_every_device(mla_attention, "output"), mla_attention)
