"""The recordings of a served model: what is captured, when, and what becomes of a size that cannot be.

A size that cannot be captured is no error: steps of it take the next larger recording, pieces, or run unrecorded, and the reason is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from braze.serving.pieces.pools import GraphPools
from braze.serving.policy.data_parallel import Reduce
from braze.serving.policy.dispatch import Dispatcher, Key
from braze.serving.policy.lazy import choose_together, unanimous
from braze.support import log
from braze.support.progress import shown


class Recordings:
    """Keys that are captured, with their bytes, and those that are not, with why.

    ``record``: runs a key's size so that it is recorded; gives the reason where it was not. ``forget``: lets go of a key's recording.
    ``budget``: bytes of all, None for no limit. ``reduce``: of data-parallel ranks, which capture the same keys or none.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        pools: GraphPools,
        record: Callable[[Key], str],
        forget: Callable[[Key], None],
        budget: int | None,
        reduce: Reduce,
    ) -> None:
        self.pools, self.record, self.forget = pools, record, forget
        self.budget, self.reduce = budget, reduce
        self.keys = dispatcher.every_key()
        self.held: dict[Key, int] = {}
        self.failed: dict[Key, str] = {}
        self.seconds = 0.0
        self._told: set[str] = set()

    def __contains__(self, key: object) -> bool:
        return key in self.held

    @property
    def complete(self) -> bool:
        """Whether every key is captured."""
        return len(self.held) == len(self.keys)

    def all(self, *, progress: bool) -> None:
        """Capture every key, the largest of each mode first, until one rank's budget is spent. All ranks call it."""
        missing = [key for key in self.keys if key not in self.held and key not in self.failed]
        for key in shown(missing, "capturing CUDA graphs", progress):
            if not self.capture(key) and not unanimous(not self._spent(), self.reduce):
                break

    def next(self, heat: dict[Key, int]) -> Key | None:
        """Capture the one that steps asked for most, if memory allows: for idle steps. All ranks call it; what was captured, if any."""
        choice = choose_together(self.keys, heat, self.held, self.failed, self.budget, self.reduce)
        if choice.capture is None:
            return None
        if choice.drop is not None:
            self.drop(choice.drop)
        return choice.capture if self.capture(choice.capture) else None

    def capture(self, key: Key) -> bool:
        """Capture one key on all ranks; whether all have."""
        before, start = self.pools.held(), time.perf_counter()
        why = self.record(key)
        self.seconds += time.perf_counter() - start
        size = self.pools.held() - before
        if not why and self.budget is not None and self.pools.held() > self.budget:
            why = f"memory_budget of {self.budget} bytes is spent: recordings would hold {self.pools.held()}"
        if not unanimous(not why, self.reduce):
            self.forget(key)
            self.fail(key, why or "another rank could not capture it")
            return False
        self.held[key] = size
        return True

    def drop(self, key: Key) -> None:
        """Let go of a recording; it may be captured again."""
        self.forget(key)
        del self.held[key]

    def fail(self, key: Key, why: str) -> None:
        """A key is not to be used any more, or could not be captured."""
        self.held.pop(key, None)
        self.failed[key] = why
        if why in self._told:
            return
        self._told.add(why)
        text = f"BZ7310: {key[0].name} of {key[1].num_tokens} tokens is not recorded: {why}"
        log.warn(f"{text} (other sizes of which that is true are in stats().failures)", "serving")

    def _spent(self) -> bool:
        return self.budget is not None and self.pools.held() >= self.budget
