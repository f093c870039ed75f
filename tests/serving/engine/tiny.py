"""Tiny models, their folders, and runners of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from braze.serving.engine.compiled import compile_decoder
from braze.serving.engine.engine import Engine
from braze.serving.engine.loading import build, fill_random
from braze.serving.engine.models.config import read_config
from braze.serving.engine.models.decoder import Decoder
from braze.serving.engine.runner import ModelRunner, RunnerOptions
from braze.serving.engine.scheduler import Limits
from braze.serving.pieces.pools import GraphPools
from braze.serving.policy.data_parallel import alone
from braze.serving.policy.modes import CUDAGraphMode

LLAMA: dict[str, Any] = dict(
    architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=97, hidden_size=32, intermediate_size=48,
    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
    rms_norm_eps=1e-5, hidden_act="silu", tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, dtype="float32",
)  # fmt: skip
QWEN3 = LLAMA | dict(
    architectures=["Qwen3ForCausalLM"], model_type="qwen3", head_dim=16, tie_word_embeddings=True, rms_norm_eps=1e-6
)  # fmt: skip
DEEPSEEK: dict[str, Any] = LLAMA | dict(
    architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", num_key_value_heads=4, q_lora_rank=24,
    kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=12, n_routed_experts=8, n_shared_experts=1,
    num_experts_per_tok=3, moe_intermediate_size=20, n_group=4, topk_group=2, first_k_dense_replace=1,
    norm_topk_prob=True, routed_scaling_factor=1.5, rope_interleave=True,
)  # fmt: skip
MODELS = {"llama": LLAMA, "qwen3": QWEN3, "deepseek": DEEPSEEK}


def tiny(name: str = "llama", **changes: Any) -> Decoder:
    """A tiny model with random weights."""
    model = build(read_config(MODELS[name] | changes), "cpu")
    fill_random(model)
    return model


def limits(**changes: Any) -> Limits:
    """Small limits: blocks of 4 tokens, 6 requests, 32 tokens a step."""
    known = dict(max_num_seqs=6, max_num_batched_tokens=32, max_model_len=64, block_size=4)
    return Limits(**(known | changes))  # type: ignore[arg-type]


def engine(
    model: Decoder, blocks: int = 128, graphs: Any = None, bounds: Limits | None = None, **options: Any
) -> Engine:
    """An engine whose sizes are recorded, if ``graphs`` can record."""
    options.setdefault("cudagraph_mode", "NONE")
    split, reduce = options.pop("split", None), options.pop("reduce", alone)
    mode = options["cudagraph_mode"] = CUDAGraphMode[options["cudagraph_mode"]]
    pools = GraphPools()
    pieces = compile_decoder(model, mode, split, pools) if split else options.pop("compiled", None)
    options.setdefault("sizes", (1, 2, 4, 6, 16, 32))
    runner = ModelRunner(
        model,
        bounds or limits(),
        RunnerOptions(**options),
        graphs=graphs,
        piecewise=pieces,
        compiled=pieces,
        reduce=reduce,
        pools=pools,
    )
    runner.allocate_cache(blocks)
    runner.capture_cudagraph()
    return Engine(runner)


def folder_of(config: dict[str, Any], to: Path) -> Path:
    """A folder that transformers has written, with random weights whose logits differ well."""
    import transformers

    torch.manual_seed(0)
    known = {k: v for k, v in config.items() if k not in ("architectures", "dtype")}
    made = transformers.AutoConfig.for_model(known.pop("model_type"), **known)
    model = transformers.AutoModelForCausalLM.from_config(made)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    model.save_pretrained(to)
    return to
