"""Log-probabilities that are told are those of the model's own logits."""

from __future__ import annotations

import pytest
import torch

from braze.cli.torchvision_ops import make_torchvision_importable
from braze.serving.engine.loading import load_model
from braze.serving.engine.sampling import SamplingParams
from braze.serving.engine.scores import LEAST, Scores
from tests.serving.engine.tiny import LLAMA, engine, folder_of, limits

make_torchvision_importable()
transformers = pytest.importorskip("transformers")

PROMPTS = [[5, 6, 7, 5, 6], [30, 31, 32, 33, 34, 35, 36, 37, 38]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return folder_of(LLAMA | dict(eos_token_id=None), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(folder):
    return load_model(folder)


@pytest.fixture(scope="module")
def expected(folder):
    """Log-probabilities behind each of some tokens, by transformers."""
    plain = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def of(tokens: list[int]) -> torch.Tensor:
        with torch.no_grad():
            return plain(torch.tensor([tokens])).logits[0].double().log_softmax(-1)

    return of


def check(score, row: torch.Tensor, most: int) -> None:
    assert score.logprob == pytest.approx(float(row[score.token]), abs=1e-4)
    values, places = row.topk(most)
    assert [token for token, _ in score.likeliest] == places.tolist()
    assert [value for _, value in score.likeliest] == pytest.approx(values.tolist(), abs=1e-4)


@pytest.mark.parametrize(
    "options",
    [{}, dict(overlap=True), dict(drafts=2), dict(graphs=True, cudagraph_mode="FULL_DECODE_ONLY")],
    ids=["steps", "overlap", "guesses", "recorded"],
)
def test_generated_tokens_have_their_log_probabilities(model, expected, simulated, options):
    """Of logits before temperature and penalties; only those who ask have them."""
    if options.get("graphs"):
        options = options | dict(graphs=simulated)
    served = engine(model, **options)
    asked = SamplingParams(9, temperature=0.7, seed=4, frequency_penalty=0.5, logprobs=3)
    one = served.add(PROMPTS[0], asked)
    two = served.add(PROMPTS[1], SamplingParams(9))
    three = served.add(PROMPTS[1], SamplingParams(6, logprobs=0))
    while not served.scheduler.idle():
        served.step()
    for request, most in ((one, 3), (three, 0)):
        assert [score.token for score in request.scores] == request.output
        rows = expected(request.tokens)[len(request.prompt) - 1 :]
        for score, row in zip(request.scores, rows, strict=False):
            check(score, row, most)
    assert two.scores == []
    assert one.output == engine(model).generate([PROMPTS[0]], asked)[0]


@pytest.mark.parametrize("blocks", [128, 5], ids=["room", "computed again"])
def test_prompts_have_their_log_probabilities(model, expected, blocks):
    """In chunks, where the same prompt lies in the cache already, and where blocks were lost in between."""
    served = engine(model, blocks, bounds=limits(max_num_batched_tokens=4))
    params = SamplingParams(7, prompt_logprobs=2)
    served.generate([PROMPTS[1]], SamplingParams(2))
    requests = [served.add(prompt, params) for prompt in PROMPTS]
    while not served.scheduler.idle():
        served.step()
    assert blocks == 128 or served.scheduler.preemptions > 0
    for request in requests:
        rows = expected(list(request.prompt))
        assert [score.token for score in request.prompt_scores] == list(request.prompt[1:])
        for score, row in zip(request.prompt_scores, rows, strict=False):
            check(score, row, 2)


def test_what_is_no_number_is_told_as_the_least():
    logits = torch.tensor([[0.0, float("-inf"), float("nan")], [float("nan")] * 3])
    found = Scores.of(logits, torch.tensor([1, 0]), 3).each([1, 0], [3, 3])
    assert [score.logprob for score in found] == [LEAST, LEAST]
    assert found[0].likeliest[0] == (0, 0.0)
    assert all(value == LEAST for _, value in found[1].likeliest)
