"""Which seeded places this process has come by. Imported by any Python process of a probed tree, before anything else."""

from __future__ import annotations

import os
import sys

#: numbers of places, since they were last taken
seen: set[int] = set()
#: a test's own process says so and takes what it has seen itself; others write it down as they come by
in_test_process = False


def hit(number: int) -> bool:
    """A place in the probed tree calls this, and goes on with its own value since this one is false."""
    if number not in seen:
        seen.add(number)
        if not in_test_process:
            write(number)
    return False


def write(number: int) -> None:
    """One line for a process that a test has started: the place, and the test."""
    with open(os.environ["MUTANTS_HITS"], "a") as file:
        file.write(f"{number}\t{os.environ.get('PYTEST_CURRENT_TEST', '')}\n")


def install() -> None:
    if "MUTANTS_HITS" in os.environ:
        sys.braze_mutants_hit = hit  # type: ignore[attr-defined]
