"""ATen operators by name, through the cheapest public binding."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from braze import native
from braze.runtime.purity import named


def _as_strided_scatter(x: torch.Tensor, *args: Any) -> torch.Tensor:
    """It counts from the start of the storage, which an intermediate shares with all else in the arena."""
    return torch.ops.aten.as_strided_scatter.default(x.clone(), *args)


#: operators whose ``torch.<name>`` takes the schema's arguments: half the cost of a call through ``torch.ops``
_DIRECT = {
    "aten.mm.default": torch.mm,
    "aten.mm.out": native.out_product("mm", torch.mm),
    "aten.addmm.default": torch.addmm,
    "aten.addmm.out": native.out_product("addmm", torch.addmm),
    "aten.bmm.default": torch.bmm,
    "aten.bmm.out": native.out_product("bmm", torch.bmm),
    "aten.baddbmm.default": torch.baddbmm,
    "aten.baddbmm.out": native.out_product("baddbmm", torch.baddbmm),
    "aten.convolution.default": torch.convolution,
    "aten.as_strided_scatter.default": _as_strided_scatter,
}


def operator(target: str) -> Any:
    """The callable of ``"aten.mm.out"``."""
    found = _DIRECT.get(target)
    if found is not None:
        return found
    return named(target)


@cache
def onednn_linear() -> Any:
    """oneDNN's linear layer in float32, called as (x, weight, bias, "none", [], ""); None where PyTorch has none."""
    if not torch.backends.mkldnn.is_available():
        return None
    try:
        return operator("mkldnn._linear_pointwise.default")
    except AttributeError:
        return None
