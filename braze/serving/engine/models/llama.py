"""Llama and its like (Mistral, Qwen2, Qwen3): grouped heads, rotary embeddings, a gated MLP."""

from __future__ import annotations

import torch
from torch import nn

from braze.serving.engine.attention import operators  # noqa: F401  registers the operator
from braze.serving.engine.models.config import ModelConfig
from braze.serving.engine.models.decoder import CacheShape, Decoder, Layer
from braze.serving.engine.models.parts import MLP, Linear, Part, RMSNorm, named, parts_of, rotate


class Attention(Part):
    """Grouped attention over the paged cache; queries, keys and values are one product."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.heads, self.kv_heads, self.dim = config.heads, config.kv_heads, config.head_dim
        self.scale = config.head_dim**-0.5
        rows = (self.heads + 2 * self.kv_heads) * self.dim
        self.qkv_proj = Linear(config.width, rows, config.qkv_bias)
        self.o_proj = Linear(self.heads * self.dim, config.width, config.out_bias)
        self.q_norm = RMSNorm(self.dim, config.eps) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(self.dim, config.eps) if config.qk_norm else nn.Identity()

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        rows = self.qkv_proj(x).view(x.shape[0], self.heads + 2 * self.kv_heads, self.dim)
        q, k, v = rows.split((self.heads, self.kv_heads, self.kv_heads), 1)
        q, k = rotate(self.q_norm(q), cos, sin), rotate(self.k_norm(k), cos, sin)
        found = torch.empty_like(q)
        torch.ops.braze.unified_attention_with_output(q, k, v, found, self.layer, self.scale)
        return self.o_proj(found.flatten(1))

    def places(self) -> dict[str, torch.Tensor]:
        """Where the tensors of a checkpoint go."""
        q, kv = self.heads * self.dim, self.kv_heads * self.dim
        found = parts_of(self.qkv_proj, q_proj=q, k_proj=kv, v_proj=kv) | named("o_proj", self.o_proj)
        return found | named("q_norm", self.q_norm) | named("k_norm", self.k_norm)


def llama(config: ModelConfig) -> Decoder:
    """A decoder whose weights are not set yet, on the default device and of the default type."""
    cache = CacheShape(config.kv_heads, config.head_dim, config.head_dim)
    return Decoder(config, _layer, cache)


def _layer(config: ModelConfig, i: int) -> Layer:
    return Layer(config, Attention(config, i), MLP(config.width, config.inner, config.mlp_bias))
