"""Build Triton kernels ahead of their first launch, in processes of their own: ``python -m braze.runtime.triton_build < jobs``.

Triton keeps what it has built on disk, so that the process that launches a kernel finds it there. A worker is started anew (never
forked from one that has threads or a GPU), ends with its parent, and is ended when its time is over.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from braze.support.record import record


@record
class Job:
    """A kernel of a file: types of its buffers ("bfloat16"), numbers for its sizes, and how it is built."""

    path: str
    name: str
    dtypes: tuple[str, ...]
    sizes: tuple[int, ...]
    constants: tuple[tuple[str, int], ...]
    num_warps: int
    num_stages: int


def build(jobs: Sequence[Job], *, workers: int, seconds: float) -> dict[Job, str]:
    """Build kernels side by side for so many seconds at most; what went wrong with each that was not built, where that is known."""
    end = time.monotonic() + seconds
    share = max(1, min(workers, len(jobs)))
    running = [_start(jobs[k::share]) for k in range(share)] if jobs else []
    said: dict[Job, str] = {}
    readers = []
    for process, own in running:
        reader = threading.Thread(target=_read, args=(process, own, said), daemon=True)
        reader.start()
        readers.append(reader)
    for (process, _), reader in zip(running, readers, strict=True):
        reader.join(max(0.0, end - time.monotonic()))
        if process.poll() is None:
            process.kill()
        process.wait()
    return {job: said.get(job, "no time was left") for job in jobs if said.get(job) != ""}


def _start(jobs: Sequence[Job]) -> tuple[subprocess.Popen[str], Sequence[Job]]:
    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH", "")])])
    process = subprocess.Popen(
        [sys.executable, "-m", "braze.runtime.triton_build", str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps([_row(job) for job in jobs]))
        process.stdin.close()
    return process, jobs


def _row(job: Job) -> list[object]:
    return [job.path, job.name, job.dtypes, job.sizes, job.constants, job.num_warps, job.num_stages]


def _read(process: subprocess.Popen[str], jobs: Sequence[Job], said: dict[Job, str]) -> None:
    """A line for each job, in order: nothing, or what went wrong."""
    assert process.stdout is not None
    for job, line in zip(jobs, process.stdout, strict=False):
        said[job] = json.loads(line)


def main() -> None:
    """The worker: build the jobs of standard input."""
    _end_with(int(sys.argv[1]))
    jobs = json.load(sys.stdin)
    answers, sys.stdout = sys.stdout, sys.stderr
    for job in jobs:
        try:
            _build(*job)
            said = ""
        except Exception as error:
            said = f"{type(error).__name__}: {error}"[:500]
        print(json.dumps(said), file=answers, flush=True)


def _build(
    path: str,
    name: str,
    dtypes: Sequence[str],
    sizes: Sequence[int],
    constants: Sequence[tuple[str, int]],
    warps: int,
    stages: int,
) -> None:
    import torch

    from braze.runtime.triton_load import load_module

    function = getattr(load_module(Path(path)), name)
    given = [*(getattr(torch, dtype) for dtype in dtypes), *sizes]
    function.warmup(*given, grid=(1,), num_warps=warps, num_stages=stages, **dict(constants))


def _end_with(parent: int) -> None:
    """End this process when its parent is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main()
