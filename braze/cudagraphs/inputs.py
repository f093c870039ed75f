"""How one recording gets its inputs: at the addresses that it was recorded with, copied to where it reads them, or where its kernels are told."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze import native
from braze.cudagraphs.device import Costs, Told
from braze.cudagraphs.storages import overlaps_itself
from braze.graph.private.torch_compat import copy_all
from braze.support.layouts import span

Rows = tuple[tuple[int, int, int], ...]

#: what divides the addresses that kernels can be told
ALIGNED = 16


class Inputs:
    """``static``: the places of inputs that are read where the caller has them; those of ``copied`` have memory here, till kernels are told."""

    def __init__(self, inputs: Sequence[Any], static: Sequence[int], copied: Sequence[int]) -> None:
        self.static = tuple(static)
        self._pick = _picker(self.static)
        self.addresses = self._addresses(inputs)
        self.values = list(inputs)
        self._to: list[torch.Tensor] = []
        self._of: list[tuple[int, int]] = []  # (input, elements of memory to copy; 0: the tensor as it is)
        #: (input, number among the recording's watched memory) of those that kernels are told of
        self.told: tuple[tuple[int, int], ...] = ()
        self.move: Callable[[int, int], None] = _unmoved
        with torch.inference_mode(False), torch.no_grad():
            for i in copied:
                self.values[i] = self._own(i, inputs[i])

    def _own(self, i: int, x: torch.Tensor) -> torch.Tensor:
        """Memory for an input, in its layout."""
        whole, to, size = _room(x)
        if to is not None:
            self._to.append(to)
            self._of.append((i, size))
        return whole

    def memory(self, places: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Of those of some inputs that are copied, where to, as (address, bytes)."""
        rows = zip(self._of, self._to, strict=True)
        return {i: (to.data_ptr(), _bytes(to)) for (i, _), to in rows if i in places}

    def tell(self, graph: Told, watched: Sequence[int], costs: Costs) -> None:
        """Let kernels be told where those of the inputs ``watched`` lie for which that costs less than a copy."""
        sizes = self.memory(watched)
        rows = zip(watched, graph.readers, strict=False)
        self.told = tuple([(i, k) for k, (i, n) in enumerate(rows) if costs.patched(n, sizes[i][1])])
        told = {i for i, _ in self.told}
        kept = [(of, to) for of, to in zip(self._of, self._to, strict=True) if of[0] not in told]
        self._of, self._to = [of for of, _ in kept], [to for _, to in kept]
        self.move = graph.move if told else _unmoved

    def _addresses(self, inputs: Sequence[Any]) -> list[int]:
        return list(map(native.data_ptr, self._pick(inputs)))

    def fit(self, inputs: Sequence[Any]) -> bool:
        """Whether what is not copied lies where it lay."""
        return self._addresses(inputs) == self.addresses

    def moved(self, inputs: Sequence[Any]) -> list[int]:
        """The places of those that lie elsewhere."""
        now = self._addresses(inputs)
        return [i for i, a, b in zip(self.static, now, self.addresses, strict=True) if a != b]

    def place(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Copy the others to where they are read, or tell kernels where they lie; what must live until the replay has begun."""
        if self._to:
            with torch.no_grad():
                copy_all(self._to, [_memory(inputs[i], size) for i, size in self._of])
        kept = []
        for i, k in self.told:
            x = inputs[i]
            if native.data_ptr(x) % ALIGNED:
                x = _elsewhere(x)
                kept.append(x)
            self.move(k, native.data_ptr(x))
        return kept

    def rows(self) -> tuple[Rows, Rows, Rows]:
        """The same for the C core, (place, address, bytes) each: what must lie there, what is copied there, what is told, by its number."""
        fixed = tuple([(i, at, 0) for i, at in zip(self.static, self.addresses, strict=True)])
        places = [(i, to.data_ptr(), _bytes(to)) for (i, _), to in zip(self._of, self._to, strict=True)]
        return fixed, tuple(places), tuple([(i, k, 0) for i, k in self.told])

    def forget(self) -> None:
        """Hold the caller's tensors no longer; their addresses stay."""
        self.values = []


def _unmoved(k: int, address: int) -> None:
    raise ValueError("no kernel is told where inputs lie")


def _room(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, int]:
    """Memory in the layout of an input; how a copy sees it; how many elements that copies as they lie, 0: as the layout says."""
    size = span(x.shape, x.stride())
    if size == 0:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device), None, 0
    flat = torch.empty(size, dtype=x.dtype, device=x.device)
    whole = flat.as_strided(x.shape, x.stride())
    return (whole, flat, size) if overlaps_itself(x.shape, x.stride()) else (whole, whole, 0)


def _elsewhere(x: torch.Tensor) -> torch.Tensor:
    """An input at an address that kernels can be told."""
    with torch.inference_mode(False), torch.no_grad():
        whole, to, size = _room(x)
        if to is not None:
            to.copy_(_memory(x, size))
    return whole


def _bytes(x: torch.Tensor) -> int:
    """Bytes from the first element to the last."""
    return span(x.shape, x.stride()) * x.element_size()


def _memory(x: torch.Tensor, size: int) -> torch.Tensor:
    """The memory that an input spans, where its elements overlap; else the input."""
    return x.as_strided((size,), (1,), x.storage_offset()) if size else x


def _picker(places: tuple[int, ...]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    if len(places) > 1:
        return operator.itemgetter(*places)
    return lambda inputs: tuple([inputs[i] for i in places])
