"""More models of pictures, sound and several kinds of input, and other heads with their losses."""

from __future__ import annotations

from typing import Any

import torch

from tests.models.cases import (
    DECODER,
    SIZES,
    Case,
    Inputs,
    classified,
    ids,
    masked,
    padding,
    picture,
    sound,
    tokens,
    translated,
    translated_labels,
    video,
    waves,
)
from tests.models.mixed import answered, mel, seen_and_read

_VIT = dict(SIZES, image_size=32, patch_size=8)
_BART = dict(
    SIZES, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
    encoder_ffn_dim=32, decoder_ffn_dim=32, decoder_start_token_id=2, forced_eos_token_id=2,
)  # fmt: skip
_T5 = dict(SIZES, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, decoder_start_token_id=0)
_RESNET = dict(
    model_type="resnet", depths=[1, 1], hidden_sizes=[16, 32], embedding_size=16, layer_type="basic", out_features=["stage2"]
)  # fmt: skip
_DETR = dict(
    _BART, num_queries=4, use_timm_backbone=False, use_pretrained_backbone=False, backbone_config=_RESNET
)


def questioned(batch: int) -> dict[str, Any]:
    """Where the answer starts and ends."""
    return {**masked(batch), "start_positions": torch.arange(batch), "end_positions": torch.arange(batch) + 2}


def tagged(batch: int) -> dict[str, Any]:
    """A label of two for each token, some of which do not count."""
    return {**masked(batch), "labels": (ids(batch) % 2).masked_fill(padding(batch) == 0, -100)}


def chosen(batch: int) -> dict[str, Any]:
    """The right one of three endings."""
    return {"input_ids": ids(batch * 3).reshape(batch, 3, -1), "labels": torch.arange(batch) % 3}


def spoken(labels: int = 3) -> Inputs:
    """What is said in a sound."""
    return lambda batch: {**sound()(batch), "labels": ids(batch, labels, high=30)}


def ended(batch: int) -> dict[str, Any]:
    """Sentences that end with their token."""
    return {"input_ids": torch.cat([ids(batch), torch.full((batch, 1), 2)], 1)}


HEADS = (
    Case("bert-questions", "BertForQuestionAnswering", SIZES, questioned),
    Case("bert-tokens", "BertForTokenClassification", SIZES, tagged),
    Case("bert-choice", "BertForMultipleChoice", SIZES, chosen),
    Case("bert-pretraining", "BertForPreTraining", SIZES, lambda b: {**masked(b), "labels": ids(b), "next_sentence_label": torch.arange(b) % 2}),
    Case("roberta-choice", "RobertaForMultipleChoice", SIZES, chosen),
    Case("distilbert-questions", "DistilBertForQuestionAnswering", dict(SIZES, dim=32, n_layers=2, n_heads=2, hidden_dim=64), questioned),
    Case("electra-tokens", "ElectraForTokenClassification", dict(SIZES, embedding_size=16), tagged),
    Case("albert-masked", "AlbertForMaskedLM", dict(SIZES, embedding_size=16), lambda b: {**masked(b), "labels": ids(b)}),
    Case("modernbert-tokens", "ModernBertForTokenClassification", dict(SIZES, global_attn_every_n_layers=2, local_attention=8), tagged),
    Case("xlnet-classify", "XLNetForSequenceClassification", dict(vocab_size=128, d_model=32, n_layer=2, n_head=2, d_inner=64, pad_token_id=0), classified),
    Case("mpnet-questions", "MPNetForQuestionAnswering", SIZES, questioned),
    Case("data2vec-text", "Data2VecTextForSequenceClassification", SIZES, classified),
    Case("nomic_bert", "NomicBertModel", SIZES, masked),
    Case("gte", "GteModel", SIZES, masked),
    Case("roc_bert", "RoCBertModel", dict(SIZES, pronunciation_vocab_size=16, shape_vocab_size=16, pronunciation_embed_dim=8, shape_embed_dim=8), masked),
    Case("markuplm", "MarkupLMModel", dict(SIZES, max_xpath_tag_unit_embeddings=16, max_xpath_subs_unit_embeddings=16, tag_pad_id=0, subs_pad_id=0, xpath_unit_hidden_size=8, max_depth=4), masked),
    Case("mra", "MraModel", SIZES, masked),
    Case("bert-generation", "BertGenerationEncoder", SIZES, masked),
    Case("dpr", "DPRQuestionEncoder", SIZES, masked),
    Case("t5-classify", "T5ForSequenceClassification", _T5, ended, decided_by_data=True),
    Case("gpt2-tokens", "GPT2ForTokenClassification", dict(SIZES, n_embd=32, n_layer=2, n_head=2, n_positions=64), tagged),
    Case("qwen2-classify", "Qwen2ForSequenceClassification", DECODER, classified),
    Case("llama-questions", "LlamaForQuestionAnswering", DECODER, questioned),
    Case("bart-questions", "BartForQuestionAnswering", _BART, questioned),
)  # fmt: skip

TRANSLATORS = (
    Case("mvp", "MvpForConditionalGeneration", _BART, translated),
    Case("nllb-moe", "NllbMoeForConditionalGeneration", dict(_BART, num_experts=4, expert_capacity=8, encoder_sparse_step=1, decoder_sparse_step=1), translated, decided_by_data=True),
    Case("bigbird_pegasus", "BigBirdPegasusForConditionalGeneration", dict(_BART, attention_type="original_full"), translated_labels),
    Case("t5gemma", "T5GemmaForConditionalGeneration", dict(encoder=dict(DECODER, model_type="t5_gemma_module"), decoder=dict(DECODER, model_type="t5_gemma_module", cross_attention_hidden_size=32), vocab_size=128), translated),
    Case("encoder-decoder", "EncoderDecoderModel", dict(encoder=dict(SIZES, model_type="bert"), decoder=dict(SIZES, model_type="bert", is_decoder=True, add_cross_attention=True), decoder_start_token_id=1, pad_token_id=0), translated),
    Case("trocr-decoder", "TrOCRForCausalLM", dict(_BART, is_decoder=True), masked),
)  # fmt: skip

PICTURES = (
    Case("table-transformer", "TableTransformerForObjectDetection", _DETR, picture(64)),
    Case("imagegpt", "ImageGPTModel", dict(SIZES, n_embd=32, n_layer=2, n_head=2, n_positions=64), tokens),
    Case("vitmatte", "VitMatteForImageMatting", dict(hidden_size=32, convstream_hidden_sizes=[8, 8], fusion_hidden_sizes=[8, 8, 8], backbone_config=dict(_VIT, model_type="vitdet", num_channels=4, out_features=["stage2"])), picture(32, 4)),
    Case("vitpose", "VitPoseForPoseEstimation", dict(scale_factor=2, backbone_config=dict(model_type="vitpose_backbone", image_size=[32, 32], patch_size=[8, 8], hidden_size=32, num_hidden_layers=2, num_attention_heads=2, out_indices=[2], num_experts=1)), picture()),
    Case("zoedepth", "ZoeDepthForDepthEstimation", dict(reassemble_factors=[2, 1], neck_hidden_sizes=[8, 8], fusion_hidden_size=8, bottleneck_features=8, num_relative_features=8, bin_embedding_dim=8, backbone_config=dict(_VIT, model_type="beit", out_indices=[1, 2], reshape_hidden_states=False, use_relative_position_bias=True)), picture()),
    Case("maskformer-swin", "MaskFormerSwinModel", dict(embed_dim=16, depths=[1, 1], num_heads=[2, 4], image_size=32, patch_size=4, window_size=4), picture()),
    Case("donut-swin", "DonutSwinModel", dict(embed_dim=16, depths=[2, 2], num_heads=[2, 4], image_size=32, patch_size=4, window_size=4), picture()),
    Case("vjepa2", "VJEPA2Model", dict(crop_size=32, patch_size=8, frames_per_clip=4, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, mlp_ratio=2, pred_hidden_size=16, pred_num_hidden_layers=1, pred_num_attention_heads=2), lambda b: {"pixel_values_videos": video()(b)["pixel_values"], "skip_predictor": True}),
    Case("mgp-str", "MgpstrForSceneTextRecognition", dict(image_size=[16, 32], patch_size=4, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, max_token_length=5, num_character_labels=12, num_bpe_labels=20, num_wordpiece_labels=20), lambda b: {"pixel_values": waves(b, 3, 16, 32)}),
    Case("sam-hq-vision", "SamHQVisionModel", dict(_VIT, output_channels=16, window_size=2, global_attn_indexes=[1]), picture()),
    Case("seggpt", "SegGptModel", dict(_VIT, image_size=[64, 32], merge_index=0, intermediate_hidden_state_indices=[1], pretrain_image_size=32), lambda b: {"pixel_values": waves(b, 3, 32, 32), "prompt_pixel_values": waves(b, 3, 32, 32), "prompt_masks": waves(b, 3, 32, 32)}),
    Case("aimv2-vision", "Aimv2VisionModel", _VIT, picture()),
    Case("radio", "RadioModel", _VIT, picture()),
    Case("pixio", "PixioModel", _VIT, picture()),
    Case("timm_backbone", "TimmBackbone", dict(backbone="resnet18", use_pretrained_backbone=False), picture()),
    Case("rt_detr_resnet", "RTDetrResNetBackbone", dict(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic"), picture(64)),
)  # fmt: skip

_SPEECHT5 = dict(
    _BART, num_mel_bins=8, conv_dim=[16, 16], conv_stride=[5, 4], conv_kernel=[10, 8], num_conv_pos_embeddings=16,
    num_conv_pos_embedding_groups=2, speech_decoder_prenet_units=16, speech_decoder_postnet_units=16,
    speech_decoder_prenet_layers=1, speech_decoder_postnet_layers=1, speaker_embedding_dim=8,
)  # fmt: skip
_WAV = dict(
    SIZES, conv_dim=[16, 16, 16], conv_stride=[5, 4, 4], conv_kernel=[10, 8, 8], num_conv_pos_embeddings=16,
    num_conv_pos_embedding_groups=2, feat_extract_norm="layer", mask_time_prob=0.0, num_feat_extract_layers=3,
)  # fmt: skip

SOUND = (
    Case("wav2vec2-labels", "Wav2Vec2ForCTC", dict(_WAV, ctc_zero_infinity=True), spoken(), decided_by_data=True),
    Case("wav2vec2-classify", "Wav2Vec2ForSequenceClassification", _WAV, lambda b: {**sound()(b), "labels": torch.arange(b) % 2}),
    Case("hubert-classify", "HubertForSequenceClassification", _WAV, sound()),
    Case("whisper-classify", "WhisperForAudioClassification", dict(_BART, num_mel_bins=16, max_source_positions=20, max_target_positions=32), lambda b: {**mel(16, 40)(b), "labels": torch.arange(b) % 2}),
    Case("encodec", "EncodecModel", dict(upsampling_ratios=[2, 2], num_filters=4, hidden_size=16, codebook_size=16, target_bandwidths=[1.5], sampling_rate=800), lambda b: {"input_values": waves(b, 1, 64)}),
    Case("speecht5", "SpeechT5ForSpeechToText", _SPEECHT5, lambda b: {**sound()(b), "decoder_input_ids": ids(b, 5)}),
    Case("speecht5-hifigan", "SpeechT5HifiGan", dict(model_in_dim=8, upsample_initial_channel=16, upsample_rates=[2, 2], upsample_kernel_sizes=[4, 4], resblock_kernel_sizes=[3], resblock_dilation_sizes=[[1, 3]]), lambda b: {"spectrogram": waves(b, 7, 8)}),
    Case("musicgen-decoder", "MusicgenForCausalLM", dict(SIZES, num_codebooks=2, ffn_dim=32, audio_channels=1), lambda b: {"input_ids": ids(b * 2)}),
    Case("clap-text", "ClapTextModel", SIZES, masked),
    Case("parakeet_encoder", "ParakeetEncoder", dict(SIZES, num_mel_bins=16, subsampling_factor=4, subsampling_conv_channels=8, conv_kernel_size=3), mel(40, 16)),
    Case("qwen2_audio_encoder", "Qwen2AudioEncoder", dict(_BART, num_mel_bins=16, max_source_positions=20), mel(16, 40)),
)  # fmt: skip

_TEXT = dict(SIZES, projection_dim=16)
_TOWERS = dict(text_config=_TEXT, vision_config=dict(_VIT, projection_dim=16), projection_dim=16)
_FILM = dict(
    _VIT,
    num_frames=4,
    mit_hidden_size=16,
    mit_num_hidden_layers=1,
    mit_num_attention_heads=2,
    mit_intermediate_size=32,
)
_ROPE = dict(DECODER, rope_parameters=dict(rope_type="default", mrope_section=[2, 3, 3]))

MULTIMODAL = (
    Case("siglip2-text", "Siglip2TextModel", dict(SIZES, projection_size=32), masked),
    Case("siglip2-vision", "Siglip2VisionModel", dict(SIZES, num_patches=16, patch_size=8), lambda b: {"pixel_values": waves(b, 16, 192), "pixel_attention_mask": torch.ones(b, 16, dtype=torch.long), "spatial_shapes": torch.full((b, 2), 4)}, decided_by_data=True),
    Case("owlv2", "Owlv2Model", _TOWERS, seen_and_read()),
    Case("aimv2", "Aimv2Model", _TOWERS, seen_and_read()),
    Case("xclip", "XCLIPModel", dict(_TOWERS, vision_config=dict(_FILM, projection_dim=16)), lambda b: {**masked(b), **video()(b)}),
    Case("blip-captions", "BlipForConditionalGeneration", dict(_TOWERS, text_config=dict(_TEXT, encoder_hidden_size=32)), seen_and_read()),
    Case("chameleon", "ChameleonForConditionalGeneration", dict(DECODER, vq_config=dict(embed_dim=8, num_embeddings=16, latent_channels=8, resolution=16, base_channels=32, channel_multiplier=[1], num_res_blocks=1), vocabulary_map={"<image>": 4}), masked),
    Case("internvl", "InternVLForConditionalGeneration", dict(text_config=dict(DECODER, model_type="qwen2"), vision_config=dict(_VIT, model_type="internvl_vision", image_size=[32, 32], patch_size=[8, 8]), image_token_id=120, downsample_ratio=0.5), answered(120, 4)),
    Case("aya_vision", "AyaVisionForConditionalGeneration", dict(text_config=dict(DECODER, model_type="cohere2"), vision_config=dict(_VIT, model_type="siglip_vision_model", vision_use_head=False), image_token_index=120, downsample_factor=2), answered(120, 4)),
    Case("mistral3", "Mistral3ForConditionalGeneration", dict(text_config=dict(DECODER, model_type="mistral"), vision_config=dict(_VIT, model_type="pixtral", head_dim=16), image_token_index=120, spatial_merge_size=2), lambda b: {**answered(120, 4)(b), "image_sizes": torch.full((b, 2), 32)}, decided_by_data=True),
    Case("vision-encoder-decoder", "VisionEncoderDecoderModel", dict(encoder=dict(_VIT, model_type="vit"), decoder=dict(SIZES, model_type="bert", is_decoder=True, add_cross_attention=True)), lambda b: {**picture()(b), "decoder_input_ids": ids(b, 5)}),
    Case("vision-text-dual-encoder", "VisionTextDualEncoderModel", dict(text_config=dict(SIZES, model_type="bert"), vision_config=dict(_VIT, model_type="vit"), projection_dim=16), seen_and_read()),
    Case("qwen2_vl-text", "Qwen2VLForConditionalGeneration", dict(text_config=_ROPE, vision_config=dict(depth=1, embed_dim=32, hidden_size=32, num_heads=2, patch_size=8)), masked),
    Case("qwen2_5_vl-text", "Qwen2_5_VLForConditionalGeneration", dict(text_config=_ROPE, vision_config=dict(depth=1, hidden_size=32, out_hidden_size=32, intermediate_size=32, num_heads=2, patch_size=8)), masked),
)  # fmt: skip

CASES = (*HEADS, *TRANSLATORS, *PICTURES, *SOUND, *MULTIMODAL)
