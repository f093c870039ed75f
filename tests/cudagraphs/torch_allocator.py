"""What PyTorch's allocators do about private pools, as far as recordings go: who takes memory from which, how often each is in use, and what they refuse."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from braze import native

Handle = tuple[int, int]


class Pools:
    """Pools of one allocator: uses of each, and those that are taken from, the first one first. A pool that is in no use any more is given up for good."""

    def __init__(self) -> None:
        self.uses: dict[Handle, int] = {}
        self.underway: list[tuple[Handle, Callable[[], bool]]] = []

    def begin(self, handle: Handle, applies: Callable[[], bool]) -> None:
        if self.uses.get(handle, 1) <= 0:
            raise RuntimeError("it->second->use_count > 0 INTERNAL ASSERT FAILED")
        self.uses[handle] = self.uses.get(handle, 0) + 1
        if any(each == handle for each, _ in self.underway):
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        self.underway.append((handle, applies))

    def end(self, handle: Handle) -> None:
        found = [row for row in self.underway if row[0] == handle]
        if not found:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.underway.remove(found[0])

    def release(self, handle: Handle) -> None:
        self.uses[handle] -= 1
        assert self.uses[handle] >= 0

    def current(self) -> Handle:
        return next((handle for handle, applies in self.underway if applies()), (0, 0))


class Stream:
    """A stream, by its number; memory of tests lies on the processor."""

    device = torch.device("cpu")

    def __init__(self, number: int, device: Any = None) -> None:
        self.cuda_stream = number

    def wait_stream(self, other: Stream) -> None:
        """Nothing runs."""


class Allocator:
    """The GPU's memory and the host's, in place of PyTorch's; ``failing``: the next recording's end is an error. ``held``: blocks in use, by pool."""

    def __init__(self) -> None:
        self.memory, self.pinned = Pools(), Pools()
        self.stream = Stream(0)
        self.failing = False
        self.handles = 0
        self.held: dict[Handle, int] = {}
        #: bytes of the pools that have more than one small piece of the device's memory
        self.pieces: dict[Handle, int] = {}
        #: streams on which PyTorch took memory for the generator of graphs
        self.registered: list[int] = []
        #: pools and streams from which results were taken
        self.taken: list[tuple[Handle, int]] = []
        self.cleared = 0

    def handle(self) -> Handle:
        self.handles += 1
        return (0, self.handles)

    def begin(self, index: int, handle: Handle) -> None:
        me = threading.get_ident()
        self.memory.begin(handle, lambda: threading.get_ident() == me)

    @contextlib.contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    def clear(self) -> None:
        self.cleared += 1

    def snapshot(self, pool: Any) -> dict[str, Any]:
        assert pool is None, "PyTorch lets go of references to a pool's number that are not its own"
        rows = [
            {
                "segment_pool_id": handle,
                "device": 0,
                "stream": 0,
                "address": 4096 * handle[1],
                "total_size": self.pieces.get(handle, 2 << 20),
                "blocks": [{"size": 512, "state": "active_allocated"}] * self.held.get(handle, 0),
            }
            for handle in {**self.held, **self.pieces}
        ]
        return {"segments": rows}

    def empty_strided(self, sizes: Any, strides: Any, *, dtype: Any, device: Any = None) -> torch.Tensor:
        self.taken.append((self.memory.current(), self.stream.cuda_stream))
        return torch.empty_strided(sizes, strides, dtype=dtype)

    def stand_in(self, monkeypatch: Any) -> None:
        """Take PyTorch's place."""
        allocator = self

        class Graph:
            def __init__(self, keep_graph: bool = False) -> None:
                self.handle: Handle | None = None

            def register_generator_state(self, generator: Any) -> None:
                allocator.registered.append(allocator.stream.cuda_stream)

            def capture_begin(self, pool: Handle | None = None, capture_error_mode: str = "global") -> None:
                stream, pool = allocator.stream, pool or allocator.handle()
                allocator.memory.begin(pool, lambda: allocator.stream is stream)
                allocator.pinned.begin(pool, lambda: allocator.stream is stream)
                self.begun = pool

            def capture_end(self) -> None:
                if allocator.failing:
                    allocator.failing = False
                    raise RuntimeError("operation failed due to a previous error during capture")
                allocator.memory.end(self.begun)
                allocator.pinned.end(self.begun)
                self.handle = self.begun

            def replay(self) -> None:
                """Nothing runs."""

            def __del__(self) -> None:
                if self.handle is not None:
                    allocator.memory.release(self.handle)
                    allocator.pinned.release(self.handle)

        core: dict[str, Any] = {
            "_cuda_beginAllocateCurrentThreadToPool": self.begin,
            "_cuda_endAllocateToPool": lambda index, handle: self.memory.end(handle),
            "_cuda_releasePool": lambda index, handle: self.memory.release(handle),
            "_cuda_memorySnapshot": self.snapshot,
            "_cuda_clearCublasWorkspaces": self.clear,
            "_cuda_getCurrentRawStream": lambda index: self.stream.cuda_stream,
        }
        for name, function in core.items():
            monkeypatch.setattr(torch._C, name, function, raising=False)
        cuda: dict[str, Any] = {
            "graph_pool_handle": self.handle,
            "CUDAGraph": Graph,
            "ExternalStream": Stream,
            "stream": self.on,
            "device": lambda device: contextlib.nullcontext(),
            "current_stream": lambda device=None: self.stream,
            "empty_cache": lambda: None,
            "default_generators": (torch.default_generator,),
            "get_device_capability": lambda device: (9, 0),
            "memory_reserved": lambda device: 0,
        }
        for name, function in cuda.items():
            monkeypatch.setattr(torch.cuda, name, function, raising=False)
        numbers = iter(range(100, 200))
        monkeypatch.setattr(native, "new_stream", lambda: next(numbers))
        monkeypatch.setattr(native, "relaxed", contextlib.nullcontext)
        monkeypatch.setattr(native, "bind_graphs", lambda: False)
        monkeypatch.setattr(native, "empty_strided", self.empty_strided)
