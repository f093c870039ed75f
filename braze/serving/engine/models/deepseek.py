"""DeepSeek V3 and its like: multi-head latent attention, and a mixture of experts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from braze.serving.engine.attention import operators  # noqa: F401  registers the operator
from braze.serving.engine.attention.reference import turned
from braze.serving.engine.models.config import Experts, Latent, ModelConfig, not_served
from braze.serving.engine.models.decoder import CacheShape, Decoder, Layer
from braze.serving.engine.models.experts import CHOSEN_EXPERTS, every_expert
from braze.serving.engine.models.parallel import ONE, Ranks, summed
from braze.serving.engine.models.parts import MLP, Linear, Part, RMSNorm, RowLinear, rotate_pairs, under


class LatentAttention(Part):
    """Attention over latents. The projection from latents to keys is multiplied into the queries, and that to values comes
    after the weighted sum, so that the cache keeps and attention reads one latent a token."""

    def __init__(self, config: ModelConfig, sizes: Latent, layer: int) -> None:
        super().__init__()
        self.layer, self.heads, self.sizes = layer, config.heads, sizes
        self.scale = (sizes.nope_dim + sizes.rope_dim) ** -0.5 * config.rope.latent_stretch
        rows = config.heads * (sizes.nope_dim + sizes.rope_dim)
        if sizes.query_rank:
            self.q_a_proj = Linear(config.width, sizes.query_rank, config.out_bias)
            self.q_a_layernorm = RMSNorm(sizes.query_rank, 1e-6)
            self.q_b_proj = Linear(sizes.query_rank, rows, False)
        else:
            self.q_proj = Linear(config.width, rows, False)
        self.kv_a_proj_with_mqa = Linear(config.width, sizes.rank + sizes.rope_dim, config.out_bias)
        self.kv_a_layernorm = RMSNorm(sizes.rank, 1e-6)
        self.kv_b_proj = Linear(sizes.rank, config.heads * (sizes.nope_dim + sizes.value_dim), False)
        self.o_proj = RowLinear(config.heads * sizes.value_dim, config.width, config.out_bias, config.ranks)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        sizes, turn = self.sizes, rotate_pairs if self.sizes.interleaved else turned
        q = self._queries(x).view(x.shape[0], self.heads, sizes.nope_dim + sizes.rope_dim)
        q_nope, q_rope = q.split((sizes.nope_dim, sizes.rope_dim), -1)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split((sizes.rank, sizes.rope_dim), -1)
        k_rope = turn(k_rope.unsqueeze(1), cos, sin).squeeze(1)
        to_keys, to_values = self.kv_b_proj.weight.view(self.heads, -1, sizes.rank).split(
            (sizes.nope_dim, sizes.value_dim), 1
        )
        absorbed = torch.einsum("thn,hnr->thr", q_nope, to_keys)
        query = torch.cat((absorbed, turn(q_rope, cos, sin)), -1)
        kept = torch.cat((self.kv_a_layernorm(latent), k_rope), -1)
        found = torch.empty_like(absorbed, memory_format=torch.contiguous_format)
        torch.ops.braze.mla_attention(query, kept, found, self.layer, self.scale)
        return self.o_proj(torch.einsum("thr,hvr->thv", found, to_values).flatten(1))

    def _queries(self, x: torch.Tensor) -> torch.Tensor:
        if self.sizes.query_rank:
            return self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        return self.q_proj(x)


class MixtureOfExperts(Part):
    """Shared experts, and some of many by a token's choice."""

    def __init__(self, width: int, sizes: Experts, ranks: Ranks = ONE) -> None:
        super().__init__()
        self.sizes, self.ranks = sizes, ranks
        #: each expert computes the tokens that chose it alone
        self.sorted = True
        self.gate = Linear(width, sizes.count, False)
        self.correction = nn.Parameter(torch.empty(sizes.count, dtype=torch.float32), requires_grad=False)
        self.gate_up = nn.Parameter(torch.empty(sizes.count, 2 * sizes.inner, width))
        self.down = nn.Parameter(torch.empty(sizes.count, width, sizes.inner))
        self.shared = MLP(width, sizes.inner * sizes.shared, ranks=ranks) if sizes.shared else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen, weights = self.choice(x)
        if self.sorted:
            found = torch.empty_like(x, memory_format=torch.contiguous_format)
            CHOSEN_EXPERTS(x, self.gate_up, self.down, chosen, weights, found)
        else:
            found = every_expert(x, self.gate_up, self.down, chosen, weights)
        return summed(found if self.shared is None else found + self.shared.part(x), self.ranks)

    def choose(self, uses: Callable[[str], bool]) -> None:
        """Take the custom operators that are wanted."""
        self.sorted = uses("braze::chosen_experts")

    def choice(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Each token's experts and their weights, (tokens, chosen) int64 and float32."""
        sizes = self.sizes
        scores = F.linear(x.float(), self.gate.weight.float()).sigmoid()
        wanted = scores + self.correction
        if sizes.groups > 1:
            of_groups = wanted.view(-1, sizes.groups, sizes.count // sizes.groups)
            best = of_groups.topk(2, -1)[0].sum(-1).topk(sizes.chosen_groups, -1)[1]
            open_ = torch.zeros_like(of_groups[..., 0]).scatter(1, best, 1.0) > 0
            wanted = of_groups.masked_fill(~open_[..., None], float("-inf")).flatten(1)
        chosen = wanted.topk(sizes.chosen, -1)[1]
        found = scores.gather(1, chosen)
        if sizes.normalised:
            found = found / (found.sum(-1, keepdim=True) + 1e-20)
        return chosen, found * sizes.scale

    def places(self) -> dict[str, torch.Tensor]:
        """Where the tensors of a checkpoint go: an expert's are parts of the stacked ones."""
        inner = self.sizes.inner
        found = {"gate.weight": self.gate.weight.data, "gate.e_score_correction_bias": self.correction.data}
        for e in range(self.sizes.count):
            found[f"experts.{e}.gate_proj.weight"] = self.gate_up.data[e, :inner]
            found[f"experts.{e}.up_proj.weight"] = self.gate_up.data[e, inner:]
            found[f"experts.{e}.down_proj.weight"] = self.down.data[e]
        return found if self.shared is None else found | under("shared_experts", self.shared.places())


def deepseek(config: ModelConfig) -> Decoder:
    """A decoder whose weights are not set yet, on the default device and of the default type."""
    if config.rope.kind not in ("default", "yarn"):
        raise not_served(
            f"the rotary embedding {config.rope.kind}",
            "of this architecture it is served as it is, or by yarn",
        )
    assert config.latent is not None
    cache = CacheShape(1, config.latent.rank + config.latent.rope_dim, config.latent.rank, latent=True)
    return Decoder(config, _layer, cache)


def _layer(config: ModelConfig, i: int) -> Layer:
    latent, experts = config.latent, config.experts
    assert latent is not None
    assert experts is not None
    dense = i < experts.dense_layers
    mlp = (
        MLP(config.width, config.inner, ranks=config.ranks)
        if dense
        else MixtureOfExperts(config.width, experts, config.ranks)
    )
    return Layer(config, LatentAttention(config, latent, i), mlp)
