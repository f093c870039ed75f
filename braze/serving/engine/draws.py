"""Draws of few rows as recordings of their own.

Of few rows what takes the time is the host, which launches dozens of small things. A recording reads logits, the greatest of them and packed parameters from memory that
stays, and leaves tokens there: a draw is one copy of parameters and one replay. There is one for temperature alone and one for all bounds, whose neutral values (all
tokens, the whole share) bound nothing, for each number of rows that decoding steps are recorded with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from braze.cudagraphs.device import Graph, NotRecordable, Pool, record
from braze.serving.engine.kept import Rows
from braze.serving.engine.recordings import Recordings
from braze.serving.engine.sampling import COLUMNS, EVERY, Form, SamplingParams, drawn_by, form_of, pack
from braze.support.log import logger

#: temperature alone
_NONE = Form(False, False, False)


class Parameters:
    """The packed parameters of so many rows, on the device, and on the host twice: two steps may be on their way."""

    def __init__(self, rows: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.sent = torch.zeros(COLUMNS * rows, dtype=torch.int64, device=device)
        self._hosts = [
            (
                torch.zeros(COLUMNS * rows, dtype=torch.int64, pin_memory=pinned),
                torch.cuda.Event() if pinned else None,
            )
            for _ in range(2)
        ]
        self._packed = {id(host): host.numpy() for host, _ in self._hosts}

    def send(self, params: Sequence[SamplingParams], numbers: Sequence[int], size: int) -> None:
        """Pack them and begin to copy them over."""
        self._hosts.reverse()
        host, gone = self._hosts[0]
        if gone is not None:
            gone.synchronize()  # of a step that nobody has waited for
        packed: np.ndarray = self._packed[id(host)]
        pack(packed, params, numbers, size)
        self.sent.copy_(host, non_blocking=True)
        if gone is not None:
            gone.record()


class Draws:
    """The recorded draws of one runner. ``logits`` and ``best``: memory that recorded steps leave theirs in; ``rows``: what draws."""

    def __init__(self, logits: torch.Tensor, best: torch.Tensor, rows: Rows) -> None:
        self.logits, self.best, self.rows = logits, best, rows
        self.tokens = torch.zeros_like(best)
        self.graphs: dict[tuple[int, Form], Graph] = {}
        self._parameters: dict[int, Parameters] = {}
        self._sizes: list[int] = []
        #: where they were recorded
        self._pool: Pool | None = None

    def fits(self, logits: torch.Tensor, rows: Rows, recordings: Recordings) -> bool:
        """Whether these draw for steps that leave their logits there, and lie where those are recorded."""
        return self.logits is logits and self.rows is rows and self._pool is recordings.pool

    def capture(self, recordings: Recordings, sizes: Iterable[int]) -> None:
        """Record those numbers of rows that are few enough to be put in order, largest first; one that cannot be is drawn as it is."""
        self._pool = recordings.pool
        few = {max(size, 2) for size in sizes} - set(self._sizes)
        with recordings.device.lock:
            for size in sorted((n for n in few if n <= self.rows.few), reverse=True):
                try:
                    self._record(recordings, size)
                except (NotRecordable, RuntimeError) as error:
                    logger("cudagraphs").info("draws of %d rows are not recorded: %s", size, error)
        self._sizes = sorted({size for size, _ in self.graphs})

    def draw(self, params: Sequence[SamplingParams], numbers: Sequence[int]) -> torch.Tensor | None:
        """The tokens of the first rows, in memory that the next draw writes over; None where there is no recording of as many."""
        count = len(params)
        size = next((n for n in self._sizes if n >= count), None)
        if size is None:
            return None
        form = form_of(params)
        self._parameters[size].send(params, numbers, self.logits.shape[-1])
        self.graphs[size, EVERY if form.many or form.share else _NONE].replay()
        return self.tokens[:count]

    def places(self) -> list[torch.Tensor]:
        """Memory of its own that the recordings read and write."""
        return [self.tokens, *(parameters.sent for parameters in self._parameters.values())]

    def _record(self, recordings: Recordings, size: int) -> None:
        """Both forms of a number of rows."""
        parameters = Parameters(size, self.logits.device)
        logits, best, tokens = self.logits[:size], self.best[:size], self.tokens[:size]
        # of rows that are drawn, for the rehearsal
        parameters.send([SamplingParams(temperature=1.0, top_k=1)] * size, range(size), logits.shape[-1])
        made = {}
        for form in (_NONE, EVERY):

            def run(form: Form = form) -> None:
                drawn, colds = drawn_by(logits, parameters.sent, form, self.rows)
                tokens.copy_(torch.where(colds == 0, best, drawn))

            run()  # what is made at a first call is made here
            made[size, form] = record(recordings.device, recordings.pool, run)[0]
        self.graphs |= made
        self._parameters[size] = parameters
