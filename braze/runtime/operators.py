"""ATen operators by name, through the cheapest public binding."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from braze import native
from braze.runtime.purity import named

aten = torch.ops.aten


def _as_strided_scatter(x: torch.Tensor, *args: Any) -> torch.Tensor:
    """It counts from the start of the storage, which an intermediate shares with all else in the arena."""
    return torch.ops.aten.as_strided_scatter.default(x.clone(), *args)


def copy_in_its_strides(x: torch.Tensor) -> torch.Tensor:
    """The elements of ``x`` in memory of their own, with what lies between them; repeated elements are spread, as by ATen."""
    reach = [(n - 1, stride) for n, stride in zip(x.shape, x.stride(), strict=True)]
    if any(n and not stride for n, stride in reach):
        return x.clone()
    span = sum(n * stride for n, stride in reach) + 1 if x.numel() else 0
    return x.as_strided((span,), (1,), x.storage_offset()).clone().as_strided(x.shape, x.stride(), 0)


def _scatter_into(view: Any, scatter: Any) -> Any:
    """A scatter into a part: ATen copies all of the storage for it, which for an intermediate is the whole arena."""

    def call(x: torch.Tensor, src: torch.Tensor, /, *args: Any, **kwargs: Any) -> torch.Tensor:
        made = copy_in_its_strides(x)
        part = view(made, *args, **kwargs)
        if part.shape != src.shape:
            return scatter(x, src, *args, **kwargs)  # type: ignore[no-any-return]  # it tells what is wrong
        part.copy_(src)
        return made

    return call


#: operators by overload whose binding in ``torch`` takes the schema's arguments: half the cost of a call through ``torch.ops``
_BOUND = {
    "default": """bincount cummax cummin cumprod cumsum dot grid_sampler_2d histc kthvalue logcumsumexp mode mv nonzero
        sort topk _embedding_bag""",
    "out": "cumprod cumsum dot logcumsumexp mv",
    "dim": "median",
    "stable": "sort",
    "Tensor": "bucketize searchsorted",
}
#: the same of functions of layers, and of methods that write
_LAYERS = {
    "default": """avg_pool2d im2col max_pool2d_with_indices reflection_pad1d reflection_pad2d reflection_pad3d
        replication_pad1d replication_pad2d replication_pad3d""",
    "out": """avg_pool2d im2col reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d
        replication_pad3d""",
}
#: (not ``index_put_``, whose binding takes no places that are left out)
_METHODS = {"default": "index_add_ scatter_add_"}


def _bindings() -> dict[str, Any]:
    places = ((torch, _BOUND), (torch._C._nn, _LAYERS), (torch.Tensor, _METHODS))
    return {
        f"aten.{name}.{overload}": getattr(place, name)
        for place, rows in places
        for overload, names in rows.items()
        for name in names.split()
        if hasattr(place, name)
    }


#: operators -> what is called for them
_DIRECT = {
    **_bindings(),
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
    "aten.slice_scatter.default": _scatter_into(aten.slice.Tensor, aten.slice_scatter.default),
    "aten.select_scatter.default": _scatter_into(aten.select.int, aten.select_scatter.default),
    "aten.diagonal_scatter.default": _scatter_into(aten.diagonal.default, aten.diagonal_scatter.default),
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
