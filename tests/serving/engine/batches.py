"""Batches of requests over a paged cache, for tests of attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass
class Batch:
    """Requests with ``queries`` new tokens of ``lengths`` each in the cache, and where their blocks lie."""

    cu_seqlens: torch.Tensor
    seq_lens: torch.Tensor
    block_tables: torch.Tensor
    slots: torch.Tensor
    tokens: int

    @property
    def metadata(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.cu_seqlens, self.seq_lens, self.block_tables


def batch(queries: list[int], lengths: list[int], page: int, blocks: int, padding: int = 0) -> Batch:
    """A batch whose blocks lie in disorder; ``padding`` more requests have no tokens."""
    tables = torch.zeros(len(queries) + padding, max(1, *(-(-n // page) for n in lengths)), dtype=torch.int32)
    free = torch.randperm(blocks).tolist()
    slots = []
    for i, (new, length) in enumerate(zip(queries, lengths, strict=True)):
        own = [free.pop() for _ in range(-(-length // page))]
        tables[i, : len(own)] = torch.tensor(own, dtype=torch.int32)
        slots += [own[at // page] * page + at % page for at in range(length - new, length)]
    ends = torch.tensor([0, *queries, *[0] * padding]).cumsum(0).int()
    lens = torch.tensor([*lengths, *[0] * padding], dtype=torch.int32)
    return Batch(ends, lens, tables, torch.tensor(slots, dtype=torch.long), sum(queries))


def dense(
    batch: Batch, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attention in float64 by PyTorch's own, one request after another; keys and values as in the cache."""
    found = []
    page = keys.shape[1]
    for i, length in enumerate(batch.seq_lens.tolist()):
        begin, end = batch.cu_seqlens[i : i + 2].tolist()
        if begin == end:
            continue
        where = [int(batch.block_tables[i, at // page]) * page + at % page for at in range(length)]
        k, v = (cache.flatten(0, 1)[where].double().transpose(0, 1) for cache in (keys, values))
        mask = torch.ones(end - begin, length, dtype=torch.bool).tril(length - (end - begin))
        q = query[begin:end].double().transpose(0, 1)
        share = q.shape[0] // k.shape[0]
        k, v = k.repeat_interleave(share, 0), v.repeat_interleave(share, 0)
        weights = (q @ k.transpose(1, 2) * scale).masked_fill(~mask, float("-inf")).softmax(-1)
        found.append((weights @ v).transpose(0, 1))
    return torch.cat(found) if found else query.new_zeros(0, query.shape[1], values.shape[-1]).double()
