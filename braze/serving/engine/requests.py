"""A request's life: its tokens, what of it is in the cache, and what a step does for it."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from braze.serving.engine.sampling import SamplingParams, number_of


class Ended(enum.Enum):
    """Why a request has ended; the words are those of the OpenAI protocol."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class Score(NamedTuple):
    """A token's log-probability by the model, and the likeliest tokens in its place with theirs."""

    token: int
    logprob: float
    likeliest: tuple[tuple[int, float], ...] = ()


@dataclass(eq=False)
class Request:
    """One prompt and what is generated for it.

    ``tokens``: the prompt, then what was generated. ``computed``: of how many the cache holds keys and values. ``blocks``: of the
    cache, in order. ``drafts``: guesses at the next tokens, to be verified by the next step.
    """

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    drafts: tuple[int, ...] = ()
    ended: Ended | None = None
    preemptions: int = 0
    #: of its full blocks, as far as they were needed; and how many of its blocks were looked at for being known to others
    keys: list[bytes] = field(default_factory=list)
    known: int = 0
    #: from which its random numbers follow
    seed: int = 0
    #: with how many tokens it ends at the latest, and those that end it: the scheduler's limits and its own
    longest: int = 0
    stops: frozenset[int] = frozenset()
    #: of each generated token, and of each of the prompt from the second on, where they are asked for
    scores: list[Score] = field(default_factory=list)
    prompt_scores: list[Score] = field(default_factory=list)
    #: whether its logits are changed or any log-probability is told: few do, and each step asks all
    asks: bool = False
    _counts: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.tokens, params = list(self.prompt), self.params
        self.asks = params.changed or params.logprobs is not None or params.prompt_logprobs is not None

    @property
    def output(self) -> list[int]:
        """What was generated so far."""
        return self.tokens[len(self.prompt) :]

    @property
    def generated(self) -> int:
        """How many tokens were generated so far."""
        return len(self.tokens) - len(self.prompt)

    @property
    def counts(self) -> Counter[int]:
        """How often each token was generated so far; to be read only."""
        for token in self.tokens[len(self.prompt) + self._counts.total() :]:
            self._counts[token] += 1
        return self._counts

    def numbers(self, after: int, count: int) -> list[int]:
        """The random numbers of so many tokens, the first of which comes behind ``after`` tokens: the same whenever these are drawn, and by which step."""
        first = after - len(self.prompt)
        return [number_of(self.seed, place) for place in range(first, first + count)]


class Work(NamedTuple):
    """What one step does for a request: run ``tokens``, whose first has place ``begin``; the last ``drafts`` of them are guesses.

    ``samples``: the step reaches the request's last token, so that its next is drawn.
    """

    request: Request
    begin: int
    tokens: tuple[int, ...]
    drafts: int = 0
    samples: bool = True
