"""The parameters of one param group that one kernel steps: their table of addresses, and its launch.

Addresses are read anew at every step, since gradients, parameters' data and state may be replaced at any time. The
walk over them is native and also tells what cannot be stepped this way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from braze import native
from braze.optim.engine import CpuEngine, GpuEngine
from braze.optim.rules import BYTES, Kind

_HEAD = 2


class Bucket:
    """Parameters of one dtype on one device. ``states``: each parameter's dict of state, or () where there is none."""

    def __init__(
        self, kind: Kind, params: list[torch.Tensor], states: list[dict[str, Any]], counts: bool
    ) -> None:
        self.kind = kind
        self.params = params
        self.states = states
        self.counts = counts
        rows = len(params)
        self.table = np.zeros((rows, _HEAD + kind.columns + 1), dtype=np.int64)
        self.steps = np.zeros((rows, _HEAD + 1), dtype=np.int64)
        device = params[0].device
        step = states[0].get("step") if counts else None
        wide = isinstance(step, torch.Tensor) and step.dtype == torch.float64
        counted = step.device if isinstance(step, torch.Tensor) else torch.device("cpu")
        with torch.inference_mode(False):
            self.like = torch.empty(0, dtype=params[0].dtype, device=device)
            self.steps_like = torch.empty(0, dtype=torch.float64 if wide else torch.float32, device=counted)
        self.spans: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None = None
        self.fresh: list[int] = []
        self.on_host = device.type == "cpu"
        self.engine: CpuEngine | GpuEngine
        if self.on_host:
            self.engine = CpuEngine(kind, self.table, self.steps, wide)
        else:
            self.engine = GpuEngine(
                kind, self.table, self.steps, wide, device, counted.type if counts else ""
            )

    def prepare(self, grads: list[torch.Tensor]) -> bool:
        """Read all addresses; False, with nothing changed, if there is a row that the kernel cannot step.

        Gradients laid out unlike their parameter are replaced in the list by copies that are not.
        """
        self.fresh = fresh = self.make_buffers(grads)
        if self.irregular(grads) or self.overlapping():
            self.skip()
            return False
        self.table[:, -1] = 0
        self.table[fresh, -1] = 1
        return True

    def skip(self) -> None:
        """Leave the step that was prepared undone."""
        self.drop_buffers(self.fresh)
        self.fresh = []

    def step(
        self, numbers: tuple[float, ...], found: torch.Tensor | None = None, scale: torch.Tensor | None = None
    ) -> None:
        """Take the step that was prepared; the tensors are to be kept alive. See GpuEngine for ``found`` and ``scale``."""
        self.fresh = []
        self.engine.step(numbers, found, scale)
        # autograd is to see that the parameters changed
        torch.autograd.graph.increment_version(self.params)

    def make_buffers(self, grads: list[torch.Tensor]) -> list[int]:
        """Give parameters without a momentum buffer one, to be filled by the kernel; their rows."""
        if self.kind.states != ("momentum_buffer",):
            return []
        fresh = [i for i, state in enumerate(self.states) if state.get("momentum_buffer") is None]
        # a GPU may skip the step without our knowing
        make = torch.empty_like if self.on_host else torch.zeros_like
        for i in fresh:
            self.states[i]["momentum_buffer"] = make(self.params[i])
        return fresh

    def drop_buffers(self, rows: list[int]) -> None:
        """Take back what make_buffers gave."""
        for row in rows:
            del self.states[row]["momentum_buffer"]

    def irregular(self, grads: list[torch.Tensor], *, all_rows: bool = False) -> list[int]:
        """Fill the table; the first row (or all rows) that the kernel cannot step. Gradients laid out otherwise are copied."""
        states = ([state.get(key) for state in self.states] for key in self.kind.states)
        columns: tuple[list[Any], ...] = (self.params, grads, *states)
        wrong = self.irregular_steps(all_rows)
        first, copied = 0, -1
        while not wrong or all_rows:
            row, changed = native.tabulate(columns, self.like, self.table, first)
            if changed:
                self.spans = None
            if row < 0:
                break
            laid_out = as_laid_out(self.params[row], grads[row]) if row != copied else None
            if laid_out is None:
                wrong.append(row)
                first = row + 1
            else:
                grads[row] = laid_out
                first = copied = row
        return wrong

    def irregular_steps(self, all_rows: bool) -> list[int]:
        """Rows whose count of steps is no lone number where the others are."""
        wrong: list[int] = []
        if not self.counts:
            return wrong
        counts, first = [s.get("step") for s in self.states], 0
        while not wrong or all_rows:
            row, changed = native.tabulate((counts,), self.steps_like, self.steps, first)
            if changed:
                read = self.steps[first : row if row >= 0 else None, 0]
                wrong += (np.flatnonzero(read != 1) + first).tolist()
            if row < 0:
                break
            wrong.append(row)
            first = row + 1
        return wrong

    def overlapping(self) -> list[int]:
        """Rows whose memory, where it is written, is also another row's or a gradient's."""
        size, counts = BYTES[self.kind.dtype], self.table[:, :1]
        if self.spans is None:
            written = np.delete(self.table[:, _HEAD:-1], 1, axis=1)
            starts, stops = written.ravel(), (written + counts * size).ravel()
            rows = np.repeat(np.arange(len(written)), written.shape[1])
            starts, stops, rows = (a[stops > starts] for a in (starts, stops, rows))
            wrong = crossing(np.stack((starts, stops), axis=1))
            if wrong:
                return sorted({int(rows[i]) for i in wrong})
            order = np.argsort(starts)
            self.spans = starts[order], stops[order]
        starts, stops = self.spans
        if not len(starts):
            return []
        grads = self.table[:, _HEAD + 1]
        ends = grads + counts[:, 0] * size
        # the last span that starts before the gradient ends
        before = np.searchsorted(starts, ends, side="left") - 1
        hit = (before >= 0) & (stops[before] > grads) & (ends > grads)
        return np.flatnonzero(hit).tolist()


def crossing(spans: np.ndarray[Any, Any]) -> list[int]:
    """Which of several spans of memory (start, stop) share some with another."""
    spans = np.asarray(spans)
    taken = np.flatnonzero(spans[:, 1] > spans[:, 0])
    order = taken[np.argsort(spans[taken, 0], kind="stable")]
    starts, stops = spans[order, 0], spans[order, 1]
    if not (starts[1:] < np.maximum.accumulate(stops)[:-1]).any():
        return []
    wrong: set[int] = set()
    last, owner = -1, -1
    for index, start, stop in zip(order.tolist(), starts.tolist(), stops.tolist(), strict=True):
        if start < last:
            wrong |= {owner, index}
        if stop > last:
            last, owner = stop, index
    return sorted(wrong)


def as_laid_out(p: torch.Tensor, grad: torch.Tensor | None) -> torch.Tensor | None:
    """A gradient copied to the order of its parameter's elements; None if the order is not what is wrong with it."""
    if (
        not isinstance(grad, torch.Tensor)
        or grad.layout != torch.strided
        or (grad.dtype, grad.device, grad.shape) != (p.dtype, p.device, p.shape)
        or type(grad) not in (torch.Tensor, torch.nn.Parameter)
    ):
        return None
    return torch.empty_like(p).copy_(grad)
