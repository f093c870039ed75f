"""What a device that can record must offer, and how a recording is made on it.

While a recording is made, what runs on the device's stream is written down and not done; memory comes from the recording's
pool, and stays the pool's when it is given back. Two devices keep to this: ``cuda.py`` and ``simulated.py``.

A pool may share memory with the others of its stream. Recordings of one stream are replayed one after another, so what a
recording needs only until it ends may lie over what another needed: such memory is the stream's, and each replay overwrites it. What
outlives a replay must not lie there: what leaves a call is asked for by ``empty_result`` and lies in no pool, or made inside
``results`` and lies in the pool itself. Whether something else lives on that was made in shared memory, the recording tells (``stays``).
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import torch

from braze.support import interrupts
from braze.support.collector import collector_paused, objects_are_frozen
from braze.support.device_costs import DeviceCosts
from braze.support.record import record as frozen

T = TypeVar("T")


class NotRecordable(Exception):
    """Something happened that a recording cannot hold; the text says what."""


@frozen
class Asked:
    """What a recording is asked to know. ``draws``: it may draw random numbers. ``watched``: memory, as (address, bytes), that it is to tell the readers of.
    ``shared``: what it needs meanwhile may lie in memory that the pool shares. ``products``: libraries may multiply matrices. ``values``: bytes
    of larger values that it is known to need at once."""

    draws: bool = True
    watched: tuple[tuple[int, int], ...] = ()
    shared: bool = True
    products: bool = True
    values: int = 0


#: nothing is known of what is recorded
UNKNOWN = Asked()
#: values larger than this are those whose memory an allocator takes from the device in pieces much larger than they are
LARGE = 1 << 20


@frozen
class Costs:
    """Seconds that a replay spends on an input: to tell one kernel where it lies; or to begin a copy of it, and on each byte of that."""

    patch: float
    copy: float
    byte: float

    def scaled(self, costs: DeviceCosts) -> Costs:
        """An H200's on a GPU whose memory is so fast."""
        return Costs(self.patch, self.copy, self.byte / costs.speed)

    def patched(self, readers: int, size: int) -> bool:
        """Whether to tell so many kernels, rather than copy so many bytes."""
        return readers > 0 and readers * self.patch <= self.copy + size * self.byte


class Pool(Protocol):
    """Memory of recordings, which they share: what one gives back while it is made, later ones may take.

    ``shared``: memory of the stream's, where recordings put what they need only until they end; None: that lies in the pool, too.
    """

    @property
    def shared(self) -> Pool | None:
        """The memory that all such pools of a stream share."""

    def held(self) -> int:
        """Bytes that the pool has taken from the device, without what it shares."""

    def memory(self) -> Iterator[tuple[int, int, torch.device]]:
        """All its memory, as (address, bytes, device): between replays nothing in it means anything."""


class Graph(Protocol):
    """One recording's work, to be done again at the addresses that it was recorded with."""

    def replay(self) -> None:
        """Do the work, on the current stream."""


class Told(Graph, Protocol):
    """A recording whose kernels can be told where memory lies that only they read.

    ``stays``: something that was made in shared memory lives on, which replays of others would overwrite. ``apart``: where results lie
    that are in no pool.
    """

    stays: bool
    apart: frozenset[int]

    @property
    def readers(self) -> tuple[int, ...]:
        """How many kernels of ours read each piece of watched memory; -1: that is not known, or others read it too."""

    def move(self, k: int, address: int, /) -> None:
        """From the next replay on kernels find at ``address`` what lay in watched memory ``k``; 16 must divide it."""


class DeviceGraphs(Protocol):
    """One device's recorder. All but ``busy`` and ``stream`` are called under ``lock``."""

    lock: threading.RLock
    #: the GPU's number; -1: memory is the processor's
    index: int

    @property
    def costs(self) -> Costs:
        """What decides between copies of inputs and kernels that are told where they lie."""

    def stream(self) -> int:
        """The current stream: what was recorded for one is replayed on it alone."""

    def busy(self) -> bool:
        """Whether something is being recorded on the current stream already, by us or by the user."""

    def new_pool(self, *, shared: bool = False) -> Pool:
        """An empty pool; ``shared``: one that shares memory with others of the current stream."""

    def capacity(self) -> int:
        """Bytes of the device's memory."""

    def kept_numbers(self) -> contextlib.AbstractContextManager[None]:
        """A block after which random numbers go on as if it had not been."""

    def timed(self, run: Callable[[], T], behind: float = 0.0) -> tuple[T, float]:
        """What ``run`` gives, and the seconds from its first to its last work on the device, which is idle before.

        ``behind``: with the device kept busy before it for at least so many seconds, so that it never waits for launches.
        """

    def begin(self, pool: Any, asked: Asked = ...) -> None:
        """Record from here on what this thread has the device do."""

    def end(self) -> Told:
        """The recording; raises NotRecordable, or what the device says, where it came to nothing."""

    def intact(self) -> bool:
        """Whether what is being recorded can still become a recording."""

    def abandon(self) -> None:
        """Leave off recording after an error."""

    @property
    def empty_strided(self) -> Callable[..., torch.Tensor]:
        """As ``torch.empty_strided``: memory for a result, from the pool while recording."""

    @property
    def empty_result(self) -> Callable[..., torch.Tensor]:
        """The same for a result that leaves the call: while recording, memory that is no other recording's."""

    @property
    def results(self) -> contextlib.AbstractContextManager[None]:
        """Blocks in which results are made that leave the call: while recording, in the pool itself."""

    def launched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that has the device run a kernel without PyTorch's knowledge, so that it is recorded too."""


def record(device: DeviceGraphs, pool: Pool, run: Callable[[], T], asked: Asked = UNKNOWN) -> tuple[Told, T]:
    """Record what ``run`` has the device do; its result lies in the pool, and has no values before the first replay.

    Handlers of signals wait for its end: one that raises would leave a recording half begun.
    """
    with interrupts.deferring, garbage_kept():
        device.begin(pool, asked)
        try:
            result = run()
        except BaseException:
            device.abandon()
            raise
        return device.end(), result


@contextlib.contextmanager
def garbage_kept() -> Iterator[None]:
    """No object of before is collected inside: a finalizer that unloads a kernel would end a recording."""
    with collector_paused:
        ours = not objects_are_frozen()  # else the program keeps them so
        if ours:
            gc.freeze()
        try:
            yield
        finally:
            if ours:
                gc.unfreeze()
