"""Models of pictures and films."""

from __future__ import annotations

from tests.models.cases import SIZES, Case, labelled_picture, picture, video, waves

_VIT = dict(SIZES, image_size=32, patch_size=8)
_SMALL = dict(depths=[1, 1], hidden_sizes=[16, 32], embedding_size=16)
_SWIN = dict(embed_dim=16, depths=[2, 2], num_heads=[2, 4], image_size=32, patch_size=4, window_size=4)
_PYRAMID = dict(
    num_encoder_blocks=2, depths=[1, 1], hidden_sizes=[16, 32], num_attention_heads=[1, 2], sr_ratios=[2, 1],
    sequence_reduction_ratios=[2, 1], patch_sizes=[7, 3], strides=[4, 2], mlp_ratios=[2, 2], image_size=32,
    decoder_hidden_size=16,
)  # fmt: skip

CASES = (
    Case("vit", "ViTForImageClassification", _VIT, labelled_picture()),
    Case("vit-model", "ViTModel", _VIT, picture()),
    Case("deit", "DeiTForImageClassification", _VIT, picture()),
    Case("beit", "BeitForImageClassification", dict(_VIT, use_relative_position_bias=True), picture(), minds_compilers=True),
    Case("data2vec-vision", "Data2VecVisionForImageClassification", dict(_VIT, use_relative_position_bias=True), picture(), minds_compilers=True),
    Case("ijepa", "IJepaForImageClassification", _VIT, picture()),
    Case("vit_msn", "ViTMSNForImageClassification", _VIT, picture()),
    Case("vitdet", "VitDetModel", dict(_VIT, window_block_indices=[0], window_size=2, use_relative_position_embeddings=True), picture()),
    Case("dinov2", "Dinov2ForImageClassification", _VIT, picture()),
    Case("dinov2_with_registers", "Dinov2WithRegistersForImageClassification", _VIT, picture()),
    Case("dinov3_vit", "DINOv3ViTModel", _VIT, picture()),
    Case("dinov3_convnext", "DINOv3ConvNextModel", dict(depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 16, 32]), picture(64)),
    Case("swin", "SwinForImageClassification", _SWIN, labelled_picture()),
    Case("swinv2", "Swinv2ForImageClassification", _SWIN, picture()),
    Case("swin2sr", "Swin2SRForImageSuperResolution", dict(_SWIN, upscale=2, img_range=1.0, window_size=2, image_size=32, patch_size=1), picture()),
    Case("resnet", "ResNetForImageClassification", dict(_SMALL, layer_type="basic"), labelled_picture()),
    Case("resnet-bottleneck", "ResNetForImageClassification", dict(_SMALL, layer_type="bottleneck"), picture()),
    Case("regnet", "RegNetForImageClassification", dict(_SMALL, groups_width=16), picture()),
    Case("bit", "BitForImageClassification", dict(_SMALL, num_groups=2), picture()),
    Case("convnext", "ConvNextForImageClassification", dict(depths=[1, 1], hidden_sizes=[16, 32], num_stages=2), picture()),
    Case("convnextv2", "ConvNextV2ForImageClassification", dict(depths=[1, 1], hidden_sizes=[16, 32], num_stages=2), picture()),
    Case("efficientnet", "EfficientNetForImageClassification", dict(image_size=32, width_coefficient=0.25, depth_coefficient=0.25, hidden_dim=320), picture()),
    Case("focalnet", "FocalNetForImageClassification", dict(image_size=32, patch_size=4, embed_dim=16, depths=[1, 1], focal_levels=[1, 1], focal_windows=[3, 3], hidden_sizes=[16, 32]), picture()),
    Case("hgnet_v2", "HGNetV2ForImageClassification", dict(embedding_size=8, depths=[1, 1], hidden_sizes=[16, 32], stem_channels=[3, 8, 8], stage_in_channels=[8, 16], stage_mid_channels=[8, 8], stage_out_channels=[16, 32], stage_num_blocks=[1, 1], stage_downsample=[False, True], stage_light_block=[False, True], stage_kernel_size=[3, 5], stage_numb_of_layers=[2, 2]), picture()),
    Case("hiera", "HieraForImageClassification", dict(image_size=[32, 32], embed_dim=8, depths=[1, 1, 1], num_heads=[1, 1, 2], masked_unit_size=[4, 4], patch_stride=[4, 4], num_query_pool=1, query_stride=[2, 2]), picture()),
    Case("levit", "LevitForImageClassification", dict(image_size=64, hidden_sizes=[16, 16, 32], num_attention_heads=[1, 1, 2], depths=[1, 1, 1], key_dim=[8, 8, 8]), picture(64)),
    Case("mobilenet_v1", "MobileNetV1ForImageClassification", dict(depth_multiplier=0.25, min_depth=8), picture()),
    Case("mobilenet_v2", "MobileNetV2ForImageClassification", dict(depth_multiplier=0.25, min_depth=8), picture()),
    Case("mobilevit", "MobileViTForImageClassification", dict(image_size=32, hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8, 8, 16, 16, 16, 16, 32], num_attention_heads=2), picture()),
    Case("mobilevitv2", "MobileViTV2ForImageClassification", dict(image_size=64, width_multiplier=0.25), picture(64)),
    Case("poolformer", "PoolFormerForImageClassification", dict(depths=[1, 1, 1, 1], hidden_sizes=[8, 8, 16, 16]), picture()),
    Case("pvt", "PvtForImageClassification", dict(_PYRAMID, num_encoder_blocks=4, depths=[1, 1, 1, 1], hidden_sizes=[8, 8, 16, 16], num_attention_heads=[1, 1, 2, 2], sequence_reduction_ratios=[2, 2, 1, 1], patch_sizes=[4, 2, 2, 2], strides=[4, 2, 2, 2], mlp_ratios=[2, 2, 2, 2]), picture()),
    Case("pvt_v2", "PvtV2ForImageClassification", dict(depths=[1, 1, 1, 1], hidden_sizes=[8, 8, 16, 16], num_attention_heads=[1, 1, 2, 2], image_size=32), picture()),
    Case("segformer", "SegformerForImageClassification", _PYRAMID, picture()),
    Case("segformer-segmentation", "SegformerForSemanticSegmentation", _PYRAMID, picture()),
    Case("swiftformer", "SwiftFormerForImageClassification", dict(depths=[1, 1, 1, 1], embed_dims=[8, 8, 16, 16]), picture(64)),
    Case("textnet", "TextNetForImageClassification", dict(image_size=[32, 32]), picture(64)),
    Case("vit_mae", "ViTMAEModel", dict(_VIT, mask_ratio=0.5), lambda b: {**picture()(b), "noise": waves(b, 16)}),
    Case("yolos", "YolosForObjectDetection", dict(_VIT, image_size=[32, 32], num_detection_tokens=4), picture()),
    Case("dpt", "DPTForDepthEstimation", dict(_VIT, num_hidden_layers=4, neck_hidden_sizes=[8, 8, 16, 16], fusion_hidden_size=16, backbone_out_indices=[0, 1, 2, 3]), picture()),
    Case("glpn", "GLPNForDepthEstimation", _PYRAMID, picture()),
    Case("upernet", "UperNetForSemanticSegmentation", dict(hidden_size=16, auxiliary_in_channels=16, backbone_config=dict(model_type="convnext", depths=[1, 1, 1, 1], hidden_sizes=[8, 8, 16, 16], out_features=["stage1", "stage2", "stage3", "stage4"])), picture(64)),
    Case("depth_anything", "DepthAnythingForDepthEstimation", dict(patch_size=8, reassemble_hidden_size=32, neck_hidden_sizes=[8, 8], fusion_hidden_size=8, reassemble_factors=[2, 1], backbone_config=dict(_VIT, model_type="dinov2", out_features=["stage1", "stage2"], reshape_hidden_states=False)), picture()),
    Case("videomae", "VideoMAEForVideoClassification", dict(_VIT, num_frames=4), video()),
    Case("vivit", "VivitForVideoClassification", dict(_VIT, num_frames=4, tubelet_size=[2, 8, 8]), video()),
    Case("timesformer", "TimesformerForVideoClassification", dict(_VIT, num_frames=4), video()),
    Case("sam-vision", "SamVisionModel", dict(_VIT, output_channels=16, window_size=2, global_attn_indexes=[1]), picture()),
    Case("superpoint", "SuperPointForKeypointDetection", dict(encoder_hidden_sizes=[8, 8, 8, 8], decoder_hidden_size=16, keypoint_decoder_dim=65, descriptor_decoder_dim=16), picture(), decided_by_data=True),
)  # fmt: skip
