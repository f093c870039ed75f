"""Processes in a tree: pytest over some tests, and machines over some seeds. They are killed with all that they started."""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz.machine import MACHINES
from tests.fuzz.mutants import tree as trees

#: address space of a process, in KiB: a bug may ask for all there is
ROOM = 64 << 20


@dataclass
class Place:
    """Where one job works: its copy of the tree and a folder for what comes and goes."""

    tree: Path
    scratch: Path
    pool: Path
    #: lines of places that run, where the tree says so
    hits: Path | None = None

    def environment(self, **more: str) -> dict[str, str]:
        cache = trees.fresh_cache(self.scratch / "cache", self.pool)
        if self.hits is not None:
            more["MUTANTS_HITS"] = str(self.hits)
        made = trees.environment(self.tree, cache, TMPDIR=str(self.scratch), **more)
        if self.hits is not None:
            made["PYTHONPATH"] = os.pathsep.join([str(self.tree / "site"), made["PYTHONPATH"]])
        return made


@dataclass
class Ran:
    """What a pytest process did: its records, and how it ended (None: it was stopped)."""

    lines: list[dict[str, Any]]
    status: int | None
    said: str = ""
    tests: list[dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        self.tests = [line for line in self.lines if "test" in line]

    def under_way(self) -> str | None:
        """The test that had begun and not ended."""
        ended = {line["test"] for line in self.tests}
        begun = [line["begin"] for line in self.lines if "begin" in line and line["begin"] not in ended]
        return begun[-1] if begun else None


def pytest(place: Place, files: Sequence[str], plan: dict[str, Any], limit: float, *options: str) -> Ran:
    """Run tests of some files by a plan (plugin.py), for so many seconds at most."""
    place.scratch.mkdir(parents=True, exist_ok=True)
    record = place.scratch / "record.jsonl"
    record.unlink(missing_ok=True)
    (place.scratch / "plan.json").write_text(json.dumps({"record": str(record), **plan}))
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "tests.fuzz.mutants.plugin", "-p", "no:cacheprovider",
        "--basetemp", str(place.scratch / "tests"), *options, *files,
    ]  # fmt: skip
    environment = place.environment(MUTANTS_PLAN=str(place.scratch / "plan.json"))
    log = place.scratch / "log"
    status = started_and_ended(command, place.tree, environment, log, limit)
    lines = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    return Ran(lines, status, log.read_text(errors="replace")[-3000:])


def limited(command: Sequence[str]) -> list[str]:
    return ["/bin/sh", "-c", f"ulimit -v {ROOM}; exec {shlex.join(command)}"]


def started_and_ended(
    command: Sequence[str], cwd: Path, environment: dict[str, str], log: Path, limit: float
) -> int | None:
    """The status that a process ends with; None if it has to be stopped."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            limited(command), cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )  # fmt: skip
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the process and its group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def machine(place: Place, name: str, seeds: Sequence[int], limit: float) -> Iterator[tuple[int, str | None]]:
    """(seed, what was found) of a machine's programs, one process after another where they die, while there is time."""
    end = time.monotonic() + limit
    left = list(seeds)
    while left and time.monotonic() < end:
        for seed, found in one_process(place, name, left, end):
            yield seed, found
            left = [s for s in left if s != seed]


def one_process(
    place: Place, name: str, seeds: Sequence[int], end: float
) -> Iterator[tuple[int, str | None]]:
    ours, theirs = os.pipe()
    place.scratch.mkdir(parents=True, exist_ok=True)
    environment = place.environment(**MACHINES[name].environment)
    with (place.scratch / "log").open("wb") as log:
        process = subprocess.Popen(
            limited([sys.executable, "-m", "tests.fuzz.worker", name, str(theirs)]), cwd=place.tree, env=environment,
            stdin=subprocess.PIPE, stdout=log, stderr=log, pass_fds=[theirs], start_new_session=True,
        )  # fmt: skip
    os.close(theirs)
    at = seeds[0]
    try:
        assert process.stdin is not None
        process.stdin.write("".join(f"run {seed} 1\n" for seed in seeds).encode())
        process.stdin.flush()
        for line in lines_of(ours, end, MACHINES[name].seconds):
            at = line.get("begin", at)
            if "end" in line:
                yield at, line["found"] and ": ".join(line["found"])[:600]
                if at == seeds[-1]:
                    return
        if time.monotonic() < end:
            yield at, "died" if process.poll() is not None else "hangs"
        else:
            yield at, None
    finally:
        os.close(ours)
        stop(process)


def lines_of(pipe: int, end: float, patience: float) -> Iterator[dict[str, Any]]:
    rest = b""
    while True:
        ready, _, _ = select.select([pipe], [], [], max(min(end - time.monotonic(), patience), 0))
        piece = os.read(pipe, 1 << 16) if ready else b""
        if not piece:
            return
        *whole, rest = (rest + piece).split(b"\n")
        yield from map(json.loads, whole)
