"""``clip_grad_norm_`` and ``clip_grad_value_`` of ``torch.nn.utils``, in one pass each over all gradients."""

from __future__ import annotations

import types
import warnings
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import torch

from braze import native
from braze.native.tables import HEAD
from braze.optim import build
from braze.optim.c_clip import CLAMP, LARGEST, SCALE, SQUARES
from braze.optim.c_kernels import SPAN
from braze.optim.gpu_clip import GpuGradients, GpuTable, is_recorded
from braze.optim.memory import crossing
from braze.optim.plan import has_triton
from braze.optim.rules import BYTES, LABELS
from braze.support.errors import Unsupported
from braze.support.log import warn_once

Array = np.ndarray[Any, Any]
Parameters = torch.Tensor | Iterable[torch.Tensor]


class Gradients(Protocol):
    """All gradients, wherever they are."""

    def norm(self, order: float, dtype: torch.dtype, max_norm: float) -> torch.Tensor:
        """Their norm of order 2 or infinity, in a type, where they are."""

    def scale(self) -> None:
        """Scale them to the largest norm that was told with the last norm, if theirs is larger."""

    def clamp(self, value: float) -> None:
        """Clamp them to between the negative of a number and it."""


class CpuGradients:
    """All gradients, in tables by type, where they are read and written at once."""

    def __init__(self, tables: list[CpuTable]) -> None:
        self.tables = tables
        self.factor: torch.Tensor | None = None

    def norm(self, order: float, dtype: torch.dtype, max_norm: float) -> torch.Tensor:
        norms = [table.norm(order) for table in self.tables]
        # as nested norms: inf and nan stay what they are
        total = torch.linalg.vector_norm(torch.tensor(norms, dtype=torch.float64, device="cpu"), order).to(
            dtype
        )
        with torch.no_grad():
            self.factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
        return total

    def scale(self) -> None:
        assert self.factor is not None
        factor = self.factor.item()
        if factor != 1.0:
            for table in self.tables:
                table.change(SCALE, factor)

    def clamp(self, value: float) -> None:
        for table in self.tables:
            table.change(CLAMP, value)


class CpuTable:
    """All gradients of one dtype, as a table. The list keeps them alive."""

    def __init__(self, grads: list[torch.Tensor], table: Array, label: str) -> None:
        self.grads = grads
        self.table = table
        self.label = label
        last = table[-1]
        self.tasks = -(-int(last[1] + last[0]) // SPAN)

    def norm(self, order: float) -> float:
        """Their norm of order 2 or infinity, in double."""
        numbers = np.zeros(1 + self.tasks)
        self.run(SQUARES if order == 2 else LARGEST, numbers)
        if not self.tasks:
            return 0.0
        return float(np.sqrt(numbers.sum())) if order == 2 else float(numbers[1:].max())

    def change(self, function: str, number: float) -> None:
        """Scale by a number, or clamp to between its negative and it."""
        self.run(function, np.array([number]))
        torch.autograd.graph.increment_version(self.grads)

    def run(self, function: str, numbers: Array) -> None:
        launch = build.cpu_clip(function, self.label)
        launch(self.table.ctypes.data, numbers.ctypes.data, len(self.grads), self.table.shape[1])


def tables_of(grads: list[torch.Tensor]) -> list[tuple[list[torch.Tensor], Array, str]] | None:
    """The gradients by type, each with its table and its label; None if there is one that the kernels cannot walk over, or memory shared by two."""
    by_type: dict[torch.dtype, list[torch.Tensor]] = {}
    for grad in grads:
        by_type.setdefault(grad.dtype, []).append(grad)
    made, spans = [], []
    for dtype, several in by_type.items():
        if dtype not in LABELS or several[0].device != grads[0].device:
            return None
        with torch.inference_mode(False):
            like = torch.empty(0, dtype=dtype, device=several[0].device)
        table = np.zeros((len(several), HEAD + 1), dtype=np.int64)
        if native.tabulate((several,), like, table)[0] >= 0:
            return None
        label = LABELS[dtype]
        spans.append(np.stack((table[:, 2], table[:, 2] + table[:, 0] * BYTES[label]), axis=1))
        made.append((several, table, label))
    if spans and crossing(np.concatenate(spans)):
        return None
    return made


def clip_grad_norm_(
    parameters: Parameters,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> torch.Tensor:
    """What ``torch.nn.utils.clip_grad_norm_`` does: scale gradients down to a total norm; returns the norm before.

    One pass over all gradients for the norm, and one to scale them where it is larger than ``max_norm``; on a GPU nothing waits for
    it, but for ``error_if_nonfinite``. Orders other than 2 and infinity, and gradients that are sparse, share memory, or are on several
    devices, go to PyTorch's function.
    """
    params = listed(parameters)
    grads = [p.grad for p in params if p.grad is not None]
    order = float(norm_type)
    # the largest of no elements is an error, and PyTorch's to raise
    known = order == 2.0 or (order == float("inf") and all(g.numel() for g in grads))
    found = usable(grads) if known and grads else None
    if found is None:
        return torch.nn.utils.clip_grad_norm_(params, max_norm, norm_type, error_if_nonfinite, foreach)
    dtype = grads[0].dtype
    for grad in grads:
        dtype = torch.promote_types(dtype, grad.dtype)
    total = found.norm(order, dtype, float(max_norm))
    if error_if_nonfinite and not total.isfinite():
        raise RuntimeError(
            f"The total norm of order {order} for gradients from `parameters` is non-finite, so it cannot be "
            "clipped. To disable this error and scale the gradients by the non-finite norm anyway, set "
            "`error_if_nonfinite=False`"
        )
    found.scale()
    return total


def clip_grad_value_(parameters: Parameters, clip_value: float, foreach: bool | None = None) -> None:
    """What ``torch.nn.utils.clip_grad_value_`` does: clamp gradients to between ``-clip_value`` and ``clip_value``."""
    params = listed(parameters)
    grads = [p.grad for p in params if p.grad is not None]
    found = usable(grads) if float(clip_value) >= 0 else None
    if found is None:
        torch.nn.utils.clip_grad_value_(params, clip_value, foreach)
    else:
        found.clamp(float(clip_value))


def listed(parameters: Parameters) -> list[torch.Tensor]:
    """The parameters as a list; an empty generator is likely one that was used up before."""
    if isinstance(parameters, torch.Tensor):
        return [parameters]
    params = list(parameters)
    if not params and isinstance(parameters, types.GeneratorType):
        # whoever calls braze.clip_grad_norm_, which wraps what calls this
        warnings.warn("`parameters` is an empty generator, no gradient clipping will occur.", stacklevel=4)
    return params


def usable(grads: list[torch.Tensor]) -> Gradients | None:
    """The gradients with the kernels at hand; None where PyTorch is to do it."""
    if not grads:
        return CpuGradients([])
    device = grads[0].device
    on_gpu = device.type == "cuda"
    if on_gpu and (not has_triton() or is_recorded(device)):
        return None
    tables = tables_of(grads) if on_gpu or device.type == "cpu" else None
    if tables is None:
        return None
    if on_gpu:
        return GpuGradients([GpuTable(*table) for table in tables])
    try:
        build.cpu_clip(SCALE, tables[0][-1])
    except Unsupported as error:
        warn_once(("BZ5001", "clip"), f"{error.code}: {error.what}: PyTorch clips gradients", "kernels")
        return None
    return CpuGradients([CpuTable(*table) for table in tables])
