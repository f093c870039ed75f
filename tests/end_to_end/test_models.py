"""Real architectures, made small: one graph, no break, and no further from float64 than eager."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.cli.torchvision_ops import make_torchvision_importable
from braze.inspect.explain import observe

make_torchvision_importable()
transformers = pytest.importorskip("transformers")
timm = pytest.importorskip("timm")

_ENCODER = dict(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=128
)
_DECODER = dict(_ENCODER, num_key_value_heads=1, head_dim=16, max_position_embeddings=64)
_IDS = {"input_ids": torch.arange(22).reshape(2, 11) % 128}
_MASKED = {**_IDS, "attention_mask": torch.arange(11).expand(2, 11).lt(torch.tensor([[11], [7]])).long()}
_IMAGE = {"pixel_values": torch.linspace(-1, 1, 2 * 3 * 32 * 32).reshape(2, 3, 32, 32)}

#: name -> (model class, config class, fields, inputs)
MODELS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "bert": ("BertModel", "BertConfig", _ENCODER, _MASKED),
    "distilbert": ("DistilBertModel", "DistilBertConfig", dict(dim=32, n_layers=2, n_heads=2, hidden_dim=64, vocab_size=128), _MASKED),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", dict(n_embd=32, n_layer=2, n_head=2, vocab_size=128, n_positions=64, bos_token_id=0, eos_token_id=0), _IDS),
    "opt": ("OPTForCausalLM", "OPTConfig", dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, ffn_dim=64, vocab_size=128, word_embed_proj_dim=32, max_position_embeddings=64), _MASKED),
    "llama": ("LlamaForCausalLM", "LlamaConfig", _DECODER, _IDS),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", _DECODER, _IDS),
    "mistral": ("MistralForCausalLM", "MistralConfig", _DECODER, _MASKED),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", _DECODER, _IDS),
    "t5": ("T5EncoderModel", "T5Config", dict(d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, vocab_size=128), _MASKED),
    "vit": ("ViTForImageClassification", "ViTConfig", dict(_ENCODER, image_size=32, patch_size=8), _IMAGE),
    "resnet": ("ResNetForImageClassification", "ResNetConfig", dict(depths=[1, 1], hidden_sizes=[16, 32], embedding_size=16, layer_type="basic"), _IMAGE),
    "convnext": ("ConvNextForImageClassification", "ConvNextConfig", dict(depths=[1, 1], hidden_sizes=[16, 32], num_stages=2), _IMAGE),
    "swin": ("SwinForImageClassification", "SwinConfig", dict(embed_dim=16, depths=[2, 2], num_heads=[2, 4], image_size=32, patch_size=4, window_size=4), _IMAGE),
}  # fmt: skip
TIMM = ("resnet10t", "deit_tiny_patch16_224", "mobilenetv3_small_050")


def make(name: str) -> tuple[nn.Module, dict[str, Any]]:
    torch.manual_seed(0)
    if name in TIMM:
        words = {"img_size": 32, "depth": 2} if "deit" in name else {}
        return timm.create_model(name, pretrained=False, **words).eval(), {"x": _IMAGE["pixel_values"]}
    model, config, fields, inputs = MODELS[name]
    if "CausalLM" in model or "LMHead" in model:
        fields = {**fields, "use_cache": False}
    made = getattr(transformers, model)(getattr(transformers, config)(**fields))
    return made.eval(), inputs


def outputs(value: Any) -> list[torch.Tensor]:
    """The floating-point tensors of a model's output."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [v for v in value.values() if isinstance(v, torch.Tensor) and v.is_floating_point()]


@pytest.mark.parametrize("name", [*MODELS, *TIMM])
def test_is_one_graph_and_as_exact_as_eager(name: str):
    model, inputs = make(name)
    exact_model = copy.deepcopy(model).double()
    exact_inputs = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    compiled = braze.compile(model)
    with torch.no_grad():
        found = observe(lambda: compiled(**inputs), name)
        ours, theirs = outputs(compiled(**inputs)), outputs(model(**inputs))
        exact = outputs(exact_model(**exact_inputs))
        assert type(compiled(**inputs)) is type(model(**inputs))
    assert [b.place for b in found.breaks] == []
    assert len(found.graphs) == 1
    assert len(found.kernels) > 0
    for a, b, c in zip(ours, theirs, exact, strict=True):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        room = 4 * torch.finfo(b.dtype).eps * float(c.abs().max())
        error, eager = (a.double() - c).square().mean().sqrt(), (b.double() - c).square().mean().sqrt()
        assert float(error) <= 1.5 * float(eager) + room


def test_layers_with_adapters_are_one_graph():
    """LoRA of peft around the layers of a decoder."""
    peft = pytest.importorskip("peft")
    model, inputs = make("llama")
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(model, config).eval()
    compiled, results = braze.compile(adapted, backend="eager"), []
    with torch.no_grad():
        found = observe(lambda: results.append(compiled(**inputs)), "llama with LoRA")
        assert torch.equal(results[0].logits, adapted(**inputs).logits)
    assert (len(found.graphs), found.breaks) == (1, ())


def test_a_decoder_with_a_cache_returns_the_same_cache():
    """use_cache=True: the outputs hold a cache object of transformers with new tensors."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**_DECODER)).eval()
    compiled = braze.compile(model, backend="eager")
    with torch.no_grad():
        ours, theirs = compiled(**_IDS, use_cache=True), model(**_IDS, use_cache=True)
    assert type(ours.past_key_values) is type(theirs.past_key_values)
    assert ours.past_key_values.get_seq_length() == 11
    assert torch.equal(ours.past_key_values.layers[1].keys, theirs.past_key_values.layers[1].keys)


def test_a_second_batch_size_and_length_get_right_answers():
    """Whether by symbols or by another variant."""
    model, _ = make("bert")
    compiled = braze.compile(model)
    with torch.no_grad():
        for batch, length in ((2, 11), (3, 11), (3, 17), (1, 5), (2, 11)):
            ids = torch.arange(batch * length).reshape(batch, length) % 128
            mask = torch.ones(batch, length, dtype=torch.int64)
            ours, theirs = compiled(ids, mask)[0], model(ids, mask)[0]
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
