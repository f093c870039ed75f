"""Threads of braze's own that speak with other processes: what they wait for is no work of PyTorch's."""

from __future__ import annotations

import threading


class Companion(threading.Thread):
    """A thread that starts other processes, asks them and waits for what they say, and never calls an operator."""


class Clock(threading.Timer, Companion):
    """One that waits for a time, and then ends a process."""


def companions() -> frozenset[int | None]:
    """The numbers of those that run."""
    return frozenset(thread.ident for thread in threading.enumerate() if isinstance(thread, Companion))
