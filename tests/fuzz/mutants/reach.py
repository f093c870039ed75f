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

#: machine -> its first seeds, of which a bug that tests miss meets those where it would make a difference
MACHINES = {"tensors": range(1, 601), "programs": range(1, 201), "metamorphic": range(1, 61)}
#: programs of a machine that run in one process
PART = 20
#: bytes of test files that run in one process, if there are several
BATCH = 60_000
#: not run: they need what is not there, or are about all this
LEFT_OUT = ("tests/gpu/", "tests/models/", "tests/install/", "tests/fuzz/test_mutants.py")


@dataclass
class Reach:
    """What is known of each test without a bug: its seconds, and (in ``hits``) which mutants would change a value in it."""

    mutants: list[str]
    seconds: dict[str, float] = field(default_factory=dict)
    hits: dict[str, list[str]] = field(default_factory=dict)
    #: mutant -> how many tests come by its place, whether or not it would change a value there
    passing: dict[str, int] = field(default_factory=dict)
    #: mutant -> machine -> seeds of programs in which it would change a value
    programs: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    #: mutant -> test files whose import it would change a value in
    imported: dict[str, list[str]] = field(default_factory=dict)
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
        """Tests that could notice it."""
        imported = set(self.imported.get(mutant, ()))
        more = [t for t in self.seconds if t.partition("::")[0] in imported] if imported else []
        return self.hits.get(mutant) or [t for t in more if t not in self.failing]


def reached(
    mutants: Sequence[Mutant], work: Path, jobs: int, tests: Sequence[str] | None = None, limit: float = 3600, root: Path = ROOT,
    machines: bool = False,
) -> Reach:  # fmt: skip
    """Run the tests (all, or those of some files), and the machines' first seeds."""
    tree = trees.copied(work / "probed", root)
    trees.probed(tree, mutants)
    files = list(tests) if tests is not None else test_files(tree)
    run = _Run(tree, work, files, limit)
    if machines:
        run.parts = [
            (name, list(seeds[k : k + PART]))
            for k in range(0, 600, PART)
            for name, seeds in MACHINES.items()
            if seeds[k : k + PART]
        ]
    run.claims.mkdir(parents=True, exist_ok=True)
    threads = [threading.Thread(target=run.job, args=(k,)) for k in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return run.summed(mutants)


def batches(tree: Path, files: Sequence[str]) -> list[list[str]]:
    """Small files of one folder share a process, since one takes seconds to begin; a conftest that cannot be imported stops all of it."""
    found: list[list[str]] = []
    open_: dict[Path, tuple[list[str], int]] = {}
    for file in files:
        size, folder = (tree / file).stat().st_size, Path(file).parent
        batch, room = open_.get(folder, ([], 0))
        if size > room:
            batch, room = [], BATCH
            found.append(batch)
        batch.append(file)
        open_[folder] = batch, room - size
    return found


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
        self.waiting, self.under_way = batches(tree, files), Counter[str]()
        self.batches = {batch[0]: batch for batch in self.waiting}
        self.helped: set[tuple[int, str]] = set()
        self.lock = threading.Lock()
        self.lines: list[dict] = []
        #: machine, seeds: what is left of the machines' programs
        self.parts: list[tuple[str, list[int]]] = []
        self.failing_seeds: dict[str, list[int]] = {}

    def next(self, job: int) -> list[str] | None:
        with self.lock:
            if self.waiting:
                batch = self.waiting.pop(0)
            else:
                open_ = [f for f, n in self.under_way.items() if n and (job, f) not in self.helped]
                if not open_:
                    return None
                batch = self.batches[min(open_, key=lambda f: self.under_way[f])]
            self.helped.add((job, batch[0]))
            self.under_way[batch[0]] += 1
            return batch

    def job(self, job: int) -> None:
        place = Place(self.tree, self.work / f"job-{job}", self.work / "pool", self.work / "hits.txt")
        while (batch := self.next(job)) is not None and time.monotonic() < self.end:
            plan = {"claims": str(self.claims / batch[0].replace("/", "-"))}
            ran = processes.pytest(place, batch, plan, max(self.end - time.monotonic(), 1))
            died = ran.under_way()
            with self.lock:
                self.under_way[batch[0]] -= 1
                self.lines += ran.lines
                if died is not None:
                    self.lines.append(
                        {"test": died, "seconds": 0, "outcome": "died", "hits": [], "why": ran.said[-300:]}
                    )
        self.programs(place)

    def programs(self, place: Place) -> None:
        """Once the tests are done, or their helpers have nothing to do."""
        while time.monotonic() < self.end:
            with self.lock:
                if not self.parts:
                    return
                name, seeds = self.parts.pop(0)
            for seed, what in processes.machine(place, name, seeds, max(self.end - time.monotonic(), 1)):
                if what is not None:
                    with self.lock:
                        self.failing_seeds.setdefault(name, []).append(seed)

    def summed(self, mutants: Sequence[Mutant]) -> Reach:
        ids = [m.id for m in mutants]
        found = Reach(ids)
        by_place: dict[int, set[str]] = {}
        at_import: dict[int, set[str]] = {}
        for line in self.lines:
            if "module" in line:
                found.modules[line["module"]] = max(found.modules.get(line["module"], 0), line["seconds"])
                for number in line["hits"]:
                    at_import.setdefault(number, set()).add(line["module"])
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
        found.seeds = self.failing_seeds
        for number, tests in by_place.items():
            if number >= 0:
                found.passing[ids[number]] = len(tests & found.seconds.keys())
                continue
            mutant = ids[~number]
            found.hits[mutant] = sorted(
                (
                    t
                    for t in tests
                    if t in found.seconds and not found.failing.get(t, "").startswith("skipped")
                ),
                key=lambda t: (t in found.failing, found.seconds[t]),
            )
            for name in MACHINES:
                seeds = sorted(int(t.split()[1]) for t in tests if t.startswith(name + " "))
                found.programs.setdefault(mutant, {})[name] = [
                    s for s in seeds if s not in self.failing_seeds.get(name, [])
                ]
        found.imported = {ids[~n]: sorted(modules) for n, modules in at_import.items() if n < 0}
        return found
