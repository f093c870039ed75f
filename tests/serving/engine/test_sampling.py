"""Tokens are drawn with the probabilities that the parameters leave."""

from __future__ import annotations

import pytest
import torch

from braze.serving.engine.sampling import SamplingParams, sample
from braze.support.errors import UserError

LOGITS = torch.tensor([0.5, 2.0, 1.0, -1.0, 1.5])


def shares(params: SamplingParams, rows: int = 20000) -> torch.Tensor:
    drawn = sample(LOGITS.expand(rows, -1), [params] * rows)
    return drawn.bincount(minlength=5) / rows


def expected(kept: list[int], temperature: float) -> torch.Tensor:
    left = torch.full((5,), float("-inf"))
    left[kept] = LOGITS[kept] / temperature
    return left.softmax(-1)


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(temperature=0.7), [0, 1, 2, 3, 4]),
        (SamplingParams(temperature=1.0, top_k=2), [1, 4]),
        (SamplingParams(temperature=1.0, top_p=0.6), [1, 4]),
        (SamplingParams(temperature=2.0, top_k=4, top_p=0.99), [0, 1, 2, 4]),
        (SamplingParams(temperature=1.0, top_p=1e-9), [1]),
    ],
)
def test_shares_are_those_of_the_softmax_over_what_is_kept(params, kept):
    torch.testing.assert_close(shares(params), expected(kept, params.temperature), atol=0.015, rtol=0)


def test_greedy_rows_stand_beside_drawn_ones():
    params = [SamplingParams(), SamplingParams(temperature=1.0, top_k=1), SamplingParams()]
    assert sample(LOGITS.expand(3, -1), params).tolist() == [1, 1, 1]


def test_a_seed_gives_the_same_token_whoever_is_beside_it():
    params = SamplingParams(temperature=1.5, seed=4)
    alone = sample(LOGITS[None], [params], [torch.Generator().manual_seed(4)])
    others = SamplingParams(temperature=1.0)
    beside = sample(
        LOGITS.expand(3, -1), [others, params, others], [None, torch.Generator().manual_seed(4), None]
    )
    assert beside[1] == alone[0]


@pytest.mark.parametrize(
    "wrong", [dict(max_tokens=0), dict(temperature=-1.0), dict(top_k=-1), dict(top_p=0.0)]
)
def test_parameters_that_mean_nothing_are_refused(wrong):
    with pytest.raises(UserError) as error:
        SamplingParams(**wrong)
    assert error.value.code == "BZ7405"
    assert next(iter(wrong)) in str(error.value)
