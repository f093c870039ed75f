"""Notice when tensors that a graph takes for constant have changed.

A tensor has changed when its data pointer or version counter moves, or when a sample of its words differs:
writes through ``.data`` and through NumPy leave the counter alone (updates of averaged weights are often
written so). A tensor made in inference mode has no counter; then nothing is taken for unchanged.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch

from braze import native

#: f(tensors, address of their sums, (write?, number, bytes of each...)) -> how many sums differ
Sampler = Callable[[Sequence[torch.Tensor], int, Sequence[int]], int]
#: f(tensors, which of them changed, what was made of them before) -> what is kept
Remake = Callable[[Sequence[torch.Tensor], Sequence[bool], Any], Any]

T = TypeVar("T")


class PerTensors(Generic[T]):
    """A value for each set of tensors, as long as these live: equal parts of a model share a graph, and each brings its own weights."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, ...], tuple[tuple[weakref.ref[torch.Tensor], ...], T]] = {}

    def get(self, tensors: Sequence[torch.Tensor]) -> T | None:
        """The value of these very tensors."""
        found = self._kept.get(tuple(map(id, tensors)))
        if found is None or any(ref() is not t for ref, t in zip(found[0], tensors, strict=True)):
            return None
        return found[1]

    def put(self, tensors: Sequence[torch.Tensor], value: T) -> None:
        """Keep a value for them; values of tensors that are gone are let go of."""
        for key in [k for k, (refs, _) in self._kept.items() if any(ref() is None for ref in refs)]:
            del self._kept[key]
        self._kept[tuple(map(id, tensors))] = tuple(map(weakref.ref, tensors)), value

    def drop(self, value: T) -> None:
        """Keep a value no longer."""
        for key in [k for k, (_, kept) in self._kept.items() if kept is value]:
            del self._kept[key]


#: what was made, of which versions, and the address of the sums with the tensor that they are in
_State = tuple[Any, bytes | None, int, torch.Tensor]


class Watch:
    """Something made from tensors, made again when one of them changes: ``made = watch(tensors)``.

    Several sets of tensors may take turns: what was made of each is kept.
    """

    def __init__(self, sizes: Sequence[int], sampler: Sampler, remake: Remake) -> None:
        self._sizes = tuple(sizes)
        self._sampler = sampler
        self._remake = remake
        self._look = (0, len(self._sizes), *self._sizes)
        self._lock = threading.Lock()
        # one tuple, replaced as a whole: a call on another thread sees a result that belongs to its sums
        sums = torch.zeros(max(len(self._sizes), 1), dtype=torch.int64)
        self._none: _State = (None, None, sums.data_ptr(), sums)
        self._state: _State = self._none
        self._kept: PerTensors[_State] = PerTensors()
        native.bind_torch()

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Any:
        made, versions, sums, _ = self._state
        try:
            now = native.versions(tensors if type(tensors) is tuple else tuple(tensors))
        except RuntimeError:  # an inference tensor: "do not track version counter"
            return self._remake(tensors, [True] * len(tensors), None)
        if now != versions or self._sampler(tensors, sums, self._look):
            return self._refresh(tensors, now)
        return made

    def _refresh(self, tensors: Sequence[torch.Tensor], now: bytes) -> Any:
        with self._lock, torch.inference_mode(False), torch.no_grad():
            before = self._kept.get(tensors) or self._none
            made, versions, address, old = before
            if now == versions and not self._sampler(tensors, address, self._look):
                self._state = before  # others had their turn since
                return made
            sums = old.clone()
            changed = []
            for k, tensor in enumerate(tensors):
                moved = self._sampler((tensor,), sums.data_ptr() + 8 * k, (1, 1, self._sizes[k]))
                mine = slice(4 * k, 4 * k + 4)
                changed.append(versions is None or versions[mine] != now[mine] or bool(moved))
            made = self._remake(tensors, changed, before[0])
            self._state = made, now, sums.data_ptr(), sums
            self._kept.put(tensors, self._state)
            return made
