"""Which test comes by which seeded place: the suite runs once, in a copy of the tree whose places say when they run."""

from __future__ import annotations

import contextlib
import gzip
import json
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.fuzz.failures import ROOT
from tests.fuzz.mutants import processes
from tests.fuzz.mutants import tree as trees
from tests.fuzz.mutants.operators import Mutant
from tests.fuzz.mutants.processes import Place

#: machine -> its first seeds, which every bug that tests miss is tried on
MACHINES = {"tensors": range(1, 121), "programs": range(1, 61)}
#: not run: they need what is not there, or are about all this
LEFT_OUT = ("tests/gpu/", "tests/models/", "tests/install/", "tests/fuzz/test_mutants.py")


@dataclass
class Reach:
    """What is known of each test without a bug: its seconds, and (in ``hits``) which mutants' places it comes by."""

    mutants: list[str]
    seconds: dict[str, float] = field(default_factory=dict)
    hits: dict[str, list[str]] = field(default_factory=dict)
    #: test file -> seconds to collect it
    modules: dict[str, float] = field(default_factory=dict)
    #: tests that fail without a bug, or are skipped
    failing: dict[str, str] = field(default_factory=dict)
    #: machine -> seeds that fail without a bug
    seeds: dict[str, list[int]] = field(default_factory=dict)

    def save(self, file: Path) -> None:
        file.write_bytes(gzip.compress(json.dumps(asdict(self)).encode()))

    @classmethod
    def load(cls, file: Path) -> Reach:
        return cls(**json.loads(gzip.decompress(file.read_bytes())))

    def tests_of(self, mutant: str) -> list[str]:
        return self.hits.get(mutant, [])


def reached(
    mutants: Sequence[Mutant], work: Path, jobs: int, tests: Sequence[str] | None = None, limit: float = 3600, root: Path = ROOT
) -> Reach:  # fmt: skip
    """Run the tests (all, or those of some files)."""
    tree = trees.copied(work / "probed", root)
    trees.probed(tree, mutants)
    files = list(tests) if tests is not None else test_files(tree)
    run = _Run(tree, work, files, limit)
    run.claims.mkdir(parents=True, exist_ok=True)
    threads = [threading.Thread(target=run.job, args=(k,)) for k in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return run.summed(mutants)


def test_files(tree: Path) -> list[str]:
    """The longest first, as far as their text tells."""
    found = [path.relative_to(tree).as_posix() for path in tree.glob("tests/**/test_*.py")]
    kept = [file for file in found if not file.startswith(LEFT_OUT)]
    return sorted(kept, key=lambda f: (not f.startswith("tests/end_to_end/"), -(tree / f).stat().st_size))


class _Run:
    """Files are dealt to jobs; when none is left, idle jobs help with those under way."""

    def __init__(self, tree: Path, work: Path, files: Sequence[str], limit: float) -> None:
        self.tree, self.work, self.end = tree, work, time.monotonic() + limit
        self.claims = work / "claims"
        self.waiting, self.under_way = list(files), Counter[str]()
        self.helped: set[tuple[int, str]] = set()
        self.lock = threading.Lock()
        self.lines: list[dict] = []

    def next(self, job: int) -> str | None:
        with self.lock:
            if self.waiting:
                file = self.waiting.pop(0)
            else:
                open_ = [f for f, n in self.under_way.items() if n and (job, f) not in self.helped]
                if not open_:
                    return None
                file = min(open_, key=lambda f: self.under_way[f])
            self.helped.add((job, file))
            self.under_way[file] += 1
            return file

    def job(self, job: int) -> None:
        place = Place(self.tree, self.work / f"job-{job}", self.work / "pool", self.work / "hits.txt")
        while (file := self.next(job)) is not None and time.monotonic() < self.end:
            plan = {"claims": str(self.claims / file.replace("/", "-"))}
            ran = processes.pytest(place, [file], plan, max(self.end - time.monotonic(), 1))
            died = ran.under_way()
            with self.lock:
                self.under_way[file] -= 1
                self.lines += ran.lines
                if died is not None:
                    self.lines.append(
                        {"test": died, "seconds": 0, "outcome": "died", "hits": [], "why": ran.said[-300:]}
                    )

    def summed(self, mutants: Sequence[Mutant]) -> Reach:
        ids = [m.id for m in mutants]
        found = Reach(ids)
        by_place: dict[int, set[str]] = {}
        for line in self.lines:
            if "module" in line:
                found.modules[line["module"]] = max(found.modules.get(line["module"], 0), line["seconds"])
            elif "test" in line:
                test = line["test"]
                found.seconds[test] = line["seconds"]
                if line["outcome"] != "passed":
                    found.failing[test] = line["outcome"] + " " + line["why"][-200:]
                for number in line["hits"]:
                    by_place.setdefault(number, set()).add(test)
        with contextlib.suppress(FileNotFoundError):
            for text in (self.work / "hits.txt").read_text().splitlines():
                number, _, test = text.partition("\t")
                by_place.setdefault(int(number), set()).add(test.rsplit(" (", 1)[0])
        for number, tests in by_place.items():
            sound = [t for t in tests if t in found.seconds and t not in found.failing]
            found.hits[ids[number]] = sorted(sound, key=lambda t: found.seconds[t])
        return found


def failing_seeds(tree: Path, work: Path, jobs: int) -> dict[str, list[int]]:
    """Of each machine, the seeds whose programs fail without a bug."""
    found: dict[str, list[int]] = {name: [] for name in MACHINES}
    parts = [(name, seeds[k::jobs]) for name, seeds in MACHINES.items() for k in range(jobs)]
    lock = threading.Lock()

    def job(number: int) -> None:
        place = Place(tree, work / f"job-{number}", work / "pool")
        while True:
            with lock:
                if not parts:
                    return
                name, seeds = parts.pop()
            for seed, what in processes.machine(place, name, seeds, 600):
                if what is not None:
                    found[name].append(seed)

    threads = [threading.Thread(target=job, args=(k,)) for k in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {name: sorted(seeds) for name, seeds in found.items()}
