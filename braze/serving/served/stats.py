"""What a served model has done: steps by recording, padding, and the histogram that sizes are chosen by."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from braze.serving.policy.dispatch import Decision, Key
from braze.serving.policy.modes import CUDAGraphMode
from braze.serving.policy.sizes import write_traffic
from braze.support.record import record


@record
class Stats:
    """Counts since the model was served.

    ``steps``: all; ``replayed``: those that replayed, by mode's name; ``unrecorded``: those that did not, by reason. ``real_tokens``, ``padded_tokens``:
    of the replayed. ``captured``: recordings there are; ``bytes``: what they hold; ``failures``: what could not be captured, with its reason.
    ``verified``, ``mismatches``: replays that were compared with eager, and what was found. ``histogram``: steps by what they count as among capture sizes (``Dispatcher.size_of``).
    """

    steps: int
    replayed: tuple[tuple[str, int], ...]
    unrecorded: tuple[tuple[str, int], ...]
    real_tokens: int
    padded_tokens: int
    captured: int
    bytes: int
    failures: tuple[tuple[str, str], ...]
    verified: int
    mismatches: tuple[str, ...]
    histogram: tuple[tuple[int, int], ...]

    @property
    def padding(self) -> float:
        """Tokens of padding for each real one."""
        return self.padded_tokens / self.real_tokens - 1 if self.real_tokens else 0.0

    def write_traffic(self, path: str | Path) -> None:
        """Write the histogram for ``cudagraph_capture_sizes="traffic:<path>"``."""
        write_traffic(dict(self.histogram), path)


class Counts:
    """What is counted while steps run."""

    def __init__(self) -> None:
        self.steps = 0
        self.by_mode: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.heat: Counter[Key] = Counter()
        self.histogram: Counter[int] = Counter()
        self.real = self.padded = self.verified = 0
        self.mismatches: list[str] = []

    def step(self, tokens: int, size: int, wanted: Decision, done: Decision) -> None:
        """A step ran as ``done`` says; with everything captured it would have been ``wanted``. ``size``: what it counts as among capture sizes."""
        self.steps += 1
        self.histogram[size] += 1
        if wanted.mode is not CUDAGraphMode.NONE:
            self.heat[wanted.mode, wanted.descriptor] += 1
        if done.mode is CUDAGraphMode.NONE:
            self.reasons[done.reason] += 1
        else:
            self.by_mode[done.mode.name] += 1
            self.real += tokens
            self.padded += done.descriptor.num_tokens

    def table(self, captured: int, held: int, failures: dict[Key, str]) -> Stats:
        """The counts as they are now."""
        return Stats(
            self.steps,
            tuple(sorted(self.by_mode.items())),
            tuple(self.reasons.most_common()),
            self.real,
            self.padded,
            captured,
            held,
            tuple((f"{mode.name} {d.num_tokens}", why) for (mode, d), why in failures.items()),
            self.verified,
            tuple(self.mismatches),
            tuple(sorted(self.histogram.items())),
        )
