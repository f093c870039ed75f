"""A mixture's experts compute the tokens that chose them: one by one, by grouped products, and all for all."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from braze.serving.engine.models import experts

WAYS = [experts.one_by_one, experts.grouped, experts.every_expert]


def mixture(tokens: int, count: int, chosen: int, width: int = 16, inner: int = 8, dtype=torch.float32):
    torch.manual_seed(tokens)
    x = torch.randn(tokens, width, dtype=dtype)
    gate_up, down = (
        torch.randn(count, 2 * inner, width, dtype=dtype),
        torch.randn(count, width, inner, dtype=dtype),
    )
    which = (
        torch.stack([torch.randperm(count)[:chosen] for _ in range(tokens)])
        if tokens
        else torch.zeros(0, chosen).long()
    )
    return x, gate_up, down, which, torch.rand(tokens, chosen)


def exact(x, gate_up, down, chosen, weights):
    """Token by token, in float64."""
    found = torch.zeros(x.shape, dtype=torch.float64)
    for token in range(len(x)):
        for expert, weight in zip(chosen[token].tolist(), weights[token].double(), strict=True):
            gate, up = F.linear(x[token].double(), gate_up[expert].double()).chunk(2, -1)
            found[token] += weight * F.linear(F.silu(gate) * up, down[expert].double())
    return found


@pytest.mark.parametrize("way", WAYS, ids=lambda w: w.__name__)
@pytest.mark.parametrize(
    ("tokens", "count", "chosen"), [(1, 8, 3), (7, 8, 3), (33, 8, 8), (5, 1, 1), (4, 64, 2)]
)
def test_each_way_gives_each_token_its_experts_sum(way, tokens, count, chosen):
    given = mixture(tokens, count, chosen)
    torch.testing.assert_close(way(*given).double(), exact(*given), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("way", WAYS, ids=lambda w: w.__name__)
def test_half_precision_stays_near_float64(way):
    given = mixture(20, 8, 3, dtype=torch.bfloat16)
    wanted = exact(*given)
    assert (way(*given).double() - wanted).abs().max() < 0.03 * wanted.abs().max()


def test_an_expert_that_nobody_chose_is_not_computed():
    given = mixture(6, 8, 2)
    given[1][given[3].unique().new_tensor([e for e in range(8) if e not in given[3]])] = float("nan")
    assert experts.one_by_one(*given).isfinite().all()


def test_the_operator_writes_its_output_and_takes_no_tokens_too():
    for tokens in (0, 5):
        given = mixture(tokens, 8, 3)
        out = torch.empty_like(given[0])
        torch.ops.braze.chosen_experts(*given, out)
        torch.testing.assert_close(out.double(), exact(*given), rtol=1e-5, atol=1e-5)
