"""The parent: starts one worker per implementation and has them work in turn.

Each implementation has its own process and its own empty cache folders. Rounds are interleaved, so that a machine
that grows slower does so for all; while one works, the others wait.
"""

from __future__ import annotations

import compileall
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
Answer = dict[str, Any]
Row = dict[str, Any]


class Failed(Exception):
    """A worker could not do what it was told."""


class Child:
    """A worker process and the pipes to it."""

    def __init__(self, impl: str, caches: Path) -> None:
        self.impl = impl
        commands_read, commands_write = os.pipe()
        answers_read, answers_write = os.pipe()
        environment = {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "BRAZE_CACHE_DIR": str(caches / "braze"),
            "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker", impl, str(commands_read), str(answers_write)],
            pass_fds=(commands_read, answers_write),
            env=environment,
            stdout=sys.stderr,
        )
        os.close(commands_read)
        os.close(answers_write)
        self.commands = os.fdopen(commands_write, "w")
        self.answers = os.fdopen(answers_read)

    def ask(self, do: str, **arguments: Any) -> Answer:
        """Send a command and wait for its answer."""
        try:
            self.commands.write(json.dumps({"do": do, **arguments}) + "\n")
            self.commands.flush()
            line = self.answers.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise Failed(f"{self.impl}: the process ended with status {self.process.wait()}")
        answer = json.loads(line)
        if "failed" in answer:
            print(answer["where"], file=sys.stderr)
            raise Failed(f"{self.impl}: {answer['failed']}")
        return answer

    def stop(self) -> None:
        """End the process."""
        self.commands.close()
        self.answers.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def caches() -> Iterator[Path]:
    """Empty cache folders, removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="braze-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Team:
    """One child per implementation; a child that died is replaced for the next model."""

    def __init__(self, impls: Sequence[str]) -> None:
        self.impls = tuple(impls)
        self.children: dict[str, Child] = {}
        self._folder = caches()
        self.folder = self._folder.__enter__()

    def child(self, impl: str) -> Child:
        """The living child of an implementation."""
        found = self.children.get(impl)
        if found is None or found.process.poll() is not None:
            found = self.children[impl] = Child(impl, self.folder / impl)
        return found

    def stop(self) -> None:
        """End all children and remove their caches."""
        for child in self.children.values():
            child.stop()
        self._folder.__exit__(None, None, None)


def attempt(row: Row, work: Callable[[], Answer]) -> Answer | None:
    """The answer, or None with the failure noted in the row."""
    try:
        return work()
    except Failed as failure:
        row["failed"] = str(failure)
        return None


def run_models(
    impls: Sequence[str],
    models: Sequence[str],
    rounds: int,
    seconds: float,
    say: Callable[[str], None],
    phase: str = "inference",
) -> list[Row]:
    """Steady state, first call, correctness and graph counts of each model."""
    team = Team(impls)
    rows: list[Row] = []
    try:
        for model in models:
            here: dict[str, Row] = {}
            for impl in impls:
                say(f"{model}: {impl} compiles")
                row = here[impl] = {"model": model, "impl": impl}
                rows.append(row)
                child = team.child(impl)
                for do, arguments in (
                    ("load", {"model": model, "phase": phase}),
                    ("compile", {}),
                    ("check", {}),
                ):
                    answer = attempt(row, lambda: child.ask(do, **arguments))
                    if answer is None:
                        break
                    row.update({"compile_seconds" if k == "seconds" else k: v for k, v in answer.items()})
            ready = [impl for impl in impls if "failed" not in here[impl]]
            interleave(
                team, ready, here, rounds, seconds, lambda n: say(f"{model}: round {n + 1} of {rounds}")
            )
    finally:
        team.stop()
    return rows


def run_memory(impls: Sequence[str], models: Sequence[str], say: Callable[[str], None]) -> list[Row]:
    """Peak memory of a training step of each model, and what it takes."""
    team = Team(impls)
    rows: list[Row] = []
    try:
        for model in models:
            for impl in impls:
                say(f"{model}: {impl}")
                row: Row = {"model": model, "impl": impl}
                rows.append(row)
                child = team.child(impl)
                for do, arguments in (
                    ("load", {"model": model, "phase": "training"}),
                    ("compile", {}),
                    ("peak", {}),
                ):
                    answer = attempt(row, lambda: child.ask(do, **arguments))
                    if answer is None:
                        break
                    row.update({k: v for k, v in answer.items() if k.endswith("bytes")})
            ready = [impl for impl in impls if "failed" not in by_impl(rows, model)[impl]]
            interleave(
                team, ready, by_impl(rows, model), 3, 1.0, lambda n: say(f"{model}: times {n + 1} of 3")
            )
    finally:
        team.stop()
    return rows


def by_impl(rows: Sequence[Row], model: str) -> dict[str, Row]:
    """The rows of one model."""
    return {row["impl"]: row for row in rows if row["model"] == model}


#: shares of the minimum cut's peak
BUDGETS = tuple(round(1 - k / 10, 1) for k in range(10))


def run_sweep(models: Sequence[str], say: Callable[[str], None]) -> list[Row]:
    """Simulated and measured peak of each model under each budget."""
    team = Team(("braze",))
    rows: list[Row] = []
    try:
        for model in models:
            for budget in BUDGETS:
                say(f"{model}: memory_budget={budget}")
                row: Row = {"model": model, "impl": "braze", "budget": budget}
                rows.append(row)
                child = team.child("braze")
                for do, arguments in (
                    ("load", {"model": model, "phase": "training"}),
                    ("compile", {"budget": budget}),
                    ("peak", {}),
                ):
                    answer = attempt(row, lambda: child.ask(do, **arguments))
                    if answer is None:
                        break
                    row.update({k: v for k, v in answer.items() if k.endswith("bytes")})
    finally:
        team.stop()
    return rows


def interleave(
    team: Team,
    impls: Sequence[str],
    rows: dict[str, Row],
    rounds: int,
    seconds: float,
    say: Callable[[int], None],
) -> None:
    """Time all implementations in turn, forwards and backwards, about ``seconds`` for each in all."""
    spent: dict[str, list[list[float]]] = {impl: [] for impl in impls}
    warm = {impl: min(team.child(impl).ask("time", calls=3)["seconds"]) for impl in impls}
    for number in range(rounds):
        say(number)
        for impl in impls if number % 2 == 0 else tuple(reversed(impls)):
            calls = max(2, min(50, round(seconds / rounds / max(warm[impl], 1e-5))))
            time.sleep(0.02)  # threads of the one before stop spinning
            # the first call of a turn finds the caches of the processor taken by others
            spent[impl].append(team.child(impl).ask("time", calls=calls + 1)["seconds"][1:])
    for impl in impls:
        rows[impl]["milliseconds"] = statistics.median(s for turn in spent[impl] for s in turn) * 1e3
        rows[impl]["rounds_ms"] = [round(statistics.median(turn) * 1e3, 4) for turn in spent[impl]]


def run_overhead(
    impls: Sequence[str], cases: Sequence[str], rounds: int, say: Callable[[str], None]
) -> list[Row]:
    """Microseconds per call of small functions."""
    team = Team(impls)
    rows: list[Row] = []
    try:
        for case in cases:
            here: dict[str, Row] = {}
            for impl in impls:
                say(f"{case}: {impl}")
                row = here[impl] = {"case": case, "impl": impl}
                rows.append(row)
                child = team.child(impl)
                answer = attempt(row, lambda: child.ask("overhead", case=case))
                if answer is not None and answer["walk"] is not None:
                    row["walk_us"] = answer["walk"] * 1e6
            ready = [impl for impl in impls if "failed" not in here[impl]]
            spent: dict[str, list[float]] = {impl: [] for impl in ready}
            for _ in range(rounds):
                for impl in ready:
                    spent[impl].append(team.child(impl).ask("loops", calls=2000)["seconds"])
            for impl in ready:
                here[impl]["microseconds"] = statistics.median(spent[impl]) * 1e6
                here[impl]["rounds_us"] = [round(s * 1e6, 3) for s in spent[impl]]
    finally:
        team.stop()
    return rows


def run_compile_time(
    impls: Sequence[str],
    models: Sequence[str],
    rounds: int,
    say: Callable[[str], None],
    dynamic: bool = False,
    capture_only: bool = False,
    phase: str = "inference",
) -> list[Row]:
    """First call of each model in new processes: capture alone, everything cold, everything from a warm cache.

    ``dynamic``: with ``dynamic=True``, where each size of an input is a symbol. ``phase``: of a training step, too.
    """
    kinds = COMPILE_KINDS[:1] if capture_only else COMPILE_KINDS
    words = {"dynamic": True} if dynamic else {}
    rows: list[Row] = []
    # as an installed package has its bytecode; this environment may forbid that it be written on import
    compileall.compile_dir(ROOT / "braze", quiet=1)
    for model in models:
        for impl in impls:
            if impl == "eager":
                continue
            row: Row = {"model": model, "impl": impl}
            rows.append(row)
            spent: dict[str, list[float]] = {}
            for number in range(rounds):
                say(f"{model}: {impl}, round {number + 1} of {rounds}")
                with caches() as folder:
                    attempt(row, lambda: _compile_once(impl, model, folder, spent, kinds, words, phase))
            row.update({name: statistics.median(seconds) for name, seconds in spent.items()})
    return rows


#: what is measured, and its backend: a new process for capture, for a cold compile, and one that finds its cache
COMPILE_KINDS: tuple[tuple[str, str | None], ...] = (("capture", "eager"), ("cold", None), ("warm", None))


def _compile_once(
    impl: str,
    model: str,
    folder: Path,
    spent: dict[str, list[float]],
    kinds: Sequence[tuple[str, str | None]],
    words: dict[str, Any],
    phase: str,
) -> Answer:
    """Each kind in a process of its own; capture also a second time in its process."""

    def note(name: str, answer: Answer) -> None:
        spent.setdefault(name, []).append(answer["seconds"])
        spent.setdefault(f"{name}_cpu", []).append(answer["cpu_seconds"])

    for name, backend in kinds:
        child = Child(impl, folder)
        try:
            child.ask("load", model=model, phase=phase)
            note(name, child.ask("compile", backend=backend, **words))
            if name == "capture":
                child.ask("reset")
                note("capture_again", child.ask("compile", backend=backend, **words))
        finally:
            child.stop()
    return {}
