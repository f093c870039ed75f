"""The heap of the C library keeps what a training step has let go of, for the next step.

Gradients go all at once, before the next step. Where they lie at the end of the heap, glibc gives their pages back to the system, and each
is cleared and mapped again when the next backward writes to it: a fifth to a quarter of a step of few rows. glibc raises the size from which it gives
back by itself, to twice the largest block that was let go of; here it follows all results of a backward. What is kept is anybody's to allocate.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache

#: `mallopt`'s names for the bytes at the end of the heap from which they are given back, and for those of a block that is mapped by itself
_TRIM, _MAP = -1, -3
#: the most that glibc lets its own rule choose, for both
_LARGEST_BLOCK, _LARGEST_END = 32 << 20, 64 << 20
#: results of fewer bytes are left to glibc's rule
_SMALL = 1 << 20
#: the most that `mallopt` takes
_MOST = (1 << 31) - 1

_kept = 0


def keep(results: int) -> None:
    """From now on the end of the heap may hold twice the results of this backward beside those of others."""
    global _kept
    mallopt = _mallopt()
    if results < _SMALL or mallopt is None or _user_decides():
        return
    _kept += 2 * results
    mallopt(_MAP, _LARGEST_BLOCK)
    mallopt(_TRIM, min(max(_kept, _LARGEST_END), _MOST))


def give_back() -> None:
    """Forget which backwards there were (``braze.reset``): the heap is given back as glibc would."""
    global _kept
    mallopt = _mallopt()
    if _kept and mallopt is not None:
        mallopt(_TRIM, _LARGEST_END)
    _kept = 0


def _user_decides() -> bool:
    """Whether the environment sets these sizes."""
    named = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
    return any(name in os.environ for name in named) or "glibc.malloc." in os.environ.get(
        "GLIBC_TUNABLES", ""
    )


@cache
def _mallopt() -> Callable[[int, int], int] | None:
    """glibc's function; None with another C library."""
    try:
        library = ctypes.CDLL(None)
        return library.mallopt if hasattr(library, "gnu_get_libc_version") else None
    except (OSError, AttributeError, TypeError):
        return None
