"""Tables of ratios, and the JSON file beside them."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.table import Table

Row = dict[str, Any]
RESULTS = Path(__file__).parent / "results"


def place(suite: str, out: str | None) -> Path:
    """The file that a run's rows are kept in: the one asked for, else one of the results, named by date and suite."""
    return Path(out) if out else RESULTS / f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d-%H%M}-{suite}.json"


def write(suite: str, rows: list[Row], command: Sequence[str], path: Path) -> None:
    """Keep the rows with the date, the versions, the machine and the command that made them."""
    now = datetime.datetime.now(datetime.UTC)
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = {
        "suite": suite,
        "date": now.isoformat(timespec="seconds"),
        "command": "python -m benchmarks " + " ".join(command),
        "versions": {name: _version(name) for name in ("torch", "braze", "transformers", "timm", "numpy")}
        | {"python": platform.python_version(), "commit": _commit()},
        "machine": {
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)),
            "system": platform.platform(),
        },
        "rows": rows,
    }
    path.write_text(json.dumps(facts, indent=1) + "\n")


def models_table(rows: list[Row], impls: Sequence[str]) -> Table:
    """Milliseconds, speed against eager, error against float64 in units of eager's error, graphs and breaks."""
    table = Table(
        title="One call, milliseconds (speed against eager), median of interleaved rounds",
        title_justify="left",
    )
    table.add_column("model")
    for impl in impls:
        table.add_column(impl, justify="right")
    for impl in impls:
        if impl != "eager":
            table.add_column(f"{impl}\nerror / eager's (worst)", justify="right")
            table.add_column(f"{impl}\ngraphs, breaks", justify="right")
            table.add_column(f"{impl}\ncompile s", justify="right")
    speeds: dict[str, list[float]] = {impl: [] for impl in impls}
    for model, here in grouped(rows, "model"):
        eager = here.get("eager", {})
        cells = []
        for impl in impls:
            row = here.get(impl, {})
            if "milliseconds" not in row:
                cells.append("failed")
                continue
            speed = _speed(eager, row)
            if speed and impl != "eager":
                speeds[impl].append(speed)
            cells.append(
                f"{row['milliseconds']:.1f}" + (f" ({speed:.2f})" if speed and impl != "eager" else "")
            )
        for impl in impls:
            if impl == "eager":
                continue
            row = here.get(impl, {})
            cells.append(_error(row))
            cells.append(f"{row.get('graphs', '?')}, {row.get('breaks', '?')}")
            cells.append(f"{row['compile_seconds']:.2f}" if "compile_seconds" in row else "")
        table.add_row(model, *cells)
    table.add_section()
    means = [f"{statistics.geometric_mean(speeds[i]):.3f}" if speeds[i] else "" for i in impls]
    table.add_row("geometric mean", *means)
    return table


def gpu_models_table(rows: list[Row], impls: Sequence[str]) -> Table:
    """Milliseconds, speed against eager, share of eager's peak; seconds of first calls and milliseconds that the device works."""
    table = Table(
        title="One call, milliseconds (speed against eager; peak against eager's)", title_justify="left"
    )
    table.add_column("model")
    for title in (*impls, *(f"{impl}\nfirst s, device ms" for impl in impls)):
        table.add_column(title, justify="right")
    speeds: dict[str, list[float]] = {impl: [] for impl in impls}
    for model, here in grouped(rows, "model"):
        eager, cells = here.get("eager", {}), []
        for impl in impls:
            row = here.get(impl, {})
            if "milliseconds" not in row:
                cells.append("failed")
                continue
            speed = _speed(eager, row)
            speeds[impl] += [speed] if speed else []
            beside = f" ({speed:.2f}; {row['peak_bytes'] / eager['peak_bytes']:.2f})" if speed else ""
            cells.append(f"{row['milliseconds']:.2f}{beside}")
        done = (here[impl] if "gpu_us" in here.get(impl, {}) else None for impl in impls)
        cells += [f"{row['compile_seconds']:.1f}, {row['gpu_us'] / 1e3:.2f}" if row else "" for row in done]
        table.add_row(model, *cells)
    table.add_section()
    means = [f"({statistics.geometric_mean(speeds[i]):.3f})" if speeds[i] else "" for i in impls]
    table.add_row("geometric mean", *means)
    return table


def memory_table(rows: list[Row], impls: Sequence[str]) -> Table:
    """Peak megabytes of a training step, the share of eager's, and milliseconds."""
    table = Table(
        title="Peak memory of forward and backward, MB (share of eager's), parameters not counted; milliseconds",
        title_justify="left",
    )
    table.add_column("model")
    for impl in impls:
        table.add_column(impl, justify="right")
    for model, here in grouped(rows, "model"):
        eager = here.get("eager", {}).get("peak_bytes")
        cells = []
        for impl in impls:
            peak = here.get(impl, {}).get("peak_bytes")
            if peak is None:
                cells.append("failed")
                continue
            share = f" ({peak / eager:.2f})" if eager and impl != "eager" else ""
            taken = here[impl].get("milliseconds")
            cells.append(f"{peak / 1e6:.1f}{share}" + (f"; {taken:.0f}" if taken is not None else ""))
        table.add_row(model, *cells)
    return table


def sweep_table(rows: list[Row]) -> Table:
    """Simulated and measured peak of each model, megabytes, per budget."""
    budgets = list(dict.fromkeys(row["budget"] for row in rows))
    table = Table(title="Peak under memory_budget, MB: simulated; measured", title_justify="left")
    table.add_column("model")
    for budget in budgets:
        table.add_column(f"{budget:g}", justify="right")
    for model in dict.fromkeys(row["model"] for row in rows):
        here = {row["budget"]: row for row in rows if row["model"] == model}
        table.add_row(model, *[_swept(here[budget]) for budget in budgets])
    return table


def _swept(row: Row) -> str:
    if "peak_bytes" not in row:
        return "failed"
    return f"{row.get('simulated_bytes', 0) / 1e6:.1f}; {row['peak_bytes'] / 1e6:.1f}"


def overhead_table(rows: list[Row], impls: Sequence[str], what: dict[str, str], bare: Sequence[str]) -> Table:
    """Microseconds per call, and what each adds to eager; in a ``bare`` case all of a call is overhead.

    The guard walk's own time stands in a column of its own.
    """
    table = Table(title="One call, microseconds (more than eager's)", title_justify="left")
    table.add_column("case")
    for impl in impls:
        table.add_column(impl, justify="right")
    walked = [impl for impl in impls if any("walk_us" in row for row in rows if row["impl"] == impl)]
    for impl in walked:
        table.add_column(f"{impl}: guard walk", justify="right")
    for case, here in grouped(rows, "case"):
        eager = here.get("eager", {}).get("microseconds")
        cells = []
        for impl in impls:
            taken = here.get(impl, {}).get("microseconds")
            added = (
                f" ({taken - eager:+.2f})" if taken and eager and impl != "eager" and case not in bare else ""
            )
            cells.append(f"{taken:.2f}{added}" if taken else "failed")
        walks = (here.get(impl, {}).get("walk_us") for impl in walked)
        cells += [f"{walk:.2f}" if walk is not None else "" for walk in walks]
        table.add_row(what[case], *cells)
    return table


def kernels_table(rows: list[Row], impls: Sequence[str]) -> Table:
    """Percent of the copy bandwidth and milliseconds of each kernel, the host's microseconds a call; the geometric means below."""
    table = Table(
        title="Percent of the bandwidth of a copy (milliseconds on the device; !: the host's in them)",
        title_justify="left",
    )
    table.add_column("kernel")
    for impl in impls:
        table.add_column(impl, justify="right")
    for impl in impls:
        table.add_column(f"{impl}, host us", justify="right")
    table.add_column("difference", justify="right")
    shares: dict[str, list[float]] = {impl: [] for impl in impls}
    for case, here in grouped(rows, "case"):
        cells = []
        for impl in impls:
            share = here.get(impl, {}).get("share")
            late = "" if here.get(impl, {}).get("queued", True) else "!"
            cells.append(f"{100 * share:.0f} ({here[impl]['ms']:.3f}{late})" if share else "failed")
            shares[impl] += [share] if share else []
        host = (here.get(impl, {}).get("host_us") for impl in impls)
        cells += [f"{us:.0f}" if us is not None else "" for us in host]
        apart = here.get("braze", {}).get("difference")
        table.add_row(case, *cells, "" if apart is None else f"{apart:.1e}")
    means = (f"{100 * statistics.geometric_mean(shares[i]):.0f}" if shares[i] else "" for i in impls)
    table.add_row("geometric mean", *means, *("" for _ in impls), "")
    return table


def cudagraphs_table(rows: list[Row], impls: Sequence[str]) -> Table:
    """Microseconds a call, speed against eager, and of the last implementation the device's time in kernels with a call's share of it, seconds of the first calls (those that recording
    adds beside the one before), memory beyond the model beside that of the one before, with the model as its share, recordings."""
    table = Table(title="One call, microseconds (speed against eager)", title_justify="left")
    table.add_column("case")
    for impl in impls:
        table.add_column(impl, justify="right")
    for column in (
        "in kernels",
        "first calls, s (added)",
        "peak, MB (without)",
        "whole peak, MB (share)",
        "recordings",
        "difference",
    ):
        table.add_column(column, justify="right")
    speeds: dict[str, list[float]] = {impl: [] for impl in impls}
    for case, here in grouped(rows, "case"):
        cells = []
        eager = here.get("eager", {}).get("us")
        for impl in impls:
            us = here.get(impl, {}).get("us")
            cells.append("failed" if us is None else f"{us:.1f}" + (f" ({eager / us:.2f})" if eager else ""))
            speeds[impl] += [eager / us] if us and eager else []
        last = here.get(impls[-1], {})
        if "us" in last:
            before = here.get(impls[-2], {}) if len(impls) > 1 else {}
            without, warm = before.get("peak_mb"), before.get("warm_s")
            peak = f"{last['peak_mb']:.0f}" + (f" ({without:.0f})" if without is not None else "")
            added = f" ({last['warm_s'] - warm:+.2f})" if warm is not None else ""
            kernels = last.get("gpu_us")
            cells += [f"{kernels:.1f} ({last['us'] / kernels:.2f})" if kernels else ""]
            cells += [f"{last['first_s']:.1f} + {last['warm_s']:.2f}{added}", peak, _whole(last, before)]
            cells += [str(last["recordings"]), f"{last['difference']:.1e}"]
        table.add_row(case, *cells)
    means = (f"({statistics.geometric_mean(speeds[i]):.2f})" if speeds[i] else "" for i in impls)
    table.add_row("geometric mean", *means)
    return table


def _whole(last: Row, before: Row) -> str:
    """A row's whole peak, and its share of another's."""
    if "whole_mb" not in last:
        return ""
    without = before.get("whole_mb")
    return f"{last['whole_mb']:.0f}" + (f" ({last['whole_mb'] / without:.2f})" if without else "")


def compile_time_table(rows: list[Row], impls: Sequence[str]) -> Table:
    """Seconds of each kind of first call, and braze's share of torch.compile's."""
    kinds = {
        "capture": "capture alone",
        "capture_again": "capture again",
        "cold": "cold",
        "warm": "warm cache",
    }
    if not any("cold" in row or "warm" in row for row in rows):
        kinds = {kind: title for kind, title in kinds.items() if kind.startswith("capture")}
    # the processor's own time beside the clock's: it says more on a machine that others use
    kinds = {
        name: f"{title}{suffix}"
        for kind, title in kinds.items()
        for name, suffix in ((kind, ""), (f"{kind}_cpu", ", cpu"))
        if name == kind or any(name in row for row in rows)
    }
    shown = [impl for impl in impls if impl != "eager"]
    table = Table(
        title=f"First call less a later one, seconds: {', '.join(shown)} (ratio)", title_justify="left"
    )
    table.add_column("model")
    for title in kinds.values():
        table.add_column(title, justify="right", no_wrap=True)
    ratios: dict[str, list[float]] = {kind: [] for kind in kinds}
    for model, here in grouped(rows, "model"):
        cells = []
        for kind in kinds:
            taken = [f"{here[impl][kind]:.2f}" if kind in here.get(impl, {}) else "failed" for impl in shown]
            ratio = _ratio(here, kind)
            if ratio:
                ratios[kind].append(ratio)
            cells.append(", ".join(taken) + (f" ({ratio:.3f})" if ratio else ""))
        table.add_row(model, *cells)
    table.add_section()
    means = (f"({statistics.geometric_mean(ratios[kind]):.3f})" if ratios[kind] else "" for kind in kinds)
    table.add_row("geometric mean", *means)
    return table


def failures(rows: list[Row]) -> list[str]:
    """One line for each thing that could not be measured."""
    return [
        f"{row.get('model', row.get('case'))}: {row['failed'].splitlines()[0]}"
        for row in rows
        if "failed" in row
    ]


def _ratio(here: dict[str, Row], kind: str) -> float | None:
    ours, theirs = here.get("braze", {}).get(kind), here.get("torch", {}).get(kind)
    return ours / theirs if ours and theirs else None


def _speed(eager: Row, row: Row) -> float | None:
    """Eager's time over this one's, round by round, since both of a round met the same machine."""
    if "rounds_ms" not in eager or "rounds_ms" not in row:
        return None
    return statistics.median(a / b for a, b in zip(eager["rounds_ms"], row["rounds_ms"]))


def _error(row: Row) -> str:
    """Of all outputs, and in brackets of the one that compares worst."""
    if "error" not in row:
        return ""
    ratio = f"{row['error'] / row['eager_error']:.2f}" if row["eager_error"] else f"{row['error']:.1e}"
    return ratio + (f" ({row['worst_ratio']:.2f})" if "worst_ratio" in row else "")


def grouped(rows: list[Row], key: str) -> Iterable[tuple[str, dict[str, Row]]]:
    """Rows by a key's value, in order, each as implementation -> row."""
    groups: dict[str, dict[str, Row]] = {}
    for row in rows:
        groups.setdefault(row[key], {})[row["impl"]] = row
    return groups.items()


def _version(name: str) -> str:
    """What the module says of itself, which tells builds apart; else what was installed under that name."""
    said = getattr(sys.modules.get(name), "__version__", None)
    if said is not None:
        return str(said)
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=RESULTS.parent
    )
    return found.stdout.strip() or "unknown"


def _processor() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
