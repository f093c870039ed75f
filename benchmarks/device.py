"""What is measured on a device: that it is done, and how long it copies."""

from __future__ import annotations

import time


def wait(device: str) -> None:
    """Until the device has done what it was given."""
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize()


def copies(device: str, size: int, times: int) -> list[float]:
    """Seconds of copies of so many bytes, each read and written."""
    import torch

    a, b = (torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2))
    taken = []
    for _ in range(times):
        wait(device)
        begun = time.perf_counter()
        a.copy_(b)
        wait(device)
        taken.append(time.perf_counter() - begun)
    return taken
