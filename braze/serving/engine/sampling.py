"""From logits to tokens: greedy, temperature, top-k, top-p."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from braze.support.errors import UserError


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a request's tokens are drawn, and when it ends. ``temperature`` 0 is greedy; ``top_k`` 0 and ``top_p`` 1 leave all tokens.

    ``seed``: the request's own stream of random numbers. ``stop``: tokens that end it, besides the model's (unless ``ignore_eos``).
    """

    max_tokens: int = 16
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        bad = [
            told
            for wrong, told in (
                (self.max_tokens < 1, f"max_tokens={self.max_tokens} is below 1"),
                (not 0 <= self.temperature <= 100, f"temperature={self.temperature} is not in 0..100"),
                (self.top_k < 0, f"top_k={self.top_k} is below 0"),
                (not 0 < self.top_p <= 1, f"top_p={self.top_p} is not in (0, 1]"),
            )
            if wrong
        ]
        if bad:
            raise UserError("BZ7405", "sampling parameters that mean nothing", why="; ".join(bad))


#: the heaviest tokens that a share of the whole is looked for among first
_FEW = 1024


def sample(
    logits: torch.Tensor,
    params: Sequence[SamplingParams],
    generators: Sequence[torch.Generator | None] | None = None,
) -> torch.Tensor:
    """One token a row, (rows) int64, of logits (rows, vocabulary); a row's ``generator`` is its own, or the device's."""
    best = logits.argmax(-1)
    if all(p.temperature == 0 for p in params):
        return best
    device = logits.device
    if device.type == "cpu":
        given = generators or [None] * len(params)
        for i, (p, generator) in enumerate(zip(params, given, strict=True)):
            if p.temperature:
                best[i] = _drawn(logits[i], p, generator)
        return best
    warmth = torch.tensor([p.temperature or 1.0 for p in params], device=device)
    weights = (logits.float() / warmth[:, None]).softmax(-1)
    if any(p.top_k or p.top_p < 1 for p in params):
        weights = _kept(weights, params)
    noise = torch.empty_like(weights).exponential_()
    for i, generator in enumerate(generators or ()):
        if generator is not None:
            noise[i].exponential_(generator=generator)
    drawn = (weights / noise).argmax(
        -1
    )  # the largest of weight / exponential falls to each token by its weight
    greedy = torch.tensor([p.temperature == 0 for p in params], device=device)
    return torch.where(greedy, best, drawn)


def _drawn(logits: torch.Tensor, params: SamplingParams, generator: torch.Generator | None) -> torch.Tensor:
    """The token in whose part of the whole one random number falls: on the processor a number for each token costs fifty times as much."""
    weights, tokens = (logits.float() / params.temperature).softmax(-1), None
    if params.top_k or params.top_p < 1:
        few, places = weights.topk(min(len(weights), params.top_k or _FEW))
        found = float(few.sum())
        if params.top_k or found >= params.top_p:  # there is no need to order them all
            weights, tokens = few, places
            if not params.top_k:
                params = dataclasses.replace(params, top_p=min(params.top_p / found, 1.0))
        weights = _kept(weights[None], [params])[0]
    ends = weights.cumsum(0, dtype=torch.float64)
    place = torch.rand((), dtype=torch.float64, generator=generator) * ends[-1]
    # where nothing is a number all lie before the place
    drawn = torch.searchsorted(ends, place, right=True).clamp_(max=len(ends) - 1)
    return drawn if tokens is None else tokens[drawn]


def _kept(weights: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """Weights with zeros for tokens beyond a row's ``top_k``, then for those behind the ones that sum up to its ``top_p``."""
    device, size = weights.device, weights.shape[-1]
    many = torch.tensor([p.top_k or size for p in params], device=device)
    share = torch.tensor([p.top_p for p in params], device=device)
    ordered, order = weights.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(size, device=device)
    ordered = ordered.masked_fill(rank >= many[:, None], 0.0)
    ordered = ordered / ordered.sum(-1, keepdim=True)
    before = ordered.cumsum(-1) - ordered
    # rounded sums pass 1 early: without top_p nothing is left out; the first is always kept
    beyond = (before >= share[:, None]) & (share < 1)[:, None] & (rank > 0)
    return torch.zeros_like(weights).scatter(1, order, ordered.masked_fill(beyond, 0.0))
