"""Who holds memory, and tensors over memory that a recording keeps: the private names of PyTorch that this room needs."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from braze import native


def uses(storage: torch.UntypedStorage) -> int:
    """How many references there are to a piece of memory, of tensors, views, graphs of autograd and Python's own."""
    return torch._C._storage_Use_Count(storage._cdata)


class Seen:
    """Where a tensor was seen, and in which piece of memory, that is not held for it.

    One that is made anew at each call may lie where the last one lay, but in a piece of its own; one that lies in the same piece was held meanwhile.
    """

    def __init__(self, x: torch.Tensor) -> None:
        self._address = native.data_ptr(x)
        # whose number is nobody else's as long as this lives
        self._storage = StorageWeakRef(x.untyped_storage())

    def stays(self, x: torch.Tensor) -> bool:
        """Whether a tensor lies there, in memory that somebody has held since."""
        return native.data_ptr(x) == self._address and bool(x.untyped_storage()._cdata == self._storage.cdata)


def tensor_over(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    offset: int,
    sizes: Sequence[int],
    strides: Sequence[int],
) -> torch.Tensor:
    """A tensor of its own, a view of none, over memory that is there; an inference tensor in inference mode."""
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, sizes, strides)


def borrowed(
    address: int, size: int, device: torch.device | str = "cpu", owner: Any = None
) -> torch.UntypedStorage:
    """Memory that is there, seen without being held: whoever owns it may give it to others.

    On a processor ``owner`` lives as long as what sees it, so that the memory is always somebody's; on a GPU a pool's graphs see to that.
    """
    if not size:
        return torch.empty(0, dtype=torch.uint8, device=device).untyped_storage()
    if torch.device(device).type != "cpu":
        there: Any = torch._C._construct_storage_from_data_pointer(address, torch.device(device), size)
        return there  # type: ignore[no-any-return]
    memory = _memory(size).from_address(address)
    memory.owner = owner
    return torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()


@functools.lru_cache(1024)
def _memory(size: int) -> Any:
    """The type of so many bytes."""
    return type("Memory", (ctypes.Array,), {"_type_": ctypes.c_char, "_length_": size})


def spoil(storage: torch.UntypedStorage, message: str) -> None:
    """Let nobody take what memory holds for a result: it becomes NaN, or -1, and on a GPU reading it raises ``message``.

    PyTorch built without CUDA has no way to refuse the access.
    """
    if storage.nbytes():
        tensor_over(storage, torch.uint8, 0, (storage.nbytes(),), (1,)).fill_(255)
    refuse = getattr(torch._C, "_set_storage_data_ptr_access_error_msg", None)
    if refuse is not None and storage.device.type == "cuda":
        refuse(storage._cdata, message)


def overlaps_itself(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two elements of a layout may lie in one place (some layouts that do not overlap are taken for such)."""
    reach = 1
    for step, n in sorted((step, n) for n, step in zip(sizes, strides, strict=True) if n > 1):
        if step < reach:
            return 0 not in sizes
        reach = step * (n - 1) + reach
    return False


#: cycles of a GPU in a second, at most
_CYCLES = 2.5e9


def keep_busy(seconds: float) -> None:
    """Have the GPU do nothing for at least so long, on the current stream."""
    torch.cuda._sleep(int(seconds * _CYCLES))
