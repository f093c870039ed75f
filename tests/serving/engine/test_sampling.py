"""Tokens are drawn with the probabilities that the parameters leave."""

from __future__ import annotations

import pytest
import torch

from braze.serving.engine import sampling
from braze.serving.engine.sampling import SamplingParams, sample
from braze.support.errors import UserError

LOGITS = torch.tensor([0.5, 2.0, 1.0, -1.0, 1.5])


def shares(params: SamplingParams, rows: int = 8000) -> torch.Tensor:
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
    torch.testing.assert_close(shares(params), expected(kept, params.temperature), atol=0.02, rtol=0)


def test_greedy_rows_stand_beside_drawn_ones():
    params = [SamplingParams(), SamplingParams(temperature=1.0, top_k=1), SamplingParams()]
    assert sample(LOGITS.expand(3, -1), params).tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "params",
    [SamplingParams(temperature=1.0, top_p=0.4), SamplingParams(temperature=1.0, top_p=0.95), SamplingParams(temperature=1.0, top_k=3),
     SamplingParams(temperature=1.0, top_k=1200), SamplingParams(temperature=1.0, top_k=40, top_p=0.5), SamplingParams(temperature=1.0, top_k=9999)],
)  # fmt: skip
def test_of_many_tokens_those_are_kept_that_are_kept_of_all_in_order(params):
    """Whether the share is found among the heaviest, or not."""
    logits = torch.randn(1, 4000, generator=torch.Generator().manual_seed(3)) * 2
    kept = sampling._kept(logits.softmax(-1), [params])[0]
    seen = []
    real = torch.searchsorted
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch, "searchsorted", lambda ends, *a, **k: seen.append(ends) or real(ends, *a, **k))
        drawn = torch.cat([sample(logits, [params]) for _ in range(200)])
    assert (kept[drawn] > 0).all()
    assert int((seen[0].diff() > 0).sum()) + 1 >= int((kept > 1e-12).sum()) - 1


def test_a_token_without_weight_is_never_drawn():
    logits = torch.full((400, 3), float("-inf"))
    logits[:, 1] = 0
    assert (sample(logits, [SamplingParams(temperature=0.5)] * 400) == 1).all()


def test_rare_tokens_at_the_end_of_a_large_vocabulary_are_drawn():
    """Sums in float32 would end before them."""
    logits = torch.zeros(1, 200_000)
    logits[0, :100] = 12.0
    logits[0, 199_000:] = 9.0
    share = logits.double().softmax(-1)[0, 199_000:].sum()
    drawn = torch.cat([sample(logits, [SamplingParams(temperature=1.0)]) for _ in range(300)])
    assert abs((drawn >= 199_000).float().mean() - share) < 0.1


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_give_some_token_of_the_vocabulary(value):
    logits = LOGITS.clone()
    logits[2] = value
    for params in (SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, top_p=0.5)):
        assert 0 <= int(sample(logits[None], [params])[0]) < 5


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
