"""Notice when tensors that a graph takes for constant have changed.

A tensor has changed when its data pointer or version counter moves, or when a sample of its words differs:
writes through ``.data`` and through NumPy leave the counter alone (updates of averaged weights are often
written so). A tensor made in inference mode has no counter; then nothing is taken for unchanged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze import native

#: f(tensors, address of their sums, (write?, number, bytes of each...)) -> how many sums differ
Sampler = Callable[[Sequence[torch.Tensor], int, Sequence[int]], int]
#: f(tensors, which of them changed) -> what is kept
Remake = Callable[[Sequence[torch.Tensor], Sequence[bool]], Any]


class Watch:
    """Something made from tensors, made again when one of them changes: ``made = watch(tensors)``."""

    def __init__(self, sizes: Sequence[int], sampler: Sampler, remake: Remake) -> None:
        self._sizes = tuple(sizes)
        self._sampler = sampler
        self._remake = remake
        self._look = (0, len(self._sizes), *self._sizes)
        self._lock = threading.Lock()
        # one tuple, replaced as a whole: a call on another thread sees a result that belongs to its sums
        sums = torch.zeros(max(len(self._sizes), 1), dtype=torch.int64)
        self._state: tuple[Any, bytes | None, int, torch.Tensor] = (None, None, sums.data_ptr(), sums)
        native.bind_torch()

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Any:
        made, versions, sums, _ = self._state
        try:
            now = native.versions(tensors if type(tensors) is tuple else tuple(tensors))
        except RuntimeError:  # an inference tensor: "do not track version counter"
            return self._remake(tensors, [True] * len(tensors))
        if now != versions or self._sampler(tensors, sums, self._look):
            return self._refresh(tensors, now)
        return made

    def _refresh(self, tensors: Sequence[torch.Tensor], now: bytes) -> Any:
        with self._lock, torch.inference_mode(False), torch.no_grad():
            _, versions, _, old = self._state
            sums = old.clone()
            changed = []
            for k, tensor in enumerate(tensors):
                moved = self._sampler((tensor,), sums.data_ptr() + 8 * k, (1, 1, self._sizes[k]))
                mine = slice(4 * k, 4 * k + 4)
                changed.append(versions is None or versions[mine] != now[mine] or bool(moved))
            made = self._remake(tensors, changed)
            self._state = made, now, sums.data_ptr(), sums
            return made
