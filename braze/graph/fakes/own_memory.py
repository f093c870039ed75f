"""Where fakes of new values lie: in memory of their own, as what the CPU's kernels make does, and from its start, as what braze's do."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from braze.graph.operators.operators import says_whose_memory
from braze.graph.private import torch_compat
from braze.support.nested import every

aten = torch.ops.aten

#: operators that give the memory of an argument, though their schemas do not say so
_GIVE_BACK = frozenset({aten._unsafe_view.default, aten.lift.default, aten.lift_fresh.default})


def apart(func: Any, args: Any, kwargs: Any, result: Any) -> Any:
    """An operator's result; in memory of its own, if its schema knows of no view and its kernel is the CPU's.

    PyTorch's fakes follow compositions of views (``channel_shuffle``, ``pixel_shuffle``), which the kernel does not.
    """
    if type(result) is not FakeTensor or func.namespace != "aten" or func in _GIVE_BACK:
        return result
    if says_whose_memory(func) or not torch_compat.has_cpu_kernel(func):
        return result
    if torch_compat.device_of_fake(result).type != "cpu" or not _shares(result, (*args, *kwargs.values())):
        return result
    return _anew(result)


def from_start(given: Any, result: Any) -> Any:
    """An operator's result; one that is in memory of its own but begins further on in it, as scatters into a window do, at its start."""
    if type(result) is not FakeTensor:
        return result
    begin = result.storage_offset()
    if (type(begin) is int and begin == 0) or _shares(result, given):
        return result
    return _anew(result)


def _shares(result: FakeTensor, given: Any) -> bool:
    """Whether a fake lies in the memory of one of those given."""
    key = torch_compat.storage_key(result)
    return any(torch_compat.storage_key(t) == key for t in every(torch.Tensor, given))


def _anew(fake: FakeTensor) -> Any:
    """A fake of the same sizes and strides in memory of its own, without autograd."""
    with torch_compat.outside_modes():
        meta = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device="meta")
        return torch_compat.assemble_fake(fake.fake_mode, meta, torch_compat.device_of_fake(fake), False)
