"""What is said of recompiles: one block an event, one warning a storm.

A site makes a :class:`Recompile` each time a miss was answered by another compile. ``BRAZE_LOGS=recompiles`` prints
it, ``braze.explain`` keeps it.
"""

from __future__ import annotations

import dataclasses
import logging
import weakref
from collections import Counter, deque
from types import CodeType
from typing import Any

from braze.capture.facts.records import Guard
from braze.capture.guards.misses import Miss
from braze.support import trace
from braze.support.errors import RecompileError
from braze.support.log import logger, warn_once
from braze.support.record import record

#: compiles past the limit, each of which made room for itself, that are a storm
STORM = 4
#: misses that run uncompiled after a storm before one is compiled again, and how many more each time
REST, LONGER = 16, 4
#: functions compiled of one code object that are a storm: braze.compile stands in a loop
COPIES = 16
#: events that one guard gets a block for; then a line each
BLOCKS = 3
#: events that a function's history holds
KEPT = 64
#: guards of other variants that a block shows
OTHERS = 3


@record
class Recompile:
    """The event of a second or later compile of the same code: which guards failed, variant by variant."""

    name: str
    variants: int  # that there were
    misses: tuple[Miss, ...]  # of the newest variant first
    generic: bool
    seconds: float = 0.0
    limit: int = 0
    place: str = ""  # file:line of the function
    again: int = 1  # how often this guard has now failed
    spent: float = 0.0  # seconds of all compiles of this function

    def __str__(self) -> str:
        return recompile_text(self)


class History:
    """The recompiles of one site, and what has been said about them."""

    def __init__(self) -> None:
        self.events: deque[Recompile] = deque(maxlen=KEPT)
        #: how often the guard of one check at one source failed, and the last such miss
        self.failures: Counter[Any] = Counter()
        self.last: dict[Any, Miss] = {}
        self.evictions = 0
        #: misses of the storm since the last compile, and how many are let by
        self.let_by = 0
        self.rest = REST

    def rests(self, hits: int) -> bool:
        """Whether a miss past the limit runs uncompiled: of a storm ever fewer are compiled, unless the last served calls."""
        if self.evictions < STORM:
            return False
        if hits >= self.rest:
            self.rest = REST
        self.let_by += 1
        if self.let_by <= self.rest:
            return True
        self.let_by, self.rest = 0, self.rest * LONGER
        return False

    def note(self, misses: tuple[Miss, ...]) -> int:
        """Count what failed; how often the newest variant's guard has failed by now."""
        if not misses:
            return 1
        where = misses[0].guard.source, misses[0].guard.check
        self.failures[where] += 1
        self.last[where] = without_values(misses[0])
        return self.failures[where]

    def worst(self) -> tuple[Miss | None, int]:
        """The guard that fails most, as it failed last, and how often."""
        if not self.failures:
            return None, 0
        where, times = self.failures.most_common(1)[0]
        return self.last[where], times

    def add(self, event: Recompile) -> None:
        """Keep an event, tell who listens, and log it."""
        self.events.append(dataclasses.replace(event, misses=tuple(map(without_values, event.misses))))
        trace.emit("recompile", event)
        log = logger("recompiles")
        if log.isEnabledFor(logging.INFO):
            log.info("%s", event if event.again <= BLOCKS else short_text(event))


def without_values(miss: Miss) -> Miss:
    """A miss that keeps no object of the user's alive."""
    guard = Guard(miss.guard.source, miss.guard.check, None, miss.guard.origin)
    return dataclasses.replace(miss, guard=guard, value=None)


# -- one event --------------------------------------------------------------------------------------


def recompile_text(event: Recompile) -> str:
    """The block of one recompile."""
    lines = [_headline(event)]
    if event.misses:
        lines += miss_lines(event.misses[0])
        first = event.misses[0].guard
        others = dict.fromkeys(
            f"{miss.what}; now {miss.met}"
            for miss in event.misses[1:]
            if (miss.guard.source, miss.guard.check) != (first.source, first.check)
        )
        lines += [f"  other variants: {text}" for text in list(others)[:OTHERS]]
    if event.generic:
        lines.append("  past the limit: sizes are all symbolic in this variant")
    return "\n".join(lines)


def short_text(event: Recompile) -> str:
    """The line of one of many recompiles for the same guard."""
    miss = event.misses[0]
    return f"{_headline(event)}: the {event.again}th time for {miss.what}: now {miss.met}; {event.spent:.2f} s so far"


def _headline(event: Recompile) -> str:
    at = f" ({event.place})" if event.place else ""
    number = event.variants + 1
    which = f"{number} of {event.limit}" if number <= event.limit else f"past the limit of {event.limit}"
    return f"{event.name}{at} is compiled again: variant {which}, {event.seconds:.2f} s"


def miss_lines(miss: Miss) -> list[str]:
    """Guard, old and new value, user line, and how to avoid it."""
    lines = [f"  guard: {miss.what}", f"  now:   {miss.met}"]
    if miss.guard.origin is not None:
        lines += [f"  read:  {miss.guard.origin}", *filter(None, miss.guard.origin.excerpt().splitlines())]
    return [*lines, *(f"  do:    {hint}" for hint in miss.hints)]


# -- storms, limits, refusals -----------------------------------------------------------------------


def warn_of_limit(
    name: str, place: str, key: Any, history: History, seconds: float, count: int, then: str
) -> None:
    """BZ1101, once: the limit is reached, what fails most, and what happens from now on."""
    worst, times = history.worst()
    lines = miss_lines(worst) if worst is not None else ["  guard: unknown"]
    warn_once(
        ("BZ1101", key),
        f"BZ1101: {name} ({place}) has been compiled {count} times in "
        f"{seconds:.1f} s; the guard that failed most ({times} times):\n"
        + "\n".join(lines)
        + f"\n  then:  {then}\n"
        "  or:    raise options={'recompile_limit': n}",
        subject="recompiles",
    )


def warn_of_storm(name: str, place: str, key: Any, history: History, seconds: float) -> None:
    """BZ1103, once: past the limit new values still compile, since no generic variant can hold them; from now on few do."""
    history.evictions += 1
    if history.evictions < STORM:
        return
    worst, times = history.worst()
    lines = miss_lines(worst) if worst is not None else []
    warn_once(
        ("BZ1103", key),
        f"BZ1103: {name} ({place}) is compiled again and again, {seconds:.1f} s so "
        f"far: symbolic sizes do not help against this guard, which failed {times} times:\n"
        + "\n".join(lines)
        + "\n  then:  calls that fit no variant run uncompiled from now on, and are compiled ever more rarely\n"
        "  or:    options={'on_overflow': 'error'} refuses them",
        subject="recompiles",
    )


def refuse(
    name: str, place: str, misses: tuple[Miss, ...], variants: int, bz: str, why: str
) -> RecompileError:
    """The exception in place of a compile."""
    found = misses[0] if misses else None
    what = f"{name} ({place}) would be compiled "
    what += f"again, beside {variants} variant{'s' * (variants != 1)}" if variants else "for the first time"
    if found is not None:
        what += f": {found.what}; now {found.met}"
    return RecompileError(
        bz,
        what,
        why=why,
        hints=found.hints if found is not None else ("call it once in the default stance, to warm it up",),
        origin=found.guard.origin if found is not None else None,
    )


class Copies:
    """How many functions have been compiled of each code object: many are a storm of another kind."""

    def __init__(self) -> None:
        #: living code -> how many, and the seconds that they took
        self.counts: weakref.WeakKeyDictionary[CodeType, tuple[int, float]] = weakref.WeakKeyDictionary()

    def note(self, name: str, code: CodeType, seconds: float) -> None:
        """One more function of this code was compiled for the first time."""
        count, before = self.counts.get(code, (0, 0.0))
        count, seconds = count + 1, before + seconds
        self.counts[code] = count, seconds
        if count >= COPIES:
            warn_once(
                ("BZ1104", code),
                f"BZ1104: {name} ({code.co_filename}:{code.co_firstlineno}) has been given to braze.compile "
                f"{count} times, and was compiled anew each time: {seconds:.1f} s so far\n"
                "  do:    call braze.compile once, outside the loop or function that makes it, and keep the result",
                subject="recompiles",
            )

    def clear(self) -> None:
        """Forget all counts."""
        self.counts.clear()
