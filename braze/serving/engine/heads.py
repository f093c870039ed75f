"""Guesses by a model's learned heads: after each step they see its hidden states and the tokens that were drawn from them.

A head has a layer of the cache of its own, with the step's blocks and slots. It runs over all tokens of a step, each with the token after it, so that the
cache holds keys of all that is known; then a token at a time, from its own hidden states, for the guesses after the first. Where a block was found in
the cache, the head's key of its last token may be of another continuation: a guess may then be another, never a token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from braze.serving.engine.drawing import Flight
from braze.serving.engine.requests import Request, Work
from braze.serving.step.context import AttentionMetaData, Context, forward_context

if TYPE_CHECKING:
    from braze.serving.engine.runner import ModelRunner


class HeadDrafter:
    """Gives each request of a step ``count`` guesses at what follows its newest token."""

    def __init__(self, runner: ModelRunner, count: int) -> None:
        self.runner, self.count = runner, count

    @torch.inference_mode()
    def propose(self, flight: Flight, drawn: Sequence[Sequence[int]], kept: Sequence[Sequence[int]]) -> None:
        """After a step whose tokens are known: ``drawn`` for each of its works, ``kept`` what of them was added to the requests."""
        batch, hidden = flight.batch, flight.hidden
        if batch is None or hidden is None:
            return
        ids: list[int] = []
        rows, going = [], []
        for i, (work, tokens, new) in enumerate(zip(flight.works, drawn, kept, strict=True)):
            ids += _next_tokens(work, tokens)
            if new and work.request.ended is None:
                rows.append(len(ids) - len(tokens) + len(new) - 1)
                going.append(i)
        metadata = dataclasses.replace(
            batch.metadata, slot_mapping=batch.metadata.slot_mapping[: batch.tokens]
        )
        positions = batch.positions[: batch.tokens]
        found = self._run(0, self._tensor(ids), positions, hidden[: batch.tokens], metadata)
        if going:
            requests = [flight.works[i].request for i in going]
            self._follow(requests, self._tensor(going), found[self._tensor(rows)])

    def _follow(self, requests: Sequence[Request], places: torch.Tensor, hidden: torch.Tensor) -> None:
        """The first guess of each request, and those after it, each from the head's hidden states of the one before."""
        model, runner = self.runner.model, self.runner
        tables = runner.buffers.block_tables[places]
        ends = torch.arange(len(requests) + 1, dtype=torch.int32, device=runner.device)
        guesses = [model.draft_logits(0, hidden).argmax(-1)]
        for number in range(1, self.count):
            spots = [self._spot(request, number) for request in requests]
            positions, lengths, slots = (self._tensor(column) for column in zip(*spots, strict=True))
            metadata = AttentionMetaData(
                ends, lengths.int(), tables, slots, 1, runner.limits.max_model_len, len(requests)
            )
            hidden = self._run(number, guesses[-1], positions, hidden, metadata)
            guesses.append(model.draft_logits(number, hidden).argmax(-1))
        for request, row in zip(requests, torch.stack(guesses, 1).tolist(), strict=True):
            request.drafts = tuple(row)

    def _spot(self, request: Request, number: int) -> tuple[int, int, int]:
        """Where a guess's key goes: its position, the keys that there are with it, its slot; behind the request's last block nowhere."""
        limits = self.runner.limits
        size = limits.block_size
        at = len(request.tokens) - 2 + number
        room = min(len(request.blocks) * size, limits.max_model_len)
        if at >= room:
            return min(at, limits.max_model_len - 1), room, -1
        return at, at + 1, request.blocks[at // size] * size + at % size

    def _run(
        self,
        number: int,
        ids: torch.Tensor,
        positions: torch.Tensor,
        hidden: torch.Tensor,
        metadata: AttentionMetaData,
    ) -> torch.Tensor:
        context = Context(positions, metadata.max_seqlen_q > 1, is_draft=True)
        with forward_context(metadata, context=context, kv_cache_data=self.runner.caches):
            return self.runner.model.draft(number, ids, positions, hidden)

    def _tensor(self, values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.runner.device)


def _next_tokens(work: Work, drawn: Sequence[int]) -> list[int]:
    """The token after each of a work's: what was drawn from the last ones, and its own others; a part of a prompt goes on with the prompt."""
    if drawn:
        return [*work.tokens[1 : len(work.tokens) - len(drawn) + 1], *drawn]
    return [*work.tokens[1:], work.request.tokens[work.begin + len(work.tokens)]]
