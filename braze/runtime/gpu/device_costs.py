"""What work costs on this machine's GPUs: measured once for each kind of GPU and driver, and kept in the cache folder.

A copy of more than the cache holds tells the speed of memory, and small kernels that wait behind copies how long each keeps the next one waiting. What
the host takes to launch them is not measured: it differs from process to process, by what else the machine does. What is kept is never measured again, so that later processes choose as the first one did.
Where nothing can be measured (a recording is made, memory is short, others use the GPU) an H200's numbers stand for it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

import torch

from braze import native
from braze.runtime.libraries import cache
from braze.support import trace
from braze.support.device_costs import H200, DeviceCosts
from braze.support.log import logger

log = logger("kernels")

#: of what is measured: raise it when that changes
_REVISION = 1
#: a copied tensor's bytes, as a multiple of the cache's, and at least and at most
_CACHES, _LEAST, _LARGEST = 2, 32 << 20, 256 << 20
#: seconds until a GPU that slept is awake; copies, and runs of so many small kernels, whose median counts; times that are too few
_AWAKE, _COPIES, _RUNS, _KERNELS, _FEW = 0.02, 15, 9, 40, 5
#: the upper and the lower quarter of times lie no farther apart where nobody else uses the machine
_QUIET = 1.3

_known: dict[int, DeviceCosts] = {}
_lock = threading.Lock()


def costs_of(index: int) -> DeviceCosts:
    """What work costs on a GPU of this process, measured if nobody has done so before."""
    with _lock:
        found = _known.get(index)
        if found is None:
            found = kept(index) or _measured(index)
            if found is not None:
                _known[index] = found
    return found or H200


def known_costs(index: int) -> DeviceCosts:
    """What is known of a GPU, without a measurement: for who is in the middle of something."""
    return _known.get(index) or kept(index) or H200


def kept(index: int) -> DeviceCosts | None:
    """What was measured before."""
    data = cache.DiskCache().get(_key(index), "txt")
    try:
        return None if data is None else DeviceCosts(*json.loads(data))
    except (ValueError, TypeError):  # of another shape
        return None


def _key(index: int) -> cache.CacheKey:
    facts = torch.cuda.get_device_properties(index)
    device = facts.name, facts.multi_processor_count, facts.total_memory
    return cache.key("device-costs", device=device, driver=native.driver_version(), revision=_REVISION)


def _measured(index: int) -> DeviceCosts | None:
    """What is measured now, and kept; None where that cannot be told now."""
    if torch.cuda.is_current_stream_capturing():
        return None
    begin = time.perf_counter()
    try:
        found = measure(index)
    except RuntimeError as error:  # memory is short, or another thread makes a recording
        log.info("what work costs on GPU %d cannot be measured now: %s", index, error)
        return None
    if found is None:
        log.info("GPU %d is too busy to tell what work costs on it", index)
        return None
    trace.count("devices_measured")
    log.info("GPU %d: %s, measured in %.3f s", index, found.said(), time.perf_counter() - begin)
    return kept(index) or keep(index, found)  # what another process has written meanwhile is for all


def keep(index: int, found: DeviceCosts) -> DeviceCosts:
    """Keep what was measured, for this process and later ones."""
    written = [found.copied, found.launched, found.cache, found.cores]
    cache.DiskCache().put(_key(index), json.dumps(written).encode(), "txt")
    return found


def measure(index: int) -> DeviceCosts | None:
    """What work costs on a GPU; None where the clock does not tell, since others use it."""
    facts = torch.cuda.get_device_properties(index)
    size = min(max(_CACHES * facts.L2_cache_size, _LEAST), _LARGEST)
    if torch.cuda.mem_get_info(index)[0] < 4 * size:
        return None
    device = torch.device("cuda", index)
    with torch.cuda.device(device), torch.no_grad():
        stream = torch.cuda.Stream(device)
        torch.cuda.synchronize(device)
        # a pool of its own, whose memory goes back to the device
        with torch.cuda.stream(stream), torch.cuda.use_mem_pool(torch.cuda.MemPool(), device):
            copied, launched = _seconds(size, device)
    if copied is None or launched is None:
        return None
    return DeviceCosts(
        _rounded(2 * size / copied), _rounded(launched), facts.L2_cache_size, facts.multi_processor_count
    )


def _seconds(size: int, device: torch.device) -> tuple[float | None, float | None]:
    """Seconds of a copy of so many bytes, and from one small kernel to the next."""
    one, other = (torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2))
    number = torch.zeros(1, device=device)

    def copy() -> None:
        other.copy_(one)

    def kernels() -> None:
        for _ in range(_KERNELS):
            number.add_(1.0)

    awake = time.perf_counter() + _AWAKE
    while time.perf_counter() < awake:
        copy()
        kernels()
        torch.cuda.current_stream().synchronize()
    copied = settled(_behind(copy, copy, 1, _COPIES))
    if copied is None:
        return None, None
    # as many copies as take several times what the host takes to launch the kernels behind them
    before = time.perf_counter()
    kernels()
    copies = int(3 * (time.perf_counter() - before) / copied) + 1
    launched = settled(_behind(kernels, copy, copies, _RUNS))
    return copied, None if launched is None else launched / _KERNELS


def _behind(run: Callable[[], None], copy: Callable[[], None], copies: int, count: int) -> list[float]:
    """Seconds of some runs that were queued while the GPU was still copying: they are its time, whatever the host takes. Those that were not do not count."""
    times = []
    for _ in range(count):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(copies):
            copy()
        begin.record()
        run()
        end.record()
        queued = not begin.query()
        end.synchronize()
        if queued:
            times.append(begin.elapsed_time(end) * 1e-3)
    return times


def settled(times: list[float]) -> float | None:
    """The median of some times; None where they are few, or lie too far apart to tell."""
    if len(times) < _FEW:
        return None
    inorder = sorted(times)
    low, middle, high = (inorder[len(inorder) * k // 4] for k in (1, 2, 3))
    return middle if low > 0 and high <= _QUIET * low else None


def _rounded(number: float) -> float:
    """Two digits: what is kept is to be read."""
    return float(f"{number:.2g}")
