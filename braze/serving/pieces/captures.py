"""Which sizes are recorded: alike on all data-parallel ranks, and within a budget of memory."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence

from braze.serving.policy.data_parallel import Reduce
from braze.serving.policy.dispatch import Key
from braze.serving.policy.lazy import choose_together, unanimous
from braze.support.errors import UserError
from braze.support.progress import shown

#: what ranks tell each other of a key
_FAILED, _DONE, _ENDED = 0, 1, 2
#: records a size of this rank; the reason where it was not
Record = Callable[[Key], str]


class Captures(abc.ABC):
    """Keys that are recorded, and those that are not. Who derives from it says what recordings hold, how one is let go of, and how a failure is told.

    ``budget``: bytes of all, None for no limit. ``reduce``: of ranks, which record the same keys or none.
    """

    #: why a key is let go of that this rank has recorded
    UNLIKE = "another rank could not record it"

    def __init__(self, budget: int | None, reduce: Reduce) -> None:
        self.budget, self.reduce = budget, reduce
        #: what is recorded, with the bytes that it added
        self.captured: dict[Key, int] = {}
        #: what could not be recorded, and why
        self.failed: dict[Key, str] = {}

    @abc.abstractmethod
    def held(self) -> int:
        """Bytes of all recordings."""

    @abc.abstractmethod
    def forget(self, key: Key) -> None:
        """Let go of a key's recording, if there is one."""

    @abc.abstractmethod
    def tell(self, key: Key, why: str) -> None:
        """Say that a key is not recorded."""

    def record_all(self, keys: Sequence[Key], record: Record, title: str, *, progress: bool) -> None:
        """Record these, in this order, until one rank's budget is spent. All ranks call it."""
        for key in shown(keys, title, progress):
            if not self.capture(key, record) and not unanimous(not self._spent(), self.reduce):
                break

    def record_hottest(self, keys: Sequence[Key], heat: Mapping[Key, int], record: Record) -> Key | None:
        """Record the one that steps asked for most, if memory allows: for idle steps. All ranks call it; what was recorded, if any."""
        choice = choose_together(keys, heat, self.captured, self.failed, self.budget, self.reduce)
        if choice.capture is None:
            return None
        if choice.drop is not None:
            self.drop(choice.drop)
        return choice.capture if self.capture(choice.capture, record) else None

    def capture(self, key: Key, record: Record) -> bool:
        """Record one key on all ranks, or on none; whether all have.

        What ``record`` raises it raises on this rank, and UserError (BZ7313) on all others, which would wait for this one without an end.
        """
        before = self.held()
        try:
            why = record(key)
        except BaseException:
            self.reduce([_ENDED])  # first: the others wait for it
            self.forget(key)
            raise
        if not why and self.budget is not None and self.held() > self.budget:
            why = f"memory_budget of {self.budget} bytes is spent: recordings would hold {self.held()}"
        found = [row[0] for row in self.reduce([_FAILED if why else _DONE])]
        if _ENDED not in found and _FAILED not in found:
            self.captured[key] = self.held() - before
            return True
        self.forget(key)
        if _ENDED in found:
            raise UserError(
                "BZ7313",
                f"recording {key[0].name} of {key[1].num_tokens} tokens ended by an error on rank {found.index(_ENDED)}",
                why="ranks record the same sizes together, and that one records no more",
                hints=["its own error, on that rank"],
            )
        self.fail(key, why or self.UNLIKE)
        return False

    def drop(self, key: Key) -> None:
        """Let go of a recording; it may be made again."""
        self.forget(key)
        self.captured.pop(key, None)

    def fail(self, key: Key, why: str) -> None:
        """A key is not to be used any more, or could not be recorded."""
        self.captured.pop(key, None)
        self.failed[key] = why
        self.tell(key, why)

    def _spent(self) -> bool:
        return self.budget is not None and self.held() >= self.budget
