"""Let torchvision import where its own C++ operators do not load.

transformers and timm import torchvision if it is installed. Its Python code registers fake kernels for two
operators of its C++ library, and fails to import where that library does not fit the installed PyTorch. The
demo, the benchmarks and the tests use no such operator, so declaring them is enough.
"""

from __future__ import annotations

import importlib
from functools import cache

import torch


@cache
def make_torchvision_importable() -> None:
    """Import torchvision, after declaring ``torchvision::nms`` and ``torchvision::qnms`` if it needs that."""
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError:
        return
    except RuntimeError:
        for name in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, name):
                torch.library.define(
                    f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                )
        importlib.import_module("torchvision")
