"""Which sizes are captured: a pattern, a list, or what a histogram of traffic asks for.

A size is a number of requests where batches only decode (each with its q tokens), and a number of tokens elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from braze.support import log
from braze.support.errors import UserError
from braze.support.record import record

#: how much less padding, as a share of the real tokens, is worth a list of one's own
WORTH = 0.01
#: how many sizes a file of traffic asks for
FROM_TRAFFIC = 16
#: how far sizes of the pattern lie apart
STRIDE = 16
#: the sizes of a runner that is told of none: few, since it records each in both ways
DOUBLING = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
#: sizes that a message lists at most
_TOLD = 12


def pattern(largest: int) -> tuple[int, ...]:
    """1, 2, 4, 8, then every 16th up to ``largest``, which is the last itself; ascending."""
    grid = [1, 2, 4, 8, *range(STRIDE, largest + 1, STRIDE)]
    return tuple(sorted({size for size in grid if size < largest} | {largest}))


@record
class Limits:
    """What the buffers of a step hold: requests, and tokens."""

    max_num_seqs: int
    max_num_batched_tokens: int
    uniform_query_len: int = 1

    def decodes(self, size: int) -> bool:
        """Whether that many requests can decode at once."""
        return size <= self.max_num_seqs and size * self.uniform_query_len <= self.max_num_batched_tokens

    def holds(self, size: int) -> bool:
        """Whether that many tokens fit."""
        return size <= self.max_num_batched_tokens


@record
class Sizes:
    """The capture sizes, largest first, with what was left out and what to tell of it."""

    sizes: tuple[int, ...]
    dropped: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


def within(sizes: Sequence[int], limits: Limits, *, listed: bool, tokens: bool) -> Sizes:
    """The sizes that the buffers hold, largest first.

    ``listed``: the user wrote the list, else the largest batch is one of the sizes, so that no batch
    but a larger one runs without graphs. ``tokens``: some ladder counts tokens (mixed batches are recorded), else
    all count requests. Raises BZ7105 where nothing is left.
    """
    fits = limits.holds if tokens else limits.decodes
    kept = {size for size in sizes if fits(size)}
    dropped = tuple(sorted(set(sizes) - kept))
    notes = []
    if dropped:
        bound = f"max_num_batched_tokens={limits.max_num_batched_tokens}"
        if not tokens:
            bound = f"max_num_seqs={limits.max_num_seqs} and {bound}"
        notes.append(f"BZ7107: capture sizes {_listed(dropped)} are left out: the buffers hold {bound}")
    most = min(limits.max_num_seqs, limits.max_num_batched_tokens // limits.uniform_query_len)
    if not listed and 0 < most < max(sizes, default=0):
        kept.add(most)
    if not kept:
        raise UserError(
            "BZ7105",
            f"no capture size is left of {_listed(sizes)}",
            why=notes[0].partition(": ")[2] if notes else "the list is empty",
            hints=["give smaller sizes, or raise the limits", "cudagraph_mode='NONE' records nothing"],
        )
    return Sizes(tuple(sorted(kept, reverse=True)), dropped, tuple(notes))


def _listed(sizes: Sequence[int]) -> str:
    """Sizes as a list; of many the first and the last."""
    if len(sizes) <= _TOLD:
        return str(list(sizes))
    return f"[{', '.join(map(str, sizes[: _TOLD - 1]))}, ..., {sizes[-1]}] ({len(sizes)} sizes)"


@record
class Suggestion:
    """Sizes for some traffic, ascending, and what they save.

    ``waste`` and ``default_waste``: padded over real tokens, less one (or of the cost that was given). ``keep_default``: the sizes that
    there are serve this traffic as well; ``sizes`` is then those.
    """

    sizes: tuple[int, ...]
    waste: float
    default_waste: float
    keep_default: bool

    def __str__(self) -> str:
        said = (
            "keep the default"
            if self.keep_default
            else f"capture {len(self.sizes)} sizes: {list(self.sizes)}"
        )
        return f"{said} (padding {self.waste:.1%}; the default's is {self.default_waste:.1%})"


def suggest_sizes(
    histogram: Mapping[int, int],
    k: int = FROM_TRAFFIC,
    *,
    default: Sequence[int] = pattern(512),
    cost: Callable[[int], float] | None = None,
) -> Suggestion:
    """The ``k`` sizes that pad ``histogram`` (size -> how often) least.

    ``cost(size)`` is what a step of that padded size costs, such as its measured time; it grows with the size; tokens where it is not
    given. What is larger than the largest of ``default`` runs without graphs and is not counted.
    """
    largest = max(default)
    counts = {size: count for size, count in histogram.items() if 0 < size <= largest and count > 0}
    if not counts or k < 1:
        return Suggestion(tuple(sorted(default)), 0.0, 0.0, True)
    price = cost or float
    real = sum(count * price(size) for size, count in counts.items())
    chosen = _cheapest(sorted(counts), [counts[s] for s in sorted(counts)], min(k, len(counts)), price)
    waste = _padded(counts, chosen, price) / real - 1
    of_default = _padded(counts, sorted(default), price) / real - 1
    if of_default - waste < WORTH:
        return Suggestion(tuple(sorted(default)), of_default, of_default, True)
    return Suggestion(chosen, waste, of_default, False)


def _padded(counts: Mapping[int, int], sizes: Sequence[int], price: Callable[[int], float]) -> float:
    """What all steps cost, each padded to the next of ``sizes`` (ascending)."""
    places = np.searchsorted(sizes, list(counts))
    return sum(
        count * price(sizes[place]) for place, count in zip(places.tolist(), counts.values(), strict=True)
    )


def _cheapest(sizes: list[int], counts: list[int], k: int, price: Callable[[int], float]) -> tuple[int, ...]:
    """The ``k`` of ``sizes`` that cost least, the largest among them.

    ``best[j]``: the least that the first j + 1 sizes cost with the last of them chosen; another round allows one more choice.
    """
    many = np.concatenate([[0], np.cumsum(counts)])
    prices = np.array([price(size) for size in sizes], dtype=float)
    best = many[1:] * prices
    before: list[Any] = []
    for _ in range(k - 1):
        # [j, i]: the first i + 1 as they are, those after it up to j padded to j
        joined = best[None, :] + (many[1:, None] - many[None, 1:]) * prices[:, None]
        joined[np.triu_indices(len(sizes))] = np.inf
        choice = joined.argmin(axis=1)
        found = joined[np.arange(len(sizes)), choice]
        before.append(np.where(found < best, choice, -1))
        best = np.minimum(found, best)
    chosen = [len(sizes) - 1]
    for row in reversed(before):
        if row[chosen[-1]] >= 0:
            chosen.append(int(row[chosen[-1]]))
    return tuple(sizes[place] for place in reversed(chosen))


def read_traffic(path: str | Path) -> dict[int, int]:
    """The histogram in a file: a JSON object ``{"37": 120}``, or lines of ``size`` or ``size count``; else BZ7109."""
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            "BZ7109",
            f"traffic file {str(path)!r} cannot be read",
            why=str(error),
            hints=["m.stats().write_traffic(path) writes one"],
        ) from error
    try:
        if text.lstrip().startswith("{"):
            rows = [(int(size), _count(count)) for size, count in json.loads(text).items()]
        else:
            lines = [line.replace(",", " ").split() for line in text.splitlines() if line.strip()]
            rows = [(int(size), int(*count or ["1"])) for size, *count in lines]
    except (ValueError, TypeError) as error:
        told = f"traffic file {str(path)!r} holds no histogram"
        raise UserError("BZ7109", told, why=str(error), hints=[_HISTOGRAM]) from error
    found: dict[int, int] = {}
    for size, count in rows:
        if size < 0 or count < 0:
            told = f"traffic file {str(path)!r} holds a negative number: {size} {count}"
            raise UserError("BZ7109", told, hints=[_HISTOGRAM])
        found[size] = found.get(size, 0) + count
    return found


def refuse_unwritable(path: str | Path) -> None:
    """BZ7109 where a file of traffic cannot be written; what it holds stays."""
    try:
        with Path(path).open("a"):
            pass
    except (OSError, ValueError) as error:
        told = f"traffic file {str(path)!r} cannot be written"
        raise UserError("BZ7109", told, why=str(error), hints=["a file in a folder that is there"]) from error


def write_traffic(histogram: Mapping[int, int], path: str | Path) -> None:
    """Write a histogram as ``read_traffic`` takes it."""
    Path(path).write_text(json.dumps({str(size): histogram[size] for size in sorted(histogram)}))


@record
class Wanted:
    """Sizes as they were asked for. ``listed``: one by one; ``traffic``: what a file of traffic led to, if one was named."""

    sizes: tuple[int, ...]
    listed: bool
    traffic: Suggestion | None = None


def asked_for(said: Sequence[int] | str | None, default: Sequence[int]) -> Wanted:
    """What a list, ``"traffic:<file>"``, or None and ``"auto"`` for the default ask for; BZ7109 for a file without a histogram."""
    if said is None or said == "auto":
        return Wanted(tuple(default), False)
    if not isinstance(said, str):
        return Wanted(tuple(said), True)
    path = said.partition(":")[2]
    found = suggest_sizes(read_traffic(path), default=default)
    log.logger("serving").info("traffic of %s: %s", path, found)
    return Wanted(found.sizes, False, found)


_HISTOGRAM = 'write {"37": 120, ...}, or a line "37 120" a size; m.stats() has such a histogram'


def _count(value: Any) -> int:
    """How often a size came: a whole number, which a file may have as a text."""
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"{value} is no number of steps")
    return int(value)
