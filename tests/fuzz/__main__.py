"""The command line: ``python -m tests.fuzz tensors --minutes 5``, ``python -m tests.fuzz all``, ``python -m tests.fuzz page``."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from pathlib import Path

from tests.fuzz import ledger
from tests.fuzz.failures import ROOT
from tests.fuzz.machine import MACHINES
from tests.fuzz.runner import Asked, run
from tests.fuzz.tensors.generate import DEVICE


def main() -> int:
    """Run machines; 1 if anything was found."""
    arguments = parsed()
    os.environ[DEVICE] = arguments.device
    if arguments.machine == "page":
        ledger.write_page()
        return 0
    everyone = [name for name, row in MACHINES.items() if row.share]
    names = everyone if arguments.machine == "all" else [arguments.machine]
    whole = sum(MACHINES[name].share or 1 for name in names)
    first = secrets.randbelow(10**9) if arguments.seed is None else arguments.seed
    failed = 0
    for name in names:
        seconds = arguments.minutes * 60 * (MACHINES[name].share or 1) / whole
        count = arguments.count
        if count is not None and arguments.machine == "all":
            count = max(count // MACHINES[name].cost, 1)
        asked = Asked(
            name, first, seconds, arguments.jobs, arguments.out, count, arguments.minimise, arguments.files
        )
        failed += told(asked, arguments.record)
    return 1 if failed else 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "machine", choices=[*MACHINES, "all", "page"], help="page: write docs/trust.md's table"
    )
    parser.add_argument("--minutes", type=float, default=5, help="for all machines together (default: 5)")
    parser.add_argument(
        "--seed", type=int, help="of the first program (default: another at each run, printed)"
    )
    parser.add_argument(
        "--count",
        type=int,
        help="programs at most, of each machine (of all: fewer of those whose programs are large)",
    )
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "fuzz-failures", help="folder for files of failures"
    )
    parser.add_argument(
        "--minimise", type=float, default=30, help="seconds to make a failure small (default: 30)"
    )
    parser.add_argument("--files", type=int, default=1, help="files per kind of failure (default: 1)")
    parser.add_argument(
        "--device", default=os.environ.get(DEVICE, "cpu"), help="where programs of tensors run (default: cpu)"
    )
    parser.add_argument("--record", action="store_true", help="add the run to the ledger")
    return parser.parse_args()


def told(asked: Asked, record: bool) -> int:
    """Run one machine, say what came of it; how many programs failed."""
    about = MACHINES[asked.machine].about
    print(f"{asked.machine} ({about}): seeds from {asked.first}, {asked.jobs} processes", flush=True)
    began = time.monotonic()
    tally = run(asked)
    run_ = ledger.entry(asked, tally, (time.monotonic() - began) / 60)
    counted = "".join(f", {count} {tag}" for tag, count in tally.tags.most_common())
    known = f", {len(tally.known)} known" if tally.known else ""
    print(
        f"{asked.machine}: {tally.programs} programs{counted}; {len(tally.found)} failed{known}", flush=True
    )
    for signature, count in run_["kinds"].items():
        seeds = [str(seed) for seed, found in tally.found if found.signature() == signature]
        print(
            f"  {count} x {signature}\n    seeds {', '.join(seeds[:8])}; {', '.join(tally.files[signature])}"
        )
    if record:
        ledger.append(run_)
        ledger.write_page()
    return len(tally.found)


if __name__ == "__main__":
    sys.exit(main())
