"""Data-parallel ranks run a step alike: dispatch, synchronise, dispatch again.

Collectives inside of recordings hang where one rank replays and another does not. So each rank says what it would do, all hear all, and
each dispatches once more from what all said, with the mode that the least of them can: the same decision everywhere.
A rank without requests goes along with the others.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from braze.serving.policy.dispatch import FULL, NONE, PIECEWISE, BatchDescriptor, Decision, Dispatcher, Key
from braze.serving.policy.modes import CUDAGraphMode
from braze.support.errors import UserError
from braze.support.record import record

if TYPE_CHECKING:
    import torch

#: gathers a row of whole numbers from every rank, in the order of ranks
Reduce = Callable[[Sequence[int]], "Sequence[Sequence[int]]"]

_MODES = (NONE, PIECEWISE, FULL)


@record
class Batch:
    """What a rank has to run: tokens, requests, and the most tokens of one request."""

    num_tokens: int
    num_reqs: int
    max_query_len: int
    variant: Hashable = None


@record
class Agreed:
    """The decision of all ranks, the tokens that each of them runs, padding included, and what each said (``synchronise``)."""

    decision: Decision
    tokens_across_ranks: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...] = ()


def alone(row: Sequence[int]) -> list[list[int]]:
    """The reduce of a single rank."""
    return [list(row)]


def gloo(group: Any = None) -> Reduce:
    """The reduce of ``torch.distributed``, by rows on the CPU: of ``group``, or of all processes; of a group of NCCL's on the process's GPU."""
    import torch
    from torch import distributed

    device = "cuda" if distributed.get_backend(group) == "nccl" else "cpu"

    def gather(row: Sequence[int]) -> list[list[int]]:
        mine = torch.tensor(list(row), dtype=torch.int64, device=device)
        rows = [torch.empty_like(mine) for _ in range(distributed.get_world_size(group))]
        distributed.all_gather(rows, mine, group=group)
        return [found.tolist() for found in rows]

    return gather


def get_dp_padding(num_tokens: int, dp_size: int, reduce: Reduce) -> tuple[int, torch.Tensor | None]:
    """How many tokens of padding bring this rank up to the largest, and the tokens of each rank then (int32, on the CPU).

    ``(0, None)`` for a single rank.
    """
    if dp_size == 1:
        return 0, None
    import torch

    most = max(row[0] for row in reduce([num_tokens]))
    return most - num_tokens, torch.full((dp_size,), most, dtype=torch.int32)


def synchronise(batch: Batch, decision: Decision, reduce: Reduce) -> tuple[tuple[int, ...], ...]:
    """What every rank has to run and would do, in the order of ranks: tokens, requests, most of one, padded, mode."""
    row = _row(batch, decision)
    rows = tuple(tuple(found) for found in reduce(row))
    if any(len(found) != len(row) for found in rows):
        raise UserError("BZ7110", f"data-parallel ranks gave rows of different lengths: {rows}")
    return rows


def _row(batch: Batch, decision: Decision) -> tuple[int, ...]:
    return (
        batch.num_tokens,
        batch.num_reqs,
        batch.max_query_len,
        decision.descriptor.num_tokens,
        _MODES.index(decision.mode),
    )


def dispatch_again(
    dispatcher: Dispatcher,
    rows: Sequence[Sequence[int]],
    variant: Hashable = None,
    captured: Container[Key] | None = None,
) -> Agreed:
    """The decision that follows from all rows: the same on every rank, for it depends on nothing else.

    ``captured`` has to be alike on all ranks, as what they capture is.
    """
    at_work = [row for row in rows if row[0]]
    real = tuple(row[0] for row in rows)
    if not at_work:
        return Agreed(
            Decision(NONE, BatchDescriptor(0, 0, 0, variant), "the batches of all ranks are empty"), real
        )
    agreed = _MODES[min(row[4] for row in at_work)]
    if agreed is NONE:
        most = max(at_work, key=lambda row: row[0])
        bare = BatchDescriptor(most[0], most[1], 0, variant)
        return Agreed(Decision(NONE, bare, "another rank cannot replay"), real)
    tokens, reqs, query_len = _largest(at_work)
    decision = dispatcher.dispatch(
        tokens, reqs, max_query_len=query_len, variant=variant, valid_modes=_up_to(agreed), captured=captured
    )
    if decision.mode is NONE:
        return Agreed(decision, real)
    return Agreed(decision, (decision.descriptor.num_tokens,) * len(rows))


def dispatch_across(
    dispatcher: Dispatcher, batch: Batch, reduce: Reduce, captured: Container[Key] | None = None
) -> Agreed:
    """How this rank's batch runs, together with those of the other ranks; all of them call it."""
    decision = _by_itself(dispatcher, batch, captured)
    if reduce is alone:
        return Agreed(decision, (decision.descriptor.num_tokens,), (_row(batch, decision),))
    rows = synchronise(batch, decision, reduce)
    agreed = dispatch_again(dispatcher, rows, batch.variant, captured)
    if agreed.decision.mode is NONE:
        bare = BatchDescriptor(batch.num_tokens, batch.num_reqs, 0, batch.variant)
        mine = decision.mode is NONE and batch.num_tokens
        reason = decision.reason if mine else agreed.decision.reason
        return Agreed(Decision(NONE, bare, reason), agreed.tokens_across_ranks, rows)
    return Agreed(agreed.decision, agreed.tokens_across_ranks, rows)


def wanted_by(dispatcher: Dispatcher, rows: Sequence[Sequence[int]], variant: Hashable = None) -> Decision:
    """What all ranks would do with everything captured, by what they said of a step: nothing is asked again, which a rank that does not want to know would not answer."""
    batches = [Batch(row[0], row[1], row[2], variant) for row in rows]
    each = [_by_itself(dispatcher, batch) for batch in batches]
    if len(each) == 1:
        return each[0]
    return dispatch_again(dispatcher, [*map(_row, batches, each)], variant).decision


def _by_itself(dispatcher: Dispatcher, batch: Batch, captured: Container[Key] | None = None) -> Decision:
    return dispatcher.dispatch(
        batch.num_tokens,
        batch.num_reqs,
        max_query_len=batch.max_query_len,
        variant=batch.variant,
        captured=captured,
    )


def _largest(rows: Sequence[Sequence[int]]) -> tuple[int, int, int]:
    """A batch that holds each rank's: tokens, requests, most tokens of one request.

    Where every rank decodes and with as many tokens a request, so does it; else it is a mixed one.
    """
    tokens, reqs, query_len = (max(row[i] for row in rows) for i in range(3))
    if all(row[1] * row[2] == row[0] for row in rows) and len({row[2] for row in rows}) == 1:
        return reqs * query_len, reqs, query_len
    if reqs * query_len == tokens:  # would look as if all decoded
        query_len += 1
    return tokens, reqs, query_len


def _up_to(mode: CUDAGraphMode) -> frozenset[CUDAGraphMode]:
    return frozenset(_MODES[: _MODES.index(mode) + 1])
