"""Seed one bug and see who notices: the tests in which it would change a value, the nearest and quickest first, then the machines."""

from __future__ import annotations

import difflib
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.fuzz.mutants import processes
from tests.fuzz.mutants import tree as trees
from tests.fuzz.mutants.operators import Mutant
from tests.fuzz.mutants.processes import Place, Ran
from tests.fuzz.mutants.reach import MACHINES, Reach

#: seconds of tests that a process gets: a few quick ones first, since most bugs are noticed at once
STEPS = (10.0, 40.0, 120.0)


class Judge:
    """Judges bugs in one job's copy of the tree; ``pristine`` is a copy without a bug, shared by all."""

    trusted: dict[str, bool] = {}
    lock = threading.Lock()

    def __init__(
        self, reach: Reach, place: Place, pristine: Path, each: float, fuzz: float, end: float
    ) -> None:
        self.reach, self.place, self.pristine = reach, place, pristine
        self.each, self.fuzz, self.end = each, fuzz, end

    def judged(self, mutant: Mutant, met: Collection[str] = ()) -> dict[str, Any] | None:
        """What came of it; None if time ran out. ``met``: the tests and programs that are known not to notice it."""
        began = time.monotonic()
        path = self.place.tree / mutant.file
        source = path.read_bytes()
        trees.write(path, mutant.applied(source))
        try:
            found = self.noticed(mutant, set(met))
        finally:
            trees.write(path, source)
        about = {
            name: getattr(mutant, name)
            for name in ("id", "stage", "file", "line", "function", "operator", "before", "after")
        }
        seconds = round(time.monotonic() - began, 1)
        known = {
            "tests": len(self.reach.tests_of(mutant.id)),
            "passing": self.reach.passing.get(mutant.id, 0),
        }
        return found and {**about, **known, **found, "seconds": seconds, "diff": diff(mutant, source)}

    def noticed(self, mutant: Mutant, met: set[str]) -> dict[str, Any] | None:
        """By the tests, then by the machines' programs in which it would change a value."""
        for chunk in self.chunks(mutant, [t for t in self.reach.tests_of(mutant.id) if t not in met]):
            while chunk:
                if time.monotonic() > self.end:
                    return None
                result = self.run(chunk)
                by, how, why = fault(result)
                met |= {line["test"] for line in result.tests if line["test"] != by}
                if by is None:
                    break
                if how == "import" or self.is_sound(by):
                    return {"noticed": True, "by": by, "how": how, "why": why[-600:], "met": len(met)}
                met.add(by)
                chunk = [t for t in chunk if t not in met]
        for name, programs in self.reach.programs.get(mutant.id, {}).items():
            seeds = [s for s in programs if f"{name} {s}" not in met]
            seconds = min(self.fuzz / len(MACHINES), self.end - time.monotonic())
            for seed, what in processes.machine(self.place, name, seeds, seconds):
                if what is not None:
                    return {
                        "noticed": True,
                        "by": f"{name} {seed}",
                        "how": "machine",
                        "why": what,
                        "met": len(met),
                    }
                met.add(f"{name} {seed}")
        if time.monotonic() > self.end:
            return None
        return {"noticed": False, "by": None, "how": "", "why": "", "met": sorted(met)}

    def chunks(self, mutant: Mutant, tests: Sequence[str]) -> Iterator[list[str]]:
        """The folder of the same name first, then quick tests of all files, then the rest, for so many seconds."""
        near = "tests/" + mutant.file.split("/")[1] + "/"
        ranks: dict[str, int] = {}

        def rank(test: str) -> float:
            file = test.partition("::")[0]
            ranks[file] = ranks.get(file, 0) + 1
            # the n-th of its file counts as n times as slow: every file gets its turn; one that is known to fail is the last
            late = 1000 if test in self.reach.failing else 1
            return (
                (self.reach.seconds[test] + 0.05) * ranks[file] * (0.2 if file.startswith(near) else 1) * late
            )

        ordered = [test for _, test in sorted((rank(test), test) for test in tests)]
        steps, left = iter(STEPS), self.each
        while ordered and left > 0:
            chunk, room = [], next(steps, STEPS[-1])
            spent, files = 0.0, set[str]()
            while ordered and spent < min(room, left):
                test = ordered.pop(0)
                file = test.partition("::")[0]
                collected = 0 if file in files else self.reach.modules.get(file, 0)
                spent += self.reach.seconds[test] + 0.02 + collected
                files.add(file)
                chunk.append(test)
            began = time.monotonic()
            yield by_file(chunk, self.reach)
            left -= time.monotonic() - began

    def run(self, tests: Sequence[str], tree: Path | None = None) -> Ran:
        place = self.place if tree is None else Place(tree, self.place.scratch / "pristine", self.place.pool)
        limits = {test: max(40.0, 8 * self.reach.seconds[test]) for test in tests}
        files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        seconds = sum(self.reach.seconds[t] for t in tests) + sum(self.reach.modules.get(f, 0) for f in files)
        limit = min(90 + 4 * seconds, max(self.end - time.monotonic(), 1) + 20)
        return processes.pytest(place, files, {"tests": limits}, limit, "-x")

    def is_sound(self, test: str) -> bool:
        """Whether a test that failed passes, alone, where no bug is."""
        with self.lock:
            known = self.trusted.get(test)
        if known is None:
            ran = self.run([test], self.pristine)
            known = any(line["test"] == test and line["outcome"] == "passed" for line in ran.tests)
            with self.lock:
                self.trusted[test] = known
        return known


def by_file(tests: Sequence[str], reach: Reach) -> list[str]:
    """Tests of a file together, since a file's fixtures are made once; the quickest file first."""
    files: dict[str, list[str]] = {}
    for test in tests:
        files.setdefault(test.partition("::")[0], []).append(test)
    cost = {f: sum(reach.seconds[t] for t in found) for f, found in files.items()}
    return [test for f in sorted(files, key=cost.__getitem__) for test in files[f]]


def fault(ran: Ran) -> tuple[str | None, str, str]:
    """(which test noticed, how, why), or none."""
    for line in ran.lines:
        if "module" in line and line["outcome"] == "failed":
            return line["module"], "import", line["why"]
    for line in ran.tests:
        if line["outcome"] == "failed":
            return line["test"], "failed", line["why"]
    if ran.status is None or ran.status < 0 or ran.status > 5:
        at = ran.under_way()
        if at is not None:
            return at, "hang" if ran.status is None else "died", ran.said[-600:]
    if ran.status not in (0, 5) and not ran.lines:
        return "pytest", "import", ran.said
    return None, "", ""


def diff(mutant: Mutant, source: bytes) -> str:
    before, after = source.decode().splitlines(), mutant.applied(source).decode().splitlines()
    lines = difflib.unified_diff(before, after, mutant.file, mutant.file, n=2, lineterm="")
    return "\n".join(lines)
