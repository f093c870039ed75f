"""Calls of a batch whose rows are filled up to a size that is recorded, where the program says that rows are independent.

``braze.mark_batch`` says so; it is checked once, at the first call that would be filled up. The call runs as it is, then
with two different tails behind the real rows: these must come out the same, and as without a tail. Where they do not, nothing is filled up.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Sequence
from typing import Any

import torch

from braze.cudagraphs.device import DeviceGraphs
from braze.cudagraphs.plan import Batch
from braze.cudagraphs.reasons import note
from braze.cudagraphs.recording import Call
from braze.cudagraphs.storages import tensor_over
from braze.graph.private.torch_compat import copy_all
from braze.runtime.call.boxed import boxed
from braze.support import trace
from braze.support.layouts import span


@boxed
class Padded:
    """``call`` with the rows of its batch filled up to the next size of ``ladder``. Used from several threads, which take turns."""

    def __init__(
        self, call: Call, name: str, batch: Batch, ladder: Sequence[int], device: DeviceGraphs
    ) -> None:
        self.call, self.name, self.batch, self.device = call, name, batch, device
        self.ladder = sorted(ladder)
        self.told = object()
        self._lock = threading.RLock()
        #: whether rows are independent; None: not known yet
        self._independent: bool | None = None
        #: memory for inputs, by stream and size
        self._filled: dict[tuple[int, int], list[torch.Tensor]] = {}

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        place, dim = self.batch.inputs[0]
        rows = inputs[place].shape[dim]
        size = self._rung(rows)
        if size == rows or self._independent is False or self.device.busy():
            return self.call(inputs)
        with self._lock:
            if self._independent is None:
                return self._first(inputs, rows, size)
            trace.count("cudagraph_padded")
            return self._cut(self.call(self._with_rows(inputs, rows, size)), rows, size)

    def _rung(self, rows: int) -> int:
        """The recorded size that so many rows are filled up to; past the last, and for none, as many as they are."""
        if rows == 0:
            return rows
        at = bisect.bisect_left(self.ladder, rows)
        if at < len(self.ladder):
            return self.ladder[at]
        why = f"is called with {rows} rows, more than the largest of cudagraph_sizes; such calls are not recorded"
        note("BZ6206", self.name, why, tell=self.told)
        return rows

    def _with_rows(self, inputs: Sequence[Any], rows: int, size: int) -> list[Any]:
        """The inputs with ``size`` rows, of which those behind ``rows`` are what was there before."""
        key = self.device.stream(), size
        with torch.inference_mode(False), torch.no_grad():
            filled = self._filled.get(key)
            if filled is None:
                filled = self._filled[key] = [_taller(inputs[i], d, size) for i, d in self.batch.inputs]
            parts = [x.narrow(d, 0, rows) for x, (_, d) in zip(filled, self.batch.inputs, strict=True)]
            copy_all(parts, [inputs[i] for i, _ in self.batch.inputs])
        values = list(inputs)
        for x, (i, _) in zip(filled, self.batch.inputs, strict=True):
            values[i] = x
        for i in self.batch.numbers:
            values[i] = size
        return values

    def _cut(self, outputs: Sequence[Any], rows: int, size: int) -> tuple[Any, ...]:
        """The outputs without their tails, none of them over the memory for inputs."""
        results = list(outputs)
        mine = {x.untyped_storage().data_ptr() for x in self._filled[self.device.stream(), size]}
        rows_of = {k: (dim, each) for k, dim, each in self.batch.outputs}
        for k, x in enumerate(results):
            if not isinstance(x, torch.Tensor) or x.numel() == 0:
                continue
            storage, shape = x.untyped_storage(), list(x.shape)
            ours = storage.data_ptr() in mine
            if k in rows_of:
                dim, each = rows_of[k]
                shape[dim] = rows * each
            if ours or k in rows_of:
                storage = storage.clone() if ours else storage
                results[k] = tensor_over(storage, x.dtype, int(x.storage_offset()), shape, x.stride())
        return tuple(results)

    def _first(self, inputs: Sequence[Any], rows: int, size: int) -> Sequence[Any]:
        """The outputs of the call as it is, and whether other calls may be filled up."""
        kept = list(inputs)
        outputs = self.call(inputs)
        with self.device.lock, self.device.kept_numbers():
            try:
                tails = [self._tried(kept, rows, size, tail) for tail in (_repeated, _poisoned)]
                self._independent, why = _same(tails, outputs)
            except Exception as error:
                self._independent, why = False, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        if not self._independent:
            self._filled.clear()
            note("BZ6215", self.name, f"is not filled up to recorded sizes: {why}", tell=self.told)
        return outputs

    def _tried(self, inputs: list[Any], rows: int, size: int, tail: Any) -> list[torch.Tensor]:
        """The real rows of the outputs with this tail behind the inputs' rows."""
        values = self._with_rows(inputs, rows, size)
        with torch.inference_mode(False), torch.no_grad():
            for i, d in self.batch.inputs:
                tail(values[i].narrow(d, rows, size - rows), values[i].narrow(d, rows - 1, 1))
        return [x.clone() for x in self._cut(self.call(values), rows, size) if isinstance(x, torch.Tensor)]


def _taller(x: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """Memory for an input of that many rows, of zeros, in its layout: rows are the outermost in memory."""
    shape = list(x.shape)
    shape[dim] = size
    flat = torch.zeros(span(shape, x.stride()), dtype=x.dtype, device=x.device)
    return flat.as_strided(shape, x.stride())


def _repeated(tail: torch.Tensor, last: torch.Tensor) -> None:
    tail.copy_(last.expand_as(tail))


def _poisoned(tail: torch.Tensor, last: torch.Tensor) -> None:
    """NaN; whole numbers, which may be places, become 0."""
    tail.fill_(float("nan") if tail.is_floating_point() or tail.is_complex() else 0)


def _same(tails: list[list[torch.Tensor]], outputs: Sequence[Any]) -> tuple[bool, str]:
    """Whether the outputs are the same with both tails, and, but for rounding, without one; which is not."""
    plain = [x for x in outputs if isinstance(x, torch.Tensor)]
    for k, (one, two, given) in enumerate(zip(*tails, plain, strict=True)):
        if not torch.equal(one.nan_to_num(), two.nan_to_num()) or not torch.equal(one.isnan(), two.isnan()):
            return False, f"rows of output {k} depend on rows behind them"
        if not torch.allclose(one, given, *_tolerances(one.dtype), equal_nan=True):
            return False, f"output {k} depends on the number of rows"
    return True, ""


def _tolerances(dtype: torch.dtype) -> tuple[float, float]:
    """How far sums of another order may differ, relatively and absolutely."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return 0.0, 0.0
    return (torch.finfo(dtype).eps ** 0.6,) * 2
