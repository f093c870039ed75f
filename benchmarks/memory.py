"""Peak memory of one training step: what PyTorch's CPU allocator hands out, counted by its profiler."""

from __future__ import annotations

import gc
from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def peak_bytes(step: Callable[[], object]) -> int:
    """The most bytes that were live at once of those that ``step`` allocated."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        step()
    events = [e for e in found.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return most
