"""Let the C core make tensors, once it has been seen that it makes those of ``torch.empty_strided``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from braze.native import torch_state

#: floating point first: the C core looks in this order
DTYPES = (
    "float32", "bfloat16", "float16", "float64", "int64", "bool", "int32", "uint8", "int8", "int16", "complex64", "complex128",
    "float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64",
)  # fmt: skip
_SHAPES = (
    ((), ()), ((4,), (1,)), ((2, 3), (3, 1)), ((2, 3), (1, 2)), ((3, 0, 2), (2, 2, 1)), ((2, 2), (8, 0)),
)  # fmt: skip


def configure(core: Any) -> None:
    """Switch on every dtype for which all samples agree."""
    torch = torch_state.torch()
    if not core._load_allocation(torch_state.library("torch_cpu"), torch_state.library("torch_python")):
        return
    dtypes = [getattr(torch, name) for name in DTYPES if hasattr(torch, name)]
    rows = [(dtype, core._raw_meta(torch.empty(0, dtype=dtype))[0]) for dtype in dtypes]
    core._configure_allocation(tuple(rows))
    core._configure_allocation(tuple(row for row in rows if _agrees(core, row[0])))


def agrees_on(device: str) -> bool:
    """Whether that holds on a device ("cuda:0"), too, for every dtype that is switched on. Asked once, by the C core."""
    torch, core = torch_state.torch(), sys.modules["braze.native._native"]
    dtypes = [getattr(torch, name) for name in DTYPES if hasattr(torch, name)]
    with torch_state.no_modes():
        return all(_agrees(core, dtype, {"device": device}) for dtype in dtypes)


def _agrees(core: Any, dtype: Any, where: Mapping[str, str] = MappingProxyType({})) -> bool:
    """Whether tensors of a dtype are those of PyTorch in all that can be seen, in inference mode and outside."""
    torch = torch_state.torch()
    for inference in (False, True):
        with torch.inference_mode(inference):
            for sizes, strides in _SHAPES:
                ours, theirs = (
                    _seen(make(sizes, strides, dtype=dtype, **where))
                    for make in (core.empty_strided, torch.empty_strided)
                )
                if ours != theirs:
                    return False
    return True


def again(tensor: Any) -> Any:
    """A tensor of its own, a view of none, over the memory and in the layout of another."""
    torch = torch_state.torch()
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def counts_storages(core: Any) -> bool:
    """Let C read who holds memory, if it is seen where PyTorch counts; whether it may, and makes tensors over memory that is there."""
    torch = torch_state.torch()
    tensor = torch.zeros(6)
    storage, held = tensor.untyped_storage(), []
    found = set(range(8, 40, 4))
    for _ in range(5):
        count = torch_state.storage_uses(storage)
        found = {at for at in found if core._word_at(storage._cdata, at) == count}
        held.append(tensor.detach())
    data = set(range(8, 48, 8))
    for other in (storage, *(torch.zeros(n).untyped_storage() for n in (1, 5, 70))):
        data = {at for at in data if _address_at(core, other, at) == other.data_ptr()}
    known = len(found) == 1 and bool(data)
    core._configure_replay(*(min(found), min(data)) if known else (-1, -1))
    return known and all(_is_again(core, inference) for inference in (False, True))


def _address_at(core: Any, storage: Any, at: int) -> int:
    return core._word_at(storage._cdata, at) | core._word_at(storage._cdata, at + 4) << 32


def _is_again(core: Any, inference: bool) -> bool:
    torch = torch_state.torch()
    with torch.inference_mode(inference):
        whole = torch.arange(24.0)
        for tensor in (whole[3:15].view(3, 4).t(), whole, whole[2], whole[:0], whole.to(torch.bfloat16)[2:]):
            base = again(tensor)
            ours, theirs = core._again(base), again(tensor)
            if _seen(ours) != _seen(theirs) or ours.data_ptr() != tensor.data_ptr() or ours._is_view():
                return False
            if not inference and (ours._version or ours.grad_fn is not None):
                return False
            if ours.untyped_storage()._cdata != tensor.untyped_storage()._cdata:
                return False
    return True


def _seen(tensor: Any) -> tuple[Any, ...]:
    storage = tensor.untyped_storage()
    return (
        *torch_state.metadata(tensor),
        tensor.is_inference(),
        tensor.is_leaf,
        tensor.storage_offset(),
        tensor.is_pinned(),
        storage.nbytes(),
        storage.resizable(),
        sys.getrefcount(tensor),
    )
