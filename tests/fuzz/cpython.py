"""CPython's own tests, each method compiled: what behaves otherwise than uncompiled is a bug of ours.

    python -m tests.fuzz.cpython                        all modules
    python -m tests.fuzz.cpython test_dict test_list    some
    python -m tests.fuzz.cpython test.test_dict.DictTest.test_copy   one test, with what went wrong

Each module runs in a process of its own, once as it is and once with every test method under
``braze.compile(backend="eager")``. A process that dies, or a test that takes too long (of the processor's time: other
work on the machine decides nothing), costs that test alone.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from tests.fuzz.cpython_child import run_module, warm
from tests.fuzz.cpython_modules import MAY_DIFFER, MODULES

ROOT = Path(__file__).parents[2]
#: how often a module is begun again after a test that killed its process
DEATHS = 20


@dataclass(frozen=True)
class Outcome:
    """What became of a test: "ok", "failure", "died", ... and what it said."""

    word: str
    text: str = ""
    seconds: float = 0.0


@dataclass
class Report:
    """One module, uncompiled and compiled."""

    module: str
    plain: dict[str, Outcome] = field(default_factory=dict)
    compiled: dict[str, Outcome] = field(default_factory=dict)

    def differing(self) -> list[str]:
        """The tests that ran uncompiled and became something else compiled."""
        return [test for test, was in self.plain.items() if self.after(test).word != was.word]

    def after(self, test: str) -> Outcome:
        """What became of a test when it was compiled."""
        return self.compiled.get(test, Outcome("never reached"))


def run(module: str, compiled: bool, only: Collection[str] = ()) -> dict[str, Outcome]:
    """The outcomes of a module's tests (or of some of them), in processes that are begun anew where one dies."""
    outcomes: dict[str, Outcome] = {}
    for _ in range(DEATHS):
        with tempfile.TemporaryDirectory() as folder:
            out, said = Path(folder, "outcomes"), Path(folder, "said")
            out.touch()
            status = forked(lambda: run_module(module, compiled, out, only, outcomes), folder, said)
            entries = [json.loads(line) for line in out.read_text().splitlines()]
            words = said.read_text(errors="replace")
        began = None
        for entry in entries:
            began = entry["test"]
            if "outcome" in entry:
                outcomes[began] = Outcome(entry["outcome"], entry["text"], entry["seconds"])
        if not status or began is None:
            if status and not outcomes:
                outcomes[module] = Outcome("import failed", words[-3000:])
            return outcomes
        slow = status == -signal.SIGPROF or "Timeout (" in words
        outcomes[began] = Outcome("too slow" if slow else f"died ({status})", words[-3000:])
    return outcomes


def forked(act: Callable[[], None], folder: str, said: Path) -> int:
    """Do something in a process of its own, in a folder of its own; its exit code, or minus the signal that ended it.

    A fork, for what compiling needs is loaded then, which takes longer than most modules' tests.
    """
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    try:
        os.chdir(folder)
        silent, file = os.open(os.devnull, os.O_RDONLY), os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(silent, 0)
        os.dup2(file, 1)
        os.dup2(file, 2)
        act()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def compare(module: str, tests: Iterable[str] = (), kept: Path | None = None) -> Report:
    """A module run both ways. The uncompiled outcomes are taken from the folder ``kept``, once they are there."""
    tests = list(tests)
    at = kept / f"{module}-{sys.version_info.minor}.json" if kept and not tests else None
    if at and at.exists():
        plain = {test: Outcome(*entry) for test, entry in json.loads(at.read_text()).items()}
    else:
        plain = run(module, False, tests)
        if at:
            at.parent.mkdir(parents=True, exist_ok=True)
            at.write_text(json.dumps({test: (o.word, o.text, o.seconds) for test, o in plain.items()}))
    return Report(module, plain, run(module, True, tests))


def reason(test: str) -> str | None:
    """Why a test may differ, where it may."""
    short = test.removeprefix("test.")
    for (versions, pattern), why in MAY_DIFFER.items():
        if f"{sys.version_info.minor}" in versions and short == pattern:
            return why
    return None


def complaints(report: Report) -> list[str]:
    """One line for each test that differs and may not, and for each exception that does not differ."""
    found = []
    differing = report.differing()
    for test in differing:
        if reason(test) is None:
            found.append(f"{test}: {report.plain[test].word} -> {report.after(test).word}")
    for test in report.plain:
        if test not in differing and reason(test) is not None:
            found.append(f"{test}: listed as an exception, and behaves as uncompiled")
    return found


def target(name: str) -> tuple[str, list[str]]:
    """The module and the tests that a word of the command line names."""
    parts = name.removeprefix("test.").split(".")
    cut = next((i for i, part in enumerate(parts) if part[0].isupper()), len(parts))
    module = ".".join(["test", *parts[:cut]])
    return module, [name if name.startswith("test.") else f"test.{name}"] if cut < len(parts) else []


def reports(wanted: list[tuple[str, list[str]]], jobs: int, kept: Path | None) -> Iterator[Report]:
    """The reports of modules as they are ready, ``jobs`` at a time, each from a process that looks after its own."""
    running: dict[int, Path] = {}
    waiting = list(wanted)
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < jobs:
                module, tests = waiting.pop(0)
                at = Path(folder, str(len(waiting)))
                child = os.fork()
                if not child:
                    try:
                        at.write_bytes(pickle.dumps(compare(module, tests, kept)))
                    finally:
                        os._exit(0)
                running[child] = at
            ended, _ = os.wait()
            yield pickle.loads(running.pop(ended).read_bytes())


def show(report: Report, out: Path | None, fully: bool) -> None:
    """Print what is to be known of a module."""
    plain, compiled = (sum(o.seconds for o in side.values()) for side in (report.plain, report.compiled))
    differing = report.differing()
    print(
        f"{report.module}: {len(report.plain)} tests, {len(differing)} differ, {plain:.0f} s -> {compiled:.0f} s"
    )
    for line in complaints(report):
        print(f"    {line}")
    for test in differing:
        if out:
            out.mkdir(parents=True, exist_ok=True)
            (out / test).write_text(report.plain[test].text + "\n-----\n" + report.after(test).text)
        if fully:
            print(report.after(test).text)
    sys.stdout.flush()


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("names", nargs="*", help="modules or tests; all modules where none is named")
    words.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    words.add_argument("--out", type=Path, help="a folder for what the failing tests said")
    words.add_argument(
        "--kept", type=Path, help="a folder that keeps the uncompiled outcomes from run to run"
    )
    given = words.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    chosen = [target(name) for name in given.names] or [(module, []) for module in MODULES]
    chosen = [(module, tests) for module, tests in chosen if find_spec(module) is not None]
    warm()
    total = same = 0
    wrong: list[str] = []
    for report in reports(chosen, given.jobs, given.kept):
        show(report, given.out, any(tests for _, tests in chosen))
        total += len(report.plain)
        same += len(report.plain) - len(report.differing())
        wrong += complaints(report)
    share = 100 * same / max(total, 1)
    print(
        f"Python {sys.version.split()[0]}: {same} of {total} tests as uncompiled ({share:.2f}%); {len(wrong)} to mend"
    )
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
