"""More models of text: recent decoders, mixtures of experts, hybrids, other heads of encoders and encoder-decoders."""

from __future__ import annotations

from tests.models.cases import DECODER, EXPERTS, SIZES, Case, cached, labelled, tokens

_MIXED = dict(
    EXPERTS, num_experts=4, num_local_experts=4, n_routed_experts=4, num_experts_per_tok=2, moe_topk=2, n_group=1,
    topk_group=1, first_k_dense_replace=1, num_shared_experts=1, n_shared_experts=1,
)  # fmt: skip

DECODERS = (
    Case("beam", "BeamForCausalLM", DECODER, cached),
    Case("cwm", "CwmForCausalLM", DECODER, cached),
    Case("doge", "DogeForCausalLM", DECODER, cached, minds_compilers=True),
    Case("emu3-text", "Emu3ForCausalLM", DECODER, cached),
    Case("flint", "FlintForCausalLM", DECODER, cached),
    Case("gemma4_unified-text", "Gemma4UnifiedForCausalLM", DECODER, cached),
    Case("gpt_neox_japanese", "GPTNeoXJapaneseForCausalLM", DECODER, cached),
    Case("granite_swa", "GraniteSWAForCausalLM", DECODER, cached),
    Case("hrm_text", "HrmTextForCausalLM", DECODER, cached),
    Case("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", DECODER, cached),
    Case("hyperclovax", "HyperCLOVAXForCausalLM", DECODER, cached),
    Case("jais2", "Jais2ForCausalLM", DECODER, labelled),
    Case("ministral3", "Ministral3ForCausalLM", DECODER, cached),
    Case("mllama-text", "MllamaForCausalLM", DECODER, cached),
    Case("modernbert-decoder", "ModernBertDecoderForCausalLM", DECODER, cached),
    Case("nanochat", "NanoChatForCausalLM", DECODER, cached),
    Case("olmo3", "Olmo3ForCausalLM", DECODER, cached),
    Case("vaultgemma", "VaultGemmaForCausalLM", DECODER, labelled),
    Case("xlm-roberta-decoder", "XLMRobertaForCausalLM", dict(DECODER, is_decoder=True), cached),
    Case("roformer-decoder", "RoFormerForCausalLM", dict(DECODER, is_decoder=True), tokens),
    Case("bert-decoder", "BertLMHeadModel", dict(DECODER, is_decoder=True), cached),
    Case("minicpm3", "MiniCPM3ForCausalLM", dict(SIZES, q_lora_rank=8, kv_lora_rank=8), cached),
    Case("youtu", "YoutuForCausalLM", dict(SIZES, q_lora_rank=8, kv_lora_rank=8), cached),
    Case("cpmant", "CpmAntForCausalLM", dict(SIZES, dim_ff=64), tokens),
)  # fmt: skip

MIXTURES = (
    Case("afmoe", "AfmoeForCausalLM", _MIXED, cached),
    Case("aria-text", "AriaTextForCausalLM", DECODER, cached),
    Case("cohere2_moe", "Cohere2MoeForCausalLM", DECODER, cached),
    Case("dots1", "Dots1ForCausalLM", _MIXED, cached),
    Case("exaone_moe", "ExaoneMoeForCausalLM", _MIXED, cached),
    Case("flex_olmo", "FlexOlmoForCausalLM", DECODER, cached),
    Case("glm4_moe", "Glm4MoeForCausalLM", _MIXED, cached),
    Case("granitemoe_swa", "GraniteMoeSWAForCausalLM", DECODER, cached),
    Case("granitemoeshared", "GraniteMoeSharedForCausalLM", DECODER, labelled),
    Case("hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", DECODER, cached),
    Case("hy_v3", "HYV3ForCausalLM", _MIXED, cached),
    Case("inkling-text", "InklingForCausalLM", _MIXED, cached),
    Case("kolibri1", "Kolibri1ForCausalLM", _MIXED, cached),
    Case("laguna", "LagunaForCausalLM", _MIXED, cached),
    Case("llama4-text", "Llama4ForCausalLM", DECODER, cached),
    Case("mellum", "MellumForCausalLM", _MIXED, cached),
    Case("mimo_v2_flash", "MiMoV2FlashForCausalLM", _MIXED, cached),
    Case("minimax_m2", "MiniMaxM2ForCausalLM", _MIXED, cached),
    Case("solar_open", "SolarOpenForCausalLM", _MIXED, cached),
)  # fmt: skip

HYBRIDS = (
    Case("minimax", "MiniMaxForCausalLM", DECODER, cached),
    Case("olmo_hybrid", "OlmoHybridForCausalLM", DECODER, cached),
    Case("nemotron_h", "NemotronHForCausalLM", _MIXED, cached),
    Case("deepseek_v4", "DeepseekV4ForCausalLM", _MIXED, cached),
)  # fmt: skip

CASES = (*DECODERS, *MIXTURES, *HYBRIDS)
