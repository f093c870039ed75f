"""The recordings of a runner: made largest first, kept by what they are of; one that fails is told of and done without."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import nn

from braze.cudagraphs.device import DeviceGraphs, Graph, NotRecordable, Pool, record
from braze.cudagraphs.registry import device_of, records
from braze.serving.pieces.captures import Captures
from braze.serving.pieces.pools import GraphPools
from braze.serving.policy.data_parallel import Reduce, alone
from braze.serving.policy.dispatch import BatchDescriptor, Key
from braze.serving.policy.modes import CUDAGraphMode
from braze.support import log
from braze.support.errors import UserError
from braze.support.interrupts import is_of_handler


def recorder_of(model: nn.Module) -> DeviceGraphs | None:
    """The recorder of the device on which a model's parameters lie; None where it cannot record."""
    device = next(model.parameters()).device
    if not records(device.type):
        return None
    name = str(device) if device.type == "cpu" or device.index is not None else f"{device.type}:0"
    return device_of(name)


#: readies a key for recording, and gives what is to be recorded as a whole; None: its pieces record themselves
Prepare = Callable[[CUDAGraphMode, BatchDescriptor], Callable[[], Any] | None]


class Recordings(Captures):
    """All that is recorded on one device. Whole recordings share a pool: no two are replayed at once, and what a replay
    leaves is read before the next from memory outside of the pool.

    ``pieces``: the pools that a model's pieces record themselves into. ``budget``: bytes that all may hold, None for no limit. ``reduce``: of ranks, which record the
    same or nothing.
    """

    def __init__(
        self,
        device: DeviceGraphs,
        pieces: GraphPools | None = None,
        budget: int | None = None,
        reduce: Reduce = alone,
    ) -> None:
        super().__init__(budget, reduce)
        self.device = device
        self.pieces = pieces or GraphPools()
        self.pool: Pool = device.new_pool()
        self.full: dict[BatchDescriptor, Graph] = {}
        #: bytes of what whole recordings write outside of their pool
        self.beside: Callable[[], int] = lambda: 0
        #: whether sizes may be recorded while nothing runs: not once all were let go of
        self.open = True
        #: how often steps have asked for each
        self.heat: Counter[Key] = Counter()

    def capture_all(self, keys: Sequence[Key], prepare: Prepare, progress: bool) -> None:
        """Record what is not recorded yet, in this order, until one rank's budget is spent. All ranks call it."""
        missing = [key for key in keys if key not in self.captured]
        self.record_all(missing, partial(self._made, prepare), "recording", progress=progress)

    def capture_hottest(self, keys: Sequence[Key], prepare: Prepare) -> Key | None:
        """Record the one that steps asked for most, if memory allows, and give it. All ranks call it."""
        return self.record_hottest(keys, self.heat, partial(self._made, prepare))

    def clear(self) -> None:
        """Let go of all, and of their memory."""
        self.full.clear()
        self.captured.clear()
        self.failed.clear()
        self.pool = self.device.new_pool()

    def held(self) -> int:
        """Bytes of whole recordings, with what they write, and of pieces."""
        beside = self.beside() if self.full else 0
        return self.pool.held() + self.pieces.held() + beside

    def forget(self, key: Key) -> None:
        """Let go of one; the last one's memory comes back."""
        mode, sizes = key
        if mode is CUDAGraphMode.PIECEWISE:
            self.pieces.release(sizes)
        elif self.full.pop(sizes, None) is not None and not self.full:
            self.pool = self.device.new_pool()

    def tell(self, key: Key, why: str) -> None:
        """Once for each key."""
        mode, sizes = key
        log.warn_once(
            ("serving recording", key),
            f"BZ7410: steps of {sizes.num_tokens} tokens are not recorded ({mode.name}): {why}; "
            "they take the next larger recording, or none",
            "cudagraphs",
        )

    def _made(self, prepare: Prepare, key: Key) -> str:
        """Record one; why it could not be, if so."""
        with self.device.lock:
            try:
                run = prepare(*key)
                if run is not None:
                    self.full[key[1]] = record(self.device, self.pool, run)[0]
            except UserError:
                raise
            except Exception as error:
                if is_of_handler(error):  # a time limit of the program's
                    raise
                said = str(error).partition("\n")[0]
                known = said and isinstance(error, (NotRecordable, RuntimeError))
                return said if known else f"{type(error).__name__}: {said}"
        return ""
