"""Triton kernels are built side by side, in processes of their own, while the graph's first call goes on.

The first call launches its kernels in order. One that nobody has begun to build it builds itself; one that a worker has begun it
waits for; what a worker has built Triton finds on disk. Workers take the last ones first, so that both meet in the middle, and none
before it is ready, which takes seconds: a first call is not slower than alone. Workers are started anew (never forked from a process with
threads or a GPU), when a graph is met that no process has built kernels for or there is enough to do, and end when nothing has been left
to do for a while, or when their parent is gone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from braze.runtime.triton import triton_worker
from braze.support.record import record
from braze.support.threads import Clock, Companion

#: kernels that are worth a worker's start; bytes that a worker may need; seconds that it stays without work, and that one kernel may take
WORTH, BYTES, IDLE, LONGEST = 3, 1 << 30, 15.0, 120.0
#: bytes that one build has at most (a worker without work has 0.2 GB), and how that is told where it wants more: by Python, C++, ptxas
MOST = 4 << 30
_SHORT = re.compile(
    r"MemoryError|bad_alloc|out of memory|memory allocation failure|cannot allocate memory", re.I
)


@record
class Job:
    """A kernel of a file: Triton's types of its buffers ("*bf16"), numbers for its sizes, and how it is built."""

    path: str
    name: str
    dtypes: tuple[str, ...]
    sizes: tuple[int, ...]
    constants: tuple[tuple[str, int], ...]
    num_warps: int
    num_stages: int
    contracts: bool = True

    def line(self) -> str:
        """As a worker reads it."""
        return json.dumps(dataclasses.astuple(self)) + "\n"


class Ticket:
    """A kernel that is to be built. ``why``: what went wrong; None while that is not known. ``endless``: nobody else is to try it, which
    would take the time, the memory or the life of who does."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.why: str | None = None
        self.endless = False
        self.done = threading.Event()

    def answer(self, why: str, endless: bool = False) -> None:
        """A worker is done with it."""
        self.why, self.endless = why, endless
        if endless:
            _refused[_of_any_sizes(self.job)] = why
        self.done.set()


#: kernels that this process is not to build, for sizes of any kind, and why
_refused: dict[Job, str] = {}


def refusal(job: Job) -> str:
    """Why nobody is to build a kernel: a worker that did took too long, too much memory, or died of it. Nothing where that is not known."""
    return _refused.get(_of_any_sizes(job), "")


def _of_any_sizes(job: Job) -> Job:
    return dataclasses.replace(job, sizes=())


class Builders:
    """The workers for one kind of GPU, as Triton names it: ("cuda", 90, 32). Threads may call. ``key``: of what Triton keeps, where that is known."""

    def __init__(self, target: tuple[str, int | str, int], most: int | None = None, key: str = "") -> None:
        self.target = tuple(map(str, target))
        self._arguments = (*self.target, key)
        self.most = _workers() if most is None else most
        self._queue: deque[Ticket] = deque()
        self._changed = threading.Condition()
        self._living = 0

    def begin(self, kernels: int) -> None:
        """Perhaps so many kernels will come: workers get ready."""
        with self._changed:
            self._hire(min(self.most, kernels // WORTH))

    def submit(self, jobs: Sequence[Job]) -> list[Ticket]:
        """Have kernels built; in the order in which they will be wanted."""
        tickets = [Ticket(job) for job in jobs]
        with self._changed:
            self._queue.extend(tickets)
            self._hire(min(self.most, len(self._queue) // WORTH))
            self._changed.notify_all()
        return tickets

    def _hire(self, wanted: int) -> None:
        for _ in range(wanted - self._living):
            self._living += 1
            Companion(target=self._work, name="braze-triton", daemon=True).start()

    def take(self, ticket: Ticket, seconds: float = LONGEST) -> bool:
        """Whether the caller is to build a kernel itself: nobody has begun to. Else it is built, or has failed, or takes too long."""
        with self._changed, contextlib.suppress(ValueError):
            self._queue.remove(ticket)
            ticket.answer("left to the first launch")
            return True
        ticket.done.wait(seconds)
        return False

    def _next(self) -> Ticket | None:
        """The kernel that is wanted last; None where nothing came for a while."""
        with self._changed:
            if not self._queue:
                self._changed.wait_for(lambda: bool(self._queue), IDLE)
            if self._queue:
                return self._queue.pop()
            self._living -= 1
            return None

    def _work(self) -> None:
        """One worker's life, in a thread that speaks with it; one that dies has a successor."""
        try:
            process = _start(self._arguments)
            while (ticket := self._next()) is not None:
                said = _ask(process, ticket.job)
                if said.dead:
                    process = self._successor(process)
                    if not said.endless:  # somebody else may have ended it, so that it is tried once more
                        said = _ask(process, ticket.job)
                        if said.dead:
                            process = self._successor(process)
                            said = dataclasses.replace(said, endless=True)
                ticket.answer(said.why, said.endless)
            _end(process)
        except OSError:  # no memory, or no processes left: launches build their kernels
            with self._changed:
                self._living -= 1

    def _successor(self, dead: subprocess.Popen[str]) -> subprocess.Popen[str]:
        """Another worker."""
        dead.kill()
        _end(dead)
        return _start(self._arguments)


def build(jobs: Sequence[Job], builders: Builders, *, seconds: float) -> dict[Job, str]:
    """Build kernels for so many seconds at most; what went wrong with each that was not built."""
    end = time.monotonic() + seconds
    failed: dict[Job, str] = {}
    for ticket in builders.submit(jobs):
        if not ticket.done.wait(max(0.0, end - time.monotonic())):
            builders.take(ticket, 0)
        if ticket.why != "":
            failed[ticket.job] = ticket.why or "no time was left"
    return failed


def _start(arguments: Sequence[str]) -> subprocess.Popen[str]:
    """A worker that is ready, or dead."""
    # -P: the worker's folder is not a place for imports
    process = subprocess.Popen(
        [sys.executable, "-P", str(Path(triton_worker.__file__)), str(os.getpid()), str(MOST), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


@record
class Said:
    """What a worker says of a kernel: nothing, or what went wrong. ``dead``: it has died; ``endless``: it took too long, or more memory than it may."""

    why: str
    dead: bool = False
    endless: bool = False


def _ask(process: subprocess.Popen[str], job: Job) -> Said:
    """Have a worker build a kernel."""
    assert process.stdin is not None
    assert process.stdout is not None
    late = threading.Event()

    def end() -> None:
        late.set()
        process.kill()

    clock = Clock(LONGEST, end)
    clock.daemon = True
    clock.start()
    try:
        process.stdin.write(job.line())
        process.stdin.flush()
        line = process.stdout.readline()
    except (BrokenPipeError, ValueError):
        line = ""
    finally:
        clock.cancel()
    if line:
        why = json.loads(line)
        short = _SHORT.search(why) is not None
        return Said(
            f"it was not built in {MOST / 2**30:g} GB of memory ({why})" if short else why, endless=short
        )
    if late.is_set():
        return Said(f"it was not built within {LONGEST:g} seconds", dead=True, endless=True)
    return Said("its worker died", dead=True)


def _end(process: subprocess.Popen[str]) -> None:
    """Its input ends, and so does a worker."""
    with process:  # waits, and closes what is open
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def _workers() -> int:
    """As many as there are cores beside the one that calls, and memory for each; the ranks of a job share a machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(ValueError):
        cores //= max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    with contextlib.suppress(ValueError, OSError):
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        cores = min(cores, 1 + free // BYTES)
    return max(0, cores - 1)


def _place(job: Job) -> str:
    """A path beside the file of a kernel, which holds others too: of this one, built like this."""
    path = Path(job.path)
    digest = hashlib.sha256(job.line().encode()).hexdigest()[:16]
    return str(path.with_name(f"{path.stem}-{job.name}-{digest}{path.suffix}"))


class Ahead:
    """The kernels of one graph, built before their launches: those of fixed sizes at once, others when a launch has told the sizes."""

    def __init__(self, builders: Builders, mark: Callable[[Path], Path]) -> None:
        self.builders, self.mark = builders, mark
        self._tickets: dict[str, Ticket] = {}
        self._waiting: dict[str, tuple[Job, tuple[str, ...]]] = {}

    def add(self, jobs: Sequence[tuple[Job, tuple[str, ...]]]) -> None:
        """Kernels with the names of their sizes, in the order of their launches; those that are built already are left out."""
        new = [(job, names) for job, names in jobs if not self.mark(Path(job.path)).exists()]
        self._waiting |= {job.path: (job, names) for job, names in new if names}
        self._submit([job for job, names in new if not names])

    def _submit(self, jobs: Sequence[Job]) -> None:
        if len(jobs) >= WORTH:
            self._tickets |= {ticket.job.path: ticket for ticket in self.builders.submit(jobs)}

    def add_shared(self, jobs: Sequence[Job]) -> list[str]:
        """Kernels of files that many graphs use, for their sizes; by what ``before`` and ``after`` know each."""
        keys = [_place(job) for job in jobs]
        new = {key: job for key, job in zip(keys, jobs, strict=True) if not self.mark(Path(key)).exists()}
        self._tickets |= zip(new, self.builders.submit(list(new.values())), strict=True)
        return keys

    def before(self, path: str, names: Sequence[str], numbers: Sequence[int]) -> str:
        """A kernel is launched first: what others know its sizes by is known now, and it is waited for if somebody builds it.

        Why the caller is not to try it either, if so: its build does not end, or wants too much memory.
        """
        known = dict(zip(names, numbers, strict=True))
        self._waiting.pop(path, None)
        ready = [(job, own) for job, own in self._waiting.values() if own and set(own) <= known.keys()]
        for job, _ in ready:
            del self._waiting[job.path]
        self._submit([dataclasses.replace(job, sizes=tuple(known[n] for n in own)) for job, own in ready])
        ticket = self._tickets.pop(path, None)
        if ticket is None or self.builders.take(ticket) or not ticket.endless:
            return ""
        return ticket.why or ""

    def after(self, path: str) -> None:
        """A kernel is built: later processes know that Triton has it."""
        with contextlib.suppress(OSError):
            self.mark(Path(path)).touch()
