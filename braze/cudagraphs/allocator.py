"""Private pools of PyTorch's allocator on a GPU, and cuBLAS's workspaces, which lie in one: the private names of PyTorch that this takes."""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import torch

Handle = tuple[int, int]

#: types of matrices whose products have handles and workspaces that are made at a thread's first call on a stream
_PRODUCTS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
#: where threads wait and compute nothing, as (module, function) of their innermost frame
_WAITING = frozenset(
    {
        ("threading", "wait"),
        ("threading", "join"),
        ("threading", "_wait_for_tstate_lock"),
        ("queue", "get"),
        ("selectors", "select"),
        ("concurrent.futures.thread", "_worker"),
        ("multiprocessing.connection", "_recv"),
        ("multiprocessing.connection", "wait"),
        ("socket", "accept"),
    }
)
#: whether PyTorch tells of one pool's memory alone
_BY_POOL = "mempool_id" in inspect.signature(torch.cuda.memory_snapshot).parameters
#: where a thread waits for a backward that others compute
_BACKWARD = ("torch.autograd.graph", "_engine_run_backward")


class CudaPool:
    """A private pool. ``shared``: that in which recordings put what they need only until they end."""

    def __init__(self, index: int, shared: CudaPool | None = None) -> None:
        self.index, self.shared = index, shared
        self.handle: Handle = torch.cuda.graph_pool_handle()
        self.bytes = 0
        #: pools in which there were workspaces of recordings into this one
        self.beside: list[CudaPool] = []
        # the allocator keeps the memory of a pool that is in use: by recordings, and by this
        torch._C._cuda_beginAllocateCurrentThreadToPool(index, self.handle)
        torch._C._cuda_endAllocateToPool(index, self.handle)
        weakref.finalize(self, torch._C._cuda_releasePool, index, self.handle).atexit = False

    def held(self) -> int:
        """Bytes that the pool had of the device after the last recording into it."""
        return self.bytes

    def segments(self) -> list[dict[str, Any]]:
        """What it has of the device now."""
        found = torch.cuda.memory_snapshot(self.handle) if _BY_POOL else torch.cuda.memory_snapshot()
        return [s for s in found if tuple(s["segment_pool_id"]) == self.handle]

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
    def instead_of(self, other: CudaPool) -> Iterator[None]:
        """The same while a recording takes its memory from another pool."""
        torch._C._cuda_endAllocateToPool(self.index, other.handle)
        try:
            with self.used():
                yield
        finally:
            torch._C._cuda_beginAllocateCurrentThreadToPool(self.index, other.handle)
            torch._C._cuda_releasePool(self.index, other.handle)

    def leave(self) -> None:
        """Let the allocator forget a recording into this pool that ended with an error: else it waits for its end, and keeps its memory."""
        try:
            torch._C._cuda_endAllocateToPool(self.index, self.handle)
        except RuntimeError:
            return  # it has forgotten it
        torch._C._cuda_releasePool(self.index, self.handle)


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
        self._pinned: CudaPool | None = None

    def memory(self) -> CudaPool:
        """The memory that recordings share; it goes when nothing is recorded there any more."""
        found = self._memory() if self._memory is not None else None
        if found is None:
            found = CudaPool(self.index)
            self._memory = weakref.ref(found)
        return found

    def clear(self, ours: set[int]) -> None:
        """Give back memory that nobody needs, and workspaces. ``ours``: streams on which recordings are made."""
        if _alone(self.index, ours):
            torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()

    def warm(self) -> None:
        """Have this thread's workspaces made."""
        with (
            self.memory().used(),
            torch.cuda.stream(self.side),
            torch.inference_mode(False),
            torch.no_grad(),
        ):
            for dtype in _PRODUCTS:
                x = torch.ones(16, 16, dtype=dtype, device=self.side.device)
                torch.addmm(x[0], x, x)
                torch.mm(x, x)

    def finish(self, ours: set[int]) -> None:
        """Let go of them again, if that harms nobody."""
        if _alone(self.index, ours):
            torch._C._cuda_clearCublasWorkspaces()
        else:
            self.keep()

    def keep(self) -> None:
        """Keep the memory as long as the process: workspaces stay there."""
        self._pinned = self.memory()


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
        for segment in torch.cuda.memory_snapshot()
    )


def _others_compute() -> bool:
    """Whether another thread may be inside of an operator."""
    me = threading.get_ident()
    where = [place_of(frame) for thread, frame in sys._current_frames().items() if thread != me]
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
