"""Guesses by learned heads: tokens are those of plain steps, and guesses those that the heads give for all tokens at once."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

from braze.cudagraphs.simulated import SimulatedGraphs
from braze.serving.engine.engine import Engine
from braze.serving.engine.loading import build, fill_random, load_model, write_random
from braze.serving.engine.models.config import read_config
from braze.serving.engine.sampling import SamplingParams
from tests.serving.engine.tiny import DEEPSEEK, engine, limits, tiny

HEADED = DEEPSEEK | {"num_nextn_predict_layers": 1}


def headed(**changes):
    model = build(dataclasses.replace(read_config(HEADED | changes), drafting=True), "cpu")
    fill_random(model)
    return model


@pytest.fixture(scope="module")
def model():
    return headed()


def prompts(count: int, seed: int = 3) -> list[list[int]]:
    numbers = random.Random(seed)
    return [[numbers.randint(3, 96) for _ in range(numbers.randint(1, 20))] for _ in range(count)]


@pytest.mark.parametrize("drafts", [1, 3])
@pytest.mark.parametrize("mode", ["NONE", "FULL_DECODE_ONLY"])
def test_tokens_are_those_of_plain_steps(model, drafts, mode):
    graphs = SimulatedGraphs("cpu") if mode != "NONE" else None
    params = [SamplingParams(n) for n in (1, 9, 12, 4, 12, 7, 11, 3)]
    wanted = engine(model).generate(prompts(8), params)
    served = engine(model, blocks=30, drafts=drafts, cudagraph_mode=mode, graphs=graphs)
    assert served.generate(prompts(8), params) == wanted
    assert served.generate(prompts(8), params) == wanted  # beginnings are found in the cache
    assert served.scheduler.pool.free == 30
    assert served.scheduler.guessed > 0
    if graphs is not None:
        assert served.runner.counts["steps_full"] > 0


def sure(request) -> int:
    """How many guesses have keys for all guesses before them: those that find a place in the request's last block."""
    return 1 + max(0, len(request.blocks) * 4 - len(request.tokens) + 1)


def guesses_at_once(model, tokens: list[int], count: int):
    """A request with these tokens, the last of which a fresh engine drew from one step of all others."""
    fresh = engine(model, drafts=count, bounds=limits(max_num_batched_tokens=64))
    request = fresh.add(tokens[:-1], SamplingParams(4, ignore_eos=True))
    fresh.step()
    assert request.tokens == tokens
    return request


@pytest.mark.parametrize("bounds", [limits(), limits(max_num_batched_tokens=5)])
def test_guesses_of_many_steps_are_those_of_all_tokens_at_once(model, bounds):
    served = engine(model, drafts=3, bounds=bounds, blocks=40)
    requests = [served.add(prompt, SamplingParams(9, ignore_eos=True)) for prompt in prompts(2, seed=8)]
    seen = 0
    while not served.scheduler.idle():
        served.step()
        for request in requests:
            if request.drafts and request.ended is None:
                assert len(request.drafts) == 3
                wanted = guesses_at_once(model, request.tokens, 3)
                many = min(sure(request), sure(wanted))
                assert request.drafts[:many] == wanted.drafts[:many]
                seen += many > 2
    assert seen > 3


def test_a_head_that_says_what_the_model_says_is_always_right(monkeypatch, model):
    """The guesses that the engine makes are those that it verifies."""
    plain = engine(model)
    prompt = prompts(1)[0]
    (wanted,) = plain.generate([prompt], SamplingParams(12, ignore_eos=True))
    whole = [*prompt, *wanted, 0, 0, 0]
    served = engine(model, drafts=2)

    def knows(self, flight, drawn, kept):
        for work in flight.works:
            at = len(work.request.tokens)
            work.request.drafts = tuple(whole[at : at + 2])

    monkeypatch.setattr("braze.serving.engine.heads.HeadDrafter.propose", knows)
    request = served.add(prompt, SamplingParams(12, ignore_eos=True))
    steps = 0
    while not served.scheduler.idle():
        served.step()
        steps += 1
    assert request.output == wanted
    assert steps == 5  # the prompt's, and 11 tokens by three
    assert served.scheduler.right >= 7


def test_heads_are_loaded_where_they_are_wanted(tmp_path):
    write_random(tmp_path, HEADED)
    without, with_ = load_model(tmp_path), load_model(tmp_path, drafting=True)
    assert len(without.heads) == 0 and without.config.cached_layers == 2
    assert len(with_.heads) == 1 and with_.config.cached_layers == 3
    for name, tensor in without.places().items():
        assert torch.equal(tensor, with_.places()[name]), name
    assert {n.rpartition(".")[0] for n in with_.places() if n.startswith("model.layers.2.e")} == {
        "model.layers.2.enorm",
        "model.layers.2.eh_proj",
    }
    assert not tiny("deepseek").heads
    assert Engine(engine(without, drafts=1).runner)._heads is None
    from safetensors.torch import load_file, save_file

    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.2.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.layers.2.shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    assert len(load_model(tmp_path, drafting=True).heads) == 1
    load_model(tmp_path)
