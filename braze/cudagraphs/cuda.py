"""Recording on an NVIDIA GPU, by ``torch.cuda.CUDAGraph``.

What draws no random numbers the C core launches, with less in between than PyTorch has, and tells its kernels where inputs lie
(``native/src/device_graph.c``).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch

from braze import native
from braze.cudagraphs.allocator import CudaPool, Room
from braze.cudagraphs.device import UNKNOWN, Asked, Costs, NotRecordable
from braze.cudagraphs.storages import keep_busy
from braze.native.torch_state import current_stream
from braze.runtime.gpu.device_costs import known_costs
from braze.support.record import record

T = TypeVar("T")

#: of an H200: benchmarks/results/2026-11-23-cudagraph-inputs-h200.json
COSTS = Costs(patch=0.25e-6, copy=3.8e-6, byte=1 / 2.0e12)


@record
class _Open:
    """A capture that goes on."""

    graph: torch.cuda.CUDAGraph
    #: of the recording; that from which it takes memory; what was held there before
    pool: CudaPool
    taken_from: CudaPool
    living: frozenset[int]
    #: bytes that the allocator had before
    before: int
    room: Room
    thread: int
    #: the caller's stream, and where results lie that are in no pool
    caller: torch.cuda.Stream
    apart: set[int]
    entered: contextlib.ExitStack
    launcher: native.DeviceGraph | None

    @property
    def shares(self) -> bool:
        """Whether others' replays write where it takes memory from."""
        return self.taken_from is not self.pool


class CudaGraph:
    """What was captured; ``launcher``: what the C core launches of it, instead of PyTorch."""

    def __init__(
        self,
        captured: torch.cuda.CUDAGraph,
        launcher: native.DeviceGraph | None,
        pool: CudaPool,
        apart: frozenset[int],
        stays: bool,
    ) -> None:
        #: memory, and the nodes that the launcher knows, live as long as this
        self.captured, self.pool = captured, pool
        self.apart, self.stays = apart, stays
        self.readers: tuple[int, ...] = ()
        self.replay: Callable[[], None] = captured.replay
        self.move: Callable[[int, int], None] = _untold
        if launcher is not None:
            self.replay, self.move, self.readers = launcher, launcher.move, launcher.readers


def _untold(k: int, address: int, /) -> None:
    raise ValueError("PyTorch tells kernels nothing of where memory lies")


class _Leaving:
    """Blocks in which the thread that captures makes results in the pool itself."""

    def __init__(self, device: CudaGraphs) -> None:
        self._device = device
        self._entered = contextlib.ExitStack()

    def __enter__(self) -> None:
        opened = self._device.mine()
        if opened is not None:
            with contextlib.ExitStack() as entered:
                entered.enter_context(opened.taken_from.left())
                entered.enter_context(opened.pool.used())
                self._entered = entered.pop_all()

    def __exit__(self, *error: Any) -> None:
        if self._device.mine() is not None:
            self._entered.close()


class CudaGraphs:
    """The recorder of one GPU. Recordings are made on streams of its own, one for each of the callers', and replayed on the callers'."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.device = torch.device(name)
        self.index = self.device.index or 0
        self.lock = threading.RLock()
        self._rooms: dict[int, Room] = {}  # by the caller's stream
        self._open: _Open | None = None
        self.results = _Leaving(self)

    @property
    def costs(self) -> Costs:
        """What a replay spends on its inputs here."""
        return COSTS.scaled(known_costs(self.index))

    def stream(self) -> int:
        """The number of the current stream."""
        return current_stream(self.index)

    def busy(self) -> bool:
        """Whether the current stream is being captured."""
        return torch.cuda.is_current_stream_capturing()

    def new_pool(self, *, shared: bool = False) -> CudaPool:
        """An empty pool."""
        with torch.cuda.device(self.device):
            room = self._room()
            return CudaPool(self.index, room.side, room.memory() if shared else None)

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

    def _room(self) -> Room:
        """Where calls of the current stream are recorded."""
        number = self.stream()
        if number not in self._rooms:
            with torch.cuda.device(self.device):
                self._rooms[number] = Room(self.index, native.new_stream())
        return self._rooms[number]

    def _prepared(self, asked: Asked, *, shared: bool) -> tuple[Room, torch.cuda.Stream]:
        """The same with what libraries make at a thread's first call there; and the current stream, of which it has waited for all.

        ``shared``: memory that nobody needs is given back before.
        """
        room, caller = self._room(), torch.cuda.current_stream(self.device)
        room.side.wait_stream(caller)
        if shared:
            room.clear(self._sides())
        room.prepare(asked)
        return room, caller

    def _sides(self) -> set[int]:
        return {room.side.cuda_stream for room in self._rooms.values()}

    def begin(self, pool: CudaPool, asked: Asked = UNKNOWN) -> None:
        """Capture from here on; other threads may use the GPU meanwhile."""
        launcher = self._launcher(asked)
        with torch.cuda.device(self.device):
            room, caller = self._prepared(asked, shared=pool.shared is not None)
        memory = room.memory()
        if memory not in (pool.shared, *pool.beside):
            pool.beside.append(memory)
        shares = pool.shared is not None and asked.shared and not pool.shared.broken
        source = pool.shared if pool.shared is not None and shares else pool
        living = source.living() if shares else frozenset()
        before = torch.cuda.memory_reserved(self.device)
        graph = torch.cuda.CUDAGraph(keep_graph=launcher is not None)
        with contextlib.ExitStack() as entered:
            entered.enter_context(torch.cuda.device(self.device))
            entered.enter_context(torch.cuda.stream(room.side))
            try:
                graph.capture_begin(pool=source.handle, capture_error_mode="thread_local")
            except RuntimeError:
                room.broke(graph, source)
                raise
            if launcher is not None:
                launcher.watch()
            self._open = _Open(
                graph,
                pool,
                source,
                living,
                before,
                room,
                threading.get_ident(),
                caller,
                set(),
                entered.pop_all(),
                launcher,
            )

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
        try:
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
        finally:
            self._finish(opened)
        stays = opened.shares and not opened.taken_from.living() <= opened.living
        return CudaGraph(graph, launcher, opened.pool, frozenset(opened.apart), stays)

    def _finish(self, opened: _Open) -> None:
        """Leave the stream on which something was captured, and weigh what it took."""
        pool, shared = opened.pool, opened.pool.shared
        with torch.cuda.device(self.device), torch.cuda.stream(opened.caller):
            if shared is not None:
                opened.room.finish(self._sides())
        opened.caller.wait_stream(opened.room.side)
        if shared is None:
            pool.bytes += max(0, torch.cuda.memory_reserved(self.device) - opened.before)
        else:
            pool.weigh()
            shared.weigh()

    def _forget(self, opened: _Open) -> None:
        """Let PyTorch know that a capture is over which an error has ended: its allocator waits for the end, and its generator, until another ends well."""
        opened.room.broke(opened.graph, opened.taken_from)
        with contextlib.suppress(RuntimeError), torch.inference_mode(False), torch.no_grad():
            x = torch.zeros(1, device=opened.room.side.device)
            whole = torch.cuda.CUDAGraph()
            whole.capture_begin(capture_error_mode="thread_local")
            x.add_(1)
            whole.capture_end()

    def intact(self) -> bool:
        """A stream whose capture is broken refuses events."""
        try:
            torch.cuda.Event().record(self._room().side if self._open is None else self._open.room.side)
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
        self._finish(opened)

    #: PyTorch's allocator knows by itself what is captured
    empty_strided = staticmethod(native.empty_strided)

    def mine(self) -> _Open | None:
        """What this thread captures into memory that others' replays write."""
        opened = self._open
        return (
            opened
            if opened is not None and opened.shares and opened.thread == threading.get_ident()
            else None
        )

    def empty_result(
        self, sizes: Sequence[int], strides: Sequence[int], *, dtype: torch.dtype, device: Any = None
    ) -> torch.Tensor:
        """Memory of the program's, on the caller's stream."""
        opened = self.mine()
        if opened is None:
            return native.empty_strided(tuple(sizes), tuple(strides), dtype=dtype, device=device)
        with native.relaxed(), opened.taken_from.left(), torch.cuda.stream(opened.caller):
            made = native.empty_strided(tuple(sizes), tuple(strides), dtype=dtype, device=device)
        opened.apart.add(made.untyped_storage().data_ptr())
        return made

    def launched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Launches on the current stream are captured as they are."""
        return function
