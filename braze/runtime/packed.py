"""Packed copies of GEMM weights, kept as long as the weights do not change.

A weight has changed when its data pointer or version counter moves, or when a sample of its words differs:
writes through ``.data`` and through NumPy leave the counter alone (updates of averaged weights are often
written so). A tensor made in inference mode has no counter, so it is packed again at each call.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence

import torch

from braze.support.log import warn_once

#: f(b, packed, sizes)
Packer = Callable[[int, int, int], None]
#: f(weights, address of their sums, (write?, number, bytes of each...)) -> how many sums differ
Sampler = Callable[[Sequence[torch.Tensor], int, Sequence[int]], int]


def packer(address: int) -> Packer:
    """A C function ``void f(const void *b, void *packed, const int64_t *sizes)`` as a callable."""
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(address)


class PackedWeights:
    """The packed copies of all weights of one graph: ``copies = packed(weights)``."""

    def __init__(
        self,
        packers: Sequence[Packer],
        packed_bytes: Sequence[int],
        weight_bytes: Sequence[int],
        sampler: Sampler,
    ) -> None:
        self._packers = tuple(packers)
        self._bytes = tuple(packed_bytes)
        self._weight_bytes = tuple(weight_bytes)
        self._sampler = sampler
        self._look = (0, len(self._packers), *weight_bytes)
        self._lock = threading.Lock()
        # one tuple, replaced as a whole: a call on another thread sees copies that belong to their sums
        sums = torch.zeros(len(self._packers), dtype=torch.int64)
        self._state: tuple[list[torch.Tensor], list[int], int, torch.Tensor] = ([], [], sums.data_ptr(), sums)

    def __call__(self, weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        copies, versions, sums, _ = self._state
        try:
            now = [w._version for w in weights]
        except RuntimeError:  # an inference tensor: "do not track version counter"
            return self._without_versions(weights)
        if now != versions or self._sampler(weights, sums, self._look):
            return self._refresh(weights, now)
        return copies

    def _refresh(self, weights: Sequence[torch.Tensor], now: list[int]) -> list[torch.Tensor]:
        """Pack what has changed; unchanged copies are kept."""
        with self._lock:
            copies, versions, _, old = self._state
            sums = old.clone()
            made = []
            for k, weight in enumerate(weights):
                moved = self._sampler((weight,), sums.data_ptr() + 8 * k, (1, 1, self._weight_bytes[k]))
                same = bool(copies) and versions[k] == now[k] and not moved
                made.append(copies[k] if same else self._packed(k, weight))
            self._state = made, now, sums.data_ptr(), sums
            return made

    def _without_versions(self, weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        warn_once(
            "BZ6012",
            "BZ6012: weights made in inference mode are packed at every call, since changes of them cannot be seen. "
            "Make or load the model outside torch.inference_mode().",
            "kernels",
        )
        return [self._packed(k, w) for k, w in enumerate(weights)]

    def _packed(self, k: int, weight: torch.Tensor) -> torch.Tensor:
        # always a fresh tensor: another thread may be reading the old one
        made = torch.empty(self._bytes[k] + 64, dtype=torch.uint8)
        made = made[-made.data_ptr() % 64 :]
        self._packers[k](weight.data_ptr(), made.data_ptr(), 0)
        return made
