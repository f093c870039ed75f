"""The ledger of runs: how many programs each machine has run, from which seeds, and what they found; docs/trust.md shows it."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import subprocess
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import Any

import braze
from tests.fuzz.failures import ROOT
from tests.fuzz.runner import Asked, Tally

FILE = ROOT / "benchmarks" / "results" / "fuzz-ledger.json"
PAGE = ROOT / "docs" / "trust.md"
#: the part of the page that is written from the ledger
TABLE = re.compile(r"(<!-- ledger -->\n).*?(<!-- end -->)", re.DOTALL)


def entry(asked: Asked, tally: Tally, minutes: float) -> dict[str, Any]:
    """One run, for the ledger."""
    return {
        "machine": asked.machine,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "first_seed": asked.first,
        "programs": tally.programs,
        "counted": dict(sorted(tally.tags.items())),
        "failures": len(tally.found),
        "known": sorted(tally.known),
        "kinds": {s: sum(f.signature() == s for _, f in tally.found) for s in sorted(tally.files)},
        "minutes": round(minutes, 1),
        "versions": {
            "braze": braze.__version__,
            "commit": commit(),
            "torch": metadata.version("torch"),
            "python": platform.python_version(),
        },
        "cores": os.cpu_count(),
    }


def commit() -> str:
    """The commit that ran; with a plus where files differ from it."""
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return said.stdout.strip() or "unknown"


def append(run: dict[str, Any], file: Path = FILE) -> None:
    """Add a run, and write the page's table anew."""
    runs = read(file)
    runs.append(run)
    file.write_text(json.dumps({"suite": "fuzz", "rows": runs}, indent=1) + "\n")


def read(file: Path = FILE) -> list[dict[str, Any]]:
    return json.loads(file.read_text())["rows"] if file.exists() else []


#: how many of a machine's runs, the latest, and of the kinds of its programs, the most common, the page names
RUNS, KINDS = 6, 8
#: two of them would begin bold print
UNDERLINES = "\\_\\_"


def table(runs: list[dict[str, Any]]) -> str:
    """What has run, by version of braze and machine, and below what kinds of programs those were."""
    lines = [
        "| braze | machine | programs | failures, by seed | latest runs: first seed, programs |",
        "|---|---|---|---|---|",
    ]
    kinds = ["", "Among these programs were:", ""]
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault((run["versions"]["braze"], run["machine"]), []).append(run)
    for (version, machine), own in sorted(groups.items()):
        counted: Counter[str] = Counter()
        for run in own:
            counted.update(run["counted"])
        parts = [f"{count:,} {tag.replace('__', UNDERLINES)}" for tag, count in counted.most_common(KINDS)]
        more = [f"{len(counted) - KINDS} kinds more"] if len(counted) > KINDS else []
        kinds.append(f"- {machine}: {', '.join(parts + more) or 'no kinds of their own'}")
        seeds = "; ".join(
            f"{run['first_seed']}, {run['programs']:,} ({run['versions']['commit']})" for run in own[-RUNS:]
        )
        programs, failures = (sum(run[key] for run in own) for key in ("programs", "failures"))
        lines.append(f"| {version} | {machine} | {programs:,} | {failures:,} | {seeds} |")
    return "\n".join([*lines, *kinds])


def write_page(page: Path = PAGE, file: Path = FILE) -> None:
    """Write the table of docs/trust.md from the ledger."""
    page.write_text(with_table(page.read_text(), read(file)))


def with_table(page: str, runs: list[dict[str, Any]]) -> str:
    return TABLE.sub(lambda found: f"{found[1]}{table(runs)}\n{found[2]}", page)
