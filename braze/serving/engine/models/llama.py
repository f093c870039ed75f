"""Llama and its like (Mistral, Qwen2, Qwen3): grouped heads, rotary embeddings, a gated MLP."""

from __future__ import annotations

from collections.abc import Callable

import torch

from braze.serving.engine.attention import operators  # noqa: F401  registers the operator
from braze.serving.engine.attention.reference import turned
from braze.serving.engine.models.config import ModelConfig
from braze.serving.engine.models.decoder import CacheShape, Decoder, Layer
from braze.serving.engine.models.parts import (
    MLP,
    Linear,
    Part,
    RMSNorm,
    RotaryTables,
    RowLinear,
    named,
    parts_of,
)


class Attention(Part):
    """Grouped attention over the paged cache; queries, keys and values are one product."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.heads, self.kv_heads, self.dim = config.heads, config.kv_heads, config.head_dim
        self.scale = config.head_dim**-0.5
        rows = (self.heads + 2 * self.kv_heads) * self.dim
        self.qkv_proj = Linear(config.width, rows, config.qkv_bias)
        self.o_proj = RowLinear(self.heads * self.dim, config.width, config.out_bias, config.ranks)
        self.eps = config.eps
        #: attention is one operator from the projection on
        self.from_projection = True
        self.q_norm = RMSNorm(self.dim, config.eps) if config.qk_norm else None
        self.k_norm = RMSNorm(self.dim, config.eps) if config.qk_norm else None

    def forward(
        self, x: torch.Tensor, positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        qkv = self.qkv_proj(x)
        found = qkv.new_empty(x.shape[0], self.heads, self.dim)
        if not self.from_projection:
            return self._traced(qkv, positions, cos, sin, found)
        norms = (
            (self.q_norm.weight, self.k_norm.weight)
            if self.q_norm is not None and self.k_norm is not None
            else (None, None)
        )
        torch.ops.braze.rope_attention_with_output(
            qkv, positions, cos, sin, *norms, found, self.layer, self.scale, self.eps
        )
        return self.o_proj(found.flatten(1))

    def choose(self, uses: Callable[[str], bool]) -> None:
        """Take the custom operators that are wanted."""
        self.from_projection = uses("braze::rope_attention_with_output")

    def _traced(
        self,
        qkv: torch.Tensor,
        positions: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        found: torch.Tensor,
    ) -> torch.Tensor:
        """Norms and rotary embedding as ordinary code, which a compiler fuses."""
        rows = qkv.view(qkv.shape[0], self.heads + 2 * self.kv_heads, self.dim)
        q, k, v = rows.split((self.heads, self.kv_heads, self.kv_heads), 1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        angles = cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)
        q, k = turned(q, *angles), turned(k, *angles)
        torch.ops.braze.unified_attention_with_output(q, k, v, found, self.layer, self.scale)
        return self.o_proj(found.flatten(1))

    def places(self) -> dict[str, torch.Tensor]:
        """Where the tensors of a checkpoint go."""
        q, kv = self.heads * self.dim, self.kv_heads * self.dim
        found = parts_of(self.qkv_proj, q_proj=q, k_proj=kv, v_proj=kv) | named("o_proj", self.o_proj)
        if self.q_norm is None or self.k_norm is None:
            return found
        return found | named("q_norm", self.q_norm) | named("k_norm", self.k_norm)


def llama(config: ModelConfig) -> Decoder:
    """A decoder whose weights are not set yet, on the default device and of the default type."""
    cache = CacheShape(config.kv_heads, config.head_dim, config.head_dim)
    return Decoder(config, _layer, cache, RotaryTables)


def _layer(config: ModelConfig, i: int) -> Layer:
    return Layer(config, Attention(config, i), MLP(config.width, config.inner, config.mlp_bias, config.ranks))
