"""From logits to tokens: greedy, temperature, top-k, top-p.

What is drawn is a function of the logits, the parameters and one number of 64 bits a row; a request's numbers follow from its seed and the place of the token. So a
token does not depend on who is beside its request, on guesses, or on whether a step was run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import NoneType

import numpy as np
import torch

from braze.serving.engine.kept import COLDEST, Rows, bound, cleaned, distances, keys_of, left, weighed
from braze.serving.engine.ranges import SWITCH, Range, refuse_others, whole
from braze.support.record import record

#: seeds, and what tokens are drawn by, are numbers of 64 bits
SEEDS = 1 << 64
#: of the likeliest tokens, so many are told at most
MOST_LOGPROBS = 20
#: the heaviest tokens that a share of the whole is looked for among first
_FEW = 1024


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a request's tokens are drawn, and when it ends. ``temperature`` 0 is greedy; ``top_k`` 0 and ``top_p`` 1 leave all tokens.

    ``seed``: the request's own stream of random numbers. ``stop``: tokens that end it, besides the model's (unless ``ignore_eos``).
    ``presence_penalty`` is taken off the logit of each token that was generated before, ``frequency_penalty`` as often as it was; ``logit_bias``: (token, what is added).
    ``logprobs``: so many of the likeliest tokens are told beside each generated one, with log-probabilities (None: none are); ``prompt_logprobs``: beside each of the prompt.
    """

    max_tokens: int = 16
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[int, ...] = ()
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    @property
    def remembers(self) -> bool:
        """Whether what is drawn depends on what was generated before."""
        return bool(self.presence_penalty or self.frequency_penalty)

    @property
    def changed(self) -> bool:
        """Whether logits are changed before a token is drawn."""
        return self.remembers or bool(self.logit_bias)

    def __post_init__(self) -> None:
        refuse_others("BZ7405", "sampling parameters that mean nothing", self, _RANGES)


_PENALTY = Range((int, float), lambda x: -2 <= x <= 2, "in -2..2")
_TOLD = Range(
    (int, NoneType), lambda x: x is None or 0 <= x <= MOST_LOGPROBS, f"a whole number in 0..{MOST_LOGPROBS}"
)
_RANGES = {
    "max_tokens": whole(1),
    "temperature": Range((int, float), lambda x: 0 <= x <= 100, "in 0..100"),
    "top_k": whole(0),
    "top_p": Range((int, float), lambda x: 0 < x <= 1, "in (0, 1]"),
    "seed": Range(
        (int, NoneType), lambda x: x is None or -SEEDS // 2 <= x < SEEDS, "a whole number of 64 bits"
    ),
    "stop": Range((tuple, list), lambda x: all(type(t) is int and t >= 0 for t in x), "a tuple of tokens"),
    "ignore_eos": SWITCH,
    "presence_penalty": _PENALTY,
    "frequency_penalty": _PENALTY,
    "logit_bias": Range(
        (tuple, list),
        lambda x: all(type(t) is int and t >= 0 and -100 <= more <= 100 for t, more in x),
        "a tuple of (token, -100..100)",
    ),
    "logprobs": _TOLD,
    "prompt_logprobs": _TOLD,
}


def seed_of(params: SamplingParams) -> int:
    """The seed that a request was given, or a new one."""
    return params.seed if params.seed is not None else int(torch.randint(-SEEDS // 2, SEEDS // 2 - 1, ()))


def number_of(seed: int, place: int) -> int:
    """The number, 64 bits, by which the token of this place is drawn: SplitMix64's of that index."""
    x = (seed + (place + 1) * 0x9E3779B97F4A7C15) % SEEDS
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % SEEDS
    x = (x ^ x >> 27) * 0x94D049BB133111EB % SEEDS
    return x ^ x >> 31


def sample(
    logits: torch.Tensor,
    params: Sequence[SamplingParams],
    numbers: Sequence[int] | None = None,
    rows: Rows | None = None,
    best: torch.Tensor | None = None,
) -> torch.Tensor:
    """One token a row, (rows) int64, of logits (rows, vocabulary). ``numbers``: of 64 bits, by which each row's is drawn, None: new ones; ``rows``: what draws
    many at once, elsewhere than on the processor; ``best``: each row's greatest, where that is known."""
    cold = [p.temperature == 0 for p in params]
    if best is None and any(cold):
        best = logits.argmax(-1)
    if all(cold):
        assert best is not None
        return best
    if numbers is None:
        numbers = [number_of(seed_of(p), 0) for p in params]
    if logits.device.type != "cpu" or rows is not None:
        drawn, colds = _drawn_together(logits, params, numbers, rows or _PLAIN)
        return torch.where(colds == 0, best, drawn) if best is not None and any(cold) else drawn
    found = best.clone() if best is not None else torch.empty(len(params), dtype=torch.int64)
    for i, (p, number) in enumerate(zip(params, numbers, strict=True)):
        if p.temperature:
            found[i] = _drawn(logits[i], p, number)
    return found


_PLAIN = Rows()


@record
class Form:
    """Which bounds some row of a step has: top-k, top-p, and one of them both."""

    many: bool
    share: bool
    both: bool


#: all bounds: what any step may be drawn by
EVERY = Form(True, True, True)
#: columns of 64 bits that the parameters of a row take
COLUMNS = 5


def form_of(params: Sequence[SamplingParams]) -> Form:
    """The bounds of a step's rows; greedy ones have none."""
    warm = [p for p in params if p.temperature]
    many, share = any(p.top_k for p in warm), any(p.top_p < 1 for p in warm)
    return Form(many, share, any(p.top_k and p.top_p < 1 for p in warm))


def pack(packed: np.ndarray, params: Sequence[SamplingParams], numbers: Sequence[int], size: int) -> None:
    """Write the parameters of rows over a vocabulary of ``size``, and the numbers they are drawn by, into ``COLUMNS`` columns of as many rows or more; further ones are greedy."""
    length, count = len(packed) // COLUMNS, len(params)
    columns = packed.reshape(COLUMNS, length)
    columns[0, :count] = [number & 0xFFFFFFFF for number in numbers]
    columns[1, :count] = [number >> 32 for number in numbers]
    columns[2, :count] = [min(p.top_k or size, size) for p in params]
    shares = columns[3].view(np.float64)
    shares[:count] = [p.top_p for p in params]
    # a row that keeps no token at all has no end that could be looked up
    columns[2, count:], shares[count:] = size, 1.0
    # the last column holds numbers of 32 bits
    colds = columns[4].view(np.float32)
    colds[:count] = np.array([1 / max(p.temperature, COLDEST) if p.temperature else 0.0 for p in params])
    colds[count:] = 0


def drawn_by(
    logits: torch.Tensor, sent: torch.Tensor, form: Form, rows: Rows
) -> tuple[torch.Tensor, torch.Tensor]:
    """A drawn token of each row, two or more, by packed parameters on the device; and one part of each row's temperature (0: it is greedy)."""
    length = logits.shape[0]
    sent = sent.view(COLUMNS, length, 1)
    colds = sent[4].view(-1).view(torch.float32)[:length]
    low, high, cold = sent[0], sent[1], colds[:, None]
    if not form.many and not form.share:
        return rows.of_all(logits, cold, low, high), colds
    many = sent[2] if form.many else None
    share = sent[3].view(torch.float64) if form.share else None
    cut = rows.cut(logits, cold, many, share, apart=not form.both)
    return rows.drawn(logits, *cut, low, high), colds


def _drawn_together(
    logits: torch.Tensor, params: Sequence[SamplingParams], numbers: Sequence[int], rows: Rows
) -> tuple[torch.Tensor, torch.Tensor]:
    """As ``drawn_by``, of parameters that go over by one copy. Of few rows what counts is how often something is launched."""
    count = len(params)
    if count == 1:  # a single row goes as two: what is compiled takes any number from two on
        logits, params, numbers = logits.repeat(2, 1), [*params] * 2, [*numbers] * 2
    packed = np.zeros(COLUMNS * len(params), np.int64)
    pack(packed, params, numbers, logits.shape[-1])
    sent = torch.from_numpy(packed).to(logits.device)
    drawn, colds = drawn_by(logits, sent, form_of(params), rows)
    return drawn[:count], colds[:count]


def _drawn(logits: torch.Tensor, params: SamplingParams, number: int) -> torch.Tensor:
    """The token in whose part of the whole the number falls: on the processor a number for each token costs fifty times as much."""
    cold, tokens = 1 / max(params.temperature, COLDEST), None
    clean = cleaned(logits)
    weights = weighed(distances(clean, clean.amax(), cold))
    if params.top_k or params.top_p < 1:
        tokens = _kept(clean, weights, params, cold)
        weights = weights[tokens]
    ends = weights.cumsum(0)
    place = number * int(ends[-1]) // SEEDS
    found = torch.searchsorted(ends, place, right=True)
    return found if tokens is None else tokens[found]


def _kept(clean: torch.Tensor, weights: torch.Tensor, params: SamplingParams, cold: float) -> torch.Tensor:
    """The tokens of a row that top-k and top-p leave: looked for among the heaviest, and where these are too few, by the search."""
    size = len(clean)
    many = min(params.top_k or size, size)
    share = torch.tensor(params.top_p, dtype=torch.float64)
    count = many if params.top_k else min(_FEW, size)
    ordered, order = clean.topk(count)
    if params.top_p < 1:
        parts = weights[order]
        most = bound(parts.sum() if params.top_k else weights.sum(), share)
        within = int((parts.cumsum(0) - parts < most).sum())
        if within == count < many:
            column = torch.full((1, 1), many)
            cut = _PLAIN.cut(clean[None], torch.full((1, 1), cold), column, share.view(1, 1))
            return left(keys_of(clean, 0)[None], cut)[0].nonzero()[:, 0]
        count = within
    # of those that weigh as much as the last one, the first
    last = ordered[count - 1]
    heavier = (clean > last).nonzero()[:, 0]
    return torch.cat((heavier, (clean == last).nonzero()[: count - len(heavier), 0]))
