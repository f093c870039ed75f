"""Models of timm, one or two a family, at the smallest picture that each takes."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn

from tests.models.cases import waves

#: name -> (picture size, words for create_model)
SMALL: dict[str, tuple[int, dict[str, Any]]] = {
    "test_vit": (160, {}), "test_resnet": (64, {}), "test_convnext": (64, {}), "test_efficientnet": (64, {}),
    "test_byobnet": (64, {}), "test_nfnet": (64, {}), "test_mambaout": (64, {}), "test_vit_relpos": (160, {}),
    "resnet10t": (64, {}), "resnet18": (64, {}), "seresnext26d_32x4d": (64, {}), "ecaresnet26t": (64, {}),
    "resnetv2_18": (64, {}), "res2net50_14w_8s": (64, {}), "resnest14d": (64, {}), "skresnet18": (64, {}),
    "legacy_seresnet18": (64, {}), "vgg11": (32, {}), "densenet121": (64, {}), "dla46_c": (64, {}),
    "dpn48b": (64, {}), "hrnet_w18_small": (64, {}), "cs3darknet_focus_s": (64, {}), "ese_vovnet19b_slim": (64, {}),
    "regnetx_002": (64, {}), "regnety_002": (64, {}), "repvgg_a0": (64, {}), "gcresnet33ts": (64, {}),
    "mobilenetv3_small_050": (64, {}), "mobilenetv2_035": (64, {}), "lcnet_035": (64, {}), "tinynet_e": (64, {}),
    "efficientnet_b0": (64, {}), "mnasnet_small": (64, {}), "fbnetv3_b": (64, {}), "hardcorenas_a": (64, {}),
    "ghostnet_050": (64, {}), "rexnet_100": (64, {}), "mobileone_s0": (64, {}), "repghostnet_050": (64, {}),
    "repvit_m0_9": (64, {}), "starnet_s050": (64, {}), "fasternet_t0": (64, {}), "hgnetv2_b0": (64, {}),
    "semnasnet_075": (64, {}), "selecsls42": (64, {}), "inception_next_atto": (64, {}), "mixnet_s": (64, {}),
    "deit_tiny_patch16_224": (64, dict(img_size=64, depth=2)), "deit3_small_patch16_224": (64, dict(img_size=64, depth=2)),
    "vit_tiny_patch16_224": (64, dict(img_size=64, depth=2)), "eva02_tiny_patch14_224": (56, dict(img_size=56, depth=2)),
    "beit_base_patch16_224": (64, dict(img_size=64, depth=1)), "cait_xxs24_224": (64, dict(img_size=64, depth=2)),
    "convit_tiny": (64, dict(img_size=64, depth=2)), "xcit_nano_12_p16_224": (64, dict(img_size=64, depth=2)),
    "mixer_b32_224": (64, dict(img_size=64)), "gmlp_ti16_224": (64, dict(img_size=64)),
    "resmlp_12_224": (64, dict(img_size=64)), "tnt_s_patch16_224": (64, dict(img_size=64, depth=2)),
    "convnext_atto": (64, {}), "convnextv2_atto": (64, {}), "poolformer_s12": (64, {}), "caformer_s18": (64, {}),
    "pvt_v2_b0": (64, {}), "swin_tiny_patch4_window7_224": (64, dict(img_size=64, window_size=4, depths=(1, 1, 1, 1))),
    "swinv2_tiny_window8_256": (64, dict(img_size=64, window_size=4, depths=(1, 1, 1, 1))), "edgenext_xx_small": (64, {}),
    "mobilevit_xxs": (64, {}), "mobilevitv2_050": (64, {}), "efficientvit_b0": (64, {}), "efficientvit_m0": (224, {}),
    "levit_128s": (224, {}), "coat_lite_tiny": (64, dict(img_size=64)), "twins_svt_small": (64, dict(img_size=64)),
    "crossvit_9_240": (240, {}), "visformer_tiny": (224, {}), "pit_ti_224": (224, {}), "nest_tiny": (224, {}),
    "efficientformer_l1": (224, {}), "fastvit_t8": (64, {}), "gcvit_xxtiny": (224, {}), "swiftformer_xs": (64, {}),
    "tiny_vit_5m_224": (224, {}), "botnet26t_256": (256, {}), "halonet26t": (256, {}),
    "mambaout_femto": (64, {}), "focalnet_tiny_srf": (64, {}), "davit_tiny": (64, dict(depths=(1, 1, 1, 1))),
    "volo_d1_224": (64, dict(img_size=64)), "vit_relpos_base_patch16_224": (64, dict(img_size=64, depth=1)),
    "shvit_s1": (64, {}), "lowformer_b0": (64, {}), "efficientvim_m1": (224, {}),
}  # fmt: skip


class TimmCase:
    """As ``cases.Case``, for a name that timm knows."""

    def __init__(self, name: str) -> None:
        self.name = name

    def missing(self) -> str:
        timm = importlib.import_module("timm")
        known = self.name in timm.list_models(self.name)
        return "" if known else f"timm {timm.__version__} has no {self.name}"

    def make(self) -> nn.Module:
        torch.manual_seed(0)
        timm = importlib.import_module("timm")
        return timm.create_model(self.name, pretrained=False, num_classes=10, **SMALL[self.name][1]).eval()

    def inputs(self, batch: int) -> dict[str, Any]:
        size = SMALL[self.name][0]
        return {"x": waves(batch, 3, size, size)}


CASES = tuple(TimmCase(name) for name in SMALL)
