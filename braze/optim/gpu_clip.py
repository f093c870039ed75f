"""Gradients on a GPU that are clipped without waiting for it: their table is sent along, their norm stays there."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch

from braze.optim import build
from braze.optim.engine import chunks_of, on

Array = np.ndarray[Any, Any]


class GpuTable:
    """Gradients of one type, sent to their device; ``places`` names the chunk of each program."""

    def __init__(self, grads: list[torch.Tensor], table: Array, label: str) -> None:
        self.grads = grads
        self.module = build.gpu_clip_module(label)
        self.width = table.shape[1]
        self.aligned = not bool((table[:, 2] & 15).any())
        device = grads[0].device
        self.words = sent(table.ravel(), device)
        self.places = places_of(table[:, 0].tobytes(), self.module.CHUNK, device)

    def launch(self, kernel: str, out: torch.Tensor, **told: Any) -> None:
        """A program for each chunk."""
        if len(self.places):
            module = self.module
            getattr(module, kernel)[(len(self.places),)](
                self.words, self.places, out, self.width, ALIGNED=self.aligned,
                CHUNK=module.CHUNK, BLOCK=module.BLOCK, num_warps=module.WARPS, **told,
            )  # fmt: skip


class GpuGradients:
    """All gradients, of one device: a table for each type."""

    def __init__(self, tables: list[GpuTable]) -> None:
        self.tables = tables
        self.device = tables[0].grads[0].device
        #: the largest norm and, once a norm was taken, what to multiply by
        self.numbers: torch.Tensor | None = None

    def norm(self, order: float, dtype: torch.dtype, max_norm: float) -> torch.Tensor:
        """Their norm of order 2 or infinity, in a type."""
        numbers = self.numbers = sent(np.array([max_norm, 1.0]).view(np.int64), self.device).view(
            torch.float64
        )
        ends = np.cumsum([0, *(len(table.places) for table in self.tables)])
        parts = torch.empty(int(ends[-1]), dtype=torch.float64, device=self.device)
        total = torch.empty((), dtype=dtype, device=self.device)
        with on(self.device):
            for table, start in zip(self.tables, ends, strict=False):
                table.launch("measure", parts[start:], LARGEST=order != 2)
            module = self.tables[0].module
            module.fold[(1,)](
                parts, len(parts), numbers, total, LARGEST=order != 2, FOLDED=module.FOLDED,
                num_warps=module.WARPS,
            )  # fmt: skip
        return total

    def scale(self) -> None:
        """Multiply by what the norm has told; where that is 1 nothing is read or written."""
        assert self.numbers is not None
        self._change(self.numbers[1:], clamped=False)

    def clamp(self, value: float) -> None:
        """Clamp to between the negative of a number and it."""
        number = sent(np.array([value]).view(np.int64), self.device).view(torch.float64)
        self._change(number, clamped=True)

    def _change(self, number: torch.Tensor, clamped: bool) -> None:
        for table in self.tables:
            with on(self.device):
                table.launch("change", number, CLAMP=clamped)
            torch.autograd.graph.increment_version(table.grads)


def is_recorded(device: torch.device) -> bool:
    """Whether the current stream of a GPU records a CUDA graph: each replay would read the table of this call."""
    with on(device):
        return torch.cuda.is_current_stream_capturing()


def sent(words: Array, device: torch.device) -> torch.Tensor:
    """Words on a device, in the order of its current stream. PyTorch keeps the pinned memory until they have arrived."""
    host = torch.empty(len(words), dtype=torch.int64, device="cpu", pin_memory=device.type == "cuda")
    host.numpy()[:] = words
    return host.to(device, non_blocking=True)


@functools.lru_cache(maxsize=16)
def places_of(sizes: bytes, chunk: int, device: torch.device) -> torch.Tensor:
    """The chunk of each program, of rows of so many elements (words of 64 bits)."""
    return torch.from_numpy(chunks_of(np.frombuffer(sizes, dtype=np.int64), chunk)).to(device)
