"""From hidden states to tokens on the host. Steps that only decode have logits and their greatest in their recording; what the host waits for is one copy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from braze.serving.engine.attention.kernels import kernels
from braze.serving.engine.buffers import Batch
from braze.serving.engine.changes import Changes
from braze.serving.engine.compiled import compiled_rows
from braze.serving.engine.draws import Draws
from braze.serving.engine.models.decoder import Decoder
from braze.serving.engine.models.parallel import of_first
from braze.serving.engine.recordings import Recordings
from braze.serving.engine.requests import Work
from braze.serving.engine.sampling import SamplingParams, sample
from braze.serving.engine.scores import StepScores


@dataclass
class Flight:
    """A step on its way. ``drawn``: how many tokens each of its requests gets; ``tokens``: all of them, on the device (None: there are none). ``batch``
    and ``hidden``: what ran, in memory that the next step writes over. ``scores``: how likely the tokens are, for those who ask."""

    works: Sequence[Work]
    drawn: tuple[int, ...]
    tokens: torch.Tensor | None = None
    host: torch.Tensor | None = None
    landed: torch.cuda.Event | None = None
    batch: Batch | None = None
    hidden: torch.Tensor | None = None
    scores: StepScores | None = None

    def wait(self) -> list[list[int]]:
        """The tokens of each request, when they are on the host."""
        if self.host is None:
            return [[] for _ in self.works]
        if self.landed is not None:
            self.landed.synchronize()
        tokens = self.host.tolist()
        # as many tokens as requests need not be one each: a request with a guess gets two, one whose prompt goes on gets none
        if max(self.drawn) == 1 and len(tokens) == len(self.works):
            return [[token] for token in tokens]
        found, at = [], 0
        for many in self.drawn:
            found.append(tokens[at : at + many])
            at += many
        return found


class Drawing:
    """Draws the tokens of a runner's steps. Two steps may be on their way at once; a third has the first one's memory."""

    def __init__(self, model: Decoder, device: torch.device) -> None:
        self.model, self.device = model, device
        #: of recorded steps: logits, and their greatest
        self.logits = torch.empty(0, device=device)
        self.best = torch.empty(0, dtype=torch.int64, device=device)
        #: where a GPU's kernel counts the parts of each row, zeros between steps
        self.found = torch.empty(0, 2, dtype=torch.int64, device=device)
        #: what draws on a GPU, and recordings of it
        self.rows = compiled_rows() if device.type == "cuda" else None
        self.draws: Draws | None = None
        #: what penalties and biases add
        self.changes = Changes(model.config.vocab, device)
        self._hosts = [(torch.empty(0, dtype=torch.int64), self._event()) for _ in range(2)]

    def reserve(self, rows: int, dtype: torch.dtype) -> None:
        """Memory for recorded steps that draw from so many rows; a draw has two at least."""
        rows = max(rows, 2)
        if rows > self.best.shape[0]:
            self.logits = torch.zeros(rows, self.model.config.vocab, dtype=dtype, device=self.device)
            self.best = torch.zeros(rows, dtype=torch.int64, device=self.device)
            self.found = torch.zeros(rows, 2, dtype=torch.int64, device=self.device)

    def held(self) -> int:
        """Bytes on the device that recorded steps and recorded draws leave logits and tokens in, or read how to draw from."""
        places = [
            self.logits,
            self.best,
            self.found,
            *(self.draws.places() if self.draws is not None else ()),
        ]
        return sum(x.nbytes for x in places)

    @torch.inference_mode()
    def warm_up(self, dtype: torch.dtype) -> None:
        """Draw once, so that what is compiled for that is there."""
        if self.rows is not None:
            # one row more than are put in order, so that what searches is called
            count = max(2, self.rows.few + 1)
            logits = torch.zeros(count, self.model.config.vocab, dtype=dtype, device=self.device)
            for params in (
                SamplingParams(temperature=1.0, top_k=1, top_p=0.5),
                SamplingParams(temperature=1.0),
            ):
                sample(logits, [params] * count, range(count), self.rows)
                sample(logits[:2], [params] * 2, range(2), self.rows)

    @torch.inference_mode()
    def capture(self, recordings: Recordings, sizes: Iterable[int]) -> None:
        """Record what draws for recorded steps of so many rows, where it is not recorded in that pool."""
        if self.rows is None or not self.best.shape[0]:
            self.draws = None
            return
        if self.draws is None or not self.draws.fits(self.logits, self.rows, recordings):
            self.draws = Draws(self.logits, self.best, self.rows)
        self.draws.capture(recordings, sizes)

    def record(self, hidden: torch.Tensor) -> None:
        """Logits of these rows and their greatest, into the reserved memory: part of what is recorded."""
        rows = hidden.shape[0]
        logits = self.model.compute_logits(hidden, self.logits[:rows])
        if self.device.type == "cpu":
            torch.argmax(logits, -1, out=self.best[:rows])
        else:
            kernels(self.device).greatest(logits, self.best[:rows], self.found)

    def draw(
        self, works: Sequence[Work], drawn: tuple[int, ...], hidden: torch.Tensor | None, *, asked: bool
    ) -> Flight:
        """Begin to bring the tokens of these rows to the host; ``hidden`` None: logits have been recorded along; ``asked``: some request ``asks``."""
        rows = sum(drawn)
        logits = self.logits[:rows] if hidden is None else self.model.compute_logits(hidden)
        best = self.best[:rows] if hidden is None else None
        warm = [work for work in works if work.request.params.temperature]
        if warm:
            tokens = self._warm(works, drawn, logits, best)
        else:
            tokens = logits.argmax(-1) if best is None else best
        if asked:
            tokens = self.changes.redrawn(tokens, logits, works, drawn)
        if warm:
            tokens = of_first(tokens, self.model.config.ranks)
        self._hosts.reverse()
        held, landed = self._hosts[0]
        if held.shape[0] < rows:
            held = torch.empty(2 * rows, dtype=torch.int64, pin_memory=landed is not None)
            self._hosts[0] = held, landed
        host = held[:rows]
        host.copy_(tokens, non_blocking=True)
        scores = StepScores.of(logits, tokens, works, drawn) if asked else None
        if landed is not None:
            landed.record()
        return Flight(works, drawn, tokens, host, landed, scores=scores)

    def _warm(
        self, works: Sequence[Work], drawn: Sequence[int], logits: torch.Tensor, best: torch.Tensor | None
    ) -> torch.Tensor:
        """The tokens of rows of which some are not greedy; ``best``: the greatest of each, of logits that have been recorded along."""
        params, numbers = [], []
        for work, count in zip(works, drawn, strict=True):
            params += [work.request.params] * count
            numbers += work.request.numbers(work.begin + len(work.tokens) - count + 1, count)
        if best is not None and self.draws is not None:
            drawn_there = self.draws.draw(params, numbers)
            if drawn_there is not None:
                return drawn_there
        return sample(logits, params, numbers, self.rows, best)

    def _event(self) -> torch.cuda.Event | None:
        return torch.cuda.Event() if self.device.type == "cuda" else None
