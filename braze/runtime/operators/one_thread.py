"""Work on one thread alone: what OpenMP and MKL would spread over the team stays with the thread that asked for it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch

T = TypeVar("T")

#: what sets the number of helpers of the calling thread and of no other, in OpenMP and in MKL
_LIMITS = ("omp_set_num_threads", "MKL_Set_Num_Threads_Local")


def on_one_thread(work: Callable[[], T]) -> T | None:
    """What ``work`` returns on a thread of its own, where ATen and our kernels have no helpers; None where that cannot be had.

    `torch.set_num_threads` would change the number of other threads, too: those that begin meanwhile keep what they find.
    """
    limits = _limits()
    if not limits:
        return None

    def run() -> T:
        torch.get_num_threads()  # libtorch tells a thread its number at the first use, which must not come after
        for limit in limits:
            limit(1)
        return work()

    with ThreadPoolExecutor(1) as pool:
        try:
            done = pool.submit(run)
        except RuntimeError:  # no thread is to be had
            return None
        return done.result()


@cache
def _limits() -> tuple[Callable[[int], object], ...]:
    """libtorch's own, or nothing where it lacks one (without MKL its library of products has a number that is everybody's)."""
    path = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
    try:
        # RTLD_NOLOAD: only the library that is there already, through which its own OpenMP is found
        library = ctypes.CDLL(path, mode=os.RTLD_NOW | getattr(os, "RTLD_NOLOAD", 0))
        return tuple(getattr(library, name) for name in _LIMITS)
    except (OSError, AttributeError):
        return ()
