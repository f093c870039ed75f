"""What happens where memory ends while a function is compiled: it runs as it is, and is compiled again later."""

from __future__ import annotations

from braze.support import trace
from braze.support.log import logger


def lost_by_python(error: BaseException) -> bool:
    """Whether CPython forgot which exception it was at, as it does where memory ends while it clears a frame.

    A frame whose exception somebody holds keeps its caller's, which is made then; if that fails, CPython (3.11 to 3.13) drops
    what was raised. The other way round, PyTorch's C++ goes on with the MemoryError of a look-up, and the function that called it
    ends with both. A frame that an evaluator of ours ended so is named by BZ9015, before.
    """
    if not isinstance(error, SystemError):
        return False
    said = str(error)
    if said.endswith("returned a result with an exception set"):
        return isinstance(error.__cause__, MemoryError)
    return said == "error return without exception set" or (
        said.startswith("<function ") and said.endswith("returned NULL without setting an exception")
    )


class Shortage:
    """How often compiling one function has run out of memory, and how many calls run as they are before the next try."""

    __slots__ = ("left", "times")

    def __init__(self) -> None:
        self.times = 0
        self.left = 0

    def waits(self) -> bool:
        """Whether this call, which would compile, is one of those that run as they are."""
        self.left -= self.left > 0
        return self.left > 0

    def note(self, name: str, place: str, seconds: float, error: Exception) -> None:
        """One more try that ran out of memory: twice as many calls pass before the next."""
        self.times += 1
        self.left = 2 ** (self.times - 1)
        trace.count("compiles_out_of_memory")
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        text = (
            f"BZ6014: compiling {name} ({place}) ran out of memory after {seconds:.2f} s: {why}\n"
            f"  It runs as it is, uncompiled; the next try is {self._when()}.\n"
            "  do:  free memory, or compile it before other things take it"
        )
        # said aloud once; later tries cost time too, and are there for who asks
        (logger("recompiles").warning if self.times == 1 else logger("recompiles").info)("%s", text)

    def _when(self) -> str:
        return "at the next call" if self.left == 1 else f"{self.left} calls on"
