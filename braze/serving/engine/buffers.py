"""The memory from which a model's steps are read: as long as the longest step, filled anew for each, at the same addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

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


class Buffers:
    """Static buffers on the device, and what they are filled from on the host.

    Padding: token ids and positions 0, slots -1, requests without tokens and of length 0, whose rows of the block table nobody
    reads. What lies behind a step's padded sizes is left as it was.
    """

    def __init__(self, limits: Limits, device: torch.device) -> None:
        self.limits, self.device = limits, device
        tokens, requests = limits.max_num_batched_tokens, limits.max_num_seqs
        self.table_width = blocks_for(limits.max_model_len, limits.block_size)
        pinned = device.type == "cuda"

        def pair(*sizes: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
            return (
                torch.zeros(*sizes, dtype=dtype, device=device),
                torch.zeros(*sizes, dtype=dtype, pin_memory=pinned),
            )

        self.input_ids, self._input_ids = pair(tokens, dtype=torch.int64)
        self.positions, self._positions = pair(tokens, dtype=torch.int64)
        self.slot_mapping, self._slot_mapping = pair(tokens, dtype=torch.int64)
        self.cu_seqlens, self._cu_seqlens = pair(requests + 1, dtype=torch.int32)
        self.seq_lens, self._seq_lens = pair(requests, dtype=torch.int32)
        self.block_tables, self._block_tables = pair(requests, self.table_width, dtype=torch.int32)
        self.rows, self._rows = pair(tokens, dtype=torch.int64)
        #: whose blocks each row of the tables holds, and how many; and the rows that the device does not have yet
        self._tables: list[tuple[Request, int, int] | None] = [None] * requests
        self._changed = 0
        self._host = {
            name: getattr(self, name).numpy()
            for name in (
                "_input_ids",
                "_positions",
                "_slot_mapping",
                "_cu_seqlens",
                "_seq_lens",
                "_block_tables",
                "_rows",
            )
        }

    def fill(self, works: Sequence[Work], tokens: int, requests: int, pad: bool) -> Batch:
        """Stage a step, padded to ``tokens`` and ``requests``.

        ``pad``: the metadata is padded too, as a recording of attention needs it; otherwise attention is told of the real
        tokens and requests alone.
        """
        real, longest = self._write(works)
        self._pad(real, tokens, len(works), requests)
        rows, drawn = self._drawn(works)
        self._send(tokens, requests)
        metadata = self.metadata(tokens if pad else real, requests if pad else len(works), longest, real)
        prefill = any(len(work.tokens) > work.drafts + 1 for work in works)
        context = Context(self.positions[:tokens], prefill, len(works), requests)
        every = rows == real
        index = None if every else self.rows[:rows]
        return Batch(
            self.input_ids[:tokens], context.positions, metadata, context, real, len(works), index, drawn
        )

    def fill_dummy(self, tokens: int, requests: int, longest: int) -> Batch:
        """Stage a step of padding, which writes no slot: tokens shared out among the requests.

        ``longest``: the most tokens that one of a real step's requests may have.
        """
        host = self._host
        host["_input_ids"][:tokens] = 0
        host["_positions"][:tokens] = 0
        host["_slot_mapping"][:tokens] = -1
        share = min(-(-tokens // max(requests, 1)), self.limits.max_model_len)
        ends = [min(i * share, tokens) for i in range(requests + 1)]
        host["_cu_seqlens"][: requests + 1] = ends
        host["_seq_lens"][:requests] = [b - a for a, b in pairwise(ends)]
        host["_block_tables"][:requests] = 0
        self._tables, self._changed = [None] * self.limits.max_num_seqs, requests
        self._send(tokens, requests)
        metadata = self.metadata(tokens, requests, longest, tokens)
        context = Context(self.positions[:tokens], longest > 1, requests, requests)
        return Batch(
            self.input_ids[:tokens], context.positions, metadata, context, tokens, requests, None, ()
        )

    def metadata(self, tokens: int, requests: int, longest: int, real: int) -> AttentionMetaData:
        """Views of so many tokens and requests, of at most ``longest`` tokens each."""
        return AttentionMetaData(
            self.cu_seqlens[: requests + 1],
            self.seq_lens[:requests],
            self.block_tables[:requests],
            self.slot_mapping[:tokens],
            longest,
            self.limits.max_model_len,
            real,
        )

    def _write(self, works: Sequence[Work]) -> tuple[int, int]:
        """Put the real tokens and requests where the host keeps them: (tokens, the most of one request)."""
        host, size, at, longest = self._host, self.limits.block_size, 0, 0
        ids, positions, slots, ends = (
            host[name] for name in ("_input_ids", "_positions", "_slot_mapping", "_cu_seqlens")
        )
        lengths, tables = host["_seq_lens"], host["_block_tables"]
        for i, work in enumerate(works):
            count, blocks = len(work.tokens), work.request.blocks
            begin, end = work.begin, work.begin + count
            if count == 1:
                ids[at], positions[at] = work.tokens[0], begin
                slots[at] = blocks[begin // size] * size + begin % size
            else:
                ids[at : at + count] = work.tokens
                positions[at : at + count] = range(begin, end)
                slots[at : at + count] = [blocks[p // size] * size + p % size for p in range(begin, end)]
            known = work.request, work.request.preemptions, len(blocks)
            if self._tables[i] != known:
                tables[i, : len(blocks)] = blocks
                self._tables[i], self._changed = known, i + 1
            at += count
            ends[i + 1], lengths[i] = at, end
            longest = max(longest, count)
        return at, longest

    def _pad(self, real: int, tokens: int, works: int, requests: int) -> None:
        host = self._host
        host["_input_ids"][real:tokens] = 0
        host["_positions"][real:tokens] = 0
        host["_slot_mapping"][real:tokens] = -1
        host["_cu_seqlens"][works + 1 : requests + 1] = real
        host["_seq_lens"][works:requests] = 0

    def _drawn(self, works: Sequence[Work]) -> tuple[int, tuple[int, ...]]:
        """Note the rows from which tokens are drawn: (how many, how many of each request)."""
        rows, count, at, drawn = self._host["_rows"], 0, 0, []
        for work in works:
            at += len(work.tokens)
            many = work.drafts + 1 if work.samples else 0
            if many:
                rows[count : count + many] = range(at - many, at)
            drawn.append(many)
            count += many
        if count:
            self.rows[:count].copy_(self._rows[:count], non_blocking=True)
        return count, tuple(drawn)

    def _send(self, tokens: int, requests: int) -> None:
        """From the host to the device, which reads these in the order of its stream."""
        for to, of, count in (
            (self.input_ids, self._input_ids, tokens),
            (self.positions, self._positions, tokens),
            (self.slot_mapping, self._slot_mapping, tokens),
            (self.cu_seqlens, self._cu_seqlens, requests + 1),
            (self.seq_lens, self._seq_lens, requests),
            (self.block_tables, self._block_tables, self._changed),
        ):
            if count:
                to[:count].copy_(of[:count], non_blocking=True)
        self._changed = 0
