"""The memory from which a model's steps are read: as long as the longest step, filled anew for each, at the same addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from braze.serving.engine.kv_cache import blocks_for
from braze.serving.engine.requests import Request, Work
from braze.serving.engine.scheduler import Limits
from braze.serving.step.context import AttentionMetaData, Context, DPMetadata


@dataclass
class Batch:
    """One step as the model gets it: views of the buffers, ``tokens`` and ``requests`` of them real, the rest padding."""

    input_ids: torch.Tensor
    positions: torch.Tensor
    metadata: AttentionMetaData
    context: Context
    tokens: int
    requests: int
    #: rows of the hidden states from which tokens are drawn, None: all real ones; and how many of them are each request's
    rows: torch.Tensor | None
    drawn: tuple[int, ...]
    #: the tokens of all data-parallel ranks, where there are others
    ranks: DPMetadata | None = None


@dataclass
class Views:
    """The buffers of one pair of padded sizes, on the device and (as arrays) on the host, and how many bytes they are together."""

    device: tuple[torch.Tensor, ...]
    host: tuple[Any, ...]
    size: int


#: token ids, positions, slots; where requests begin, their lengths
_TYPES = (torch.int64, torch.int64, torch.int64, torch.int32, torch.int32)
#: what each begins at a multiple of, in bytes: kernels are built apart for other addresses
_ALIGNED = 64
#: pairs of sizes whose views are kept: all that are recorded, and the commonest others
_KEPT = 512


class Buffers:
    """Static buffers on the device, and what they are filled from on the host.

    All that a step brings lies in one piece of memory, whose layout follows from its padded sizes, so that one copy takes it to the device;
    block tables lie apart, and go there when they have changed. Padding: token ids and positions 0, slots -1, requests without tokens and
    of length 0, whose rows of the block table nobody reads.
    """

    def __init__(self, limits: Limits, device: torch.device) -> None:
        self.limits, self.device = limits, device
        tokens, requests = limits.max_num_batched_tokens, limits.max_num_seqs
        width = blocks_for(limits.max_model_len, limits.block_size)
        _, whole = _layout(tokens, requests)
        self.packed, self._packed = self._pair(whole, dtype=torch.uint8)
        self.block_tables, self._block_tables = self._pair(requests, width, dtype=torch.int32)
        self.rows, self._rows = self._pair(tokens, dtype=torch.int64)
        self._tables_host, self._rows_host = self._block_tables.numpy(), self._rows.numpy()
        self._ends = np.arange(requests + 1, dtype=np.int32)
        self._views: dict[tuple[int, int], Views] = {}
        #: whose blocks each row of the tables holds, and how many; and the rows that the device does not have yet
        self._tables: list[tuple[Request, int, int] | None] = [None] * requests
        self._changed = 0
        #: when the last step's copies are done, so that the host's memory may be written again
        self._sent = torch.cuda.Event() if device.type == "cuda" else None

    def fill(self, works: Sequence[Work], tokens: int, requests: int, pad: bool) -> Batch:
        """Stage a step, padded to ``tokens`` and ``requests``.

        ``pad``: the metadata is padded too, as a recording of attention needs it; otherwise attention is told of the real
        tokens and requests alone.
        """
        self._wait()
        views = self._of(tokens, requests)
        # of many works, most are one token each
        ones = all(len(work.tokens) == 1 for work in works)
        real, longest = self._write_ones(works, views) if ones else self._write(works, views)
        if tokens > real:
            for array, padding in zip(views.host[:3], (0, 0, -1), strict=True):
                array[real:] = padding
        if requests > len(works):
            views.host[3][len(works) + 1 :] = real
            views.host[4][len(works) :] = 0
        if ones and all(work.samples for work in works):
            rows, drawn = real, (1,) * real
        else:
            rows, drawn = self._drawn(works)
        self._send(views)
        ids, positions, slots, ends, lens = views.device
        if not pad and tokens != real:
            slots = slots[:real]
        metadata = AttentionMetaData(
            ends, lens, self.block_tables[:requests], slots, longest, self.limits.max_model_len, real
        )
        prefill = not ones and any(len(work.tokens) > work.drafts + 1 for work in works)
        context = Context(positions, prefill, len(works), requests)
        index = None if rows == real else self.rows[:rows]
        return Batch(ids, positions, metadata, context, real, len(works), index, drawn)

    def fill_dummy(self, tokens: int, requests: int, longest: int) -> Batch:
        """Stage a step of padding, which writes no slot: tokens shared out among the requests.

        ``longest``: the most tokens that one of a real step's requests may have.
        """
        self._wait()
        views = self._of(tokens, requests)
        share = min(-(-tokens // max(requests, 1)), self.limits.max_model_len)
        ends = [min(i * share, tokens) for i in range(requests + 1)]
        for array, values in zip(
            views.host, (0, 0, -1, ends, [b - a for a, b in pairwise(ends)]), strict=True
        ):
            array[:] = values
        self._tables_host[:requests] = 0
        self._tables, self._changed = [None] * self.limits.max_num_seqs, requests
        self._send(views)
        ids, positions, slots, begins, lens = views.device
        metadata = AttentionMetaData(
            begins, lens, self.block_tables[:requests], slots, longest, self.limits.max_model_len, tokens
        )
        context = Context(positions, longest > 1, requests, requests)
        return Batch(ids, positions, metadata, context, tokens, requests, None, ())

    def _pair(self, *sizes: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Memory on the device, and on the host what is copied there."""
        pinned = self.device.type == "cuda"
        return (
            torch.zeros(*sizes, dtype=dtype, device=self.device),
            torch.zeros(*sizes, dtype=dtype, pin_memory=pinned),
        )

    def _of(self, tokens: int, requests: int) -> Views:
        found = self._views.get((tokens, requests))
        if found is None:
            places, size = _layout(tokens, requests)
            device, host = (
                tuple(memory[begin:end].view(dtype) for begin, end, dtype in places)
                for memory in (self.packed, self._packed)
            )
            found = Views(device, tuple(view.numpy() for view in host), size)
            if len(self._views) < _KEPT:
                self._views[tokens, requests] = found
        return found

    def _write_ones(self, works: Sequence[Work], views: Views) -> tuple[int, int]:
        """``_write`` of works of one token each."""
        size, count = self.limits.block_size, len(works)
        ids, positions, slots, ends, lengths = views.host
        ids[:count] = [work.tokens[0] for work in works]
        positions[:count] = [work.begin for work in works]
        lengths[:count] = positions[:count] + 1
        slots[:count] = [w.request.blocks[w.begin // size] * size + w.begin % size for w in works]
        ends[: count + 1] = self._ends[: count + 1]
        for i, work in enumerate(works):
            held, request = self._tables[i], work.request
            if (
                held is None
                or held[0] is not request
                or held[2] != len(request.blocks)
                or held[1] != request.preemptions
            ):
                self._write_table(i, request)
        return count, 1 if count else 0

    def _write_table(self, i: int, request: Request) -> None:
        """A request's blocks into a row of the tables."""
        count = len(request.blocks)
        self._tables_host[i, :count] = request.blocks
        self._tables[i], self._changed = (request, request.preemptions, count), max(self._changed, i + 1)

    def _write(self, works: Sequence[Work], views: Views) -> tuple[int, int]:
        """Put the real tokens and requests where the host keeps them: (tokens, the most of one request)."""
        size, longest = self.limits.block_size, 0
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        ends, lengths = [0], []
        for i, work in enumerate(works):
            count, blocks, begin = len(work.tokens), work.request.blocks, work.begin
            end = begin + count
            ids += work.tokens
            positions += range(begin, end)
            slots += [blocks[p // size] * size + p % size for p in range(begin, end)]
            if self._tables[i] != (work.request, work.request.preemptions, len(blocks)):
                self._write_table(i, work.request)
            ends.append(len(ids))
            lengths.append(end)
            longest = max(longest, count)
        for array, values in zip(views.host, (ids, positions, slots, ends, lengths), strict=True):
            array[: len(values)] = values
        return len(ids), longest

    def _drawn(self, works: Sequence[Work]) -> tuple[int, tuple[int, ...]]:
        """Note the rows from which tokens are drawn: (how many, how many of each request)."""
        at, drawn = 0, []
        rows: list[int] = []
        for work in works:
            at += len(work.tokens)
            many = work.drafts + 1 if work.samples else 0
            rows += range(at - many, at)
            drawn.append(many)
        if 0 < len(rows) < at:
            self._rows_host[: len(rows)] = rows
            self.rows[: len(rows)].copy_(self._rows[: len(rows)], non_blocking=True)
        return len(rows), tuple(drawn)

    def _send(self, views: Views) -> None:
        """From the host to the device, which reads these in the order of its stream."""
        self.packed[: views.size].copy_(self._packed[: views.size], non_blocking=True)
        if count := self._changed:
            self.block_tables[:count].copy_(self._block_tables[:count], non_blocking=True)
            self._changed = 0
        if self._sent is not None:
            self._sent.record()

    def _wait(self) -> None:
        """Until the last step's copies have been made: steps that draw no token do not wait for anything else."""
        if self._sent is not None:
            self._sent.synchronize()


def _layout(tokens: int, requests: int) -> tuple[list[tuple[int, int, torch.dtype]], int]:
    """Where each buffer of a step begins and ends, in bytes, and its type; and where there is room for what follows all."""
    places, begin = [], 0
    for count, dtype in zip((tokens, tokens, tokens, requests + 1, requests), _TYPES, strict=True):
        end = begin + count * dtype.itemsize
        places.append((begin, end, dtype))
        begin = -(-end // _ALIGNED) * _ALIGNED
    return places, begin
