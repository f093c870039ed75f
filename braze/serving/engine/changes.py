"""Logits as a request wants them before a token is drawn: penalties for what it has said, and what it adds to single tokens.

What is added to each token's logit lies on the device, a row for each such request; a step writes there only what has changed since the last one: the tokens that were
generated. Rows that want nothing are drawn as they are, so that a token does not depend on who is beside its request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch

from braze.serving.engine.kept import Rows
from braze.serving.engine.requests import Request, Work
from braze.serving.engine.sampling import SamplingParams, sample

#: what changes no number, not the sign of a zero either
_NOTHING = -0.0
#: draws any number of rows by putting them in order
_ORDERED = Rows(few=1 << 30)


class Changes:
    """What is added to the logits of requests that want it, a row of float32 for each of them, kept until the request has ended and another needs the row."""

    def __init__(self, vocab: int, device: torch.device) -> None:
        self.vocab, self.device = vocab, device
        self.clear()

    def clear(self) -> None:
        """Forget all; the next step writes what there is anew."""
        self.added = torch.zeros(0, self.vocab, dtype=torch.float32, device=self.device)
        #: whose a row is, and how many of its generated tokens are in it
        self._owners: list[Request | None] = []
        self._told: list[int] = []
        self._rows: dict[Request, int] = {}

    def redrawn(
        self, tokens: torch.Tensor, logits: torch.Tensor, works: Sequence[Work], drawn: Sequence[int]
    ) -> torch.Tensor:
        """The tokens of a step's rows, those of requests that change their logits drawn from these; ``drawn``: how many rows each work has."""
        try:
            return self._redrawn(tokens, logits, works, drawn)
        except BaseException:  # nobody knows what was written
            self.clear()
            raise

    def _redrawn(
        self, tokens: torch.Tensor, logits: torch.Tensor, works: Sequence[Work], drawn: Sequence[int]
    ) -> torch.Tensor:
        places: list[int] = []
        owners: list[int] = []
        params: list[SamplingParams] = []
        numbers: list[int] = []
        writes, guessed = _Writes(self.vocab), _Writes(self.vocab)
        at = 0
        for work, count in zip(works, drawn, strict=True):
            request = work.request
            if count and request.params.changed:
                row = self._brought_up(request, writes)
                _guess(work, len(places), guessed)
                places += range(at, at + count)
                owners += [row] * count
                params += [request.params] * count
                numbers += request.numbers(work.begin + len(work.tokens) - count + 1, count)
            at += count
        if not places:
            return tokens
        sent = torch.from_numpy(np.concatenate([places, owners, writes.data(), guessed.data()])).to(
            self.device
        )
        where, whose, kept, more = sent.split([len(places), len(places), 2 * len(writes), 2 * len(guessed)])
        _write(self.added, kept)
        changes = self.added[whose]
        _write(changes, more)
        whole = len(places) == logits.shape[0]
        changes += logits if whole else logits[where]
        # in float32 nothing that draws is compiled: where it would be searched, putting in order is quicker then
        found = sample(changes, params, numbers, None if self.device.type == "cpu" else _ORDERED)
        return found if whole else tokens.index_copy(0, where, found)

    def _brought_up(self, request: Request, writes: _Writes) -> int:
        """The row of a request, for which what it has generated since is written down."""
        row = self._rows.get(request)
        if row is None:
            row = self._rows[request] = self._free()
            self._owners[row], self._told[row] = request, 0
            self.added[row].fill_(_NOTHING)
            for token, bias in request.params.logit_bias:
                writes.add(row, token, bias)
        if request.params.remembers:
            counts, first = request.counts, len(request.prompt) + self._told[row]
            for token in dict.fromkeys(request.tokens[first:]):
                writes.add(row, token, added(request.params, token, counts[token]))
        self._told[row] = request.generated
        return row

    def _free(self) -> int:
        """A row whose request has ended, or one more."""
        for row, owner in enumerate(self._owners):
            if owner is None:
                return row
            if owner.ended is not None:
                del self._rows[owner]
                return row
        more = max(1, len(self._owners))
        self.added = torch.cat((self.added, self.added.new_empty(more, self.vocab)))
        row = len(self._owners)
        self._owners += [None] * more
        self._told += [0] * more
        return row


class _Writes:
    """Places of a matrix and what they are to hold; of one place the last counts."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._found: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._found)

    def add(self, row: int, token: int, value: float) -> None:
        """One more."""
        self._found[row * self.size + token] = value

    def data(self) -> np.ndarray:
        """The places, then the values, in columns of 64 bits."""
        values = np.fromiter(self._found.values(), np.float64, len(self))
        return np.concatenate([np.fromiter(self._found, np.int64, len(self)), values.view(np.int64)])


def added(params: SamplingParams, token: int, times: int) -> float:
    """What is added to the logit of a token that was generated so often, at least once."""
    penalty = params.presence_penalty + times * params.frequency_penalty
    return dict(params.logit_bias).get(token, 0.0) - penalty


def _guess(work: Work, first: int, guessed: _Writes) -> None:
    """Of a work's rows, the first of which is ``first``, what guesses change: the token behind a guess comes after that guess."""
    params = work.request.params
    if not work.drafts or not params.remembers:
        return
    counts, seen = work.request.counts, Counter[int]()
    for place, guess in enumerate(work.tokens[len(work.tokens) - work.drafts :], first + 1):
        seen[guess] += 1
        for token, times in seen.items():
            guessed.add(place, token, added(params, token, counts[token] + times))


def _write(matrix: torch.Tensor, data: torch.Tensor) -> None:
    """Write what ``_Writes.data`` gave, on the device."""
    if data.numel():
        places, values = data.chunk(2)
        matrix.view(-1).index_copy_(0, places, values.view(torch.float64).to(matrix.dtype))
