"""The recordings of a runner: made largest first, kept by what they are of; one that fails is told of and done without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from braze.cudagraphs.device import DeviceGraphs, Graph, NotRecordable, Pool, record
from braze.cudagraphs.registry import device_of, records
from braze.serving.policy.dispatch import BatchDescriptor, Key
from braze.serving.policy.modes import CUDAGraphMode
from braze.support import log
from braze.support.progress import shown


def recorder_of(model: nn.Module) -> DeviceGraphs | None:
    """The recorder of the device on which a model's parameters lie; None where it cannot record."""
    device = next(model.parameters()).device
    if not records(device.type):
        return None
    name = str(device) if device.type == "cpu" or device.index is not None else f"{device.type}:0"
    return device_of(name)


#: readies a key for recording, and gives what is to be recorded as a whole; None: its pieces record themselves
Prepare = Callable[[CUDAGraphMode, BatchDescriptor], Callable[[], Any] | None]


class Recordings:
    """All that is recorded on one device. Whole recordings share a pool: no two are replayed at once, and what a replay
    leaves is read before the next from memory outside of the pool."""

    def __init__(self, device: DeviceGraphs) -> None:
        self.device = device
        self.pool: Pool = device.new_pool()
        self.full: dict[BatchDescriptor, Graph] = {}
        self.keys: set[Key] = set()
        #: what could not be recorded, and why
        self.failed: dict[Key, str] = {}

    def capture_all(self, keys: Sequence[Key], prepare: Prepare, progress: bool) -> None:
        """Record what is not recorded yet, in this order."""
        with self.device.lock:
            for mode, key in shown([k for k in keys if k not in self.keys], "recording", progress):
                try:
                    run = prepare(mode, key)
                    if run is not None:
                        self.full[key] = record(self.device, self.pool, run)[0]
                except (NotRecordable, RuntimeError) as error:
                    self._skip((mode, key), error)
                else:
                    self.keys.add((mode, key))

    def keep(self, keys: set[Key]) -> None:
        """Let go of all others: ranks that share a model replay alike, or not at all."""
        for mode, key in self.keys - keys:
            self.keys.discard((mode, key))
            self.full.pop(key, None)
            self.failed[mode, key] = "another rank could not record it"

    def clear(self) -> None:
        """Let go of all, and of their memory."""
        self.full.clear()
        self.keys.clear()
        self.failed.clear()
        self.pool = self.device.new_pool()

    def held(self) -> int:
        """Bytes of the whole recordings' pool."""
        return self.pool.held()

    def _skip(self, key: Key, error: Exception) -> None:
        mode, sizes = key
        self.failed[key] = str(error).partition("\n")[0]
        log.warn_once(
            ("serving recording", key),
            f"BZ7410: steps of {sizes.num_tokens} tokens are not recorded ({mode.name}): {self.failed[key]}; "
            "they take the next larger recording, or none",
            "cudagraphs",
        )
