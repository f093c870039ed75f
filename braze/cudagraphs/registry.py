"""Which devices can record, and their recorders."""

from __future__ import annotations

from collections.abc import Callable

from braze.cudagraphs.cuda import CudaGraphs
from braze.cudagraphs.device import DeviceGraphs

_makers: dict[str, Callable[[str], DeviceGraphs]] = {"cuda": CudaGraphs}
_devices: dict[str, DeviceGraphs] = {}


def register(kind: str, make: Callable[[str], DeviceGraphs] | None) -> None:
    """Let devices of a kind ("cuda", "cpu") be recorded by what ``make("cuda:0")`` gives; None: not any more."""
    for name in [name for name in _devices if name.partition(":")[0] == kind]:
        del _devices[name]
    if make is None:
        _makers.pop(kind, None)
    else:
        _makers[kind] = make


def records(kind: str) -> bool:
    """Whether devices of a kind can be recorded: GPUs, and in tests what simulates one."""
    return kind in _makers


def device_of(name: str) -> DeviceGraphs:
    """The recorder of a device of such a kind: "cuda:0"."""
    if name not in _devices:
        _devices[name] = _makers[name.partition(":")[0]](name)
    return _devices[name]
