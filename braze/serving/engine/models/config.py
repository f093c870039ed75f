"""What a decoder is, read from the ``config.json`` of Hugging Face's layout."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch

from braze.serving.engine.models.parallel import Ranks
from braze.support.errors import UserError
from braze.support.record import record

LLAMA = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
DEEPSEEK = ("DeepseekV3ForCausalLM",)
#: how positions may be turned into angles
ROPES = ("default", "linear", "llama3", "yarn")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@record
class Rope:
    """How positions become angles.

    ``factors``: of "linear", the factor; of "llama3", (factor, low, high, original length); of "yarn", (factor, fast, slow, original length, 1.0 where
    the borders between its ranges are whole numbers). ``stretch``: what cosines and sines are multiplied by; ``latent_stretch``: what the
    scale of latent attention is.
    """

    kind: str
    theta: float
    factors: tuple[float, ...] = ()
    stretch: float = 1.0
    latent_stretch: float = 1.0


@record
class Latent:
    """Sizes of multi-head latent attention; ``query_rank`` 0: queries are not compressed."""

    rank: int
    query_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    interleaved: bool


@record
class Experts:
    """Sizes of a mixture of experts, and how tokens choose among them; the first ``dense_layers`` layers have none."""

    count: int
    chosen: int
    shared: int
    inner: int
    groups: int
    chosen_groups: int
    normalised: bool
    scale: float
    dense_layers: int


@record
class ModelConfig:
    """A decoder's sizes."""

    architecture: str
    vocab: int
    width: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_position: int
    rope: Rope
    eps: float
    tied: bool
    dtype: torch.dtype
    eos: tuple[int, ...] = ()
    #: biases of query, key and value; and of the output
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    #: queries and keys are normalised
    qk_norm: bool = False
    latent: Latent | None = None
    experts: Experts | None = None
    #: learned heads that guess the tokens after the next one, in the folder; and whether the model has them
    draft_heads: int = 0
    drafting: bool = False
    #: who shares the model: heads, inner sizes and experts are this rank's part
    ranks: Ranks = Ranks()

    @property
    def cached_layers(self) -> int:
        """Layers that keep something of a token."""
        return self.layers + (self.draft_heads if self.drafting else 0)


def read_config(raw: Mapping[str, Any]) -> ModelConfig:
    """The sizes that a ``config.json`` tells. Raises BZ7403 for an architecture, or a part of one, that is not served, and BZ7404 where it lacks a field or has another kind of value there."""
    try:
        return _read(raw)
    except KeyError as error:
        raise _malformed(f"it has no {error.args[0]!r}") from error
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise _malformed(f"a value is of another kind than it is to be: {error}") from error


def _read(raw: Mapping[str, Any]) -> ModelConfig:
    name = next(iter(raw.get("architectures") or ()), str(raw.get("model_type")))
    if name not in LLAMA + DEEPSEEK:
        raise not_served(f"the architecture {name}", f"served are {', '.join(LLAMA + DEEPSEEK)}")
    _check(raw)
    heads = _size(raw, "num_attention_heads")
    dtype = str(raw.get("dtype") or raw.get("torch_dtype") or "float32").removeprefix("torch.")
    if dtype not in DTYPES:
        raise not_served(f"a checkpoint in {dtype}", f"weights are read as {', '.join(DTYPES)}")
    bias = bool(raw.get("attention_bias", False))
    latent = _latent(raw) if name in DEEPSEEK else None
    return ModelConfig(
        architecture=name,
        vocab=_size(raw, "vocab_size"),
        width=_size(raw, "hidden_size"),
        inner=_size(raw, "intermediate_size"),
        layers=_size(raw, "num_hidden_layers"),
        heads=heads,
        kv_heads=raw.get("num_key_value_heads") or heads,
        head_dim=latent.rope_dim if latent else raw.get("head_dim") or raw["hidden_size"] // heads,
        max_position=raw.get("max_position_embeddings", 2048),
        rope=_rope(raw),
        eps=raw.get("rms_norm_eps", 1e-6),
        tied=bool(raw.get("tie_word_embeddings", False)),
        dtype=DTYPES[dtype],
        eos=tokens_of(raw.get("eos_token_id")),
        qkv_bias=bias or name == "Qwen2ForCausalLM",
        out_bias=bias,
        mlp_bias=bool(raw.get("mlp_bias", False)),
        qk_norm=name == "Qwen3ForCausalLM",
        latent=latent,
        experts=_experts(raw) if name in DEEPSEEK else None,
        draft_heads=int(raw.get("num_nextn_predict_layers") or 0) if name in DEEPSEEK else 0,
    )


def split(config: ModelConfig, ranks: Ranks) -> ModelConfig:
    """The sizes of one rank's part. Raises BZ7403 where heads, inner sizes or the vocabulary cannot be shared evenly."""
    size, experts = ranks.size, config.experts
    shared = {
        "heads": config.heads,
        "inner size": config.inner,
        "vocabulary": config.vocab,
        **({} if config.latent else {"heads of the cache": config.kv_heads}),
        **({"inner size of experts": experts.inner} if experts else {}),
    }
    for name, number in shared.items():
        if number % size:
            raise not_served(f"this model on {size} ranks", f"its {name}, {number}, cannot be shared evenly")
    return dataclasses.replace(
        config,
        heads=config.heads // size,
        kv_heads=max(1, config.kv_heads // size),
        inner=config.inner // size,
        experts=dataclasses.replace(experts, inner=experts.inner // size) if experts else None,
        ranks=ranks,
    )


def _size(raw: Mapping[str, Any], name: str) -> int:
    """A field that is a whole number above 0."""
    value = raw[name]
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} is {value!r}, no whole number above 0")
    return value


def _malformed(why: str) -> UserError:
    return UserError(
        "BZ7404",
        "config.json does not describe a model",
        why=why,
        hints=("fetch the folder anew, or write it by save_pretrained",),
    )


def not_served(what: str, why: str) -> UserError:
    """The error for a model that is not served."""
    return UserError(
        "BZ7403",
        f"{what} is not served",
        why=why,
        hints=("serve another model, or run this one by transformers",),
    )


def _check(raw: Mapping[str, Any]) -> None:
    """Refuse what would give other tokens."""
    if (act := raw.get("hidden_act", "silu")) not in ("silu", "swish"):
        raise not_served(f"the activation {act}", "models of these architectures are served with SiLU")
    window = raw.get("sliding_window")
    sliding = raw.get("use_sliding_window", "Mistral" in str(raw.get("architectures")))
    if window and sliding and window < raw.get("max_position_embeddings", window):
        raise not_served(f"a sliding window of {window} tokens", "attention here is over all earlier tokens")
    if raw.get("quantization_config"):
        raise not_served("a quantised checkpoint", "weights are read as float32, float16 or bfloat16")


def _rope(raw: Mapping[str, Any]) -> Rope:
    found = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    kind = found.get("rope_type") or found.get("type") or "default"
    theta = float(found.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    if kind not in ROPES:
        raise not_served(f"the rotary embedding {kind}", f"served are {', '.join(ROPES)}")
    if kind == "default":
        return Rope(kind, theta)
    if kind == "linear":
        return Rope(kind, theta, (float(found["factor"]),))
    if kind == "yarn":
        return _yarn(found, theta, raw)
    names = "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"
    return Rope(kind, theta, tuple(float(found[name]) for name in names))


def _yarn(found: Mapping[str, Any], theta: float, raw: Mapping[str, Any]) -> Rope:
    """Angles of long waves are slowed and those of short ones left, and attention is sharpened by the logarithm of the factor."""
    length = float(found.get("original_max_position_embeddings") or raw["max_position_embeddings"])
    factor = float(found.get("factor") or raw["max_position_embeddings"] / length)

    def sharpened(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    own, every = found.get("mscale"), found.get("mscale_all_dim")
    stretch = found.get("attention_factor")
    if stretch is None:
        stretch = sharpened(own) / sharpened(every) if own and every else sharpened(1.0)
    borders = float(found.get("beta_fast") or 32), float(found.get("beta_slow") or 1)
    factors = (factor, *borders, length, float(found.get("truncate", True)))
    return Rope("yarn", theta, factors, float(stretch), sharpened(every) ** 2 if every else 1.0)


def _latent(raw: Mapping[str, Any]) -> Latent:
    return Latent(
        raw["kv_lora_rank"],
        raw.get("q_lora_rank") or 0,
        raw["qk_nope_head_dim"],
        raw["qk_rope_head_dim"],
        raw["v_head_dim"],
        bool(raw.get("rope_interleave", True)),
    )


def _experts(raw: Mapping[str, Any]) -> Experts:
    return Experts(
        raw["n_routed_experts"] if "n_routed_experts" in raw else raw["num_local_experts"],
        raw["num_experts_per_tok"],
        raw.get("n_shared_experts") or 0,
        raw["moe_intermediate_size"],
        raw.get("n_group") or 1,
        raw.get("topk_group") or 1,
        bool(raw.get("norm_topk_prob", True)),
        float(raw.get("routed_scaling_factor", 1.0)),
        raw.get("first_k_dense_replace", 0),
    )


def tokens_of(given: Any) -> tuple[int, ...]:
    """One token or several, as these files write them; None: none."""
    if given is None:
        return ()
    return tuple(given) if isinstance(given, (list, tuple)) else (int(given),)
