"""Tokens are drawn with the probabilities that the parameters leave."""

from __future__ import annotations

import pytest
import torch

from braze.serving.engine.kept import Rows
from braze.serving.engine.sampling import SamplingParams, number_of, sample
from braze.support.errors import UserError

LOGITS = torch.tensor([0.5, 2.0, 1.0, -1.0, 1.5])


def shares(params: SamplingParams, together: Rows | None, rows: int = 4000) -> torch.Tensor:
    numbers = [number_of(7, place) for place in range(rows)]
    drawn = sample(LOGITS.expand(rows, -1), [params] * rows, numbers, together)
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
@pytest.mark.parametrize("together", [None, Rows()], ids=["each", "together"])
def test_shares_are_those_of_the_softmax_over_what_is_kept(params, kept, together):
    torch.testing.assert_close(
        shares(params, together), expected(kept, params.temperature), atol=0.02, rtol=0
    )


def test_greedy_rows_stand_beside_drawn_ones():
    params = [SamplingParams(), SamplingParams(temperature=1.0, top_k=1), SamplingParams()]
    assert sample(LOGITS.expand(3, -1), params).tolist() == [1, 1, 1]


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
    warm = [SamplingParams(temperature=1.0)]
    drawn = torch.cat([sample(logits, warm, [number_of(3, place)]) for place in range(300)])
    assert abs((drawn >= 199_000).float().mean() - share) < 0.1


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_give_some_token_of_the_vocabulary(value):
    logits = LOGITS.clone()
    logits[2] = value
    for params in (SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, top_p=0.5)):
        assert 0 <= int(sample(logits[None], [params])[0]) < 5


@pytest.mark.parametrize("together", [None, Rows()], ids=["each", "together"])
def test_a_number_gives_the_same_token_whoever_is_beside_it(together):
    params, others = SamplingParams(temperature=1.5), SamplingParams(temperature=1.0, top_k=2)
    for number in (0, 5, 2**63, 2**64 - 1):
        alone = sample(LOGITS[None], [params], [number], together)
        beside = sample(LOGITS.expand(3, -1), [others, params, others], [1, number, 2], together)
        assert beside[1] == alone[0]


@pytest.mark.parametrize("together", [None, Rows()], ids=["each", "together"])
@pytest.mark.parametrize("temperature", [1e-5, 1e-30, 5e-324])
def test_the_coldest_draw_is_the_greatest_logit(together, temperature):
    """Where logits were divided by the temperature they were infinite, and the last token of the vocabulary came."""
    params = [SamplingParams(temperature=temperature)] * 3
    assert sample(LOGITS.expand(3, -1), params, [1, 2, 3], together).tolist() == [1, 1, 1]


def test_numbers_of_a_seed_differ_by_place_and_are_of_64_bits():
    for seed in (-(2**63), -1, 0, 1, 2**63, 2**64 - 1):
        numbers = [number_of(seed, place) for place in range(100)]
        assert len(set(numbers)) == 100
        assert all(0 <= number < 2**64 for number in numbers)
    assert number_of(-1, 0) == number_of(2**64 - 1, 0), "a seed counts by its bits"


@pytest.mark.parametrize(
    "wrong",
    [
        dict(max_tokens=0),
        dict(max_tokens=True),
        dict(max_tokens=2.0),
        dict(temperature=-1.0),
        dict(temperature=float("nan")),
        dict(temperature=float("inf")),
        dict(temperature=10**400),
        dict(temperature="1"),
        dict(top_k=-1),
        dict(top_k=1.5),
        dict(top_p=0.0),
        dict(top_p=float("nan")),
        dict(top_p=True),
        dict(seed=2**64),
        dict(seed=-(2**63) - 1),
        dict(seed=1.0),
        dict(seed=False),
        dict(seed=10**5000),
    ],
)
def test_parameters_that_mean_nothing_are_refused(wrong):
    with pytest.raises(UserError) as error:
        SamplingParams(**wrong)
    assert error.value.code == "BZ7405"
    assert next(iter(wrong)) in str(error.value)
