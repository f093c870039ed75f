"""Models of sound, of time series, and of several kinds of input at once."""

from __future__ import annotations

from typing import Any

import torch

from tests.models.cases import (
    DECODER,
    SIZES,
    Case,
    Inputs,
    ids,
    labelled,
    masked,
    padding,
    picture,
    sound,
    waves,
)

_WAV = dict(
    SIZES, conv_dim=[16, 16, 16], conv_stride=[5, 4, 4], conv_kernel=[10, 8, 8], num_conv_pos_embeddings=16,
    num_conv_pos_embedding_groups=2, do_stable_layer_norm=False, feat_extract_norm="layer", mask_time_prob=0.0,
    num_feat_extract_layers=3,
)  # fmt: skip
_VIT = dict(SIZES, image_size=32, patch_size=8, projection_dim=16)
_TEXT = dict(SIZES, projection_dim=16)
_TOWERS = dict(text_config=_TEXT, vision_config=_VIT, projection_dim=16)
_SERIES = dict(prediction_length=4, context_length=12, lags_sequence=[1, 2], num_time_features=2, input_size=1, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16)  # fmt: skip


def mel(bins: int, frames: int, name: str = "input_features", **more: Any) -> Inputs:
    """A spectrogram for a speech encoder, and ids for its decoder."""
    return lambda batch: {name: waves(batch, bins, frames), **{k: v(batch) for k, v in more.items()}}


def seen_and_read(size: int = 32) -> Inputs:
    return lambda batch: {**masked(batch), **picture(size)(batch)}


def answered(token: int, patches: int) -> Inputs:
    """Text with places for the patches of one picture."""

    def inputs(batch: int) -> dict[str, Any]:
        text = ids(batch, high=100)
        marks = torch.full((batch, patches), token)
        text = torch.cat([text[:, :2], marks, text[:, 2:]], 1)
        return {"input_ids": text, "attention_mask": torch.ones_like(text), **picture()(batch)}

    return inputs


def series(batch: int) -> dict[str, Any]:
    return {
        "past_values": waves(batch, 14),
        "past_time_features": waves(batch, 14, 2),
        "past_observed_mask": torch.ones(batch, 14),
        "future_time_features": waves(batch, 4, 2),
        "future_values": waves(batch, 4),
    }


SOUND = (
    Case("wav2vec2", "Wav2Vec2Model", _WAV, sound()),
    Case("wav2vec2-ctc", "Wav2Vec2ForCTC", _WAV, sound()),
    Case("wav2vec2-conformer", "Wav2Vec2ConformerModel", _WAV, sound()),
    Case("wav2vec2-bert", "Wav2Vec2BertModel", dict(_WAV, feature_projection_input_dim=20, conv_depthwise_kernel_size=3, left_max_position_embeddings=8, right_max_position_embeddings=4), mel(20, 20)),
    Case("hubert", "HubertModel", _WAV, sound()),
    Case("wavlm", "WavLMModel", _WAV, sound()),
    Case("data2vec-audio", "Data2VecAudioModel", dict(_WAV, num_conv_pos_embeddings=3, conv_pos_kernel_size=3), sound()),
    Case("unispeech", "UniSpeechModel", _WAV, sound()),
    Case("unispeech-sat", "UniSpeechSatModel", _WAV, sound()),
    Case("sew", "SEWModel", dict(_WAV, squeeze_factor=2), sound()),
    Case("sew-d", "SEWDModel", dict(_WAV, squeeze_factor=2, position_buckets=8), sound()),
    Case("ast", "ASTForAudioClassification", dict(SIZES, patch_size=4, frequency_stride=4, time_stride=4, max_length=16, num_mel_bins=16), mel(16, 16, "input_values")),
    Case("whisper", "WhisperForConditionalGeneration", dict(SIZES, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, num_mel_bins=16, max_source_positions=20, max_target_positions=32, decoder_start_token_id=1), mel(16, 40, decoder_input_ids=lambda b: ids(b, 5))),
    Case("speech_to_text", "Speech2TextForConditionalGeneration", dict(SIZES, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, input_feat_per_channel=16, conv_channels=32, max_source_positions=64, max_target_positions=32, decoder_start_token_id=1), mel(40, 16, decoder_input_ids=lambda b: ids(b, 5))),
    Case("moonshine", "MoonshineForConditionalGeneration", dict(SIZES, encoder_num_hidden_layers=1, decoder_num_hidden_layers=1, encoder_num_attention_heads=2, decoder_num_attention_heads=2, decoder_start_token_id=1), lambda b: {**sound(3200)(b), "decoder_input_ids": ids(b, 5)}),
    Case("dac", "DacModel", dict(encoder_hidden_size=8, downsampling_ratios=[2, 2], decoder_hidden_size=16, n_codebooks=2, codebook_size=16, codebook_dim=4), lambda b: {"input_values": waves(b, 1, 64)}),
    Case("univnet", "UnivNetModel", dict(model_in_channels=8, model_hidden_channels=8, num_mel_bins=8, resblock_kernel_sizes=[3], resblock_stride_sizes=[4], resblock_dilation_sizes=[[1, 3]], kernel_predictor_hidden_channels=8), lambda b: {"input_features": waves(b, 7, 8), "noise_sequence": waves(b, 7, 8)}),
    Case("clap-audio", "ClapAudioModel", dict(spec_size=32, num_mel_bins=16, patch_size=4, patch_stride=[4, 4], window_size=4, depths=[1, 1], num_attention_heads=[1, 2], hidden_size=16, patch_embeds_hidden_size=8, flatten_patch_embeds=True, enable_fusion=False), lambda b: {"input_features": waves(b, 1, 32, 16)}),
)  # fmt: skip

SERIES = (
    Case("patchtst", "PatchTSTForPrediction", dict(num_input_channels=2, context_length=16, patch_length=4, patch_stride=4, num_hidden_layers=2, d_model=16, num_attention_heads=2, ffn_dim=32, prediction_length=4), lambda b: {"past_values": waves(b, 16, 2)}),
    Case("patchtsmixer", "PatchTSMixerForPrediction", dict(num_input_channels=2, context_length=16, patch_length=4, patch_stride=4, num_layers=2, d_model=16, prediction_length=4), lambda b: {"past_values": waves(b, 16, 2)}),
    Case("time_series_transformer", "TimeSeriesTransformerModel", _SERIES, series),
    Case("autoformer", "AutoformerModel", dict(_SERIES, label_length=4), series),
    Case("decision_transformer", "DecisionTransformerModel", dict(state_dim=4, act_dim=2, hidden_size=32, max_ep_len=16, n_layer=2, n_head=2, vocab_size=2, n_positions=64), lambda b: dict(states=waves(b, 5, 4), actions=waves(b, 5, 2), rewards=waves(b, 5, 1), returns_to_go=waves(b, 5, 1), timesteps=torch.arange(5).expand(b, 5), attention_mask=torch.ones(b, 5))),
)  # fmt: skip

MULTIMODAL = (
    Case("clip", "CLIPModel", _TOWERS, seen_and_read()),
    Case("clip-text", "CLIPTextModel", _TEXT, masked),
    Case("clip-vision", "CLIPVisionModelWithProjection", _VIT, picture()),
    Case("metaclip_2", "MetaClip2Model", _TOWERS, seen_and_read()),
    Case("siglip", "SiglipModel", _TOWERS, seen_and_read()),
    Case("siglip-vision", "SiglipVisionModel", _VIT, picture()),
    Case("chinese_clip", "ChineseCLIPModel", _TOWERS, seen_and_read()),
    Case("altclip", "AltCLIPModel", dict(_TOWERS, text_config=dict(_TEXT, project_dim=16)), seen_and_read()),
    Case("blip", "BlipModel", dict(_TOWERS, text_config=dict(_TEXT, encoder_hidden_size=32)), seen_and_read()),
    Case("groupvit", "GroupViTModel", dict(_TOWERS, vision_config=dict(_VIT, depths=[1, 1], num_group_tokens=[4, 0], num_output_groups=[4, 4])), seen_and_read()),
    Case("owlvit", "OwlViTModel", _TOWERS, seen_and_read()),
    Case("clipseg", "CLIPSegModel", _TOWERS, seen_and_read()),
    Case("align-text", "AlignTextModel", SIZES, masked),
    Case("flava-text", "FlavaTextModel", SIZES, masked),
    Case("flava-image", "FlavaImageModel", _VIT, picture()),
    Case("visual_bert", "VisualBertModel", dict(SIZES, visual_embedding_dim=16), lambda b: {**masked(b), "visual_embeds": waves(b, 4, 16)}),
    Case("lxmert", "LxmertModel", dict(SIZES, l_layers=1, r_layers=1, x_layers=1, visual_feat_dim=16), lambda b: {**masked(b), "visual_feats": waves(b, 4, 16), "visual_pos": waves(b, 4, 4)}),
    Case("git", "GitForCausalLM", dict(SIZES, vision_config=_VIT), seen_and_read()),
    Case("layoutlmv3", "LayoutLMv3Model", dict(SIZES, input_size=32, patch_size=8, coordinate_size=6, shape_size=4, visual_embed=True, text_embed=True, max_2d_position_embeddings=64), lambda b: {**masked(b), "bbox": torch.zeros(b, 11, 4, dtype=torch.long), **picture()(b)}),
    Case("trocr", "TrOCRForCausalLM", dict(SIZES, d_model=32, decoder_layers=2, decoder_attention_heads=2, decoder_ffn_dim=64, cross_attention_hidden_size=32), labelled),
    Case("llava", "LlavaForConditionalGeneration", dict(text_config=dict(DECODER, model_type="llama"), vision_config=dict(_VIT, model_type="clip_vision_model"), image_token_index=120, vision_feature_layer=-1), answered(120, 16)),
    Case("paligemma", "PaliGemmaForConditionalGeneration", dict(text_config=dict(DECODER, model_type="gemma"), vision_config=dict(_VIT, model_type="siglip_vision_model", vision_use_head=False), image_token_index=120, projection_dim=32), answered(120, 16), minds_compilers=True),
    Case("vipllava", "VipLlavaForConditionalGeneration", dict(text_config=dict(DECODER, model_type="llama"), vision_config=dict(_VIT, model_type="clip_vision_model"), image_token_index=120, vision_feature_layers=[-1, -2]), answered(120, 16)),
    Case("gemma3-vision", "Gemma3ForConditionalGeneration", dict(text_config=dict(DECODER, model_type="gemma3_text"), vision_config=dict(_VIT, model_type="siglip_vision_model", vision_use_head=False), image_token_index=120, mm_tokens_per_image=16), lambda b: {**answered(120, 16)(b), "token_type_ids": (answered(120, 16)(b)["input_ids"] == 120).long()}),
    Case("perceiver", "PerceiverModel", dict(SIZES, d_model=16, d_latents=16, num_latents=4, num_blocks=1, num_self_attends_per_block=1, num_self_attention_heads=2, num_cross_attention_heads=2), lambda b: {"inputs": waves(b, 11, 16), "attention_mask": padding(b)}),
)  # fmt: skip

CASES = (*SOUND, *SERIES, *MULTIMODAL)
