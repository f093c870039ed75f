"""How one recording gets its inputs: at the addresses that it was recorded with, or copied to where it reads them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze import native
from braze.cudagraphs.storages import extent, overlaps_itself
from braze.graph.torch_compat import copy_all


class Inputs:
    """``static``: the places of inputs that are read where the caller has them; those of ``copied`` have memory here."""

    def __init__(self, inputs: Sequence[Any], static: Sequence[int], copied: Sequence[int]) -> None:
        self.static = tuple(static)
        self._pick = _picker(self.static)
        self.addresses = self._addresses(inputs)
        self.values = list(inputs)
        self._to: list[torch.Tensor] = []
        self._of: list[tuple[int, int]] = []  # (input, elements of memory to copy; 0: the tensor as it is)
        with torch.inference_mode(False), torch.no_grad():
            for i in copied:
                self.values[i] = self._own(i, inputs[i])
        #: bytes of memory for copies
        self.bytes = sum(to.untyped_storage().nbytes() for to in self._to)

    def _own(self, i: int, x: torch.Tensor) -> torch.Tensor:
        """Memory for an input, in its layout."""
        size = extent(x.shape, x.stride())
        if size == 0:
            return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
        flat = torch.empty(size, dtype=x.dtype, device=x.device)
        whole = flat.as_strided(x.shape, x.stride())
        overlaps = overlaps_itself(x.shape, x.stride())
        self._to.append(flat if overlaps else whole)
        self._of.append((i, size if overlaps else 0))
        return whole

    def _addresses(self, inputs: Sequence[Any]) -> list[int]:
        return list(map(native.data_ptr, self._pick(inputs)))

    def fit(self, inputs: Sequence[Any]) -> bool:
        """Whether what is not copied lies where it lay."""
        return self._addresses(inputs) == self.addresses

    def moved(self, inputs: Sequence[Any]) -> list[int]:
        """The places of those that lie elsewhere."""
        now = self._addresses(inputs)
        return [i for i, a, b in zip(self.static, now, self.addresses, strict=True) if a != b]

    def place(self, inputs: Sequence[Any]) -> None:
        """Copy the others to where they are read."""
        if self._to:
            with torch.no_grad():
                copy_all(self._to, [_memory(inputs[i], size) for i, size in self._of])

    def rows(self) -> tuple[tuple[tuple[int, int, int], ...], tuple[tuple[int, int, int], ...]]:
        """The same for the C core: (place, address, bytes) of what must lie there, and of what is copied there."""
        fixed = tuple([(i, at, 0) for i, at in zip(self.static, self.addresses, strict=True)])
        places = [(i, to.data_ptr(), _bytes(to)) for (i, _), to in zip(self._of, self._to, strict=True)]
        return fixed, tuple(places)

    def forget(self) -> None:
        """Hold the caller's tensors no longer; their addresses stay."""
        self.values = []


def _bytes(x: torch.Tensor) -> int:
    """Bytes from the first element to the last."""
    return extent(x.shape, x.stride()) * x.element_size()


def _memory(x: torch.Tensor, size: int) -> torch.Tensor:
    """The memory that an input spans, where its elements overlap; else the input."""
    return x.as_strided((size,), (1,), x.storage_offset()) if size else x


def _picker(places: tuple[int, ...]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    if len(places) > 1:
        return operator.itemgetter(*places)
    return lambda inputs: tuple([inputs[i] for i in places])
