"""The models that are measured on a GPU, at the sizes that others publish: bfloat16 inference, training under autocast.

Weights are random with a fixed seed. Each function gives a model and the keyword arguments of its call; the names of those that are
trained stand in ``TRAINED``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.gpu_diffusion import dit, unet
from benchmarks.zoo import DLRM

Made = tuple[nn.Module, dict[str, Any]]


def _hub(model: str, config: str, inputs: dict[str, Any], **fields: Any) -> Made:
    transformers = importlib.import_module("transformers")
    return getattr(transformers, model)(getattr(transformers, config)(**fields)), inputs


def _timm(name: str, batch: int, size: int = 224) -> Callable[[], Made]:
    def build() -> Made:
        timm = importlib.import_module("timm")
        return timm.create_model(name), {"x": torch.randn(batch, 3, size, size)}

    return build


def _text(batch: int, length: int, vocabulary: int, labels: bool = True) -> dict[str, Any]:
    ids = torch.randint(0, vocabulary, (batch, length))
    return {"input_ids": ids, "labels": ids} if labels else {"input_ids": ids}


def bert() -> Made:
    return _hub("BertForMaskedLM", "BertConfig", _text(16, 512, 30522))


def distilgpt2() -> Made:
    return _hub("GPT2LMHeadModel", "GPT2Config", _text(16, 512, 50257), n_layer=6, use_cache=False)


def gpt2() -> Made:
    return _hub("GPT2LMHeadModel", "GPT2Config", _text(8, 1024, 50257), use_cache=False)


def experts() -> Made:
    fields = dict(
        vocab_size=32000, hidden_size=1024, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=4,
        head_dim=64, num_experts=32, num_experts_per_tok=4, moe_intermediate_size=512, use_cache=False,
    )  # fmt: skip
    return _hub("Qwen3MoeForCausalLM", "Qwen3MoeConfig", _text(4, 512, 32000), **fields)


def t5_small() -> Made:
    fields = dict(
        d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8, use_cache=False, decoder_start_token_id=0
    )
    return _hub("T5ForConditionalGeneration", "T5Config", _text(4, 1024, 32128), **fields)


def bart() -> Made:
    return _hub("BartForConditionalGeneration", "BartConfig", _text(4, 512, 50265), use_cache=False)


def llama_1b() -> Made:
    fields = dict(
        vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, head_dim=64, tie_word_embeddings=True, use_cache=False,
    )  # fmt: skip
    return _hub("LlamaForCausalLM", "LlamaConfig", _text(1, 512, 128256, labels=False), **fields)


def qwen3() -> Made:
    fields = dict(
        vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, tie_word_embeddings=True, use_cache=False,
    )  # fmt: skip
    return _hub("Qwen3ForCausalLM", "Qwen3Config", _text(1, 512, 151936, labels=False), **fields)


def whisper() -> Made:
    inputs = {
        "input_features": torch.randn(8, 80, 3000),
        "decoder_input_ids": torch.randint(0, 51865, (8, 128)),
    }
    fields = dict(d_model=384, encoder_layers=4, decoder_layers=4, encoder_attention_heads=6)
    more = dict(decoder_attention_heads=6, encoder_ffn_dim=1536, decoder_ffn_dim=1536, use_cache=False)
    return _hub("WhisperForConditionalGeneration", "WhisperConfig", inputs, **fields, **more)


class _Block(nn.Module):
    """A layer of nanoGPT, as its repository writes it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, tokens, width], the same."""
        q, k, v = self.attention(self.ln_1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.dropout(self.out(found.transpose(1, 2).flatten(2)), 0.1, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.ln_2(x)))), 0.1, self.training)


class NanoGPT(nn.Module):
    """nanoGPT of 124M parameters, which returns its logits and its loss."""

    def __init__(self, vocabulary: int = 50304, width: int = 768, heads: int = 12, layers: int = 12) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss and logits."""
        places = torch.arange(ids.shape[1], device=ids.device)
        x = F.dropout(self.tokens(ids) + self.places(places), 0.1, self.training)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten()), logits


def nanogpt() -> Made:
    ids = torch.randint(0, 50304, (8, 1024))
    return NanoGPT(), {"ids": ids, "targets": ids.roll(-1, 1)}


def dlrm() -> Made:
    inputs = {"numbers": torch.randn(2048, 13), "categories": torch.randint(0, 100_000, (2048, 8, 4))}
    return DLRM(), inputs


MODELS: dict[str, Callable[[], Made]] = {
    "resnet50": _timm("resnet50", 32),
    "convnextv2_nano": _timm("convnextv2_nano", 128),
    "mobilenetv3_large": _timm("mobilenetv3_large_100", 256),
    "efficientnet_b0": _timm("efficientnet_b0", 128),
    "distilgpt2": distilgpt2,
    "bert": bert,
    "t5_small": t5_small,
    "bart": bart,
    "llama_1b": llama_1b,
    "qwen3": qwen3,
    "swin_base": _timm("swin_base_patch4_window7_224", 64),
    "deit_base": _timm("deit_base_patch16_224", 64),
    "whisper_tiny": whisper,
    "nanogpt": nanogpt,
    "dlrm": dlrm,
    "vit_base": _timm("vit_base_patch16_224", 64),
    "gpt2": gpt2,
    "experts": experts,
    "unet": unet,
    "dit": dit,
}

TRAINED = ("resnet50", "bert", "deit_base", "distilgpt2", "t5_small", "nanogpt", "unet", "dit", "experts")
