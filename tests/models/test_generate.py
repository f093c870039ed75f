"""``model.generate()`` with a compiled forward: the same tokens, and no compile per token."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

import braze
from braze.support import trace
from tests.models.cases import DECODER, SIZES, ids, padding
from tests.models.language import CASES

MODELS = {
    "gpt2": ("GPT2LMHeadModel", dict(SIZES, n_embd=32, n_layer=2, n_head=2, n_positions=64)),
    "llama": ("LlamaForCausalLM", DECODER),
    "qwen3": ("Qwen3ForCausalLM", DECODER),
    "t5": ("T5ForConditionalGeneration", next(c for c in CASES if c.name == "t5").fields),
}
TOKENS = 30


def made(name: str) -> Any:
    torch.manual_seed(0)
    model_class, fields = MODELS[name]
    model = getattr(transformers, model_class)
    return model(model.config_class(**{**fields, "eos_token_id": None})).eval()


def words(cache: str | None) -> dict[str, Any]:
    """Greedy, always of full length."""
    chosen = {"cache_implementation": cache} if cache else {}
    return dict(max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False, disable_compile=True, **chosen)


@pytest.fixture(autouse=True)
def fresh():
    yield
    braze.reset()


def captures(run: Any) -> tuple[Any, int]:
    """What a call gives, and how many captures it took."""
    before = trace.COUNTERS["captures"]
    result = run()
    return result, trace.COUNTERS["captures"] - before


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("way", ["forward", "module"])
@pytest.mark.parametrize("name", MODELS)
def test_generates_the_same_tokens(name, way, cache):
    model = made(name)
    prompt = {"input_ids": ids(2, 7), "attention_mask": padding(2, 7).flip(1)}
    expected = model.generate(**prompt, **words(cache))
    if way == "forward":
        model.forward = braze.compile(model.forward, backend="eager")
        compiled = model
    else:
        compiled = braze.compile(model, backend="eager")
    result, first = captures(lambda: compiled.generate(**prompt, **words(cache)))
    assert torch.equal(result, expected)
    assert 1 <= first <= 8
    result, second = captures(lambda: compiled.generate(**prompt, **words(cache)))
    assert torch.equal(result, expected)
    assert second <= 2


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_generates_the_same_tokens_with_kernels(name):
    model = made(name)
    prompt = {"input_ids": ids(2, 7)}
    expected = model.generate(**prompt, **words(None))
    model.forward = braze.compile(model.forward)
    result, taken = captures(lambda: model.generate(**prompt, **words(None)))
    assert torch.equal(result, expected)
    assert 1 <= taken <= 8
