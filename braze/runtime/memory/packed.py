"""Packed copies of GEMM weights, kept as long as the weights do not change."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import torch

from braze.runtime.memory.watch import Sampler, Watch
from braze.support.log import warn_once

#: f(b, packed, sizes)
Packer = Callable[[int, int, int], None]


def packer(address: int) -> Packer:
    """A C function ``void f(const void *b, void *packed, const int64_t *sizes)`` as a callable."""
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(address)


class PackedWeights(Watch):
    """The packed copies of all weights of one graph: ``copies = packed(weights)``."""

    def __init__(
        self,
        packers: Sequence[Packer],
        packed_bytes: Sequence[int],
        weight_bytes: Sequence[int],
        sampler: Sampler,
    ) -> None:
        super().__init__(weight_bytes, sampler, self._pack)
        self._packers = tuple(packers)
        self._bytes = tuple(packed_bytes)

    def _pack(
        self, weights: Sequence[torch.Tensor], changed: Sequence[bool], kept: list[torch.Tensor] | None
    ) -> list[torch.Tensor]:
        """Pack what has changed; unchanged copies are kept."""
        if any(w.is_inference() for w in weights):
            warn_once(
                "BZ6012",
                "BZ6012: weights made in inference mode are packed at every call, since changes of them cannot be "
                "seen. Make or load the model outside torch.inference_mode().",
                "kernels",
            )
        return [self._packed(k, w) if kept is None or changed[k] else kept[k] for k, w in enumerate(weights)]

    def _packed(self, k: int, weight: torch.Tensor) -> torch.Tensor:
        # always a fresh tensor: another thread may be reading the old one
        made = torch.empty(self._bytes[k] + 64, dtype=torch.uint8, device="cpu")
        made = made[-made.data_ptr() % 64 :]
        self._packers[k](weight.data_ptr(), made.data_ptr(), 0)
        return made
