"""The recordings of a served model: what is captured, when, and what becomes of a size that cannot be.

A size that cannot be captured is no error: steps of it take the next larger recording, pieces, or run unrecorded, and the reason is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from braze.serving.pieces.captures import Captures
from braze.serving.pieces.pools import GraphPools
from braze.serving.policy.data_parallel import Reduce
from braze.serving.policy.dispatch import Dispatcher, Key
from braze.support import log


class Recordings(Captures):
    """Keys that are captured, with their bytes, and those that are not, with why.

    ``record``: runs a key's size so that it is recorded; gives the reason where it was not. ``forget``: lets go of a key's recording.
    ``budget``: bytes of all, None for no limit. ``reduce``: of data-parallel ranks, which capture the same keys or none.
    """

    UNLIKE = "another rank could not capture it"

    def __init__(
        self,
        dispatcher: Dispatcher,
        pools: GraphPools,
        record: Callable[[Key], str],
        forget: Callable[[Key], None],
        budget: int | None,
        reduce: Reduce,
    ) -> None:
        super().__init__(budget, reduce)
        self.pools, self._record, self._forget = pools, record, forget
        self.keys = dispatcher.every_key()
        self.seconds = 0.0
        self._told: set[str] = set()

    def __contains__(self, key: object) -> bool:
        return key in self.captured

    @property
    def complete(self) -> bool:
        """Whether every key is captured."""
        return len(self.captured) == len(self.keys)

    def all(self, *, progress: bool) -> None:
        """Capture every key, the largest of each mode first, until one rank's budget is spent. All ranks call it."""
        missing = [key for key in self.keys if key not in self.captured and key not in self.failed]
        self.record_all(missing, self._timed, "capturing CUDA graphs", progress=progress)

    def next(self, heat: Mapping[Key, int]) -> Key | None:
        """Capture the one that steps asked for most, if memory allows: for idle steps. All ranks call it; what was captured, if any."""
        return self.record_hottest(self.keys, heat, self._timed)

    def held(self) -> int:
        """Bytes of all pools."""
        return self.pools.held()

    def forget(self, key: Key) -> None:
        """Let go of a key's recording."""
        self._forget(key)

    def tell(self, key: Key, why: str) -> None:
        """Once for each reason."""
        if why in self._told:
            return
        self._told.add(why)
        text = f"BZ7310: {key[0].name} of {key[1].num_tokens} tokens is not recorded: {why}"
        log.warn(f"{text} (other sizes of which that is true are in stats().failures)", "serving")

    def _timed(self, key: Key) -> str:
        start = time.perf_counter()
        why = self._record(key)
        self.seconds += time.perf_counter() - start
        return why
