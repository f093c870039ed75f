"""``python -m tests.fuzz.mutants``: seed bugs, one at a time, and count who notices. ``list``, ``reach``, ``judge``, ``report``.

Results are lines of JSON in the state folder, written as they come; what is there already is not judged again.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.fuzz.failures import ROOT
from tests.fuzz.mutants import places
from tests.fuzz.mutants import reach as reaching
from tests.fuzz.mutants import tree as trees
from tests.fuzz.mutants.choose import chosen
from tests.fuzz.mutants.equivalent import EQUIVALENT
from tests.fuzz.mutants.judge import Judge
from tests.fuzz.mutants.operators import Mutant, mutants_of
from tests.fuzz.mutants.processes import Place

#: parts of the seconds for a bug, one after another: many are noticed at once, and the time of all may be short
SHARES = (0.2, 1.0)


def main() -> int:
    arguments = parsed()
    end = time.monotonic() + arguments.minutes * 60
    arguments.state.mkdir(parents=True, exist_ok=True)
    if arguments.verb == "report":
        return reported(arguments.state)
    mutants = unnoticed(arguments.state) if arguments.again else chosen(arguments.seed, arguments.count)
    if arguments.only:
        mutants = [m for m in mutants if m.id in arguments.only.split(",")]
    if arguments.verb == "list":
        for m in mutants:
            print(f"{m.id} {m.stage}: {m.file}:{m.line} {m.function}: {m.operator}: {m.before} => {m.after}")
        return 0
    work = Path(tempfile.mkdtemp(prefix="mutants-"))
    try:
        reach = reach_of(arguments, mutants, work, end)
        if arguments.verb != "reach":
            for share in SHARES:
                judge_all(arguments, mine(arguments, mutants, share), reach, work, end, share)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return reported(arguments.state)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.mutants", description=__doc__)
    parser.add_argument("verb", nargs="?", default="judge", choices=["list", "reach", "judge", "report"])
    parser.add_argument("--seed", type=int, default=1, help="by which bugs are chosen (default: 1)")
    parser.add_argument("--count", type=int, default=220, help="bugs (default: 220)")
    parser.add_argument("--only", help="ids of bugs, with commas")
    parser.add_argument("--shard", default="0/1", help="k/n: every n-th bug from the k-th on")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--minutes", type=float, default=240, help="no bug is begun later")
    parser.add_argument(
        "--watch", type=float, default=120, help="minutes of tests to see which come by which place"
    )
    parser.add_argument("--each", type=float, default=150, help="seconds of tests for a bug (default: 150)")
    parser.add_argument("--fuzz", type=float, default=60, help="seconds of machines for a bug (default: 60)")
    parser.add_argument("--tests", help="test files to look at, with commas (default: all)")
    parser.add_argument("--state", type=Path, default=ROOT / ".mutants", help="folder of results")
    parser.add_argument("--survivors", action="store_true", help="judge those again that nobody noticed")
    parser.add_argument(
        "--again",
        action="store_true",
        help="judge the bugs that nobody noticed by tests that came since (--tests)",
    )
    arguments = parser.parse_args()
    arguments.survivors |= arguments.again
    arguments.mark = "again-" if arguments.again else ""
    return arguments


def mine(arguments: argparse.Namespace, mutants: list[Mutant], share: float) -> list[Mutant]:
    """Those of this shard that have no result yet, or none of so large a share; what is judged again has met least first."""
    k, n = map(int, arguments.shard.split("/"))
    last = {r["id"]: r for r in results(arguments.state)}

    def open_(m: Mutant) -> bool:
        r = last.get(m.id)
        return r is None or (not r["noticed"] and (arguments.survivors or r.get("share", 1) < share))

    return [m for m in mutants[k::n] if open_(m)]


def unnoticed(state: Path) -> list[Mutant]:
    """The bugs that have a result and were not noticed, as far as their code is still there, whichever would be chosen now."""
    ids = {r["id"] for r in results(state) if not r["noticed"]}
    return [m for stage, file in places.files() for m in mutants_of(stage, file) if m.id in ids]


def reach_of(arguments: argparse.Namespace, mutants: list[Mutant], work: Path, end: float) -> reaching.Reach:
    """As it was kept, or found now."""
    file = arguments.state / f"{arguments.mark}reach.json.gz"
    if file.exists() and arguments.verb != "reach":
        kept = reaching.Reach.load(file)
        if {m.id for m in mutants} <= set(kept.mutants):
            return kept
        print("other bugs are to be seeded than were looked for: the tests run again", flush=True)
    began = time.monotonic()
    tests = arguments.tests.split(",") if arguments.tests else None
    limit = min(end - began, arguments.watch * 60)
    found = reaching.reached(mutants, work, arguments.jobs, tests, limit, machines=arguments.fuzz > 0)
    found.save(file)
    unreached = sum(not found.passing.get(m.id) for m in mutants)
    same = sum(not found.tests_of(m.id) for m in mutants) - unreached
    print(
        f"{len(found.seconds)} tests in {time.monotonic() - began:.0f} s, {len(found.failing)} of them failed or were skipped; "
        f"{unreached} of {len(mutants)} places are reached by none, {same} more bugs would change no value in any; seeds that fail without a bug: {found.seeds}", flush=True
    )  # fmt: skip
    return found


def judge_all(
    arguments: argparse.Namespace,
    mutants: list[Mutant],
    reach: reaching.Reach,
    work: Path,
    end: float,
    share: float,
) -> None:
    """Deal the bugs to the jobs, for so large a share of the seconds."""
    met = {r["id"]: r.get("met", ()) for r in results(arguments.state) if not r["noticed"]}
    waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
    for mutant in mutants:
        waiting.put(mutant)
    pristine, lock = trees.pristine(work / "pristine"), threading.Lock()
    name = f"results-{arguments.mark}{arguments.shard.replace('/', '-of-')}.jsonl"
    out = (arguments.state / name).open("a", buffering=1)

    def job(number: int) -> None:
        place = Place(
            trees.copied(work / f"tree-{number}", pristine, compiled=True),
            work / f"job-{number}",
            work / "pool",
        )
        judge = Judge(reach, place, pristine, share * arguments.each, share * arguments.fuzz, end)
        while time.monotonic() < end:
            try:
                mutant = waiting.get_nowait()
            except queue.Empty:
                return
            result = judge.judged(mutant, met.get(mutant.id, ()))
            if result is not None:
                result["share"] = share
                with lock:
                    out.write(json.dumps(result) + "\n")
                    print(line_of(result), flush=True)

    threads = [
        threading.Thread(target=job, args=(k,)) for k in range(min(arguments.jobs, max(len(mutants), 1)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    out.close()


def line_of(result: dict[str, Any]) -> str:
    said = (
        f"{result['how']}: {result['by']}"
        if result["noticed"]
        else f"NOT NOTICED by {len(result['met'])}; it would matter in {result['tests']} tests, {result['passing']} come by"
    )
    return f"{result['id']} {result['file']}:{result['line']} {result['operator']} ({result['seconds']} s) {said}"


def results(state: Path) -> list[dict[str, Any]]:
    """The last result of each bug."""
    found: dict[str, dict[str, Any]] = {}
    for file in sorted(state.glob("results-*.jsonl")):
        for line in file.read_text().splitlines():
            result = json.loads(line)
            if result["id"] not in EQUIVALENT and not found.get(result["id"], {}).get("noticed"):
                found[result["id"]] = result
    return list(found.values())


def reported(state: Path) -> int:
    """Say how many were noticed, by stage; 1 if fewer than 98 in 100."""
    all_ = results(state)
    survivors = [r for r in all_ if not r["noticed"]]
    for r in survivors:
        print(f"\n{line_of(r)}\n{r['diff']}")
    by_stage, missed = Counter(r["stage"] for r in all_), Counter(r["stage"] for r in survivors)
    for stage, count in by_stage.items():
        print(f"{stage}: {count - missed[stage]} of {count}")
    how = ", ".join(f"{n} {h}" for h, n in Counter(r["how"] for r in all_ if r["noticed"]).most_common())
    share = 1 - len(survivors) / max(len(all_), 1)
    print(
        f"{len(all_) - len(survivors)} of {len(all_)} bugs were noticed ({share:.1%}): {how}; {len(EQUIVALENT)} set apart as none"
    )
    return 0 if share >= 0.98 else 1


if __name__ == "__main__":
    sys.exit(main())
