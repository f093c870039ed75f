"""Logits as a request wants them before a token is drawn: penalties for what it has said, and what it adds to single tokens.

Rows that want none are drawn as they are, so that a token does not depend on who is beside its request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch

from braze.serving.engine.kept import Rows
from braze.serving.engine.requests import Work
from braze.serving.engine.sampling import sample

#: draws any number of rows by putting them in order
_ORDERED = Rows(few=1 << 30)


def added(work: Work) -> list[dict[int, float]]:
    """What is added to which tokens' logits, for each row that a work draws from: the token behind a guess comes after that guess."""
    params = work.request.params
    counts = Counter(work.request.counts) if params.remembers else Counter[int]()
    found = []
    for guess in (*work.tokens[len(work.tokens) - work.drafts :], None):
        more = dict(params.logit_bias)
        for token, times in counts.items():
            penalty = params.presence_penalty + times * params.frequency_penalty
            more[token] = more.get(token, 0.0) - penalty
        found.append(more)
        if guess is not None and params.remembers:
            counts[guess] += 1
    return found


def redrawn(
    tokens: torch.Tensor, logits: torch.Tensor, works: Sequence[Work], drawn: Sequence[int]
) -> torch.Tensor:
    """The tokens of a step's rows, those of requests that change their logits drawn from these; ``drawn``: how many rows each work has."""
    rows: list[int] = []
    params, numbers, changes = [], [], []
    at = 0
    for work, count in zip(works, drawn, strict=True):
        request = work.request
        if count and request.params.changed:
            rows += range(at, at + count)
            params += [request.params] * count
            numbers += request.numbers(work.begin + len(work.tokens) - count + 1, count)
            changes += added(work)
        at += count
    if not rows:
        return tokens
    places = torch.tensor(rows, device=logits.device)
    # in float32 nothing that draws is compiled: where it would be searched, putting in order is quicker then
    ordering = None if logits.device.type == "cpu" else _ORDERED
    found = sample(_changed(logits[places].float(), changes), params, numbers, ordering)
    return tokens.index_copy(0, places, found)


def _changed(logits: torch.Tensor, changes: Sequence[dict[int, float]]) -> torch.Tensor:
    """Rows of logits in float32, changed in place; each token of a row at most once, so that the order of sums is none."""
    counts = [len(those) for those in changes]
    if count := sum(counts):
        firsts = np.repeat(np.arange(len(changes)) * logits.shape[-1], counts)
        where = firsts + np.fromiter(chain.from_iterable(changes), np.int64, count)
        more = np.fromiter(chain.from_iterable(those.values() for those in changes), np.float32, count)
        device = logits.device
        logits.view(-1).index_add_(0, torch.from_numpy(where).to(device), torch.from_numpy(more).to(device))
    return logits
