"""Whether launches limit a graph: how long the device waits for the host, measured in its first calls.

One call is timed as it runs, from an idle device on; the next behind work that keeps the device busy until everything is launched. What the
first took longer, the device waited. Others may use the device meanwhile, which lengthens either: a graph is left unrecorded for good only
where the shortest of several calls say so.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from braze.cudagraphs.device import DeviceGraphs
from braze.cudagraphs.reasons import note
from braze.cudagraphs.recording import Call

#: share of a call for which the device must wait, for a recording to pay
WORTH = 0.10
#: pairs of calls that must say that launches do not limit a graph
PAIRS = 2


class Idle:
    """The measurement for one graph: its first call runs as it is, pairs of more are timed. ``limits``: what came of it; None: not known yet."""

    def __init__(self, name: str, device: DeviceGraphs) -> None:
        self.name, self.device = name, device
        self.limits: bool | None = None
        self._lock = threading.Lock()
        self._warm = False
        #: seconds of calls as they run, and behind other work
        self._plain: list[float] = []
        self._busy: list[float] = []

    def call(self, call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
        """One of the first calls; those of other threads meanwhile run as they are."""
        if not self._lock.acquire(blocking=False):
            return call(inputs)
        try:
            if self.limits is not None or not self._warm:
                outputs = call(inputs)
                self._warm = True
            elif len(self._plain) == len(self._busy):
                outputs, seconds = self.device.timed(lambda: call(inputs))
                self._plain.append(seconds)
            else:
                outputs, seconds = self.device.timed(lambda: call(inputs), behind=self._plain[-1])
                self._busy.append(seconds)
                self._decide()
            return outputs
        finally:
            self._lock.release()

    def _decide(self) -> None:
        plain, busy = min(self._plain), min(self._busy)
        share = 1 - busy / plain if plain > 0 else 0.0
        if share > WORTH:
            self.limits = True
        elif len(self._busy) == PAIRS:
            self.limits = False
            why = f"is not recorded: launches do not limit it (the device waits {max(0.0, share):.0%} of a call)"
            note("BZ6214", self.name, why)
