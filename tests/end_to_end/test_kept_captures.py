"""Models whose captures are kept: compiled again from the archive, with no frame traced, to the same results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import braze
from braze.cli.torchvision_ops import make_torchvision_importable
from braze.support import trace

make_torchvision_importable()
transformers = pytest.importorskip("transformers")

IDS = {"input_ids": torch.arange(12).reshape(2, 6)}
SMALL = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=128)
MODELS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "bert": ("BertModel", "BertConfig", SMALL, {**IDS, "attention_mask": torch.ones(2, 6).long()}),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        dict(n_embd=32, n_layer=2, n_head=2, vocab_size=128, bos_token_id=0, eos_token_id=0),
        IDS,
    ),
    "llama": ("LlamaModel", "LlamaConfig", dict(SMALL, num_key_value_heads=2), IDS),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_loaded_and_not_traced(
    name: str, dynamic: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path))
    model_class, config, fields, inputs = MODELS[name]
    results = []
    for counter, other in (("captures", "captures_loaded"), ("captures_loaded", "captures")):
        torch.manual_seed(0)
        model = getattr(transformers, model_class)(getattr(transformers, config)(**fields)).eval()
        compiled = braze.compile(model, backend="eager", dynamic=dynamic, options={"keep_captures": True})
        before, _ = trace.snapshot()
        with torch.no_grad():
            results.append(compiled(**inputs))
        after, _ = trace.snapshot()
        assert after[counter] - before[counter] == 1
        assert after[other] == before[other]
    first, second = results
    assert type(first) is type(second) and list(first) == list(second)
    for key in first:
        if isinstance(first[key], torch.Tensor):
            assert torch.equal(first[key], second[key])


def by_kind(x: torch.Tensor) -> tuple[torch.Tensor, bool]:
    return x * 2, x.is_inference()


def test_what_no_guard_of_a_kept_capture_sees_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path))
    with torch.inference_mode():
        inference = torch.ones(2)
    for x in (torch.ones(2), inference, torch.ones(2)):
        braze.reset()
        compiled = braze.compile(by_kind, backend="eager", options={"keep_captures": True})
        assert compiled(x)[1] is x.is_inference()
