"""Run a machine for some minutes in some processes, write a file for each kind of failure, and count.

Seeds are dealt in order, so that a run is named by its first seed and how many programs ran. A process that dies or hangs
is a finding of the program that it was at; another one takes its place.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz import deaths
from tests.fuzz.failures import ROOT
from tests.fuzz.known import KNOWN
from tests.fuzz.machine import ALONE, MACHINES, Finding

#: programs that a process gets at once, at most
CHUNK = 20
#: of few programs each process gets so many shares, so that none works on after the others have ended
SHARES = 5
#: after so many programs a process is replaced: what it holds on to is given back
LIFE = 400


@dataclass
class Asked:
    """What to run: seeds from ``first`` on, until the time is over or ``count`` have run."""

    machine: str
    first: int
    seconds: float
    jobs: int
    out: Path
    count: int | None = None
    #: how long a failure may be made smaller
    minimise: float = 30.0
    #: failures of one signature that get a file
    files: int = 1


@dataclass
class Tally:
    """What has run so far."""

    programs: int = 0
    tags: Counter[str] = field(default_factory=Counter)
    #: (seed, what was wrong)
    found: list[tuple[int, Finding]] = field(default_factory=list)
    #: seeds that are known to fail (known.py), and did
    known: list[int] = field(default_factory=list)
    #: signature -> files that show it
    files: dict[str, list[str]] = field(default_factory=dict)
    #: a run that nobody waits for may be stopped, and tells what it has
    stopped: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class Worker:
    """One process (tests/fuzz/worker.py), and what it says."""

    def __init__(self, machine: str, out: Path) -> None:
        ours, theirs = os.pipe()
        environment = {**os.environ, **ALONE, **MACHINES[machine].environment}
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        self.log = out / f"{machine}-worker-{ours}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.fuzz.worker", machine, str(theirs)],
                stdin=subprocess.PIPE, bufsize=0, stdout=log, stderr=log, pass_fds=[theirs], cwd=ROOT, env=environment,
            )  # fmt: skip
        os.close(theirs)
        self.pipe, self.rest, self.programs = ours, b"", 0
        #: nobody holds the other end of the pipe
        self.gone = False
        self.heard(120)

    def tell(self, *words: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write((" ".join(map(str, words)) + "\n").encode())

    def heard(self, seconds: float) -> dict[str, Any] | None:
        """Its next line; none if it died or said nothing for so long."""
        end = time.monotonic() + seconds
        while b"\n" not in self.rest:
            ready, _, _ = select.select([self.pipe], [], [], max(end - time.monotonic(), 0))
            if not ready:
                return None
            if not (piece := os.read(self.pipe, 1 << 16)):
                self.gone = True
                return None
            self.rest += piece
        line, self.rest = self.rest.split(b"\n", 1)
        return json.loads(line)

    def end(self) -> str:
        """Stop it if it runs; how it ended, and what it printed."""
        if self.gone:  # what dies lets go of the pipe a little before it has ended
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
        running = self.process.poll() is None
        self.process.kill()
        status = self.process.wait()
        os.close(self.pipe)
        ended = f"died of {signal.Signals(-status).name}" if status < 0 else f"left with {status}"
        return "" if running else f"{ended}\n{self.log.read_text(errors='replace')}"


def run(asked: Asked) -> Tally:
    """Deal the seeds to the jobs."""
    asked.out.mkdir(parents=True, exist_ok=True)
    tally, chunks = Tally(), chunks_of(asked)
    threads = [threading.Thread(target=job, args=(asked, tally, chunks)) for _ in range(asked.jobs)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        tally.stopped = True
        for thread in threads:
            thread.join()
    for log in asked.out.glob(f"{asked.machine}-worker-*.log"):
        log.unlink()
    return tally


def chunks_of(asked: Asked) -> Iterator[range]:
    """The next seeds, while there is time."""
    end = time.monotonic() + asked.seconds
    last = None if asked.count is None else asked.first + asked.count
    most = CHUNK if asked.count is None else min(CHUNK, max(asked.count // (SHARES * asked.jobs), 1))
    first = asked.first
    while time.monotonic() < end and (last is None or first < last):
        stop = first + most if last is None else min(first + most, last)
        yield range(first, stop)
        first = stop


def job(asked: Asked, tally: Tally, chunks: Iterator[range]) -> None:
    """One job's share: chunk after chunk, in processes that are replaced as they die and age."""
    worker: Worker | None = None
    while True:
        with tally.lock:
            seeds = None if tally.stopped else next(chunks, None)
        if seeds is None:
            break
        while seeds:
            if worker is None:
                worker = Worker(asked.machine, asked.out)
            seeds, alive = run_seeds(asked, tally, worker, seeds)
            if alive and worker.programs >= LIFE:
                worker.end()
            if not alive or worker.programs >= LIFE:
                worker = None
    if worker is not None:
        worker.end()


def run_seeds(asked: Asked, tally: Tally, worker: Worker, seeds: range) -> tuple[range, bool]:
    """Have a process run the seeds; the seeds that are left when it ends before them, and whether it lives."""
    worker.tell("run", seeds.start, len(seeds))
    at, tags = seeds.start, ()
    while (line := worker.heard(MACHINES[asked.machine].seconds)) is not None:
        if "idle" in line:
            return range(0), True
        if "begin" in line:
            at, tags = line["begin"], ()
        if "made" in line:
            tags = tuple(line["made"])
        if "end" in line:
            worker.programs += 1
            note(asked, tally, line["end"], line["tags"], line["found"] and Finding(*line["found"]))
    ended = worker.end()
    if deaths.is_pytorchs(tags, ended):
        note(asked, tally, at, (*tags, "died in PyTorch"), None)
        return range(at + 1, seeds.stop), False
    how, _, said = ended.partition("\n")
    found = (
        Finding("crash", f"{how}\n{said[-2000:]}") if ended else Finding("hang", "the program does not end")
    )
    note(asked, tally, at, tags, found)
    return range(at + 1, seeds.stop), False


def note(asked: Asked, tally: Tally, seed: int, tags: tuple[str, ...], found: Finding | None) -> None:
    """Count a program, and give a failure of a new kind its file."""
    with tally.lock:
        tally.programs += 1
        tally.tags.update(tags)
        why = KNOWN.get((asked.machine, seed))
        if why is not None and found is not None:
            tally.known.append(seed)
            print(f"{asked.machine} {seed}: known: {why}", flush=True)
            return
        if why is not None:
            found = Finding("passes", "the seed is in tests/fuzz/known.py, and passes")
            tally.found.append((seed, found))
            tally.files.setdefault(found.signature(), []).append("tests/fuzz/known.py")
            return
        if found is None:
            return
        tally.found.append((seed, found))
        known = tally.files.setdefault(found.signature(), [])
        if len(known) >= asked.files:
            return
        file = asked.out / f"{asked.machine}-{seed}.py"
        known.append(str(file))
    print(f"{asked.machine} {seed}: {found.kind}: {found.text.strip()[:400]}", flush=True)
    smallest = write_file(asked, seed, file)
    print(f"{asked.machine} {seed}: {file}" + ("" if smallest else " (passes alone)"), flush=True)


def write_file(asked: Asked, seed: int, file: Path) -> bool:
    """Have a fresh process make the failure small and write its file; false if it passes alone."""
    worker = Worker(asked.machine, asked.out)
    command = f"python -m tests.fuzz {asked.machine} --seed {seed} --count 1"
    worker.tell("minimise", seed, asked.minimise, file.resolve(), command)
    line = worker.heard(asked.minimise + 3 * MACHINES[asked.machine].seconds)
    worker.end()
    return bool(line and line["smallest"])
