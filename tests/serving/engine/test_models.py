"""Models give the tokens that transformers gives, from the files that transformers writes."""

from __future__ import annotations

import json

import pytest
import torch

from braze.cli.torchvision_ops import make_torchvision_importable
from braze.serving.engine.loading import load_model, model_folder, write_random
from braze.serving.engine.models.config import read_config
from braze.serving.engine.sampling import SamplingParams
from braze.support.errors import UserError
from tests.serving.engine.tiny import DEEPSEEK, LLAMA, MODELS, QWEN3, engine, folder_of

make_torchvision_importable()
transformers = pytest.importorskip("transformers")

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "beta_fast": 4.0,
    "original_max_position_embeddings": 64,
}
CASES = {
    **MODELS,
    "llama with biases": LLAMA | dict(attention_bias=True, mlp_bias=True),
    "llama with scaled angles": LLAMA | dict(rope_parameters=LLAMA3 | {"original_max_position_embeddings": 32}),
    "llama with linear angles": LLAMA | dict(rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}),
    "qwen3 with yarn": QWEN3 | dict(rope_parameters=YARN | {"truncate": False, "beta_fast": 1.5}),
    "qwen2": LLAMA | dict(architectures=["Qwen2ForCausalLM"], model_type="qwen2"),
    "mistral": LLAMA | dict(architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=None),
    "deepseek without compressed queries": DEEPSEEK | dict(q_lora_rank=None, first_k_dense_replace=0),
    "deepseek with turned halves": DEEPSEEK | dict(rope_interleave=False, n_group=1, topk_group=1),
    "deepseek with yarn": DEEPSEEK | dict(rope_parameters=YARN | {"mscale": 0.7, "mscale_all_dim": 1.0}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_greedy_tokens_are_those_of_transformers(name, tmp_path):
    """Prompts of several lengths at once, with chunks, in float32: token for token what generate gives each alone."""
    folder = folder_of(CASES[name], tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ours = engine(load_model(folder))
    prompts = [torch.randint(3, 97, (n,)).tolist() for n in (1, 5, 17, 40)]
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    found = ours.generate(prompts, params)
    for prompt, tokens in zip(prompts, found, strict=True):
        ids = torch.tensor([prompt])
        wanted = theirs.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert tokens == wanted[0, len(prompt) :].tolist()


@pytest.mark.parametrize("named", ["one", "two", "no file"])
def test_answers_end_by_the_tokens_that_transformers_ends_them_by(named, tmp_path):
    """Those of generation_config.json; config.json's, which is another here, where there is no such file."""
    folder = folder_of(LLAMA, tmp_path)
    prompt = [5, 6, 7]
    free = engine(load_model(folder)).generate([prompt], SamplingParams(12, ignore_eos=True))[0]
    later = next(token for place, token in enumerate(free) if place >= 3 and token not in free[:place])
    changes = {"config.json": free[1], "generation_config.json": later if named == "one" else [96, later]}
    for name, tokens in changes.items():
        known = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(known | dict(eos_token_id=tokens)))
    if named == "no file":
        (folder / "generation_config.json").unlink()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor([prompt])
    wanted = theirs.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
    found = engine(load_model(folder)).generate([prompt], SamplingParams(12))[0]
    assert found == wanted[0, len(prompt) :].tolist()
    assert found[-1] == (free[1] if named == "no file" else later)
    assert len(found) < 12


def test_of_a_file_that_names_no_tokens_the_configs_end_answers(tmp_path):
    folder = write_random(tmp_path, LLAMA | dict(eos_token_id=[7, 8]))
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.6}))
    assert load_model(folder).config.eos == (7, 8)


@pytest.mark.parametrize("config", [LLAMA, QWEN3, DEEPSEEK], ids=MODELS)
def test_a_folder_with_random_weights_is_read_as_any_other(config, tmp_path):
    model = load_model(write_random(tmp_path, config, seed=3))
    again = load_model(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert engine(model).generate([[5, 6, 7]], SamplingParams(max_tokens=4))[0]


def test_a_file_in_another_type_is_converted(tmp_path):
    model = load_model(write_random(tmp_path, LLAMA), dtype=torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        (dict(architectures=["GPT2LMHeadModel"]), "GPT2LMHeadModel"),
        (dict(hidden_act="gelu"), "gelu"),
        (dict(rope_parameters={"rope_type": "longrope"}), "longrope"),
        (dict(architectures=["MistralForCausalLM"], sliding_window=16), "sliding window"),
        (dict(quantization_config={"bits": 4}), "quantised"),
    ],
)
def test_what_would_give_other_tokens_is_refused(changes, word):
    with pytest.raises(UserError) as error:
        read_config(LLAMA | changes)
    assert error.value.code == "BZ7403"
    assert word in str(error.value)


def test_files_that_do_not_fit_are_told_by_name(tmp_path):
    write_random(tmp_path, LLAMA)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | dict(num_hidden_layers=3)))
    with pytest.raises(UserError, match=r"model\.layers\.2") as error:
        load_model(tmp_path)
    assert error.value.code == "BZ7404"
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | dict(vocab_size=98)))
    with pytest.raises(UserError, match=r"\[97, 32\], the model \[98, 32\]"):
        load_model(tmp_path)
    with pytest.raises(UserError, match=r"there is no such folder"):
        load_model(tmp_path / "nowhere")


def test_weights_that_end_early_are_told_by_their_file(tmp_path):
    file = write_random(tmp_path, LLAMA) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(UserError, match=r"BZ7404(.|\n)*model\.safetensors cannot be read"):
        load_model(tmp_path)


def test_a_name_of_the_hub_is_its_copy_on_this_machine(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    kept = tmp_path / "models--owner--tiny.model"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("0" * 40)
    copy = write_random(kept / "snapshots" / ("0" * 40), LLAMA)
    assert model_folder("owner/tiny.model") == copy
    assert load_model(model_folder("owner/tiny.model")).config.vocab == LLAMA["vocab_size"]
    with pytest.raises(UserError, match="BZ7404") as told:
        model_folder("owner/nothing")
    assert "the hub gives nothing" in str(told.value)


def test_a_folder_goes_before_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_random("owner/model", LLAMA)
    assert str(model_folder("owner/model")) == "owner/model"
    for path in ("nothing", "../a/b", "/a/b", "a/b/c", ""):
        assert str(model_folder(path)) == (path or ".")  # told of when it is read
