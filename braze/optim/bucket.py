"""The parameters of one param group that one kernel steps: their table of addresses, and its launch.

Addresses are read anew at every step, since gradients, parameters' data and state may be replaced at any time. The
walk over them is native and also tells what cannot be stepped this way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from braze import native
from braze.native.tables import HEAD
from braze.optim.engine import CpuEngine, GpuEngine
from braze.optim.rules import Kind


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
        self.table = np.zeros((rows, HEAD + kind.columns + 1), dtype=np.int64)
        self.steps = np.zeros((rows, HEAD + 1), dtype=np.int64)
        device = params[0].device
        step = states[0].get("step") if counts else None
        wide = isinstance(step, torch.Tensor) and step.dtype == torch.float64
        counted = step.device if isinstance(step, torch.Tensor) else torch.device("cpu")
        with torch.inference_mode(False):
            self.like = torch.empty(0, dtype=params[0].dtype, device=device)
            self.steps_like = torch.empty(0, dtype=torch.float64 if wide else torch.float32, device=counted)
        #: whether something written lies elsewhere than when Memory last looked
        self.moved = True
        self.fresh: list[int] = []
        #: rows whose gradient is given as a copy, with the gradient itself
        self.copied: list[tuple[int, torch.Tensor]] = []
        self.given: list[torch.Tensor] = []
        self.on_host = device.type == "cpu"
        self.engine: CpuEngine | GpuEngine
        if self.on_host:
            self.engine = CpuEngine(kind, self.table, self.steps, wide)
        else:
            self.engine = GpuEngine(
                kind, self.table, self.steps, wide, device, counted.type if counts else ""
            )

    def prepare(self, grads: list[torch.Tensor]) -> bool:
        """Read all addresses; whether every row is one that the kernel can step. ``skip`` undoes it either way.

        Gradients laid out unlike their parameter are replaced in the list by copies that are not.
        """
        return not self.read(grads)

    def read(self, grads: list[torch.Tensor], *, all_rows: bool = False) -> list[int]:
        """Prepare a step; the first row (or all rows) that the kernel cannot step."""
        self.fresh, self.copied, self.given = self.make_buffers(), [], grads
        wrong = self.irregular(grads, all_rows=all_rows)
        self.table[:, -1] = 0
        self.table[self.fresh, -1] = 1
        return wrong

    def skip(self) -> None:
        """Leave the step that was prepared undone."""
        for row in self.fresh:
            # parameters that stand in the group twice share a state
            self.states[row].pop("momentum_buffer", None)
        self.fresh, self.copied, self.given = [], [], []

    def step(
        self, numbers: tuple[float, ...], found: torch.Tensor | None = None, scale: torch.Tensor | None = None
    ) -> None:
        """Take the step that was prepared. See GpuEngine for ``found`` and ``scale``."""
        self.fresh, self.copied, self.given = [], [], []
        self.engine.step(numbers, found, scale)
        # autograd is to see that the parameters changed
        torch.autograd.graph.increment_version(self.params)

    def make_buffers(self) -> list[int]:
        """Give parameters without a momentum buffer one, to be filled by the kernel; their rows."""
        if self.kind.states != ("momentum_buffer",):
            return []
        fresh = [i for i, state in enumerate(self.states) if state.get("momentum_buffer") is None]
        # a GPU may skip the step without our knowing
        make = torch.empty_like if self.on_host else torch.zeros_like
        for i in fresh:
            self.states[i]["momentum_buffer"] = make(self.params[i])
        return fresh

    def irregular(self, grads: list[torch.Tensor], *, all_rows: bool = False) -> list[int]:
        """Fill the table; the first row (or all rows) that the kernel cannot step. Gradients laid out otherwise are copied."""
        states = ([state.get(key) for state in self.states] for key in self.kind.states)
        columns: tuple[list[Any], ...] = (self.params, grads, *states)
        wrong = self.irregular_steps(all_rows)
        first, copied = 0, -1
        while not wrong or all_rows:
            row, changed = native.tabulate(columns, self.like, self.table, first)
            if changed:
                self.moved = True
            if row < 0:
                break
            laid_out = as_laid_out(self.params[row], grads[row]) if row != copied else None
            if laid_out is None:
                wrong.append(row)
                first = row + 1
            else:
                self.copied.append((row, grads[row]))
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
