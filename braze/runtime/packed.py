"""Packed copies of GEMM weights, kept as long as the weight does not change.

A copy belongs to one weight of one graph and is keyed by its data pointer, shape and version counter; it is
made again when any of them moves. A tensor made in inference mode has no version counter, so it is
packed again at each call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

Packer = Callable[[int, int, int], None]


def packer(address: int) -> Packer:
    """A C function ``void f(const void *b, void *packed, const int64_t *sizes)`` as a callable."""
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(address)


class PackedWeight:
    """The packed copy of one weight; call it with the weight."""

    __slots__ = ("_copy", "_key", "_pack", "_size")

    def __init__(self, pack: Packer, size: int) -> None:
        self._pack = pack
        self._size = size
        self._key: tuple[object, ...] | None = None
        self._copy: torch.Tensor | None = None

    def __call__(self, weight: torch.Tensor) -> torch.Tensor:
        if weight.is_inference():
            return self._packed(weight)
        key = (weight.data_ptr(), weight._version, weight.shape)
        if self._copy is None or key != self._key:
            # a fresh tensor, not the old one written over: another thread may be reading that
            self._copy, self._key = self._packed(weight), key
        return self._copy

    def _packed(self, weight: torch.Tensor) -> torch.Tensor:
        made = torch.empty(self._size, dtype=torch.uint8)
        self._pack(weight.data_ptr(), made.data_ptr(), 0)
        return made
