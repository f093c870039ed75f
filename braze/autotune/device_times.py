"""What measuring a GPU's kernels takes: building them side by side, memory to run on, a clock, and choices that are kept on disk."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from math import inf

import torch

import braze
from braze.codegen.records import KernelText
from braze.context import CompileContext
from braze.loops.dtypes import TORCH_NAME
from braze.loops.ir import Buffer
from braze.runtime.libraries import cache
from braze.runtime.triton import triton_build, triton_load
from braze.support.device_costs import H200
from braze.support.errors import BrazeError
from braze.support.layouts import span
from braze.support.log import logger
from braze.symbolic.expr import Expr

log = logger("kernels")

#: recordings' replays that count
_REPLAYS = 5

#: what another way must save of the rule's time to be taken: more than any clock's noise
_SAVED = 0.03

#: numbers of a pattern that fills floats
_PATTERN = 4093
#: how far results may lie apart, as a part of the largest: sums of a row in another order
_APART = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}

#: what this process knows, also where the cache folder is of no use
_KEPT: dict[str, str] = {}


def can_measure() -> bool:
    """Whether there is a GPU whose time may be taken now."""
    return torch.cuda.is_available() and not torch.cuda.is_current_stream_capturing()


# -- what is kept -----------------------------------------------------------------------------------


def machine(ctx: CompileContext, revision: int) -> dict[str, object]:
    """What a choice holds for: the kind of device, and the versions of all who make kernels; ``revision``: of what is measured."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else ctx.target.arch
    versions = (torch.__version__, _triton_version(), getattr(braze, "__version__", "0"), revision)
    # what was timed holds whatever was measured of the device itself
    return {"device": (device, dataclasses.replace(ctx.target, costs=H200)), "versions": versions}


def _triton_version() -> str:
    try:
        import triton
    except ImportError:
        return ""
    return str(triton.__version__)


def kept(key: cache.CacheKey) -> str:
    """The choice that is kept, or nothing."""
    digest = key.digest
    if digest not in _KEPT:
        data = cache.DiskCache().get(key, "txt")
        _KEPT[digest] = "" if data is None else data.decode()
    return _KEPT[digest]


def keep(key: cache.CacheKey, choice: str) -> None:
    """Keep a choice for this process and later ones."""
    _KEPT[key.digest] = choice
    cache.DiskCache().put(key, choice.encode(), "txt")


def chosen(seconds: Mapping[str, float], rule: str, saved: float = _SAVED) -> str:
    """The way to take: the rule's, where it ran, unless another saves a part of its time that no clock's noise is."""
    best = min(seconds, key=lambda name: seconds[name], default=rule)
    return best if seconds.get(best, inf) <= (1 - saved) * seconds.get(rule, inf) else rule


# -- kernels ----------------------------------------------------------------------------------------


def build(texts: Sequence[KernelText], seconds: float) -> None:
    """Build kernels side by side; those that are not done in time are built when they are launched first, or not at all."""
    builders = triton_load.builders()
    if builders is None:
        return
    jobs = [job_of(text) for text in texts]
    for job, why in triton_build.build(jobs, builders, seconds=seconds).items():
        log.info("%s with %s is not built: %s", job.name, job.constants, why)


def job_of(text: KernelText) -> triton_build.Job:
    """What a kernel's build is asked for."""
    launch, path = text.launch, cache.source_file(text.source)
    assert launch is not None
    how = launch.constants, launch.num_warps, launch.num_stages, launch.contracts
    return triton_build.Job(str(path), text.name, launch.dtypes, (), *how)


def launcher(text: KernelText) -> Callable[..., None]:
    """What launches a kernel."""
    launch = text.launch
    assert launch is not None
    return triton_load.load(job_of(text), text.sizes, launch.grid)


def is_refusal(error: Exception) -> bool:
    """Whether a kernel was refused, by Triton, the driver or us."""
    known = isinstance(error, (RuntimeError, BrazeError, ValueError))
    return known or type(error).__module__.split(".")[0] == "triton"


# -- memory -----------------------------------------------------------------------------------------


def memory_of(buffers: Sequence[Buffer]) -> dict[str, torch.Tensor]:
    """Ones in each buffer: no random numbers are drawn from the user's generator."""
    made = {}
    for b in buffers:
        sizes, strides = [number(e) for e in b.sizes], [number(e) for e in b.strides]
        dtype = getattr(torch, TORCH_NAME[b.dtype])
        flat = torch.empty(span(sizes, strides), dtype=dtype, device=b.device).fill_(1)
        made[b.name] = flat.as_strided(sizes, strides)  # strides may be 0
    return made


def number(e: Expr) -> int:
    """A size that is known."""
    assert e.value is not None
    return e.value


def room(device: str) -> int:
    """Bytes of a GPU that nobody has."""
    return int(torch.cuda.mem_get_info(device)[0])


def fill(tensor: torch.Tensor) -> None:
    """Floats from a pattern of numbers between 0 and 1; zeros in what is whole."""
    flat = tensor.as_strided((span(tensor.shape, tensor.stride()),), (1,))
    if not tensor.dtype.is_floating_point:
        flat.zero_()
        return
    pattern = torch.arange(1, _PATTERN + 1, device=tensor.device) * 1009 % (_PATTERN + 1) / (_PATTERN + 1)
    whole = flat.numel() // _PATTERN * _PATTERN
    flat[:whole].view(-1, _PATTERN).copy_(pattern)
    flat[whole:].copy_(pattern[: flat.numel() - whole])


def alike(ours: torch.Tensor, wanted: torch.Tensor, rounded: torch.dtype | None = None) -> bool:
    """Whether two ways to compute the same have done so: sums of floats may be taken in another order, and what
    lies between two kernels was ``rounded`` to a type that one kernel need not round to."""
    if ours.dtype not in _APART:
        return bool(torch.equal(ours, wanted))
    if ours.numel() == 0:
        return True
    finite = torch.where(wanted.isfinite(), wanted, 0).abs().max()
    apart = max(_APART[ours.dtype], _APART.get(rounded, 0.0) if rounded else 0.0)
    return bool(torch.allclose(ours, wanted, rtol=apart, atol=apart * float(finite), equal_nan=True))


# -- the clock --------------------------------------------------------------------------------------


def seconds_in_turn(ways: Mapping[str, Sequence[Callable[[], None]]], least: int) -> dict[str, float]:
    """Seconds of one run of each way, medians of recordings that are replayed in turn; ``least``: runs in each."""
    recordings = {name: _Recording(runs, least) for name, runs in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(_REPLAYS):
        for name, recording in recordings.items():
            times[name].append(recording.seconds())
    return {name: sorted(taken)[_REPLAYS // 2] for name, taken in times.items()}


class _Recording:
    """Some runs, one after the other, as a CUDA graph."""

    def __init__(self, runs: Sequence[Callable[[], None]], least: int) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for run in runs[:2]:
                run()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        rounds = max(1, -(-least // len(runs)))
        self.count = rounds * len(runs)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            for _ in range(rounds):
                for run in runs:
                    run()

    def seconds(self) -> float:
        """Seconds of one run, in one replay."""
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        self.graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3 / self.count
