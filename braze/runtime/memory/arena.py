"""Memory for temporaries that is kept between calls.

Nothing in an arena outlives the call that took it, so all graphs of a process share one pool a device: it holds
one free arena, as large as the largest graph needs. A call that finds none free (another thread, or a graph inside
a custom operator) makes its own. On a GPU work is still queued when a call returns, so an arena serves one stream.
The halves of a training step, but small ones, make arenas of their own, which go after their last use.
"""

from __future__ import annotations

from typing import Any

import torch

from braze.native.torch_state import current_stream

#: graphs and layouts whose views one arena remembers
_KEPT_VIEWS = 512


class Arena:
    """A block of bytes, 64-byte aligned, and the views of it that graphs have made."""

    __slots__ = ("_typed", "base", "bytes", "pool", "storage", "views")

    def __init__(self, size: int, device: str = "cpu") -> None:
        size = -(-size // 64) * 64
        # an inference tensor could not be written outside inference mode later
        with torch.inference_mode(False):
            self.storage = torch.empty(size, dtype=torch.uint8, device=device)
            if self.storage.data_ptr() % 64:  # not as PyTorch's allocators give it
                self.storage = torch.empty(size + 64, dtype=torch.uint8, device=device)
        self.bytes = size
        #: whose it is while it is taken, of a GPU's pools
        self.pool: ArenaPool | None = None
        skip = -self.storage.data_ptr() % 64
        self.base = self.storage.data_ptr() + skip
        self.views: dict[Any, tuple[torch.Tensor, ...]] = {}
        self._typed: dict[torch.dtype, torch.Tensor] = {torch.uint8: self.storage[skip : skip + size]}

    def keep(self, key: Any, views: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Remember a graph's views of this arena; the key must not keep the graph alive."""
        if len(self.views) >= _KEPT_VIEWS:
            self.views.clear()
        self.views[key] = views
        return views

    def typed(self, dtype: torch.dtype) -> torch.Tensor:
        """The whole arena as elements of ``dtype``; its first element is at ``base``."""
        found = self._typed.get(dtype)
        if found is None:
            with torch.inference_mode(False):
                found = self._typed[dtype] = self._typed[torch.uint8].view(dtype)
        return found


class ArenaPool:
    """At most one free arena; taking and giving are single list operations, so no lock is needed."""

    def __init__(self, keep: bool = True, device: str = "cpu") -> None:
        self._free: list[Arena] = []
        self.keep = keep
        self.device = device

    def take(self, size: int) -> Arena:
        """An arena of at least ``size`` bytes that nobody else uses until it is given back."""
        try:
            arena = self._free.pop()
        except IndexError:
            return Arena(size, self.device)
        if arena.bytes >= size:
            return arena
        del arena  # let the allocator have it before we ask for more
        return Arena(size, self.device)

    def give(self, arena: Arena) -> None:
        """Return an arena; the larger one is kept where two come back."""
        if not self.keep:
            return
        if not self._free:
            self._free.append(arena)
        elif arena.bytes > self._free[0].bytes:
            self._free[0:1] = [arena]

    def clear(self) -> None:
        """Free the memory (``braze.reset``)."""
        self._free.clear()


class StreamPools:
    """The arenas of one GPU: a pool for each stream that graphs run on. Each call asks, so that the stream is its bare number."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._index = int(device.rpartition(":")[2])
        self._pools: dict[int, ArenaPool] = {}

    def take(self, size: int) -> Arena:
        """An arena for work on the current stream."""
        stream = current_stream(self._index)
        pool = self._pools.get(stream)
        if pool is None:
            pool = self._pools.setdefault(stream, ArenaPool(device=self.device))
        arena = pool.take(size)
        arena.pool = pool
        return arena

    @staticmethod
    def give(arena: Arena) -> None:
        """Return an arena to the pool of the stream that it was taken for."""
        assert arena.pool is not None
        arena.pool.give(arena)

    def clear(self) -> None:
        """Free the memory (``braze.reset``)."""
        self._pools.clear()


#: the process's arenas on the CPU
POOL = ArenaPool()
_gpus: dict[str, StreamPools] = {}


def pool_of(device: str) -> ArenaPool | StreamPools:
    """The pool of a device: "cpu" or "cuda:0"."""
    return POOL if device == "cpu" else _gpus.setdefault(device, StreamPools(device))


def clear_arenas() -> None:
    """Free the arenas of every device (``braze.reset``)."""
    POOL.clear()
    for pools in tuple(_gpus.values()):
        pools.clear()
