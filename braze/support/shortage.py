"""What happens where memory or open files end while a function is compiled: it runs as it is, and is compiled again later."""

from __future__ import annotations

import errno
import os

from braze.support import trace
from braze.support.log import logger
from braze.support.raisers import is_of_program

#: the process may open no more files, or the machine
_NO_FILES = (errno.EMFILE, errno.ENFILE)


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


def is_out_of_files(error: BaseException) -> bool:
    """Whether no file more could be opened for braze: a module to load, a kernel, a lock. What the program's own code raises is its affair."""
    if not isinstance(error, (OSError, ImportError)):
        return False
    # the dynamic loader has words alone
    told = getattr(error, "errno", None) in _NO_FILES or any(os.strerror(n) in str(error) for n in _NO_FILES)
    return told and not is_of_program(error)


class Shortage:
    """How often compiling one function has run out of memory or files, and how many calls run as they are before the next try."""

    __slots__ = ("left", "times")

    def __init__(self) -> None:
        self.times = 0
        self.left = 0

    def waits(self) -> bool:
        """Whether this call, which would compile, is one of those that run as they are."""
        self.left -= self.left > 0
        return self.left > 0

    def note(self, name: str, place: str, seconds: float, error: Exception) -> None:
        """One more try that ran out: twice as many calls pass before the next."""
        self.times += 1
        self.left = 2 ** (self.times - 1)
        trace.count("compiles_out_of_memory")
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        of, hint = "memory", "free memory"
        if is_out_of_files(error):
            of, hint = "files to open", "close files, or let the process open more (ulimit -n)"
        text = (
            f"BZ6014: compiling {name} ({place}) ran out of {of} after {seconds:.2f} s: {why}\n"
            f"  It runs as it is, uncompiled; the next try is {self._when()}.\n"
            f"  do:  {hint}, or compile it before other things take it"
        )
        # said aloud once; later tries cost time too, and are there for who asks
        (logger("recompiles").warning if self.times == 1 else logger("recompiles").info)("%s", text)

    def _when(self) -> str:
        return "at the next call" if self.left == 1 else f"{self.left} calls on"
