"""Cliffs on a GPU: some 230 small programs, each beside eager in one process: ``python -m benchmarks cliffs --device cuda --limit 240``.

A mean over models hides what one program in a hundred pays, so the table lists those that are slower than eager, worst first. Each program
is measured with many rows, then, while time is left, with few. By the clock for a run of calls with the device's work, medians of
interleaved rounds, which hold what others do on a busy host, and by the device's own time in one profiled call. Programs compile in some processes side by side and are timed by one at a time. Results are compared with eager's in
float64. What is slower than eager is measured once more, beside ``torch.compile``, with the kernels that take most. What fails, or is not done
in its time, is a row that says so.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import queue
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from benchmarks.cliff_errors import Call, call_of, checked
from benchmarks.device import wait
from benchmarks.run import Failed, Row, Team

if TYPE_CHECKING:
    from benchmarks.cliff_cases import Case

#: processes that compile side by side, at most one for each core
PROCESSES = 4
#: rounds, how many more of a program that seems slower than eager, and seconds that a run of each implementation in a round should take
ROUNDS, MORE_ROUNDS, RUN_S = 5, 26, 0.006
#: seconds that one program may take, by its own alarm; after twice as many its process is ended
SECONDS = 20
#: under this a compiled call is slower than eager's
SLOW = 0.97
#: what the names of drawn programs begin with, before their seeds, and of functions of drawn shapes; how many there are where time has no limit; under what they are cliffs
DRAWN, SHAPED, MOST, CLIFF = "random ", "shape ", 1000, 0.9


def measure(
    compiled: Callable[..., Any], name: str, many: bool, impls: Sequence[str], device: str, lock: str
) -> Row:
    """Microseconds of a call of each implementation, in turn; seconds of first calls; errors against float64.

    ``compiled``: an implementation and a function -> what it makes of that.
    """
    import torch

    import braze

    braze.reset()
    torch.compiler.reset()
    signal.signal(signal.SIGALRM, _late)
    signal.alarm(SECONDS)
    try:
        case, row = _found(name)
        rows = case.rows[many]
        compilers: dict[str, Callable[..., Any]] = {"torch": torch.compile, "braze": braze.compile}
        functions = {"eager": case.fn}
        calls: dict[str, Call] = {}
        results: dict[str, list[Any]] = {}
        for impl in ("eager", *impls):
            if impl != "eager":
                functions[impl] = compilers[impl](case.fn)
            calls[impl] = call_of(case, functions[impl], rows, device)
            wait(device)
            start = time.perf_counter()
            results[impl] = calls[impl]()
            wait(device)
            row[f"{impl}_first_s"] = round(time.perf_counter() - start, 3)
        with _alone(lock):  # the device, too, belongs to one at a time
            if not case.random:
                row |= checked(
                    case, rows, device, results,
                    lambda seed: {impl: call_of(case, fn, rows, device, seed)() for impl, fn in functions.items()},
                )  # fmt: skip
            results.clear()
            times = _times(calls, device)
            for impl, spent in times.items():
                row[f"{impl}_us"] = round(statistics.median(spent) * 1e6, 2)
            row["speed"] = round(row["eager_us"] / row["braze_us"], 3)
            if device == "cuda":
                row |= _on_the_device(calls)
        return row
    finally:
        signal.alarm(0)
        if device == "cuda":
            torch.cuda.empty_cache()


def _found(name: str) -> tuple[Case, Row]:
    """A program of the list, or the one that was drawn of a seed, with its source."""
    from benchmarks import cliff_programs, cliff_shapes
    from benchmarks.cliff_cases import CASES

    if name in CASES:
        return CASES[name], {}
    kind, seed = name.split()
    drawn = (cliff_shapes if kind == SHAPED.strip() else cliff_programs).program(int(seed))
    case = drawn.case()
    return case, {
        "source": drawn.source,
        "inputs": [str(i) for i in drawn.inputs],
        "grad": case.grad,
        "sizes": case.rows,
    }


def _late(signum: int, frame: object) -> None:
    raise TimeoutError(f"not measured within {SECONDS} s")


@contextlib.contextmanager
def _alone(lock: str) -> Iterator[None]:
    """While this lasts no other process of the benchmark times anything."""
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _times(calls: dict[str, Call], device: str) -> dict[str, list[float]]:
    """Seconds of a call in each round, all implementations in turn; what seems slower than eager is timed for longer before that is told."""

    def seconds(call: Call, count: int) -> float:
        wait(device)
        start = time.perf_counter()
        for _ in range(count):
            call()
        wait(device)
        return (time.perf_counter() - start) / count

    for call in calls.values():
        seconds(call, 2)
    counts = {impl: max(2, min(300, round(RUN_S / seconds(call, 3)))) for impl, call in calls.items()}
    times: dict[str, list[float]] = {impl: [] for impl in calls}
    for k in range(ROUNDS + MORE_ROUNDS):
        if k == ROUNDS and statistics.median(times["eager"]) >= SLOW * statistics.median(times["braze"]):
            break
        for impl, call in list(calls.items())[:: 1 if k % 2 else -1]:
            times[impl].append(seconds(call, counts[impl]))
    return times


def _on_the_device(calls: dict[str, Call]) -> Row:
    """Microseconds of the device in a call of each, from one profiled call, and the kernels that take most where ours are not the quicker ones."""
    from benchmarks.profiled import profiled

    found = {impl: profiled(call, 8) for impl, call in calls.items()}
    row: Row = {f"{impl}_device_us": round(each["gpu_us"], 1) for impl, each in found.items()}
    row["device_speed"] = round(max(row["eager_device_us"], 0.1) / max(row["braze_device_us"], 0.1), 3)
    if row["device_speed"] < SLOW or "torch" in calls:
        row["kernels"] = {impl: each["kernels"] for impl, each in found.items()}
    return row


def run_cliffs(
    device: str, words: Sequence[str], impls: Sequence[str], limit: float, say: Callable[[str], None],
    seed: int | None = None, keep: Callable[[list[Row]], None] = lambda rows: None, shapes: bool = False,
) -> list[Row]:  # fmt: skip
    """A row for each program and number of rows; ``limit``: seconds after which none is begun (0: none).

    With a ``seed`` programs are drawn, of it and those that follow it, as many as are measured in time; of no limit that one alone;
    with ``shapes`` functions of drawn shapes, not programs.
    ``keep`` is given what is known, after each program.
    """
    from benchmarks.cliff_cases import CASES

    ends = time.monotonic() + limit if limit else math.inf
    names = [name for name in CASES if not words or any(word in name for word in words)]
    if seed is not None:
        names = [f"{SHAPED if shapes else DRAWN}{k}" for k in range(seed, seed + (MOST if limit else 1))]
    done: dict[tuple[str, bool], Row] = {}
    with tempfile.TemporaryDirectory() as folder:
        field = _Field(device, str(Path(folder) / "lock"), ends, say, keep)
        try:
            for many in (device == "cuda",) if seed is not None or device == "cpu" else (True, False):
                field.measure([(name, many) for name in names], ("braze",), done)
                if "torch" in impls:
                    slow = sorted(
                        (_worst(r), key) for key, r in done.items() if key[1] is many and _worst(r) < SLOW
                    )
                    field.measure([key for _, key in slow], ("braze", "torch"), done)
        finally:
            field.stop()
    return list(done.values())


def _worst(row: Row) -> float:
    """How slow a program is beside eager, by the clock or on the device."""
    return float(min(row.get("speed", 1.0), row.get("device_speed", 1.0)))


class _Field:
    """Processes that take programs from one queue."""

    def __init__(
        self,
        device: str,
        lock: str,
        ends: float,
        say: Callable[[str], None],
        keep: Callable[[list[Row]], None],
    ) -> None:
        self.device, self.lock, self.ends, self.say, self.keep = device, lock, ends, say, keep
        self.kept = threading.Lock()
        self.teams = [
            Team(("braze",))
            for _ in range(min(PROCESSES, len(os.sched_getaffinity(0))) if device == "cuda" else 1)
        ]

    def measure(
        self, keys: Sequence[tuple[str, bool]], impls: Sequence[str], done: dict[tuple[str, bool], Row]
    ) -> None:
        """Measure programs, and note their rows; a row that is there is kept where there is no time for another."""
        waiting: queue.SimpleQueue[tuple[str, bool]] = queue.SimpleQueue()
        for key in keys:
            waiting.put(key)

        def work(team: Team) -> None:
            while time.monotonic() < self.ends:
                try:
                    key = waiting.get_nowait()
                except queue.Empty:
                    return
                found = self._ask(team, key, impls)
                if "failed" not in found or key not in done:
                    with self.kept:
                        done[key] = {"case": key[0], "rows": "many" if key[1] else "few"} | found
                        self.keep(list(done.values()))
                self.say(
                    f"{key[0]}, {'many' if key[1] else 'few'}: {found.get('speed', found.get('failed'))}"
                )

        threads = [threading.Thread(target=work, args=(team,)) for team in self.teams]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _ask(self, team: Team, key: tuple[str, bool], impls: Sequence[str]) -> Row:
        child = team.child("braze")
        ending = threading.Timer(2 * SECONDS, child.process.kill)
        ending.start()
        try:
            name, many = key
            return child.ask("cliff", name=name, many=many, impls=impls, device=self.device, lock=self.lock)
        except Failed as failure:
            if "CUDA error" in str(failure):  # nothing works in that process any more
                child.process.kill()
                child.process.wait()
            return {"failed": str(failure)[:300]}
        finally:
            ending.cancel()

    def stop(self) -> None:
        for team in self.teams:
            team.stop()


def cliffs_table(rows: Sequence[Row], most: int = 40) -> Table:
    """For many rows and few, by the clock and on the device: how many programs, their mean, and those that are slower than eager, worst first."""
    table = Table(title="One call, x eager", title_justify="left", caption_justify="left")
    for column in ("rows", "of", "programs", "geometric mean", f"under {SLOW}", "slowest (us: eager, braze, torch)"):  # fmt: skip
        table.add_column(column)
    for size in dict.fromkeys(r["rows"] for r in rows):
        for what, kind in (("clock", ""), ("device", "device_")):
            here = [r for r in rows if r["rows"] == size and f"{kind}speed" in r]
            speeds = {r["case"]: r[f"{kind}speed"] for r in here}
            slow = sorted((r for r in here if speeds[r["case"]] < SLOW), key=lambda r: speeds[r["case"]])
            mean = math.exp(statistics.fmean(map(math.log, speeds.values()))) if here else math.nan
            worst = [
                f"{speeds[r['case']]:.2f} {r['case']} ("
                + ", ".join(f"{r.get(f'{i}_{kind}us', math.nan):.0f}" for i in ("eager", "braze", "torch")) + ")"
                for r in slow[:most]
            ]  # fmt: skip
            table.add_row(size, what, str(len(here)), f"{mean:.2f}", str(len(slow)), "\n".join(worst))
    told = [f"{r['case']}, {r['rows']}: {r[how]}" for how in ("wrong", "seldom") for r in rows if how in r]
    cliffs = sorted((r for r in rows if "source" in r and _worst(r) < CLIFF), key=_worst)
    told += [_told(r) for r in cliffs[:most]]
    told += [f"{r['case']}, {r['rows']}: {r['differ']:.1e} differ" for r in rows if r.get("differ", 0) > 0]
    table.caption = "\n".join(told)
    return table


def _told(row: Row) -> str:
    """A drawn program that is a cliff: its seed, its source, and the kernels that take most of it."""
    kernels = [
        f"    {impl}: {us} us, {count} x {name}"
        for impl, found in row.get("kernels", {}).items()
        for name, count, us in found[:4]
    ]
    sizes = f"{row['sizes'][row['rows'] == 'many']} rows of {', '.join(row['inputs'])}"
    return "\n".join(
        (
            f"{row['case']}: {_worst(row)} x eager{', with its backward' if row['grad'] else ''}, {sizes}",
            row["source"],
            *kernels,
        )
    )
