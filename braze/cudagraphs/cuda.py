"""Recording on an NVIDIA GPU, by ``torch.cuda.CUDAGraph``.

What draws no random numbers the C core launches, with less in between than PyTorch has, and tells its kernels where inputs lie
(``native/src/device_graph.c``).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

from braze import native
from braze.cudagraphs.device import UNKNOWN, Asked, Costs, NotRecordable
from braze.cudagraphs.storages import current_stream, keep_busy, leave_pool
from braze.support.record import record

T = TypeVar("T")

#: of an H200: benchmarks/results/2026-11-23-cudagraph-inputs-h200.json
COSTS = Costs(patch=0.25e-6, copy=3.8e-6, byte=1 / 2.0e12)

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


@record
class _Open:
    """A capture that goes on."""

    graph: torch.cuda.CUDAGraph
    pool: CudaPool
    entered: contextlib.ExitStack
    #: bytes that the allocator had before
    before: int
    launcher: native.DeviceGraph | None


class CudaGraph:
    """What was captured; ``launcher``: what the C core launches of it, instead of PyTorch."""

    def __init__(self, captured: torch.cuda.CUDAGraph, launcher: native.DeviceGraph | None) -> None:
        #: memory, and the nodes that the launcher knows, live as long as this
        self.captured = captured
        self.readers: tuple[int, ...] = ()
        self.replay: Callable[[], None] = captured.replay
        self.move: Callable[[int, int], None] = _untold
        if launcher is not None:
            self.replay, self.move, self.readers = launcher, launcher.move, launcher.readers


def _untold(k: int, address: int, /) -> None:
    raise ValueError("PyTorch tells kernels nothing of where memory lies")


class CudaGraphs:
    """The recorder of one GPU. Recordings are made on a stream of its own and replayed on the caller's."""

    costs = COSTS

    def __init__(self, name: str) -> None:
        self.name = name
        self.device = torch.device(name)
        self.index = self.device.index or 0
        self.lock = threading.RLock()
        self._side = torch.cuda.Stream(self.device)
        self._warm: set[int] = set()  # threads whose handles know that stream
        self._open: _Open | None = None

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

    def begin(self, pool: CudaPool, asked: Asked = UNKNOWN) -> None:
        """Capture from here on; other threads may use the GPU meanwhile."""
        launcher = self._launcher(asked)
        side = self._warmed()
        side.wait_stream(torch.cuda.current_stream(self.device))
        before = torch.cuda.memory_reserved(self.device)
        graph = torch.cuda.CUDAGraph(keep_graph=launcher is not None)
        with contextlib.ExitStack() as entered:
            entered.enter_context(torch.cuda.device(self.device))
            entered.enter_context(torch.cuda.stream(side))
            graph.capture_begin(pool=pool.handle, capture_error_mode="thread_local")
            if launcher is not None:
                launcher.watch()
            self._open = _Open(graph, pool, entered.pop_all(), before, launcher)

    def _launcher(self, asked: Asked) -> native.DeviceGraph | None:
        """What the C core launches; PyTorch itself sets the generator that a graph draws from."""
        if asked.draws or not native.bind_graphs():
            return None
        return native.DeviceGraph(self.index, asked.watched, self._elsewhere)

    def _elsewhere(self, launcher: native.DeviceGraph) -> None:
        """A launch while another GPU is current."""
        with torch.cuda.device(self.device):
            launcher()

    def end(self) -> CudaGraph:
        """The captured graph."""
        assert self._open is not None
        opened, self._open = self._open, None
        graph, launcher = opened.graph, opened.launcher
        with opened.entered:
            if launcher is not None:
                launcher.unwatch()
            try:
                graph.capture_end()
            except RuntimeError as error:
                self._forget(opened)
                raise NotRecordable(str(error).partition("\n")[0]) from error
            if launcher is not None and not launcher.instantiate(graph.raw_cuda_graph()):
                launcher = None
                graph.instantiate()
        torch.cuda.current_stream(self.device).wait_stream(self._side)
        opened.pool.bytes += max(0, torch.cuda.memory_reserved(self.device) - opened.before)
        return CudaGraph(graph, launcher)

    def _forget(self, opened: _Open) -> None:
        """Let PyTorch know that a capture is over which an error has ended: its allocator waits for the end, and its generator, until another ends well."""
        leave_pool(self.index, opened.pool.handle)
        with contextlib.suppress(RuntimeError), torch.inference_mode(False), torch.no_grad():
            x = torch.zeros(1, device=self.device)
            whole = torch.cuda.CUDAGraph()
            whole.capture_begin(capture_error_mode="thread_local")
            x.add_(1)
            whole.capture_end()

    def intact(self) -> bool:
        """A stream whose capture is broken refuses events."""
        try:
            torch.cuda.Event().record(self._side)
        except RuntimeError:
            return False
        return True

    def abandon(self) -> None:
        """End a capture that an error has broken; CUDA reports that error once more."""
        if self._open is None:
            return
        opened, self._open = self._open, None
        if opened.launcher is not None:
            opened.launcher.unwatch()
        with opened.entered:
            try:
                opened.graph.capture_end()
            except RuntimeError:
                self._forget(opened)
        torch.cuda.current_stream(self.device).wait_stream(self._side)

    #: PyTorch's allocator knows by itself what is captured
    empty_strided = staticmethod(native.empty_strided)

    def launched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Launches on the current stream are captured as they are."""
        return function
