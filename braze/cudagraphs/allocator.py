"""Private pools of PyTorch's allocator on a GPU, and cuBLAS's workspaces, which lie in one: the private names of PyTorch that this takes."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import torch

from braze.cudagraphs.device import Asked
from braze.support.threads import companions

#: where threads wait and compute nothing, as (module, function) of their innermost frame
_WAITING = frozenset(
    {
        ("threading", "wait"), ("threading", "join"), ("threading", "_wait_for_tstate_lock"),
        ("queue", "get"), ("selectors", "select"), ("concurrent.futures.thread", "_worker"),
        ("multiprocessing.connection", "_recv"), ("multiprocessing.connection", "wait"), ("socket", "accept"),
    }
)  # fmt: skip
#: bytes of cuBLAS's workspace, on Hopper and elsewhere
_WORKSPACES = 32 << 20, 8320 << 10
#: bytes of which the allocator takes as much from the device as is asked for: for fewer, but more than one MB, it takes 20 MB
_EXACT = 10 << 20
#: bytes of larger values from which on these pieces do not matter
_MUCH = 20 << 20
#: where a thread waits for a backward that others compute
_BACKWARD = ("torch.autograd.graph", "_engine_run_backward")


class CudaPool:
    """A private pool. ``shared``: that in which recordings put what they need only until they end.

    PyTorch's allocators, of the GPU's memory and of the host's, give a pool up for good once no recording has it. So one that
    does nothing keeps it as long as this lives.
    """

    def __init__(self, index: int, side: torch.cuda.Stream, shared: CudaPool | None = None) -> None:
        self.index, self.shared = index, shared
        self.handle: Any = torch.cuda.graph_pool_handle()
        self.bytes = 0
        #: bytes of it that are for workspaces
        self.workspaces = 0
        #: PyTorch waits for ever for the end of a recording into it: nothing more can be recorded there
        self.broken = False
        #: pools in which there were workspaces of recordings into this one
        self.beside: list[CudaPool] = []
        self._keeper = torch.cuda.CUDAGraph()
        self._keep(side)

    def _keep(self, side: torch.cuda.Stream) -> None:
        """Record something that is never replayed. What PyTorch needs for that is the caller's memory, of which there is some: the other stream would take a piece for it."""
        caller = torch.cuda.current_stream(side.device)
        with torch.inference_mode(False), torch.no_grad():
            self._keeper.register_generator_state(torch.cuda.default_generators[self.index])
            x = torch.zeros(1, device=side.device)
            side.wait_stream(caller)
            with torch.cuda.stream(side):
                x.add_(1)  # what is loaded at a first call is loaded before
                self._keeper.capture_begin(pool=self.handle, capture_error_mode="thread_local")
                x.add_(1)
                self._keeper.capture_end()
            caller.wait_stream(side)

    def held(self) -> int:
        """Bytes that the pool had of the device after the last recording into it, without those for workspaces."""
        return self.bytes - self.workspaces

    def segments(self) -> list[dict[str, Any]]:
        """What it has of the device now."""
        return [s for s in _segments() if tuple(s["segment_pool_id"]) == self.handle]

    def memory(self) -> Iterator[tuple[int, int, torch.device]]:
        """The same as (address, bytes, device)."""
        for segment in self.segments():
            yield segment["address"], segment["total_size"], torch.device("cuda", segment["device"])

    def living(self) -> frozenset[int]:
        """Addresses of memory that somebody holds."""
        return frozenset(address for segment in self.segments() for address in _living(segment))

    def weigh(self) -> None:
        """Note how much it has."""
        self.bytes = sum(segment["total_size"] for segment in self.segments())

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """A block in which this thread takes memory from here."""
        torch._C._cuda_beginAllocateCurrentThreadToPool(self.index, self.handle)
        try:
            yield
        finally:
            torch._C._cuda_endAllocateToPool(self.index, self.handle)
            torch._C._cuda_releasePool(self.index, self.handle)

    @contextlib.contextmanager
    def left(self) -> Iterator[None]:
        """A block in which this thread's recording takes its memory from elsewhere."""
        torch._C._cuda_endAllocateToPool(self.index, self.handle)
        try:
            yield
        finally:
            torch._C._cuda_beginAllocateCurrentThreadToPool(self.index, self.handle)
            torch._C._cuda_releasePool(self.index, self.handle)

    def leave(self) -> None:
        """Let the allocator forget a recording into this pool that ended with an error: else it waits for its end, and keeps its memory."""
        try:
            torch._C._cuda_endAllocateToPool(self.index, self.handle)
        except RuntimeError:
            return  # it has forgotten it
        torch._C._cuda_releasePool(self.index, self.handle)


def _segments() -> list[dict[str, Any]]:
    """What the allocator has of the device.

    Never of one pool alone: asked for that, PyTorch lets go of references to its number that are not its own
    (https://github.com/pytorch/pytorch/pull/196366), and Python ends when it looks at that number again.
    """
    found: list[dict[str, Any]] = torch._C._cuda_memorySnapshot(None)["segments"]
    return found


def _living(segment: dict[str, Any]) -> list[int]:
    """Addresses of those blocks of a segment that somebody holds."""
    found, address = [], segment["address"]
    for block in segment["blocks"]:
        if block["state"] != "inactive":
            found.append(address)
        address += block["size"]
    return found


class Room:
    """Where calls of one stream are recorded: on a stream that is nobody else's, and in memory that their recordings share.

    cuBLAS's workspace, which PyTorch keeps for each thread and stream, lies in that memory, and each recording made
    here writes it: recordings of one stream never run at once. It is let go of after each recording, and the caller's own before, where
    nobody can be using one (``_alone``): then one serves for both. Else it stays, and the memory with it.
    """

    def __init__(self, index: int, stream: int) -> None:
        self.index = index
        self.side = torch.cuda.ExternalStream(stream, torch.device("cuda", index))
        self._memory: weakref.ref[CudaPool] | None = None
        #: memory in which there are workspaces
        self._pinned: set[CudaPool] = set()
        #: recordings that failed: PyTorch goes on asking them whether they take memory
        self._failed: list[torch.cuda.CUDAGraph] = []

    def memory(self) -> CudaPool:
        """The memory that recordings share; it goes when nothing is recorded there any more."""
        found = self._memory() if self._memory is not None else None
        if found is None or found.broken:
            found = CudaPool(self.index, self.side)
            self._memory = weakref.ref(found)
        return found

    def clear(self, ours: set[int]) -> None:
        """Give back memory that nobody needs, and workspaces. ``ours``: streams on which recordings are made."""
        self.finish(ours)
        torch.cuda.empty_cache()

    def prepare(self, asked: Asked) -> None:
        """Take memory for what a recording is known to need, and have this thread's workspaces made, if it may use them."""
        memory = self.memory()
        self._pinned.add(memory)
        values = max(0, _room_for(asked.values) - memory.held())
        first = asked.products and not memory.workspaces
        piece = values + (_workspace(self.index) if first else 0)
        if not piece and not asked.products:
            return
        with memory.used(), torch.cuda.stream(self.side), torch.inference_mode(False), torch.no_grad():
            if piece:
                _take(piece, self.side.device)
            if asked.products:
                x = torch.ones(16, 16, device=self.side.device)
                torch.addmm(x[0], x, x)
                torch.mm(x, x)
        if first:
            had = memory.bytes
            memory.weigh()
            memory.workspaces = memory.bytes - had - values

    def finish(self, ours: set[int]) -> None:
        """Let go of workspaces, if that harms nobody; else the memory in which they lie stays."""
        if _alone(self.index, ours):
            torch._C._cuda_clearCublasWorkspaces()
            self._pinned.clear()

    def broke(self, graph: torch.cuda.CUDAGraph, pool: CudaPool) -> None:
        """A recording into a pool has failed."""
        pool.leave()
        pool.broken = True
        self._failed.append(graph)


def _workspace(index: int) -> int:
    """Bytes of a workspace of cuBLAS's; 0 where the user has chosen some."""
    if "CUBLAS_WORKSPACE_CONFIG" in os.environ:
        return 0
    return _WORKSPACES[torch.cuda.get_device_capability(index) != (9, 0)]


def _room_for(values: int) -> int:
    """Bytes in which values of so many at once find a place, with what lies between them; 0: the allocator's own pieces are as good."""
    return values + values // 4 + (2 << 20) if 0 < values < _MUCH else 0


def _take(size: int, device: torch.device) -> None:
    """Have a piece of at least so many bytes taken from the device. It is free at once."""
    torch.empty(max(size, _EXACT), dtype=torch.uint8, device=device)


def _alone(index: int, ours: set[int]) -> bool:
    """Whether workspaces of matrix products can be let go of: no other thread computes, and no graph that somebody else recorded may write one.

    Such a graph would have been recorded on a stream of its own. Where the program has memory on no stream but the default one, which
    cannot be recorded, there is none; nor are there then other streams' workspaces.
    """
    if torch._C._cuda_getCurrentRawStream(index) or _others_compute():
        return False
    return not any(
        tuple(segment["segment_pool_id"]) == (0, 0)
        and (segment["device"] != index or segment["stream"] not in (0, *ours))
        and _living(segment)
        for segment in _segments()
    )


def _others_compute() -> bool:
    """Whether another thread may be inside of an operator."""
    others = companions() | {threading.get_ident()}
    where = [place_of(frame) for thread, frame in sys._current_frames().items() if thread not in others]
    return computing(where, in_backward=torch._C._current_graph_task_id() != -1)


def computing(where: Sequence[tuple[str, str]], *, in_backward: bool) -> bool:
    """Whether one of the threads whose innermost frames these are may be inside of an operator.

    While another thread runs Python, they are in C code without the interpreter's lock, or wait for that lock: only in the frames of Python's own in which
    threads wait is it surely no operator. ``in_backward``: that thread computes a backward, for which one waits that called for it.
    """
    waiting = sum(place in _WAITING for place in where) + min(in_backward, where.count(_BACKWARD))
    return waiting < len(where)


def place_of(frame: FrameType) -> tuple[str, str]:
    """The module and the function of a frame."""
    return str(frame.f_globals.get("__name__")), frame.f_code.co_name
