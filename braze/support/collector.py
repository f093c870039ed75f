"""Python's garbage collector, held off while a compile makes its many objects."""

from __future__ import annotations

import gc
import threading
from types import TracebackType

#: pauses that end without a look at the new objects, until a full collection has run again
PROMOTIONS = 50
#: more objects than that are frozen because the program asked for it; CPython 3.12 starts with some hundreds
FROZEN = 1000


#: full collections for which a pause believes that the program's objects are frozen, once they were found to be
HELD = 50
#: how many had run when that was found
_found_frozen = [-HELD]


def objects_are_frozen(held: int = 1) -> bool:
    """Whether the program has frozen its objects. To count a million takes 4 ms and more, so that what was found holds for ``held`` full collections."""
    full = gc.get_stats()[-1]["collections"]
    if full - _found_frozen[0] >= held:
        if gc.get_freeze_count() < FROZEN:
            return False
        _found_frozen[0] = full
    return True


class _Paused:
    """A context, entered as often as one likes and from any thread; the last one out sets the collector going again.

    A compile makes tens of thousands of objects that nearly all live as long as what is compiled. Collecting again and
    again among them, and at times through all that torch and the model have loaded, would cost more than the
    compile. So the new objects are counted among the old ones at once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0
        self._was_on = False
        self._promotions = 0
        self._full = 0

    def __enter__(self) -> None:
        with self._lock:
            if self._depth == 0:
                self._was_on = gc.isenabled()
                gc.disable()
            self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0 and self._was_on:
                self._promote()
                gc.enable()

    def _promote(self) -> None:
        """Make all objects old ones, and start the counts that set off a collection anew."""
        full = gc.get_stats()[-1]["collections"]
        if full != self._full:
            self._full, self._promotions = full, 0
        # a program that compiles for ever must still be collected, and one that froze its objects keeps them frozen
        if self._promotions >= PROMOTIONS:
            return
        # of a program that has thawed them meanwhile the new objects are looked at as if nobody compiled
        if objects_are_frozen(HELD):
            self._promotions = PROMOTIONS
            return
        self._promotions += 1
        gc.freeze()
        gc.unfreeze()


collector_paused = _Paused()
