"""How a bucket's table is handed to its kernel: on the CPU by address, on a GPU by a copy of it on the device."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np
import torch

from braze.optim import build
from braze.optim.rules import Kind

Array = np.ndarray[Any, Any]


class CpuEngine:
    """Runs the C kernel. ``steps``: the table of the counts of steps; ``wide``: whether these are doubles."""

    def __init__(self, kind: Kind, table: Array, steps: Array, wide: bool) -> None:
        self.launch = build.cpu_step(kind)
        self.kept = (table, steps, np.zeros((len(table), 2)), np.zeros(8))
        self.addresses = tuple(array.ctypes.data for array in self.kept)
        self.shape = (*table.shape, int(wide))

    def step(self, numbers: tuple[float, ...], found: Any = None, scale: Any = None) -> None:
        """Take the step with the addresses that stand in the table. A scaler is the caller's business here."""
        self.kept[-1][: len(numbers)] = numbers
        self.launch(*self.addresses, *self.shape)


class Staging:
    """Pinned memory for what a step sends to the device; several in turn, since copies are not waited for."""

    COPIES = 4

    def __init__(self, words: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.host = [
            torch.zeros(words, dtype=torch.int64, device="cpu", pin_memory=pinned)
            for _ in range(self.COPIES if pinned else 1)
        ]
        self.views = [t.numpy() for t in self.host]
        self.sent: list[Any] = [None] * len(self.host)
        self.device = torch.empty(words, dtype=torch.int64, device=device)
        self.turn = 0

    def next(self) -> Array:
        """Memory to fill for this step; waits if its last copy is still under way."""
        self.turn = (self.turn + 1) % len(self.host)
        if self.sent[self.turn] is not None:
            self.sent[self.turn].synchronize()
        return self.views[self.turn]

    def send(self) -> torch.Tensor:
        """Copy what was filled, in the order of the current stream."""
        self.device.copy_(self.host[self.turn], non_blocking=True)
        if self.device.is_cuda:
            self.sent[self.turn] = torch.cuda.current_stream().record_event()
        return self.device


def on(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """The device as the current one, to whose current stream Triton gives its launches."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def chunks_of(sizes: Array, chunk: int) -> Array:
    """(row, chunk of it) of each program that does a chunk of rows of so many elements."""
    chunks = -(-sizes // chunk)
    rows = np.repeat(np.arange(len(sizes)), chunks)
    first = np.repeat(np.cumsum(chunks) - chunks, chunks)
    return np.stack((rows, np.arange(len(rows)) - first), axis=1)


class GpuEngine:
    """Runs the Triton kernels. The words sent are the table, two doubles a row, the numbers, and the steps' table.

    Counts of steps on the host are counted there; those on the device (``fused=True``) by a kernel, so that nothing
    waits for the device.
    """

    NUMBERS = 10  # the kernel's, and the logarithms of the betas

    def __init__(
        self, kind: Kind, table: Array, steps: Array, wide: bool, device: torch.device, counted: str
    ) -> None:
        self.table = table
        self.steps = steps
        self.wide = int(wide)
        self.device = device
        #: where steps are counted: "" (nowhere), "cpu", or the kind of device
        self.counted = counted
        self.module = build.gpu_module(kind)
        self.count = build.cpu_advance() if counted == "cpu" else None
        rows, width = table.shape
        self.rows, self.width = rows, width
        with torch.inference_mode(False):
            self.staging = Staging(rows * width + 2 * rows + self.NUMBERS + 3 * rows, device)
            self.none = torch.zeros(1, device=device)
        self.sizes: Array | None = None
        self.places = torch.empty(0, device="cpu")

    def step(
        self, numbers: tuple[float, ...], found: torch.Tensor | None = None, scale: torch.Tensor | None = None
    ) -> None:
        """Take the step, unless ``found`` holds something else than zero, with gradients divided by ``scale``."""
        words, cut = self.staging.next(), self.rows * self.width
        words[:cut] = self.table.ravel()
        doubles = words[cut : cut + 2 * self.rows + self.NUMBERS].view(np.float64)
        scratch, room = doubles[: 2 * self.rows], doubles[2 * self.rows :]
        room[: len(numbers)] = numbers
        if self.count is not None:
            self.count(*(a.ctypes.data for a in (self.steps, scratch, room)), self.rows, self.wide)
        elif self.counted:
            room[-2:] = [math.log(beta) if beta > 0 else -math.inf for beta in numbers[1:3]]
            words[-3 * self.rows :] = self.steps.ravel()
        if self.sizes is None or not np.array_equal(self.sizes, self.table[:, 0]):
            self.place()
        with on(self.device):
            self.run(found, scale)

    def run(self, found: torch.Tensor | None, scale: torch.Tensor | None) -> None:
        sent, cut, rows, module = self.staging.send(), self.rows * self.width, self.rows, self.module
        doubles = sent[cut : cut + 2 * rows + self.NUMBERS].view(torch.float64)
        scratch, numbers = doubles[: 2 * rows], doubles[2 * rows :]
        skips, scaled = found is not None, scale is not None
        found = self.none if found is None else found.to(self.device)
        scale = self.none if scale is None else scale.to(self.device)
        if self.counted and self.count is None:
            steps, grid = sent[-3 * rows :], (-(-rows // module.ROWS),)
            module.advance[grid](
                steps, scratch, numbers, numbers[-2:], found, rows, FOUND=skips, ROWS=module.ROWS
            )
        if len(self.places):
            module.step[(len(self.places),)](
                sent, self.places, scratch, numbers, found, scale, self.width, FOUND=skips, SCALED=scaled,
                ALIGNED=self.aligned(), CHUNK=module.CHUNK, BLOCK=module.BLOCK, num_warps=module.WARPS,
            )  # fmt: skip

    def place(self) -> None:
        """Which chunk of which row each program does."""
        self.sizes = self.table[:, 0].copy()
        self.places = torch.from_numpy(chunks_of(self.sizes, self.module.CHUNK)).to(self.device)

    def aligned(self) -> bool:
        """Whether sixteen divides every address, so that a thread may load several elements at once."""
        return not bool((self.table[:, 2:-1] & 15).any())
