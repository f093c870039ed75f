"""Load Triton kernels from their text. Triton is imported where there is something to load: not everybody has it."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from braze.runtime.libraries import cache
from braze.runtime.triton import triton_key
from braze.runtime.triton.triton_build import Ahead, Builders, Job
from braze.runtime.triton.triton_launch import First, Launch
from braze.runtime.triton.triton_worker import load_module
from braze.support.errors import Unsupported

#: operations of a captured graph that are worth workers before its kernels are known, and those that come to about a kernel
MANY, A_KERNEL = 24, 4
#: stands for a size that only a call will tell
OF_NO_KIND = 1023
#: the first architecture of NVIDIA's that Triton builds for
OLDEST = 70


def builders() -> Builders | None:
    """The processes that build kernels for this one's GPU; None without a GPU, or where kernels are interpreted."""
    return _started()[0]


@functools.cache
def _started() -> tuple[Builders | None, str]:
    """These, or why Triton has no driver for the GPU that is there."""
    if os.environ.get("TRITON_INTERPRET", "0") == "1" or not torch.cuda.is_available():
        return None, ""
    try:
        from triton.runtime.driver import driver

        # on a machine where Triton has not run before each takes half a second: a C compiler's run, and a hash of half a gigabyte
        with ThreadPoolExecutor(1) as beside:
            key = beside.submit(triton_key.known_key)
            target = driver.active.get_current_target()
    except ImportError:
        return None, ""
    except Exception as error:  # of any kind: no C compiler, an old driver, a library that is not found
        return None, f"Triton cannot use the GPU ({type(error).__name__}: {error})"
    return Builders((target.backend, target.arch, target.warp_size), key=key.result()), ""


os.register_at_fork(after_in_child=_started.cache_clear)


def unusable(arch: str) -> str:
    """Why no kernel of ours can run on a GPU of this architecture here; empty where they can."""
    if arch.startswith("sm_") and int(arch.removeprefix("sm_")) < OLDEST:
        return f"the GPU is of architecture {arch}, and Triton needs sm_{OLDEST} or newer"
    return _missing() or _started()[1]


@functools.cache
def _missing() -> str:
    try:
        import triton.language  # noqa: F401  whether it can be
    except Exception as error:  # a package that is there and broken raises anything
        return f"Triton cannot be imported ({type(error).__name__}: {error})"
    return ""


def ahead() -> Ahead | None:
    """What builds the kernels of a graph before they are launched; None where nothing can."""
    import triton

    found = builders()
    if found is None:
        return None
    known = repr((triton.__version__, found.target, str(triton.knobs.cache.dir)))
    tag = hashlib.sha256(known.encode()).hexdigest()[:12]
    return Ahead(found, lambda path: path.with_suffix(f".{tag}"))


def expect(graph: str, operations: int) -> None:
    """A graph is about to be compiled: workers get ready meanwhile, unless a process has begun kernels of this text before."""
    found = builders() if operations >= MANY else None
    if found is None:
        return
    import triton

    def begin() -> bytes:
        found.begin(operations // A_KERNEL)
        return b""

    kept = str(triton.knobs.cache.dir)
    key = cache.key("begun", graph=graph, target=found.target, triton=triton.__version__, kept=kept)
    cache.DiskCache().get_or_build(key, begin)


def load(job: Job, sizes: Sequence[str], grid: str) -> Callable[..., None]:
    """A kernel as a callable ``(*buffers, *sizes)`` that launches on the current stream. No launch of zero programs.

    ``sizes``: the names that ``grid``, the number of programs as Python text, knows them by.
    """
    return launch_of(job, sizes, grid).launcher()


#: of kernels that all graphs share: what is called -> how it is launched
_SHARED: dict[Callable[..., None], Launch] = {}

#: kernels, with the numbers that they are given beside buffers
Launched = list[tuple[Callable[..., None], tuple[int, ...]]]

#: operators of ours -> the kernels of these that such a call launches, with the numbers that they are given: ``f(device, *arguments)``, where
#: tensors are described by tensors without memory
LAUNCHED: dict[str, Callable[..., Launched]] = {}


def load_shared(job: Job, sizes: Sequence[str], grid: str) -> Callable[..., None]:
    """As ``load``; the caller keeps it for all graphs."""
    launch = launch_of(job, sizes, grid)
    found = launch.launcher()
    _SHARED[found] = launch
    return found


def begin_shared(calls: Launched, ahead: Ahead) -> list[tuple[Launch, tuple[int, ...]]]:
    """Have kernels of operators built with those of the graph that calls them, which the first call would build one after the other."""
    wanted = [(_SHARED[found], numbers) for found, numbers in calls]
    new = [(launch, numbers) for launch, numbers in wanted if launch.first is None and not launch.forms]
    jobs = [dataclasses.replace(launch.job, sizes=numbers) for launch, numbers in new]
    for (launch, _), key in zip(new, ahead.add_shared(jobs), strict=True):
        launch.first = First(ahead, key, launch.names)
    return wanted


def launch_of(job: Job, sizes: Sequence[str], grid: str, ahead: Ahead | None = None) -> Launch:
    """A kernel's launches. ``ahead``: who may be building it meanwhile."""
    function = getattr(load_module(Path(job.path)), job.name)
    programs = eval(f"lambda {', '.join(sizes)}: {grid}", {"max": max, "min": min})
    launch = Launch(function, programs, tuple(sizes), job)
    if ahead is not None:
        launch.first = First(ahead, job.path, tuple(sizes))
    return launch


def with_sizes(launches: Sequence[Launch], known: Mapping[str, int]) -> list[tuple[Launch, tuple[int, ...]]]:
    """Kernels with the sizes that they are likely to be launched for, by name. Where a call alone will tell one, it is a number for which
    Triton builds in nothing; what is known to have been built for some sizes is left out then."""
    wanted = [x for x in launches if known.keys() >= {*x.names} or not x.was_built()]
    return [(x, tuple(known.get(n, OF_NO_KIND) for n in x.names)) for x in wanted]


def require_ready(launches: Sequence[tuple[Launch, tuple[int, ...]]], device: str) -> None:
    """Have the kernels of a graph built and loaded, for such sizes, before anything runs: a graph whose kernels the GPU's
    compiler or driver refuses is ATen's from its first call on.

    Raises Unsupported (BZ5012) for it.
    """
    with torch.cuda.device(device):
        index = torch.cuda.current_device()
        for launch, numbers in launches:
            why = launch.ready(index, numbers)
            if why:
                name = launch.job.name
                raise Unsupported("BZ5012", f"{name} cannot be built or loaded", why=why.strip()[:500])
