"""Convolutions by oneDNN of weights that it has put into its own order before; in eager it does so in each call.

``braze::convolution_weight`` makes such a weight, whose memory ``braze::packed_convolution`` alone can read: PyTorch's
``mkldnn::_convolution_pointwise`` under a name of ours, which says that it only computes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from braze.runtime.operators.purity import named

_library = torch.library.Library("braze", "FRAGMENT")
_library.define(
    "convolution_weight(Tensor weight, int[] picture, int[] stride, int[] padding, int[] dilation, int groups) -> Tensor"
)


def _pack(
    weight: torch.Tensor,
    picture: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """``weight`` (K, C / groups, H, W), float32, as oneDNN wants it for pictures of sizes ``picture`` that lie row by row."""
    order: Any = named("mkldnn._reorder_convolution_weight.default")
    return order(weight, padding, stride, dilation, groups, picture)  # type: ignore[no-any-return]


_library.impl("convolution_weight", _pack, "CPU")
_library.impl("convolution_weight", lambda weight, *_: torch.empty_like(weight), "Meta")

WEIGHT = torch.ops.braze.convolution_weight.default


def _onednn() -> Any:
    """oneDNN's convolution; None where PyTorch was built without it."""
    try:
        return named("mkldnn._convolution_pointwise.default")
    except AttributeError:
        return None


ONEDNN = _onednn()
#: (picture, weight, bias, padding, stride, dilation, groups, "none", [], "")
PACKED: Any = None
if ONEDNN is not None:
    _library.define(str(ONEDNN._schema).replace("mkldnn::_convolution_pointwise", "packed_convolution"))
    for _key in ("CPU", "MkldnnCPU", "Meta"):
        _library.impl("packed_convolution", ONEDNN, _key)
    PACKED = torch.ops.braze.packed_convolution.default


@functools.cache
def has_type(dtype: torch.dtype) -> bool:
    """Whether oneDNN computes with a half type on this processor."""
    word = "bf16" if dtype is torch.bfloat16 else "fp16"
    try:
        return bool(named(f"mkldnn._is_mkldnn_{word}_supported.default")())
    except AttributeError:
        return True
