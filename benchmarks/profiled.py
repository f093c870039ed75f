"""What a GPU does in one call, by PyTorch's profiler."""

from __future__ import annotations

from collections.abc import Callable
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
        "gpu_us": sum(e.self_device_time_total for e in found),
        "launches": sum(e.count for e in found),
        "kernels": [[e.key[:100], e.count, round(e.self_device_time_total, 1)] for e in found[:kept]],
    }
