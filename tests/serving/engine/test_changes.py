"""Penalties and biases change what is drawn as the protocol says, and nobody else's tokens."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from braze.serving.engine import changes
from braze.serving.engine.sampling import SamplingParams, number_of, sample
from braze.support.errors import UserError
from tests.serving.engine.tiny import engine, tiny

PROMPT = [5, 6, 7, 5, 6]


@pytest.fixture(scope="module")
def model():
    return tiny("llama", eos_token_id=None)


def one_by_one(model, prompt: list[int], params: SamplingParams) -> list[int]:
    """What a request generates, from logits that are changed a token at a time as OpenAI's documentation writes it."""
    plain = engine(model)
    tokens: list[int] = []
    for place in range(params.max_tokens):
        logits = logits_after(plain, prompt + tokens)
        counts = Counter(tokens)
        for token, bias in params.logit_bias:
            logits[token] += bias
        for token, times in counts.items():
            logits[token] -= params.presence_penalty + times * params.frequency_penalty
        tokens.append(int(sample(logits[None], [params], [number_of(params.seed or 0, place)])[0]))
    return tokens


def logits_after(plain, tokens: list[int]) -> torch.Tensor:
    seen = []
    compute = plain.runner.model.compute_logits
    plain.runner.model.compute_logits = lambda hidden, out=None: seen.append(compute(hidden, out)) or seen[-1]
    try:
        plain.generate([tokens], SamplingParams(1))
    finally:
        del plain.runner.model.compute_logits
    return seen[-1][-1].clone()


CHANGES = {
    "presence": dict(presence_penalty=1.5),
    "frequency": dict(frequency_penalty=0.6),
    "wanted again": dict(presence_penalty=-2.0, frequency_penalty=-0.5),
    "bias": dict(logit_bias=((9, 1.2), (11, -100.0), (40, 0.7))),
    "all": dict(presence_penalty=0.4, frequency_penalty=0.3, logit_bias=((9, 0.9),)),
}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("words", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize(
    "options", [{}, dict(overlap=True), dict(drafts=2)], ids=["steps", "overlap", "guesses"]
)
def test_tokens_are_those_of_changed_logits(model, words, temperature, options):
    """Also where a step begins before the last one's token is known, and where guesses are verified."""
    params = SamplingParams(12, temperature=temperature, seed=3, **words)
    assert engine(model, **options).generate([PROMPT], params) == [one_by_one(model, PROMPT, params)]


def test_recorded_steps_give_the_same(model, simulated):
    params = SamplingParams(12, presence_penalty=1.0, frequency_penalty=0.5)
    recorded = engine(model, graphs=simulated, cudagraph_mode="FULL_DECODE_ONLY")
    assert recorded.generate([PROMPT], params) == engine(model).generate([PROMPT], params)
    assert recorded.runner.counts["steps_full"] > 5


def test_who_is_beside_such_a_request_keeps_his_tokens(model):
    """And it its own, also where it loses its blocks and is computed again."""
    own = [
        SamplingParams(14, temperature=0.9, seed=1),
        SamplingParams(14, frequency_penalty=1.1, logit_bias=((8, 2.0),)),
        SamplingParams(14),
    ]
    prompts = [PROMPT, [9, 9, 8], [40, 41, 42, 43]]
    alone = [engine(model).generate([prompt], params)[0] for prompt, params in zip(prompts, own, strict=True)]
    few = engine(model, blocks=9)
    assert few.generate(prompts, own) == alone
    assert few.scheduler.preemptions > 0


def test_a_step_sends_what_was_generated_since_the_last_one(model, monkeypatch):
    """And what a request adds to single tokens once."""
    sent: list[int] = []
    plain = changes._write
    monkeypatch.setattr(
        changes, "_write", lambda matrix, data: sent.append(data.numel() // 2) or plain(matrix, data)
    )
    bias = ((7, -100.0), (9, 0.5))
    served = engine(model)
    served.generate([PROMPT], SamplingParams(6, logit_bias=bias, presence_penalty=0.5))
    assert sent[::2] == [2, 1, 1, 1, 1, 1]
    assert not any(sent[1::2]), "nothing is guessed"


def test_a_row_is_for_the_next_request_when_its_own_has_ended(model):
    served = engine(model)
    mine = [dict(frequency_penalty=0.9), dict(logit_bias=((3, 1.5),)), dict(presence_penalty=-1.0)]
    wanted = [engine(model).generate([PROMPT], SamplingParams(6, **words)) for words in mine]
    assert [served.generate([PROMPT], SamplingParams(6, **words)) for words in mine] == wanted
    assert served.runner.drawing.changes.added.shape[0] == 1
    both = [SamplingParams(6, **words) for words in mine[:2]]
    assert served.generate([PROMPT] * 2, both) == [wanted[0][0], wanted[1][0]]
    assert served.runner.drawing.changes.added.shape[0] == 2


def test_what_a_failed_step_has_written_is_written_anew(model, monkeypatch):
    params = SamplingParams(8, frequency_penalty=1.2, logit_bias=((8, 2.0),))
    wanted = engine(model).generate([PROMPT], params)
    served, plain, steps = engine(model), changes.sample, []

    def sample(*arguments):
        steps.append(1)
        if len(steps) == 4:
            raise RuntimeError("out of memory")
        return plain(*arguments)

    monkeypatch.setattr(changes, "sample", sample)
    request = served.add(PROMPT, params)
    for _ in range(3):
        served.step()
    with pytest.raises(RuntimeError, match="out of memory"):
        served.step()
    served.retreat()
    while not served.scheduler.idle():
        served.step()
    assert [request.output] == wanted


def test_a_bias_of_a_hundred_decides(model):
    found = engine(model).generate([PROMPT], SamplingParams(4, temperature=1.0, logit_bias=((17, 100.0),)))
    assert found == [[17] * 4]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (dict(presence_penalty=2.1), "presence_penalty=2.1"),
        (dict(frequency_penalty=float("nan")), "frequency_penalty=nan"),
        (dict(logit_bias=((3, 101.0),)), "logit_bias"),
        (dict(logit_bias=((-1, 1.0),)), "logit_bias"),
        (dict(logprobs=21), "logprobs=21"),
        (dict(prompt_logprobs=-1), "prompt_logprobs=-1"),
    ],
)
def test_changes_that_mean_nothing_are_refused(words, told):
    with pytest.raises(UserError, match=told):
        SamplingParams(**words)


def test_a_bias_of_a_token_that_there_is_none_of_is_refused(model):
    with pytest.raises(UserError, match="token 97 is not in"):
        engine(model).add(PROMPT, SamplingParams(logit_bias=((97, 1.0),)))
