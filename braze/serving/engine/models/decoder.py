"""The frame of a decoder: embedding, layers, norm, and apart from them the logits."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from braze.serving.engine.models.config import ModelConfig
from braze.serving.engine.models.parallel import gathered, looked_up
from braze.serving.engine.models.parts import Linear, Part, RMSNorm, Rotary, named, under
from braze.support.record import record


@record
class CacheShape:
    """What a layer keeps of a token: ``heads`` keys of ``key_dim`` numbers and values of ``value_dim``; ``latent``: values lie in the keys."""

    heads: int
    key_dim: int
    value_dim: int
    latent: bool = False

    def numbers(self) -> int:
        """Numbers a token."""
        return self.heads * (self.key_dim + (0 if self.latent else self.value_dim))


class Layer(Part):
    """Attention and an MLP, each behind a norm and beside a residual."""

    def __init__(self, config: ModelConfig, attention: Part, mlp: Part) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.width, config.eps)
        self.self_attn: Part = attention
        self.post_attention_layernorm = RMSNorm(config.width, config.eps)
        self.mlp: Part = mlp

    def forward(self, x: torch.Tensor, *angles: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), *angles)
        return x + self.mlp(self.post_attention_layernorm(x))

    def places(self) -> dict[str, torch.Tensor]:
        """Both norms', and what attention and MLP say."""
        found = named("input_layernorm", self.input_layernorm)
        found |= named("post_attention_layernorm", self.post_attention_layernorm)
        return found | under("self_attn", self.self_attn.places()) | under("mlp", self.mlp.places())


class Body(nn.Module):
    """From tokens and positions to hidden states."""

    def __init__(
        self, config: ModelConfig, make: Callable[[ModelConfig, int], Layer], rotary: type[Rotary]
    ) -> None:
        super().__init__()
        self.ranks = config.ranks
        rows = config.vocab // config.ranks.size
        self.embed_tokens = nn.Embedding(rows, config.width, _weight=torch.empty(rows, config.width))
        self.rotary = rotary(config.rope, config.head_dim, config.max_position, torch.get_default_dtype())
        self.layers = nn.ModuleList([make(config, i) for i in range(config.layers)])
        self.norm = RMSNorm(config.width, config.eps)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = looked_up(input_ids, self.embed_tokens.weight, self.ranks)
        angles = self.rotary(positions)
        for layer in self.layers:
            x = layer(x, *angles)
        return self.norm(x)


class DraftHead(Part):
    """A layer that guesses: from a token's embedding and the hidden state of the one before it, to the hidden state of the guess after it."""

    def __init__(self, config: ModelConfig, layer: Layer) -> None:
        super().__init__()
        self.enorm, self.hnorm = RMSNorm(config.width, config.eps), RMSNorm(config.width, config.eps)
        self.eh_proj = Linear(2 * config.width, config.width, False)
        self.layer = layer
        self.norm = RMSNorm(config.width, config.eps)

    def forward(self, x: torch.Tensor, hidden: torch.Tensor, *angles: torch.Tensor) -> torch.Tensor:
        return self.layer(self.eh_proj(torch.cat((self.enorm(x), self.hnorm(hidden)), -1)), *angles)

    def places(self) -> dict[str, torch.Tensor]:
        """Its own, and its layer's."""
        found = named("enorm", self.enorm) | named("hnorm", self.hnorm) | named("eh_proj", self.eh_proj)
        return found | named("shared_head.norm", self.norm) | self.layer.places()


class Decoder(nn.Module):
    """A decoder. ``forward`` takes token ids and positions, (tokens) int64 each, of all requests in a row, and gives hidden
    states (tokens, width); which request a token belongs to only attention knows, by the forward context."""

    def __init__(
        self,
        config: ModelConfig,
        make: Callable[[ModelConfig, int], Layer],
        cache: CacheShape,
        rotary: type[Rotary] = Rotary,
    ) -> None:
        super().__init__()
        self.config = config
        self.cache_shape = cache
        self.model = Body(config, make, rotary)
        self.lm_head = Linear(config.width, config.vocab // config.ranks.size, False)
        self.heads = nn.ModuleList(
            DraftHead(config, make(config, i)) for i in range(config.layers, config.cached_layers)
        )
        if config.tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids, positions)

    def compute_logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """(rows, vocabulary) of hidden states (rows, width)."""
        if self.config.ranks.size > 1:
            every = gathered(F.linear(hidden, self.lm_head.weight), self.config.ranks)
            return every if out is None else out.copy_(every)
        if out is not None:
            return torch.mm(hidden, self.lm_head.weight.t(), out=out)
        return F.linear(hidden, self.lm_head.weight)

    def draft(
        self, number: int, input_ids: torch.Tensor, positions: torch.Tensor, hidden: torch.Tensor
    ) -> torch.Tensor:
        """Hidden states of guess ``number`` after these tokens, whose ones before have ``hidden``. Guesses beyond the heads take them in turn."""
        x = looked_up(input_ids, self.model.embed_tokens.weight, self.config.ranks)
        return self.heads[number % len(self.heads)](x, hidden, *self.model.rotary(positions))

    def draft_logits(self, number: int, hidden: torch.Tensor) -> torch.Tensor:
        """(rows, vocabulary) of a guess's hidden states."""
        head = self.heads[number % len(self.heads)]
        assert isinstance(head, DraftHead)
        return self.compute_logits(head.norm(hidden))

    def choose(self, uses: Callable[[str], bool]) -> None:
        """Have each part call a custom operator, of those that there is ordinary code for, where ``uses`` says so by its name."""
        for part in self.modules():
            if isinstance(part, Part):
                part.choose(uses)

    def places(self) -> dict[str, torch.Tensor]:
        """Where each tensor of a checkpoint goes: a parameter, or a part of one."""
        body = self.model
        found = named("model.embed_tokens", body.embed_tokens) | named("model.norm", body.norm)
        if not self.config.tied:
            found |= named("lm_head", self.lm_head)
        for i, layer in enumerate(body.layers):
            assert isinstance(layer, Layer)
            found |= under(f"model.layers.{i}", layer.places())
        for i, head in enumerate(self.heads, len(body.layers)):
            assert isinstance(head, DraftHead)
            found |= under(f"model.layers.{i}", head.places())
        return found
