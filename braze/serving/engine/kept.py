"""Which tokens top-k and top-p leave, and which of them is drawn: for many rows at once, without ordering a vocabulary.

Tokens go by their logits, the greater first, and of equal ones the lesser token first. ``top_k`` leaves the first k; ``top_p`` leaves, of these, each that has
less than this share of their weight before it. Where they end is searched for, by counting and adding up what lies above a bound, two bits of it by each pass
over a row. Weights are whole numbers, so that a sum is the same in any order and the search finds just what ordering would.

All is ordinary code of pointwise operations and reductions along rows, as functions small enough that few kernels serve every pass. In all of them logits are (rows,
vocabulary) as the model gives them, everything else (rows, 1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

#: the heaviest token's weight: sums over four million tokens stay whole numbers of 64 bits
_ONE = 1 << 40
#: a bound that no sum of weights reaches
_ALL = 1 << 62
#: parts of a row in one of which the last of equal tokens is looked for
_PARTS = 64
#: bits of float32 that are zero in numbers of a narrower type
_EMPTY = {torch.bfloat16: 16, torch.float16: 13}
#: the least temperature that is divided by: of all that are less, only the heaviest have weight, too
COLDEST = 1e-30


class Cut(NamedTuple):
    """Where the kept tokens of each row end: at a key, and of those with that key at a place. ``top``: each row's greatest logit, ``cold``: one part of its temperature."""

    top: torch.Tensor
    cold: torch.Tensor
    end: torch.Tensor
    place: torch.Tensor


def cleaned(logits: torch.Tensor) -> torch.Tensor:
    """Logits in float32; one that is no number is never drawn, unless none is one."""
    logits = logits.float()
    return torch.where(logits.isnan(), float("-inf"), logits)


def greatest(logits: torch.Tensor) -> torch.Tensor:
    """Each row's greatest logit."""
    return cleaned(logits).amax(-1, keepdim=True)


def distances(clean: torch.Tensor, top: torch.Tensor, cold: torch.Tensor | float) -> torch.Tensor:
    """How far each logit is below the greatest, in temperatures; 0 for the greatest themselves, also where they are infinite."""
    return torch.where(clean == top, 0.0, (clean - top) * cold)


def weighed(away: torch.Tensor) -> torch.Tensor:
    """Weights as whole numbers, of distances; 0 below 2**-40 of the greatest."""
    return (away.exp() * _ONE).long()


def bound(whole: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """The weight that those before a kept token do not reach, for a share of a whole weight; a share of 1 leaves those without weight, too."""
    return torch.where(share < 1, torch.ceil(whole.double() * share).clamp(min=1), float(_ALL)).long()


def keys_of(clean: torch.Tensor, empty: int) -> torch.Tensor:
    """Whole numbers, int32, in the order of the logits and equal where these are; ``empty``: bits that are zero in all of them."""
    bits = torch.where(clean == 0, 0.0, clean).view(torch.int32)
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits) >> empty


def left(keys: torch.Tensor, cut: Cut) -> torch.Tensor:
    """Whether each token is kept."""
    places = torch.arange(keys.shape[-1], device=keys.device)
    return (keys > cut.end) | ((keys == cut.end) & (places <= cut.place))


def _tokens(logits: torch.Tensor, cut: Cut) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys, and the weights of those that a cut leaves."""
    clean = cleaned(logits)
    keys = keys_of(clean, _EMPTY.get(logits.dtype, 0))
    return keys, torch.where(left(keys, cut), weighed(distances(clean, cut.top, cut.cold)), 0)


def weight(
    logits: torch.Tensor, top: torch.Tensor, cold: torch.Tensor, end: torch.Tensor, place: torch.Tensor
) -> torch.Tensor:
    """The weight of all that a cut leaves."""
    return _tokens(logits, Cut(top, cold, end, place))[1].sum(-1, keepdim=True)


def nearer(
    logits: torch.Tensor,
    top: torch.Tensor,
    cold: torch.Tensor,
    end: torch.Tensor,
    place: torch.Tensor,
    many: torch.Tensor,
    most: torch.Tensor,
    key: torch.Tensor,
    step: torch.Tensor,
) -> torch.Tensor:
    """Two more bits of the least key with fewer than ``many`` tokens and less than ``most`` weight above it; ``step``: the lesser of the two."""
    keys, weights = _tokens(logits, Cut(top, cold, end, place))
    beyond = torch.zeros_like(key)
    for i in (1, 2, 3):
        over = keys > (key + i * step - 1).int()
        count = over.sum(-1, keepdim=True, dtype=torch.int32)
        beyond = (
            beyond + ((count >= many) | (torch.where(over, weights, 0).sum(-1, keepdim=True) >= most)).long()
        )
    return key + beyond * step


def last_place(
    logits: torch.Tensor,
    top: torch.Tensor,
    cold: torch.Tensor,
    end: torch.Tensor,
    place: torch.Tensor,
    many: torch.Tensor,
    most: torch.Tensor,
    key: torch.Tensor,
) -> torch.Tensor:
    """Where, of the tokens with that least key, the last one lies that is within both bounds; at or behind the row's end where all are."""
    keys, weights = _tokens(logits, Cut(top, cold, end, place))
    bounding = key.int()
    over, equal = keys > bounding, keys == bounding
    each = torch.where(equal, weights, 0).amax(-1, keepdim=True).clamp(min=1)
    more = (most - torch.where(over, weights, 0).sum(-1, keepdim=True)).clamp(max=_ALL - _ONE)
    room = torch.minimum(
        many - over.sum(-1, keepdim=True), (more + each - 1).div(each, rounding_mode="trunc")
    )
    return _place(keys, bounding, room)


def _place(keys: torch.Tensor, key: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    """Where the key of this number, from 1 on, of those equal to ``key`` lies: first the part of the row, by how many each has, then the place in that."""
    rows, size = keys.shape
    width = -(-size // _PARTS)
    parts = F.pad(keys, (0, _PARTS * width - size), value=-(1 << 31)).view(rows, _PARTS, width)
    counts = (parts == key[:, :, None]).sum(-1)
    ends = counts.cumsum(-1)
    part = (ends < number).sum(-1, keepdim=True).clamp(max=_PARTS - 1)
    rest = number - (ends - counts).gather(-1, part)
    places = part * width + torch.arange(width, device=keys.device)
    inside = (keys.gather(-1, places.clamp(max=size - 1)) == key) & (places < size)
    return part * width + (inside.cumsum(-1) < rest).sum(-1, keepdim=True)


def mixed(x: torch.Tensor) -> torch.Tensor:
    """Numbers of 32 bits, each bit of which depends on all of the given one's."""
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x735A2D97) & 0xFFFFFFFF
    return x ^ (x >> 15)


def exponentials(low: torch.Tensor, high: torch.Tensor, size: int) -> torch.Tensor:
    """(rows, size) exponentially distributed numbers, of two numbers of 32 bits a row; small ones are as fine as large ones."""
    places = torch.arange(size, device=low.device)
    bits = mixed(mixed((places + low) & 0xFFFFFFFF) ^ high)
    return -torch.log1p(-((bits.float() + 0.5) * 2.0**-32).clamp(max=1 - 2.0**-24))


def drawn(
    logits: torch.Tensor,
    top: torch.Tensor,
    cold: torch.Tensor,
    end: torch.Tensor,
    place: torch.Tensor,
    low: torch.Tensor,
    high: torch.Tensor,
) -> torch.Tensor:
    """A token a row, of those that a cut leaves: the greatest weight / exponential falls to each by its weight."""
    clean = cleaned(logits)
    scores = distances(clean, top, cold) - exponentials(low, high, logits.shape[-1]).log()
    kept = left(keys_of(clean, _EMPTY.get(logits.dtype, 0)), Cut(top, cold, end, place))
    return torch.where(kept, scores, float("-inf")).argmax(-1)


def of_all(logits: torch.Tensor, cold: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """A token a row, of all tokens: what ``drawn`` gives where no row has an end."""
    clean = cleaned(logits)
    away = distances(clean, clean.amax(-1, keepdim=True), cold)
    return (away - exponentials(low, high, logits.shape[-1]).log()).argmax(-1)


def ordered(
    logits: torch.Tensor, cold: torch.Tensor, many: torch.Tensor | None, share: torch.Tensor | None
) -> Cut:
    """Where each row's kept tokens end, found by putting the vocabulary in order."""
    clean = cleaned(logits)
    top = clean.amax(-1, keepdim=True)
    keys, order = keys_of(clean, _EMPTY.get(logits.dtype, 0)).sort(dim=-1, descending=True, stable=True)
    weights = weighed(distances(clean, top, cold)).gather(-1, order)
    kept = torch.ones_like(keys, dtype=torch.bool)
    if many is not None:
        kept = torch.arange(keys.shape[-1], device=keys.device) < many
        weights = torch.where(kept, weights, 0)
    if share is not None:
        kept = kept & (weights.cumsum(-1) - weights < bound(weights.sum(-1, keepdim=True), share))
    last = kept.sum(-1, keepdim=True) - 1
    return Cut(top, cold, keys.gather(-1, last).long(), order.gather(-1, last))


class Rows:
    """The search and the draw, by functions that ``compiled`` has made kernels of, or that are as they are written; ``few``: rows that are put in order instead."""

    def __init__(
        self, compiled: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda f: f, few: int = 0
    ) -> None:
        self.few = few
        self.greatest, self.weight, self.nearer = compiled(greatest), compiled(weight), compiled(nearer)
        self.last_place, self.drawn, self.of_all = compiled(last_place), compiled(drawn), compiled(of_all)
        self._steps: dict[torch.device, torch.Tensor] = {}

    def cut(
        self,
        logits: torch.Tensor,
        cold: torch.Tensor,
        many: torch.Tensor | None,
        share: torch.Tensor | None,
        apart: bool = True,
    ) -> Cut:
        """Where each row's kept tokens end. ``many`` and ``share``: top-k and top-p, None: no row has it; ``apart``: no row has both."""
        if logits.shape[0] <= self.few:
            return ordered(logits, cold, many, share)
        least = torch.full(cold.shape, -(1 << 31), dtype=torch.int64, device=cold.device)
        found = Cut(self.greatest(logits), cold, least, torch.zeros_like(least))
        every = torch.full_like(least, logits.shape[-1])
        if many is not None and share is not None and not apart:
            found = self._search(logits, found, many, torch.full_like(least, _ALL))
        most = (
            bound(self.weight(logits, *found), share) if share is not None else torch.full_like(least, _ALL)
        )
        return self._search(logits, found, every if many is None else many, most)

    def _search(self, logits: torch.Tensor, cut: Cut, many: torch.Tensor, most: torch.Tensor) -> Cut:
        bits = 32 - _EMPTY.get(logits.dtype, 0)
        steps = self._steps.get(logits.device)
        if steps is None:
            steps = self._steps[logits.device] = 2 ** torch.arange(31, device=logits.device)
        key = torch.full_like(cut.end, -(1 << (bits - 1)))
        for shift in reversed(range(0, bits, 2)):
            key = self.nearer(logits, *cut, many, most, key, steps[shift])
        return Cut(cut.top, cut.cold, key, self.last_place(logits, *cut, many, most, key))
