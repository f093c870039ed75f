"""How fast a device moves bytes and multiplies, measured once in a process: what a kernel's floor is made of."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import torch

#: bytes of what is copied: more than caches hold
COPIED = {"cpu": 128 << 20, "cuda": 512 << 20}
#: rows of the square matrices that are multiplied
ROWS = {"cpu": 1024, "cuda": 4096}
REPEATED = 3
#: numbers that a multiprocessor of NVIDIA's takes at once in float32, by the major and minor of its architecture: its programming guide's table
LANES = {(7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
LANES_SINCE = 128
TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "f64": torch.float64}


@cache
def bytes_per_second(device: str) -> float:
    """Of a copy, each byte read once and written once."""
    size = COPIED[torch.device(device).type]
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    return 2 * size / _seconds(lambda: target.copy_(source), device)


@cache
def products_per_second(device: str, kind: str) -> float:
    """Operations of a product of square matrices by PyTorch as it is set, two for each multiplication; ``kind``: "bf16"."""
    n = ROWS[torch.device(device).type]
    left, right = (torch.ones(n, n, device=device, dtype=TYPES[kind]) for _ in range(2))
    out = torch.empty_like(left)
    with torch.no_grad():
        return 2 * n**3 / _seconds(lambda: torch.mm(left, right, out=out), device)


@cache
def operations_per_second(device: str) -> float | None:
    """Operations on float32 numbers, one by one, that a GPU of NVIDIA's is made for; None where that is not known."""
    if torch.device(device).type != "cuda" or torch.version.hip is not None:
        return None
    facts = torch.cuda.get_device_properties(device)
    hertz = 1e3 * getattr(facts, "clock_rate", 0)
    lanes = LANES.get((facts.major, facts.minor), LANES_SINCE)
    return 2 * facts.multi_processor_count * lanes * hertz or None


def _seconds(run: Callable[[], object], device: str) -> float:
    run()
    found = []
    for _ in range(REPEATED):
        if torch.device(device).type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            end.synchronize()
            found.append(begin.elapsed_time(end) / 1e3)
        else:
            start = time.perf_counter()
            run()
            found.append(time.perf_counter() - start)
    return min(found)
