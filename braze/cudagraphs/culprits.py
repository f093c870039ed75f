"""Which operator it is that cannot be recorded, found by a second try under a dispatch mode: the first one that fails, or after which the recording is broken."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from braze.cudagraphs.device import DeviceGraphs, NotRecordable, record
from braze.cudagraphs.recording import Call


class _Finder(TorchDispatchMode):
    """Notes the operator that was called last when something went wrong."""

    def __init__(self, device: DeviceGraphs) -> None:
        super().__init__()
        self.device = device
        self.found: str | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            result = func(*args, **(kwargs or {}))
            if not self.device.intact():
                raise NotRecordable(f"{func} breaks the recording")
        except Exception:
            self.found = self.found or func._schema.name.replace("::", ".")
            raise
        return result


def culprit(call: Call, device: DeviceGraphs, values: list[Any]) -> str | None:
    """The operator at which a recording of ``call(values)`` fails, as "namespace.name"; None where that is none, or not known."""
    finder = _Finder(device)

    def run() -> None:
        with finder:
            call(list(values))

    try:
        with torch.inference_mode(False), torch.no_grad():
            record(device, device.new_pool(), run)
    except Exception:  # it fails again, as it is run to find out where
        return finder.found
    return None
