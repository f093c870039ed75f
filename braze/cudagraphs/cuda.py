"""Recording on an NVIDIA GPU, by ``torch.cuda.CUDAGraph``."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

from braze import native
from braze.cudagraphs.device import NotRecordable
from braze.cudagraphs.storages import current_stream, keep_busy

T = TypeVar("T")

#: types of matrices whose products have handles and workspaces that are made at the first call on a stream
_PRODUCTS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class CudaPool:
    """A private pool of PyTorch's allocator."""

    def __init__(self) -> None:
        self.handle = torch.cuda.graph_pool_handle()
        self.bytes = 0

    def held(self) -> int:
        """Bytes that recordings into this pool made the allocator take from the device."""
        return self.bytes

    def memory(self) -> Iterator[tuple[int, int, torch.device]]:
        """The allocator's segments of this pool."""
        for segment in torch.cuda.memory_snapshot():
            if tuple(segment["segment_pool_id"]) == tuple(self.handle):
                yield segment["address"], segment["total_size"], torch.device("cuda", segment["device"])


class CudaGraphs:
    """The recorder of one GPU. Recordings are made on a stream of its own and replayed on the caller's."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.device = torch.device(name)
        self.index = self.device.index or 0
        self.lock = threading.RLock()
        self._side = torch.cuda.Stream(self.device)
        self._warm: set[int] = set()  # threads whose handles know that stream
        self._open: tuple[torch.cuda.CUDAGraph, CudaPool, contextlib.ExitStack, int] | None = None

    def stream(self) -> int:
        """The number of the current stream."""
        return current_stream(self.index)

    def busy(self) -> bool:
        """Whether the current stream is being captured."""
        return torch.cuda.is_current_stream_capturing()

    def new_pool(self) -> CudaPool:
        """An empty pool."""
        return CudaPool()

    def capacity(self) -> int:
        """Bytes of the GPU."""
        return torch.cuda.get_device_properties(self.device).total_memory

    @contextlib.contextmanager
    def kept_numbers(self) -> Iterator[None]:
        """A block after which the GPU's generator goes on as if it had not been."""
        state = torch.cuda.get_rng_state(self.device)
        try:
            yield
        finally:
            torch.cuda.set_rng_state(state, self.device)

    def timed(self, run: Callable[[], T], behind: float = 0.0) -> tuple[T, float]:
        """By events around the work; ``behind``: after a kernel that sleeps for twice as long."""
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.device(self.device):
            torch.cuda.synchronize()
            if behind:
                keep_busy(2 * behind)
            first.record()
            result = run()
            last.record()
            last.synchronize()
        return result, first.elapsed_time(last) / 1e3

    def _warmed(self) -> torch.cuda.Stream:
        """The stream on which recordings are made, with what libraries make at a thread's first call on it."""
        if threading.get_ident() not in self._warm:
            with torch.cuda.stream(self._side), torch.inference_mode(False), torch.no_grad():
                for dtype in _PRODUCTS:
                    x = torch.ones(16, 16, dtype=dtype, device=self.device)
                    torch.addmm(x[0], x, x)
                    torch.mm(x, x)
            self._side.synchronize()
            self._warm.add(threading.get_ident())
        return self._side

    def begin(self, pool: CudaPool) -> None:
        """Capture from here on; other threads may use the GPU meanwhile."""
        side = self._warmed()
        side.wait_stream(torch.cuda.current_stream(self.device))
        before = torch.cuda.memory_reserved(self.device)
        graph = torch.cuda.CUDAGraph()
        with contextlib.ExitStack() as entered:
            entered.enter_context(torch.cuda.device(self.device))
            entered.enter_context(torch.cuda.stream(side))
            graph.capture_begin(pool=pool.handle, capture_error_mode="thread_local")
            self._open = graph, pool, entered.pop_all(), before

    def end(self) -> torch.cuda.CUDAGraph:
        """The captured graph."""
        assert self._open is not None
        graph, pool, entered, before = self._open
        self._open = None
        with entered:
            try:
                graph.capture_end()
            except RuntimeError as error:
                raise NotRecordable(str(error).partition("\n")[0]) from error
        torch.cuda.current_stream(self.device).wait_stream(self._side)
        pool.bytes += max(0, torch.cuda.memory_reserved(self.device) - before)
        return graph

    def abandon(self) -> None:
        """End a capture that an error has broken; CUDA reports that error once more."""
        if self._open is None:
            return
        graph, _, entered, _ = self._open
        self._open = None
        with entered, contextlib.suppress(RuntimeError):
            graph.capture_end()
        torch.cuda.current_stream(self.device).wait_stream(self._side)

    #: PyTorch's allocator knows by itself what is captured
    empty_strided = staticmethod(native.empty_strided)

    def launched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Launches on the current stream are captured as they are."""
        return function
