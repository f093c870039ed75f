"""Whether anybody but the caller holds a tensor: then its memory may not be written over."""

from __future__ import annotations

import functools
import sys

import torch


def is_held_once(tensor: torch.Tensor) -> bool:
    """Whether one variable of the caller is all that holds a tensor, and the tensor all that holds its memory.

    Autograd holds what a retained graph saves, hooks may hold what is saved, and views hold memory: then no.
    """
    if type(tensor) is not torch.Tensor or tensor.requires_grad or _holders(tensor) != _holders_of_one():
        return False
    return tensor.storage_offset() == 0 and tensor.untyped_storage().nbytes() == tensor.nbytes


def _holders(tensor: torch.Tensor) -> tuple[int, int, int]:
    """References of Python's to the tensor object, of C++ to the tensor, and of either to its memory."""
    storage = tensor.untyped_storage()
    uses = tensor._use_count()  # type: ignore[attr-defined]
    return sys.getrefcount(tensor), uses, torch._C._storage_Use_Count(storage._cdata)


@functools.cache
def _holders_of_one() -> tuple[int, int, int]:
    """What ``_holders`` says of a tensor that one variable holds, two calls up."""
    tensor = torch.empty(1)
    return _same_depth(tensor)


def _same_depth(tensor: torch.Tensor) -> tuple[int, int, int]:
    return _holders(tensor)
