"""What a GPU does in one call, by PyTorch's profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from benchmarks.run import Row


def profiled(call: Callable[[], Any], kept: int = 25) -> Row:
    """Microseconds of the device in one call, launches, and the kernels that take most."""
    kinds = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profiler:
        call()
        torch.cuda.synchronize()
    found = [e for e in profiler.key_averages() if e.self_device_time_total > 0]
    found.sort(key=lambda event: -event.self_device_time_total)
    return {
        "gpu_us": busy(profiler.events()),
        "launches": sum(e.count for e in found),
        "kernels": [[e.key[:100], e.count, round(e.self_device_time_total, 1)] for e in found[:kept]],
    }


def busy(events: Iterable[Any]) -> float:
    """Microseconds in which the device does something: a kernel that is launched before the one that it waits for has ended counts once beside it."""
    spans = sorted(
        (e.time_range.start, e.time_range.end)
        for e in events
        if e.device_type is not torch.autograd.DeviceType.CPU and e.self_device_time_total > 0
    )
    total, until = 0.0, float("-inf")
    for start, end in spans:
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total
