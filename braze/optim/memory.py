"""Whether the parameters of a group may be stepped in any order: none writes what another one reads or writes.

PyTorch goes through a group from first to last, and a parameter whose gradient is another one's memory sees what the
step before has written. Kernels step all at once, and what PyTorch steps beside them comes first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from braze.native.tables import HEAD
from braze.optim.rules import BYTES
from braze.support.layouts import span

if TYPE_CHECKING:
    from braze.optim.bucket import Bucket

Array = np.ndarray[Any, Any]
#: a parameter that PyTorch steps: what is written for it, and what is only read
Other = tuple[list[torch.Tensor], list[torch.Tensor]]


class Memory:
    """The memory of all rows of several buckets; a row's number counts on from bucket to bucket."""

    def __init__(self, buckets: list[Bucket]) -> None:
        self.buckets = buckets
        self.ends = np.cumsum([len(bucket.params) for bucket in buckets])
        #: what is written, in order and without overlaps, and whose it is
        self.written: tuple[Array, Array, Array] | None = None

    def conflicts(self, others: list[Other]) -> list[list[int]]:
        """Rows of each bucket whose memory another row, or one of the others, writes or reads what they write."""
        if not self.buckets:
            return []
        if self.written is None or any(bucket.moved for bucket in self.buckets):
            wrong = self.arrange()
            if wrong:
                return self.by_bucket(wrong)
        wrong = self.of_gradients() | self.of_others(others)
        first = 0
        for bucket in self.buckets:
            for row, grad in bucket.copied:
                # the copy was made before the step, the gradient itself is to be read in its turn
                hit = self.of_others([([], [grad])])
                wrong |= hit | {first + row} if hit else hit
            first += len(bucket.params)
        return self.by_bucket(wrong)

    def arrange(self) -> set[int]:
        """Sort what is written; the rows of which some is written twice, if there are any."""
        self.written = None
        spans, owners, first = [], [], 0
        for bucket in self.buckets:
            size = BYTES[bucket.kind.dtype]
            starts = np.delete(bucket.table[:, HEAD:-1], 1, axis=1)
            stops = starts + bucket.table[:, :1] * size
            spans.append(np.stack((starts.ravel(), stops.ravel()), axis=1))
            owners.append(first + np.repeat(np.arange(len(starts)), starts.shape[1]))
            first += len(starts)
        span, owner = np.concatenate(spans), np.concatenate(owners)
        wrong = crossing(span)
        if wrong:
            return {int(owner[i]) for i in wrong}
        taken = np.flatnonzero(span[:, 1] > span[:, 0])
        order = taken[np.argsort(span[taken, 0])]
        self.written = span[order, 0], span[order, 1], owner[order]
        for bucket in self.buckets:
            bucket.moved = False
        return set()

    def read(self) -> tuple[Array, Array]:
        """Where the gradients start and stop."""
        starts = np.concatenate([bucket.table[:, HEAD + 1] for bucket in self.buckets])
        sizes = np.concatenate([bucket.table[:, 0] * BYTES[bucket.kind.dtype] for bucket in self.buckets])
        return starts, starts + sizes

    def of_gradients(self) -> set[int]:
        """Rows whose gradient is written as something else of a row, and those of which that is."""
        assert self.written is not None
        starts, stops, owner = self.written
        if not len(starts):
            return set()
        low, high = self.read()
        # the last span that starts before the gradient ends
        before = np.searchsorted(starts, high, side="left") - 1
        hit = np.flatnonzero((before >= 0) & (stops[before] > low) & (high > low))
        wrong = {int(row) for row in hit}
        for row in hit:
            first = np.searchsorted(stops, low[row], side="right")
            wrong.update(owner[first : before[row] + 1].tolist())
        return wrong

    def of_others(self, others: list[Other]) -> set[int]:
        """Rows that get in the way of what PyTorch steps."""
        assert self.written is not None
        starts, stops, owner = self.written
        low, high = self.read()
        wrong: set[int] = set()
        for kept, read in others:
            for tensor, is_written in [*((t, True) for t in kept), *((t, False) for t in read)]:
                start, stop = extent(tensor)
                if start == stop:
                    continue
                wrong.update(owner[(starts < stop) & (stops > start)].tolist())
                if is_written:
                    wrong.update(np.flatnonzero((low < stop) & (high > start) & (high > low)).tolist())
        return wrong

    def by_bucket(self, rows: set[int]) -> list[list[int]]:
        """The rows of each bucket, by the bucket's own numbers; empty if there is none at all."""
        if not rows:
            return []
        dealt: list[list[int]] = [[] for _ in self.buckets]
        for row in sorted(rows):
            at = int(np.searchsorted(self.ends, row, side="right"))
            dealt[at].append(row - (int(self.ends[at - 1]) if at else 0))
        return dealt


def extent(tensor: Any) -> tuple[int, int]:
    """From where to where the elements of a tensor lie; nowhere for one that has no plain memory."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        return 0, 0
    if tensor.device.type == "meta" or not tensor.numel():
        return 0, 0
    start = tensor.data_ptr()
    return start, start + span(tensor.size(), tensor.stride()) * tensor.element_size()


def crossing(spans: Array) -> list[int]:
    """Which of several spans of memory (start, stop) share some with another."""
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
