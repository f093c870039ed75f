"""The operators of attention with a paged cache: ``braze::unified_attention_with_output`` and ``braze::mla_attention``.

Both write into an output that the caller provides, and take the step's metadata and their layer's cache from the forward context, by the
layer's number: so a graph may be split at them, and what lies between two of them is the same for each layer.

They do nothing but look these up. What touches memory are two inner operators whose arguments are all that they read:
``braze::write_kv_cache`` and ``braze::paged_attention``. These are what a recording of a whole model holds: the tensors that the metadata
named when it was recorded, whose contents are read at each replay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from braze.cudagraphs.simulated import on_the_host
from braze.serving.engine.attention import reference
from braze.serving.engine.attention.kernels import kernels
from braze.serving.pieces.custom_ops import direct_register_custom_op
from braze.serving.step.context import get_forward_context
from braze.support.errors import UserError


@dataclass
class KVCache:
    """One layer's cache: ``key`` and ``value`` (blocks, block size, kv heads, dim).

    A latent cache is one head whose values are the first ``value_dim`` numbers of its keys; it is written once.
    """

    key: torch.Tensor
    value: torch.Tensor
    latent: bool = False


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
    arguments = query, key_cache, value_cache, output, cu_seqlens_q, seq_lens, block_tables, scale
    if query.device.type == "cpu":
        reference.paged_attention(*arguments)
    else:
        kernels(query.device).paged_attention(*arguments, max_query_len)


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
    torch.ops.braze.write_kv_cache(key, value, cache.key, cache.value, metadata.slot_mapping)
    _attend(query, cache, metadata, output, scale)


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
    torch.ops.braze.write_kv_cache(latent.unsqueeze(1), None, cache.key, None, metadata.slot_mapping)
    _attend(query, cache, metadata, output, scale)


def _attend(query: torch.Tensor, cache: KVCache, metadata: Any, output: torch.Tensor, scale: float) -> None:
    torch.ops.braze.paged_attention(
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


def _registered(function: Any, *written: str) -> Any:
    """A function as an operator on every device; it returns nothing, so that shapes need no telling."""
    return direct_register_custom_op(
        function.__name__, function, mutates_args=written, dispatch_key="CompositeExplicitAutograd"
    )


_registered(write_kv_cache, "key_cache", "value_cache")
_registered(paged_attention, "output")
# a recording holds what these two have the device do, not them
on_the_host(_registered(unified_attention_with_output, "output"), unified_attention_with_output)
on_the_host(_registered(mla_attention, "output"), mla_attention)
