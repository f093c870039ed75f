"""Tensor parallelism: each rank has some heads, some of every MLP's inner numbers, and some of the vocabulary, and sums go over all ranks.

All ranks run the same steps for the same requests. What is summed and gathered are operators of ours, so that graphs hold them and recordings replay them, over
whatever ``torch.distributed`` has for the device: NCCL on GPUs, gloo on the processor.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any, Protocol

import torch
from torch import distributed
from torch.nn import functional as F

from braze.serving.pieces.custom_ops import on_every_device
from braze.support.record import record

#: groups of processes by the names that operators know them by
_groups: dict[str, Any] = {}


@record
class Ranks:
    """A process's place among those that share a model; ``name``: of their group."""

    rank: int = 0
    size: int = 1
    name: str = ""

    def common(self, values: Any) -> list[Any]:
        """What each rank says, in their order, by way of the processor."""
        if self.size == 1:
            return [values]
        found: list[Any] = [None] * self.size
        distributed.all_gather_object(found, values, group=_groups[self.name])
        return found

    def part(self, tensor: torch.Tensor, place: torch.Size) -> torch.Tensor:
        """This rank's part of a checkpoint's tensor, for a place of this shape; the tensor where it has none."""
        for dim, (whole, own) in enumerate(zip(tensor.shape, place, strict=False)):
            if whole == own * self.size and whole != own:
                return tensor.narrow(dim, self.rank * own, own)
        return tensor


class Recording(Protocol):
    """Who may hold recordings of a group's sums and gathers."""

    def release(self) -> None:
        """Let go of them."""


#: those of each group, by its name
_recording: dict[str, weakref.WeakSet[Any]] = {}

#: a process that has the whole model
ONE = Ranks()


def ranks_of(group: Any = None) -> Ranks:
    """This process among those of a group of ``torch.distributed``, or of all."""
    name = f"ranks {len(_groups)}" if group is not None else "all ranks"
    _groups[name] = group
    return Ranks(distributed.get_rank(group), distributed.get_world_size(group), name)


def records_for(ranks: Ranks, who: Recording) -> None:
    """Know who may record what goes over these ranks."""
    if ranks.size > 1:
        _recording.setdefault(ranks.name, weakref.WeakSet()).add(who)


def leave(ranks: Ranks) -> None:
    """End this process's part in a group, when all ranks do; engines that share their model over it make no more steps.

    NCCL ends a group when no recording holds its kernels any more, and waits for that without an end: so these go first.
    """
    for who in list(_recording.pop(ranks.name, ())):
        who.release()
    gc.collect()
    if ranks.size > 1:
        group = _groups.pop(ranks.name)
        distributed.barrier(group)
        distributed.destroy_process_group(group)


def sum_over_ranks(x: torch.Tensor, ranks: str) -> None:
    """``x`` becomes the sum of all ranks'."""
    distributed.all_reduce(x, group=_groups[ranks])


def gather_over_ranks(x: torch.Tensor, output: torch.Tensor, ranks: str) -> None:
    """``output[i]`` becomes rank i's ``x``."""
    distributed.all_gather_into_tensor(output.flatten(0, 1), x, group=_groups[ranks])


def take_from_first(x: torch.Tensor, ranks: str) -> None:
    """``x`` becomes that of the first rank."""
    distributed.broadcast(x, group=_groups[ranks], group_src=0)


_SUM = on_every_device(sum_over_ranks, "x")
_GATHER = on_every_device(gather_over_ranks, "output")
_TAKE = on_every_device(take_from_first, "x")


def summed(x: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """The sum of all ranks' parts, in ``x`` itself."""
    if ranks.size > 1:
        _SUM(x, ranks.name)
    return x


def of_first(x: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """The first rank's, in ``x`` itself."""
    if ranks.size > 1:
        _TAKE(x, ranks.name)
    return x


def row_parallel(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, ranks: Ranks
) -> torch.Tensor:
    """One rank's part of a linear layer whose inputs are shared out; the bias is the first rank's to add."""
    return F.linear(x, weight, bias if ranks.rank == 0 else None)


def looked_up(ids: torch.Tensor, weight: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """Embeddings of tokens, of a vocabulary that is shared out."""
    if ranks.size == 1:
        return F.embedding(ids, weight)
    own = ids - ranks.rank * weight.shape[0]
    mine = (own >= 0) & (own < weight.shape[0])
    found = F.embedding(torch.where(mine, own, 0), weight)
    return summed(torch.where(mine[:, None], found, 0.0), ranks)


def gathered(local: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """(rows, vocabulary) of each rank's part of it."""
    if ranks.size == 1:
        return local
    every = local.new_empty(ranks.size, *local.shape)
    _GATHER(local, every, ranks.name)
    return every.transpose(0, 1).flatten(1)
